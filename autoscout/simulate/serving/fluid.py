"""The serving engine as a fluid: the mean behaviour of the event simulation, for tens of thousands of configurations at
once. It uses the same step times, but does not simulate single requests.

A fixed batch is its prompts, then decoding at the mean context. lasting.py handles sustained loads, except a closed
loop of equal requests, whose users stay in step: their requests end and begin together. With n of them running, each
brings input/output prompt tokens to a decode step, so a step takes

t(n) = (1 - φ) · decode(n) + φ · decode and prompts together, φ = min(1, n/output · steps of a prompt),

and Little's law closes the loop: n = users - waiting users.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import ndtri

from autoscout.simulate.serving.felt import Felt
from autoscout.simulate.serving.lasting import RUNNING, balance, load_of
from autoscout.simulate.serving.latencies import QUANTILES
from autoscout.simulate.serving.lockstep import alone_s, waits_s
from autoscout.simulate.serving.setup import Setup
from autoscout.simulate.serving.steps import (
    beyond_graphs,
    decode_parts_s,
    decode_step_s,
    host_s,
    prefill_step_s,
    together_s,
    under_way_s,
)

_ROUNDS = 12  # fixed-point iterations (damped by half)
_PAUSES = (2.5, 10.0)  # seconds of prompts per answer: up to 2.5 all users stay in step, from 10 on none do
_BLOCK = 1 << 14  # configurations per block, so that temporaries stay in the cache


def fluid(s: Setup, wanted: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """Our metric names → (n,), the parts of a decode step as "part:weights" … in seconds, and for a sustained load
    "load" (its rate over the highest possible one), "ending" (as in Felt) and "others_s" (as in EngineShapes). NaN:
    does not fit. `wanted`: the quantiles to compute, which are most of the cost; None: all."""
    flat = all(lengths[0] == lengths[100] for lengths in (s.input_quantiles, s.output_quantiles))
    fixed = s.batch > 0
    in_step = ~fixed & (s.concurrency > 0) & (s.length_spread == 0) & flat
    models = ((fixed, _fixed_batch), (in_step, _in_step), (~fixed & ~in_step, _apart))
    at_once = np.maximum(s.batch, s.concurrency)
    s = replace(s, replicas=np.where(at_once > 0, np.minimum(s.replicas, at_once), s.replicas))  # the others are idle
    out: dict[str, np.ndarray] = {}
    for rows, model in ((np.flatnonzero(which), model) for which, model in models):
        for start in range(0, len(rows), _BLOCK):
            block = rows[start : start + _BLOCK]
            for name, values in model(s.of(block), wanted).items():
                out.setdefault(name, np.full(len(fixed), np.nan))[block] = values
    return out


def _own(s: Setup) -> tuple[np.ndarray, np.ndarray]:
    """(prompt tokens computed per request, cache tokens left after the common prefix)."""
    cached = np.where(s.prefix_caching, s.shared_prefix // s.block * s.block, 0.0)
    cached = np.minimum(cached, s.input_len - 1)
    return s.input_len - cached, np.maximum(s.memory.kv_tokens - cached, 1.0)


def _fixed_batch(s: Setup, wanted: Collection[str] | None) -> dict[str, np.ndarray]:
    """All requests at once, on `replicas` engines."""
    e, old = s.engine, s.version == 0
    batch = np.ceil(s.batch / s.replicas)
    tokens, room = _own(s)
    fits = room >= tokens + s.output_len
    most = np.minimum(np.minimum(batch, s.max_seqs), np.maximum(room / (tokens + s.output_len / 2), 1.0))
    at_once = np.where(
        tokens + s.output_len <= room / np.minimum(batch, s.max_seqs), np.minimum(batch, s.max_seqs), most
    )
    # Prompts: whole ones for version 0, else tokens that fill steps.
    first = np.maximum(np.minimum(at_once, np.floor(room / tokens)), 1.0)
    per_step = np.where(
        old | ~s.chunked, np.maximum(np.floor(s.batched_tokens / tokens), 1.0) * e.pp, s.batched_tokens * e.pp / tokens
    )
    per_step = np.minimum(per_step, first)
    steps = np.ceil(first / per_step - 1e-9)
    pairs = tokens * ((s.input_len - tokens) + (tokens + 1) / 2)
    beside = np.where(old, 0.0, first / 2 * (1 - 1 / steps))
    step = prefill_step_s(
        e, per_step, per_step * tokens, per_step * pairs, beside, beside * s.input_len, s.batched_tokens
    )
    last = first - (steps - 1) * per_step
    final = prefill_step_s(e, last, last * tokens, last * pairs, 2 * beside, 2 * beside * s.input_len, s.batched_tokens)
    prompts = (steps - 1) * step + final
    context = s.input_len + s.output_len / 2
    decode = decode_step_s(e, at_once, at_once * context)
    waves = batch / at_once
    again = np.maximum(waves - 1, 0.0)  # later waves also read prompts, some of them twice
    total = prompts * waves + decode * (s.output_len - 1) * waves
    total = total + again * prompts * np.where(
        at_once < np.minimum(batch, s.max_seqs), s.output_len / 2 / s.input_len, 0.0
    )
    # Mean number of the step in which a prompt ends: several whole prompts share a step, or one prompt takes several.
    ends = np.where(per_step >= 1, (steps + 1) / 2, np.minimum(steps, (first + 1) / (2 * per_step) + 0.25))
    way = under_way_s(e, np.minimum(tokens, per_step * tokens), s.input_len, final, s.batched_tokens)
    ttft = (ends - 1) * step + final + way + again / 2 * (prompts + decode * s.output_len)
    stalled = np.where(old, (steps - 1) / 2 * step, (steps - 1) / 2 * (step - decode))  # delay by other prompts
    smooth = decode + stalled / np.maximum(s.output_len - 1, 1)
    preempted = at_once < np.minimum(batch, s.max_seqs)
    tpot = np.where(preempted, (total - ttft) / np.maximum(s.output_len - 1, 1), smooth)
    spread = (steps * step + again * (prompts + decode * s.output_len)) / np.maximum(ttft, 1e-12)
    several = np.where((steps > 1) | (waves > 1), 1.0, 0.0)
    at: Quantiles = {
        "ttft": lambda q: ttft * (1 + (spread - 1) * (2 * q - 1) * several),
        "tpot": lambda _: tpot,
        "e2el": lambda _: total,
        "itl": lambda q: np.where(q > 1 - (steps - 1) / np.maximum(s.output_len, 1), step, decode * e.per_step),
    }
    found = _latencies(s, {"ttft": ttft, "tpot": tpot, "itl": tpot * e.per_step, "e2el": total}, at, wanted)
    ok = fits & (batch > 0)
    return _finish(s, found, s.batch / s.replicas / total, at_once, context, ok)


def _apart(s: Setup, wanted: Collection[str] | None) -> dict[str, np.ndarray]:
    """Requests that are out of step, on `replicas` engines that share them evenly."""
    tokens, room = _own(s)
    load = load_of(s, tokens, room, s.front_end_s + s.request_s)
    b = balance(load)
    steps = load.inputs.mean(b.read.steps)
    way = under_way_s(s.engine, tokens / steps, s.input_len, b.read.moments[0] / steps, s.batched_tokens)
    felt = Felt(load, b, way)
    at: Quantiles = {"ttft": felt.ttft_at, "tpot": felt.tpot_at, "e2el": felt.e2el_at, "itl": felt.itl_at}
    mean = {"ttft": felt.ttft, "tpot": felt.tpot, "itl": felt.itl, "e2el": felt.e2el}
    found = _latencies(s, mean, at, wanted) | {"load": felt.use, "ending": felt.ending}
    if np.any(s.engine.meeting > 1):
        found["others_s"] = b.waited
    ok = (room >= tokens + s.output_len) & ((load.users > 0) | (load.rate > 0))
    return _finish(s, found, felt.seen, b.running, load.context, ok & (s.chunked | (tokens <= s.batched_tokens)))


def _in_step(s: Setup, wanted: Collection[str] | None) -> dict[str, np.ndarray]:
    """A closed loop of equal requests, on `replicas` engines that share its users evenly. If the engines read prompts
    almost without a pause, requests cannot stay in step; between the two extremes the result is a blend."""
    e = s.engine
    tokens, room = _own(s)
    context = s.input_len + s.output_len / 2
    pairs = tokens * ((s.input_len - tokens) + (tokens + 1) / 2)
    in_memory = RUNNING * room / (tokens + s.output_len * (1 + s.reserved) / 2)
    users = s.concurrency / s.replicas
    most = np.minimum(np.minimum(s.max_seqs, np.maximum(in_memory, 1.0)), users)
    meet, turn = bool(np.any(e.meeting > 1)), np.where(s.version == 1, s.held + 1, 1.0)
    at_once = np.minimum(tokens, s.batched_tokens)
    prompt = alone_s(e, at_once, at_once / tokens * pairs, most, most * context, s.batched_tokens) if meet else 0.0

    def steps(n: np.ndarray) -> tuple[np.ndarray, ...]:
        """With n requests running: (seconds per token, of a plain step, of a step with prompts, share of steps with
        prompts, prompts in one of those, steps that a prompt takes)."""
        free = np.maximum(s.batched_tokens * e.pp - n, 1.0)
        chunks = np.where(s.chunked, np.maximum(tokens / np.minimum(free, s.long_prompt * e.pp), 1.0), 1.0)
        starts = n * e.per_step / np.maximum(s.output_len, 1.0)  # prompts that begin per step
        group = np.clip(np.floor(free / tokens), 1.0, np.maximum(n, 1.0))
        share = np.minimum(1.0, np.where(tokens <= free, starts / group, starts * chunks))
        taken = np.minimum(starts / np.maximum(share, 1e-12), free / tokens)  # prompts per step that has any
        plain = decode_step_s(e, n, n * context) * e.per_step
        plain = plain + waits_s(e, prompt, share, turn) if meet else plain
        mixed = prefill_step_s(
            e, np.maximum(taken, 1.0), taken * tokens, taken * pairs, n, n * context, s.batched_tokens
        )
        # Prompt tokens beyond a step's budget take more steps, which slows the running requests by this factor.
        behind = np.maximum(starts * tokens / np.maximum(taken * share * tokens, 1e-12), 1.0)
        return ((1 - share) * plain + share * mixed) * behind / e.per_step, plain, mixed, share, taken, chunks

    # A request holds its place while it is read and decoded; some users are in the server's front end.
    n, in_front = most, s.front_end_s + s.request_s
    for _ in range(_ROUNDS):
        mean, _, mixed, _, _, chunks = steps(n)
        decoding = np.maximum(s.output_len * mean, 1e-12)
        present = np.minimum(most, users / (1 + in_front / (decoding + chunks * mixed)))
        n = (n + present / (1 + chunks * mixed / decoding)) / 2
    mean, plain, mixed, share, taken, chunks = steps(n)
    rate = n / (s.output_len * mean)
    service = chunks * mixed + under_way_s(e, tokens / chunks, s.input_len, mixed, s.batched_tokens)
    hold = s.output_len * mean + service
    wait = np.maximum(users / np.maximum(rate, 1e-12) - hold - in_front, 0.0)
    together = np.minimum(n * s.replicas / s.requests, 1.0)  # share of the requests that begin at once
    burst = prefill_step_s(e, n, n * tokens, n * pairs, budget=s.batched_tokens)
    # The last request waits for the prompts of all others. Where prompts are read along with decoding, requests end one
    # step after the other instead.
    at_once = np.maximum(taken, 1.0)
    before = np.where(s.version == 0, np.inf, at_once * (1 + s.ahead + in_front / plain))
    group = np.minimum((n + at_once) / 2, before) * mixed / np.maximum(taken, 1e-12)
    late = np.maximum(group - service, 0.0)
    ttft = late + service + wait + together * np.maximum(burst / 2 - late - service, 0.0) + in_front
    answering = users / np.maximum(rate, 1e-12) - ttft
    token = np.clip(answering / np.maximum(s.output_len - 1, 1.0), np.minimum(plain / e.per_step, mean), mean)
    elastic = np.log(np.maximum(steps(n * 1.1 + 0.1)[0] / mean, 1.0)) / np.log((n * 1.1 + 0.1) / n)

    def ttft_at(q: float) -> np.ndarray:
        begun = burst * np.clip((q - 1 + together) / np.maximum(together, 1e-9), 0, 1)
        return in_front + s.front_end_s * (q - 0.5) + late * 2 * q + service + np.maximum(wait, begun)

    at: Quantiles = {
        "ttft": ttft_at,
        "tpot": lambda q: token * np.exp(0.3 * float(ndtri(q)) * elastic / np.sqrt(np.maximum(n, 1.0))),
        "e2el": lambda q: ttft_at(q) + (s.output_len - 1) * token,
        "itl": lambda q: np.where(q > 1 - share, mixed, plain),
    }
    felt = {"ttft": ttft, "tpot": token, "itl": token * e.per_step, "e2el": ttft + (s.output_len - 1) * token}
    found = _latencies(s, felt, at, wanted) | {"load": np.ones_like(n), "ending": np.zeros_like(n)}
    if meet:
        found["others_s"] = waits_s(e, prompt, share, turn)
    rounds = s.requests / s.replicas / np.maximum(most, 1e-12)
    seconds = s.requests / s.replicas / np.maximum(rate, 1e-12) + (np.ceil(rounds - 0.01) - rounds) * hold
    ok = (room >= tokens + s.output_len) & (s.chunked | (tokens <= s.batched_tokens))
    found = _finish(s, found, s.requests / s.replicas / seconds, n, context, ok)
    reading = users * chunks * mixed / np.maximum(taken, 1.0) / np.maximum(s.output_len * plain, 1e-12)
    apart = np.clip(np.log(np.maximum(reading, 1e-12) / _PAUSES[0]) / np.log(_PAUSES[1] / _PAUSES[0]), 0.0, 1.0)
    rows = np.flatnonzero(apart > 0)
    if len(rows):
        share = apart[rows]
        for name, values in _apart(s.of(rows), wanted).items():
            found[name][rows] += share * (values - found[name][rows])
    return found


Quantiles = dict[str, Callable[[float], np.ndarray]]


def _latencies(
    s: Setup, mean: dict[str, np.ndarray], at: Quantiles, wanted: Collection[str] | None
) -> dict[str, np.ndarray]:
    """Milliseconds, by ttft, tpot, itl and e2el. `mean`: seconds; `at`: seconds at a quantile."""
    found = {f"{what}_mean_ms": values for what, values in mean.items()}
    for p, q in QUANTILES.items():
        found |= {
            name: of(q) for what, of in at.items() if (name := f"{what}_{p}_ms") and (wanted is None or name in wanted)
        }
    between = np.where(s.output_len > 1, 1e3, 0.0)  # answers of one token have no time between tokens
    return {name: v * (between if name.startswith(("tpot", "itl")) else 1e3) for name, v in found.items()}


def _finish(s: Setup, found: dict[str, Any], per_engine: Any, seqs: Any, context: Any, ok: Any) -> dict[str, Any]:
    requests = per_engine * s.replicas
    busy = np.maximum(seqs, 1.0)  # whenever something decodes, at least one sequence does
    parts = decode_parts_s(s.engine, busy, busy * context)
    device = sum(parts.values())
    whole = together_s(s.engine, device, host_s(s.engine, busy), beyond_graphs(s.engine, busy))
    host = whole - device  # the part that the device does not hide
    found |= {
        "requests_per_s": requests,
        "output_tokens_per_s": requests * s.output_len,
        "total_tokens_per_s": requests * (s.input_len + s.output_len),
        "goodput_rps": requests,
        "peak_memory_gib": s.memory.peak_gib,
        **{f"part:{name}": values for name, values in parts.items()},
        "part:host": host,
    }
    return {name: np.where(ok, values, np.nan) for name, values in found.items()}
