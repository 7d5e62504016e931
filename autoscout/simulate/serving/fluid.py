"""The fluid model of a serving engine: it computes the mean behaviour of the event simulation for tens of thousands of
configurations at once, with the same step times but without simulating single requests.

A fixed batch computes its prompts, then decodes at the mean context length. Sustained loads are handled by lasting.py,
except closed loops of equal requests, whose users stay synchronized: their requests end and begin together. With n
requests running, n / (output tokens) requests end and as many prompts begin per step, so a step takes on average

t(n) = (1 - φ) · decode(n) + φ · decode and prompts together, φ = min(1, n / (output tokens) · steps of a prompt),

and by Little's law n = users - waiting users."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial
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

_ROUNDS = 12  # fixed-point iterations, damped by half; enough to converge
# Bounds on (prefill time of all users / decode time of one answer), assumed: below the first, users stay synchronized;
# above the second, none do.
_PAUSES = (2.5, 10.0)
Quantiles = dict[str, Callable[[float], np.ndarray]]
Solved = Callable[[Collection[str] | None], dict[str, np.ndarray]]  # from `wanted` to the results of `fluid`
_BLOCK = 1 << 14  # configurations per block, so that temporary arrays stay in the processor's cache


def fluid(s: Setup, wanted: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """Metrics by name, (n,) each; the components of a decode step ("part:weights" …) in seconds; and for sustained
    loads "load" (utilization), "ending" (as in Felt) and "others_s" (as in EngineShapes). NaN: a request does not fit.
    `wanted`: names of the quantiles to compute, which take most of the time; None: all."""
    return _joined(len(s.batch), _blocks(s), wanted)


def solved(s: Setup) -> Solved:
    """`fluid` of `s`. What all quantiles share is computed once and kept, unless `s` has more rows than a block."""
    if len(s.batch) > _BLOCK:
        return partial(fluid, s)
    blocks = list(_blocks(s))
    return lambda wanted: _joined(len(s.batch), blocks, wanted)


def _blocks(s: Setup) -> Iterator[tuple[np.ndarray, Solved]]:
    """(rows, their results)"""
    flat = all(lengths[0] == lengths[100] for lengths in (s.input_quantiles, s.output_quantiles))
    fixed = s.batch > 0
    in_step = ~fixed & (s.concurrency > 0) & (s.length_spread == 0) & flat
    models = ((fixed, _fixed_batch), (in_step, _in_step), (~fixed & ~in_step, _apart))
    at_once = np.maximum(s.batch, s.concurrency)
    # Fewer simultaneous requests than replicas leave some replicas idle.
    s = replace(s, replicas=np.where(at_once > 0, np.minimum(s.replicas, at_once), s.replicas))
    for rows, model in ((np.flatnonzero(which), model) for which, model in models):
        for start in range(0, len(rows), _BLOCK):
            block = rows[start : start + _BLOCK]
            yield block, model(s.of(block))


def _joined(
    n: int, blocks: Iterable[tuple[np.ndarray, Solved]], wanted: Collection[str] | None
) -> dict[str, np.ndarray]:
    out: dict[str, np.ndarray] = {}
    for rows, found in blocks:
        for name, values in found(wanted).items():
            out.setdefault(name, np.full(n, np.nan))[rows] = values
    return out


def _own(s: Setup) -> tuple[np.ndarray, np.ndarray]:
    """(prompt tokens computed per request; cache tokens left after the common prefix, as if a request took only the
    former and its answer)"""
    cached = np.where(s.prefix_caching, s.shared_prefix // s.block * s.block, 0.0)
    cached = np.minimum(cached, s.input_len - 1)
    own, room = s.input_len - cached, np.maximum(s.memory.kv_tokens - cached, 1.0)
    computed = np.maximum(own - s.found, 1.0)
    return computed, room * (computed + s.output_len) / (own + s.output_len)


def _fixed_batch(s: Setup) -> Solved:
    """Results for fixed batches, whose requests all start at once, divided among `replicas` engines."""
    e, old = s.engine, s.version == 0
    batch = np.ceil(s.batch / s.replicas)
    tokens, room = _own(s)
    fits = room >= tokens + s.output_len
    most = np.minimum(np.minimum(batch, s.max_seqs), np.maximum(room / (tokens + s.output_len / 2), 1.0))
    at_once = np.where(
        tokens + s.output_len <= room / np.minimum(batch, s.max_seqs), np.minimum(batch, s.max_seqs), most
    )
    first = np.maximum(np.minimum(at_once, np.floor(room / tokens)), 1.0)  # prompts that fit into the cache
    # Prompts per step: whole ones in version 0 or without chunked prefill, else as many tokens as fill the step.
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
    again = np.maximum(waves - 1, 0.0)  # later batches; after preemptions, they repeat prompts
    total = prompts * waves + decode * (s.output_len - 1) * waves
    total = total + again * prompts * np.where(
        at_once < np.minimum(batch, s.max_seqs), s.output_len / 2 / s.input_len, 0.0
    )
    # Mean index of the step in which a prompt ends. Several prompts share a step, or one prompt takes several steps.
    ends = np.where(per_step >= 1, (steps + 1) / 2, np.minimum(steps, (first + 1) / (2 * per_step) + 0.25))
    way = under_way_s(e, np.minimum(tokens, per_step * tokens), s.input_len, final, s.batched_tokens)
    ttft = (ends - 1) * step + final + way + again / 2 * (prompts + decode * s.output_len)
    stalled = np.where(old, (steps - 1) / 2 * step, (steps - 1) / 2 * (step - decode))  # seconds, by other prompts
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
    mean = {"ttft": ttft, "tpot": tpot, "itl": tpot * e.per_step, "e2el": total}
    rest = _rates(s, s.batch / s.replicas / total, at_once, context)
    return _results(s, mean, at, rest, fits & (batch > 0))


def _apart(s: Setup) -> Solved:
    """Results for sustained loads without synchronized users, divided evenly among `replicas` engines."""
    tokens, room = _own(s)
    load = load_of(s, tokens, room, s.front_end_s + s.request_s)
    b = balance(load)
    steps = load.inputs.mean(b.read.steps)
    way = under_way_s(s.engine, tokens / steps, s.input_len, b.read.moments[0] / steps, s.batched_tokens)
    felt = Felt(load, b, way)
    at: Quantiles = {"ttft": felt.ttft_at, "tpot": felt.tpot_at, "e2el": felt.e2el_at, "itl": felt.itl_at}
    mean = {"ttft": felt.ttft, "tpot": felt.tpot, "itl": felt.itl, "e2el": felt.e2el}
    rest = {"load": felt.use, "ending": felt.ending, **_rates(s, felt.seen, b.running, load.context)}
    if np.any(s.engine.meeting > 1):
        rest["others_s"] = b.waited
    ok = (room >= tokens + s.output_len) & ((load.users > 0) | (load.rate > 0))
    return _results(s, mean, at, rest, ok & (s.chunked | (tokens <= s.batched_tokens)))


def _in_step(s: Setup) -> Solved:
    """Results for closed loops of equal requests, whose users are divided evenly among `replicas` engines. If the
    engines compute prompts almost continuously, users cannot stay synchronized; between the bounds in _PAUSES, the
    results are interpolated with those of `_apart`."""
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
        """Given n running requests: seconds per token, of a step without prompts, and of a step with prompts; share of
        steps with prompts; prompts per step with prompts; steps per prompt."""
        free = np.maximum(s.batched_tokens * e.pp - n, 1.0)
        chunks = np.where(s.chunked, np.maximum(tokens / np.minimum(free, s.long_prompt * e.pp), 1.0), 1.0)
        starts = n * e.per_step / np.maximum(s.output_len, 1.0)  # new prompts per step
        group = np.clip(np.floor(free / tokens), 1.0, np.maximum(n, 1.0))
        share = np.minimum(1.0, np.where(tokens <= free, starts / group, starts * chunks))
        taken = np.minimum(starts / np.maximum(share, 1e-12), free / tokens)  # prompts in a step with prompts
        plain = decode_step_s(e, n, n * context) * e.per_step
        plain = plain + waits_s(e, prompt, share, turn) if meet else plain
        mixed = prefill_step_s(
            e, np.maximum(taken, 1.0), taken * tokens, taken * pairs, n, n * context, s.batched_tokens
        )
        # If more prompt tokens arrive than steps can take, prompts queue up, and everything slows down by this factor.
        behind = np.maximum(starts * tokens / np.maximum(taken * share * tokens, 1e-12), 1.0)
        return ((1 - share) * plain + share * mixed) * behind / e.per_step, plain, mixed, share, taken, chunks

    # A request occupies a slot during prefill and decoding; some users' requests are in the API server meanwhile.
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
    together = np.minimum(n * s.replicas / s.requests, 1.0)  # share of the requests that start at once
    burst = prefill_step_s(e, n, n * tokens, n * pairs, budget=s.batched_tokens)
    # In version 0 the last request waits for the prompts of all other requests. In version 1, decoding continues during
    # prefill, so requests end one step after another and fewer prompts meet.
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
    rounds = s.requests / s.replicas / np.maximum(most, 1e-12)
    seconds = s.requests / s.replicas / np.maximum(rate, 1e-12) + (np.ceil(rounds - 0.01) - rounds) * hold
    ok = (room >= tokens + s.output_len) & (s.chunked | (tokens <= s.batched_tokens))
    rest = _rates(s, s.requests / s.replicas / seconds, n, context)
    rest |= {"load": np.ones_like(n), "ending": np.zeros_like(n)}
    if meet:
        rest["others_s"] = waits_s(e, prompt, share, turn)
    in_step = _results(s, felt, at, rest, ok)
    reading = users * chunks * mixed / np.maximum(taken, 1.0) / np.maximum(s.output_len * plain, 1e-12)
    apart = np.clip(np.log(np.maximum(reading, 1e-12) / _PAUSES[0]) / np.log(_PAUSES[1] / _PAUSES[0]), 0.0, 1.0)
    rows = np.flatnonzero(apart > 0)
    if not len(rows):
        return in_step
    others = _apart(s.of(rows))

    def between(wanted: Collection[str] | None) -> dict[str, np.ndarray]:
        found = in_step(wanted)
        for name, values in others(wanted).items():
            found[name][rows] += apart[rows] * (values - found[name][rows])
        return found

    return between


def _results(s: Setup, mean: dict[str, np.ndarray], at: Quantiles, rest: dict[str, np.ndarray], ok: Any) -> Solved:
    """The latencies and `rest`; NaN where it is not `ok`."""
    return lambda wanted: {
        name: np.where(ok, values, np.nan) for name, values in {**_latencies(s, mean, at, wanted), **rest}.items()
    }


def _latencies(
    s: Setup, mean: dict[str, np.ndarray], at: Quantiles, wanted: Collection[str] | None
) -> dict[str, np.ndarray]:
    """Latency metrics in ms. `mean`: seconds of ttft, tpot, itl and e2el; `at`: functions from quantile to seconds."""
    found = {f"{what}_mean_ms": values for what, values in mean.items()}
    for p, q in QUANTILES.items():
        found |= {
            name: of(q) for what, of in at.items() if (name := f"{what}_{p}_ms") and (wanted is None or name in wanted)
        }
    between = np.where(s.output_len > 1, 1e3, 0.0)  # an answer of one token has no gaps
    return {name: v * (between if name.startswith(("tpot", "itl")) else 1e3) for name, v in found.items()}


def _rates(s: Setup, per_engine: Any, seqs: Any, context: Any) -> dict[str, Any]:
    """Throughput, memory and the components of a decode step."""
    requests = per_engine * s.replicas
    busy = np.maximum(seqs, 1.0)  # a decode step has at least one sequence
    parts = decode_parts_s(s.engine, busy, busy * context)
    device = sum(parts.values())
    whole = together_s(s.engine, device, host_s(s.engine, busy), beyond_graphs(s.engine, busy))
    host = whole - device  # seconds that the device does not hide
    return {
        "requests_per_s": requests,
        "output_tokens_per_s": requests * s.output_len,
        "total_tokens_per_s": requests * (s.input_len + s.output_len),
        "goodput_rps": requests,
        "peak_memory_gib": s.memory.peak_gib,
        **{f"part:{name}": values for name, values in parts.items()},
        "part:host": host,
    }
