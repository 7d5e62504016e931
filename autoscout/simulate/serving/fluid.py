"""The serving engine as a fluid: what the event simulation finds on average, for tens of thousands of configurations
at once. Same step times, no queue of single requests.

A fixed batch is prompts, then decoding at the mean context. Under a lasting load every running request brings
input/output prompt tokens to each decode step, so with n of them running a step takes

    t(n) = (1 - φ) · decode(n) + φ · decode and prompts together,   φ = min(1, n/output · steps of a prompt),

and Little's law closes the loop: n = users - those who wait (closed), n = rate · output · t(n) (open). The wait for one
of the n places follows Sakasegawa's approximation of M/G/c; beyond the capacity the queue grows for as long as
requests are sent.
"""

from typing import Any

import numpy as np

from autoscout.simulate.serving.latencies import QUANTILES
from autoscout.simulate.serving.lockstep import alone_s, waits_s
from autoscout.simulate.serving.setup import Setup
from autoscout.simulate.serving.steps import (
    decode_parts_s,
    decode_step_s,
    host_s,
    prefill_step_s,
    together_s,
    under_way_s,
)

_ROUNDS = 12  # fixed-point iterations (damped by half)
_BLOCK = 1 << 14  # configurations at a time: temporaries stay in the cache
_RUNNING = 0.97  # mean fill of a saturated cache between preemptions


def fluid(s: Setup) -> dict[str, np.ndarray]:
    """Our metric names → (n,), the parts of a decode step as "part:weights" … in seconds, and of a lasting load "load",
    its rate over the highest that is answered, and "others_s", as Engine has it. NaN: does not fit."""
    fixed = s.batch > 0
    n = len(fixed)
    out: dict[str, np.ndarray] = {}
    for rows, model in ((np.flatnonzero(fixed), _fixed_batch), (np.flatnonzero(~fixed), _lasting)):
        for start in range(0, len(rows), _BLOCK):
            block = rows[start : start + _BLOCK]
            for name, values in model(s.of(block)).items():
                out.setdefault(name, np.full(n, np.nan))[block] = values
    return out


def _own(s: Setup) -> tuple[np.ndarray, np.ndarray]:
    """(prompt tokens that are computed per request, cache tokens left after the common prefix)."""
    cached = np.where(s.prefix_caching, s.shared_prefix // s.block * s.block, 0.0)
    cached = np.minimum(cached, s.input_len - 1)
    return s.input_len - cached, np.maximum(s.memory.kv_tokens - cached, 1.0)


def _fixed_batch(s: Setup) -> dict[str, np.ndarray]:
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
    again = np.maximum(waves - 1, 0.0)  # later waves bring their prompts, some of them a second time
    total = prompts * waves + decode * (s.output_len - 1) * waves
    total = total + again * prompts * np.where(
        at_once < np.minimum(batch, s.max_seqs), s.output_len / 2 / s.input_len, 0.0
    )
    # The step in which a prompt ends, on average: whole groups of prompts, or several steps for each.
    ends = np.where(per_step >= 1, (steps + 1) / 2, np.minimum(steps, (first + 1) / (2 * per_step) + 0.25))
    way = under_way_s(e, np.minimum(tokens, per_step * tokens), s.input_len, final, s.batched_tokens)
    ttft = (ends - 1) * step + final + way + again / 2 * (prompts + decode * s.output_len)
    stalled = np.where(old, (steps - 1) / 2 * step, (steps - 1) / 2 * (step - decode))  # by the others' prompts
    smooth = decode + stalled / np.maximum(s.output_len - 1, 1)
    preempted = at_once < np.minimum(batch, s.max_seqs)
    tpot = np.where(preempted, (total - ttft) / np.maximum(s.output_len - 1, 1), smooth)
    spread = (steps * step + again * (prompts + decode * s.output_len)) / np.maximum(ttft, 1e-12)
    found = _latencies(
        ttft,
        tpot,
        total,
        lambda q: ttft * (1 + (spread - 1) * (2 * q - 1) * np.where((steps > 1) | (waves > 1), 1.0, 0.0)),
        lambda q: tpot,
        lambda q: total,
        lambda q: np.where(q > 1 - (steps - 1) / np.maximum(s.output_len, 1), step, decode),
    )
    ok = fits & (batch > 0)
    return _finish(s, found, batch / total, at_once, context, ok)


def _lasting(s: Setup) -> dict[str, np.ndarray]:
    """Open or closed loop, on `replicas` engines that share it evenly."""
    e = s.engine
    tokens, room = _own(s)
    context = s.input_len + s.output_len / 2
    pairs = tokens * ((s.input_len - tokens) + (tokens + 1) / 2)
    in_memory = _RUNNING * room / (tokens + s.output_len * (1 + s.reserved) / 2)
    places = np.minimum(s.max_seqs, np.maximum(in_memory, 1.0))
    users, rate = s.concurrency / s.replicas, s.rate / s.replicas
    closed = users > 0
    most = np.where(closed, np.minimum(places, users), places)
    inputs, outputs = s.input_quantiles, s.output_quantiles
    alike = (s.length_spread == 0) & (inputs[0] == inputs[100]) & (outputs[0] == outputs[100])
    in_step = closed & alike
    meet = bool(np.any(e.meeting > 1))
    at_once = np.minimum(tokens, s.batched_tokens)
    prompt = alone_s(e, at_once, at_once / tokens * pairs, most, most * context, s.batched_tokens) if meet else 0.0

    def steps(n: np.ndarray) -> tuple[np.ndarray, ...]:
        """(seconds a token, plain step, step with prompts, share of those, prompts in one, steps of a prompt) with n
        running."""
        free = np.maximum(s.batched_tokens * e.pp - n, 1.0)
        chunks = np.where(s.chunked, np.maximum(tokens / np.minimum(free, s.long_prompt * e.pp), 1.0), 1.0)
        starts = n * e.per_step / np.maximum(s.output_len, 1.0)  # prompts that begin per step
        share = np.minimum(1.0, starts * chunks)
        # Requests of equal length end together, and so their users' next ones begin together.
        group = np.clip(np.floor(free / tokens), 1.0, np.maximum(n, 1.0))
        share = np.where(in_step & (tokens <= free), np.minimum(1.0, starts / group), share)
        taken = np.minimum(starts / np.maximum(share, 1e-12), free / tokens)  # prompts per step that has any
        plain = decode_step_s(e, n, n * context) * e.per_step
        plain = plain + waits_s(e, prompt, share) if meet else plain
        mixed = prefill_step_s(
            e, np.maximum(taken, 1.0), taken * tokens, taken * pairs, n, n * context, s.batched_tokens
        )
        # Prompt tokens beyond a step's budget take more steps, which slow the running requests by this factor.
        behind = np.maximum(starts * tokens / np.maximum(taken * share * tokens, 1e-12), 1.0)
        return ((1 - share) * plain + share * mixed) * behind / e.per_step, plain, mixed, share, taken, chunks

    # Capacity: all places taken; a request holds its place for its prompt and its decoding. Some users of a closed loop
    # are in the server's front end.
    n_full, in_front = most, s.front_end_s + s.request_s
    for _ in range(_ROUNDS):
        mean, _, mixed, _, _, chunks = steps(n_full)
        decoding = np.maximum(s.output_len * mean, 1e-12)
        present = np.minimum(most, np.where(closed, users, np.inf) / (1 + in_front / (decoding + chunks * mixed)))
        n_full = (n_full + present / (1 + chunks * mixed / decoding)) / 2
    capacity = n_full / (s.output_len * steps(n_full)[0])
    n = np.where(
        closed, n_full, np.minimum(n_full, np.maximum(rate * s.output_len * decode_step_s(e, 1.0, context), 1e-3))
    )
    for _ in range(0 if np.all(closed) else _ROUNDS):
        mean = steps(n)[0]
        n = np.where(closed, n, (n + np.minimum(n_full, rate * s.output_len * mean)) / 2)
    mean, plain, mixed, share, taken, chunks = steps(n)
    load = np.where(closed, 1.0, np.minimum(rate / capacity, 1e9))
    served = np.where(closed, capacity, np.minimum(rate, capacity))

    reading = chunks * mixed
    service = reading + under_way_s(e, tokens / chunks, s.input_len, mixed, s.batched_tokens)
    # Until the step that is running ends, which in a closed loop another user's prompt may take long.
    others = share * np.clip(1 - 1 / n, 0.0, 1.0)
    step = (1 - others) * plain + others * mixed
    rest = ((1 - others) * plain**2 + others * mixed**2) / (2 * step) * np.clip(n - 1, 0.0, 1.0)
    late = np.where(closed, rest, mean / 2)
    busy = np.minimum(rate * reading, 0.98)
    crowd = np.where(closed, 0.0, reading / (2 * (1 - busy)))  # wait of requests that find another prompt in progress
    queue = busy * crowd
    stable = np.minimum(load, 0.999)
    hold = s.output_len * mean + service
    varied = (1 + float(np.var(outputs))) / 2
    place = varied * hold * stable ** (np.sqrt(2 * (places + 1)) - 1) / (places * (1 - stable))
    # While requests are sent, the queue of a nearly full engine stays within the fluctuation of their number.
    place = np.minimum(place, 0.4 * np.sqrt(s.requests / s.replicas) / capacity)
    sending = s.requests / s.replicas / np.maximum(rate, 1e-12)
    growing = np.maximum(load - 1, 0.0) * sending / 2
    wait = np.where(closed, users / np.maximum(served, 1e-12) - hold - in_front, place + growing)
    wait = np.maximum(wait, 0.0)
    # The users of a closed loop all begin at once.
    together = np.where(closed, np.minimum(n_full * s.replicas / s.requests, 1.0), 0.0)
    burst = np.where(closed, prefill_step_s(e, n_full, n_full * tokens, n_full * pairs, budget=s.batched_tokens), 0.0)
    # Users whose requests are all alike end together and come together: the last waits for all the others' prompts. Who
    # ends while prompts are read beside answers comes one step after the other instead.
    at_once = np.maximum(taken, 1.0)
    before = np.where(s.version == 0, np.inf, at_once * (1 + in_front / plain))
    group = np.minimum((n + at_once) / 2, before) * mixed / np.maximum(taken, 1e-12)
    late = np.where(in_step, np.maximum(group - service, 0.0), late)
    first = np.where(in_step, np.maximum(burst / 2 - late - service, 0.0), burst / 2)
    ttft = late + queue + service + wait + together * first + in_front
    answering = users / np.maximum(served, 1e-12) - ttft
    least = np.minimum(plain / e.per_step, mean)
    token = np.where(in_step, np.clip(answering / np.maximum(s.output_len - 1, 1.0), least, mean), mean)
    tpot = token * np.where(s.output_len > 1, 1.0, 0.0)
    e2el = ttft + (s.output_len - 1) * token

    def ttft_at(q: float) -> np.ndarray:
        grown = np.where(growing > 0, 2 * growing * q, 0.0)
        apart = np.where(closed, s.front_end_s * (q - 0.5), 0.0)
        alone = in_front + apart + late * 2 * q + service * inputs[round(100 * q)] + grown
        crowded = crowd * np.log(np.maximum(busy / (1 - q), 1.0)) + np.where(
            closed, wait, -(wait - growing) * np.log(1 - q)
        )
        begun = burst * np.clip((q - 1 + together) / np.maximum(together, 1e-9), 0, 1)
        return alone + np.maximum(crowded, begun)

    # The number of running requests fluctuates like a Poisson count; step times follow it with their elasticity.
    more = steps(n * 1.1 + 0.1)[0] / mean
    elastic = np.log(np.maximum(more, 1.0)) / np.log((n * 1.1 + 0.1) / n)

    def tpot_at(q: float) -> np.ndarray:
        return token * np.exp(_normal(q) * elastic * np.where(closed, 0.3, 0.7) / np.sqrt(np.maximum(n, 1.0)))

    found = _latencies(
        ttft,
        tpot,
        e2el,
        ttft_at,
        tpot_at,
        lambda q: (
            ttft_at(q if outputs[50] == outputs[99] else 0.5) + (s.output_len * outputs[round(100 * q)] - 1) * token
        ),
        lambda q: np.where(q > 1 - share, mixed, plain),
    )
    rounds = s.requests / s.replicas / np.maximum(most, 1e-12)
    tail = np.where(closed, np.where(alike, np.ceil(rounds - 0.01) - rounds, 0.5) * hold, e2el)
    seconds = s.requests / s.replicas / np.maximum(served, 1e-12) + tail
    rate_seen = s.requests / s.replicas / seconds
    ok = (room >= tokens + s.output_len) & ((users > 0) | (rate > 0)) & (s.chunked | (tokens <= s.batched_tokens))
    found |= {"load": load} | ({"others_s": waits_s(e, prompt, share)} if meet else {})
    return _finish(s, found, rate_seen, n, context, ok)


def _latencies(
    ttft: Any, tpot: Any, e2el: Any, ttft_at: Any, tpot_at: Any, e2el_at: Any, itl_at: Any
) -> dict[str, Any]:
    found = {"ttft_mean_ms": ttft, "tpot_mean_ms": tpot, "itl_mean_ms": tpot, "e2el_mean_ms": e2el}
    for p, q in QUANTILES.items():
        found |= {f"ttft_{p}_ms": ttft_at(q), f"tpot_{p}_ms": tpot_at(q), f"e2el_{p}_ms": e2el_at(q)}
        found[f"itl_{p}_ms"] = itl_at(q)
    return {name: values * 1e3 for name, values in found.items()}


def _finish(s: Setup, found: dict[str, Any], per_engine: Any, seqs: Any, context: Any, ok: Any) -> dict[str, Any]:
    requests = per_engine * s.replicas
    busy = np.maximum(seqs, 1.0)  # a step that decodes has a sequence
    parts = decode_parts_s(s.engine, busy, busy * context)
    device = sum(parts.values())
    whole = together_s(s.engine, device, host_s(s.engine, busy), s.engine.eager)
    host = whole - device  # what the device does not hide
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


def _normal(q: float) -> float:
    """The standard normal's quantile."""
    from statistics import NormalDist

    return NormalDist().inv_cdf(q)
