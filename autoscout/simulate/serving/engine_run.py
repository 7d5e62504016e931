"""The limits of a simulated engine, the result of its run, and its step times as tables."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autoscout.simulate.serving.engine_shapes import EngineShapes
from autoscout.simulate.serving.held_back import EngineLimits
from autoscout.simulate.serving.step_times import COARSE, FINE, PromptAttention, StepTimes
from autoscout.simulate.serving.steps import (
    communication_s,
    decode_attention_s,
    decode_context_s,
    guessing_s,
    launches_s,
    linear_s,
    logits_s,
    raise_us,
)

# A run would have been identical with a different cache size if it fills at most this share of that cache. The share is
# below 1, because some engines keep blocks free.
_FILLED = 0.98


_TABLES: dict[Hashable, StepTimes] = {}  # cache of step times
_MOST_TABLES = 128  # limit of this cache


class RoomUsed(NamedTuple):
    """The peak use of an engine's limited resources during runs: `tokens` of the cache, concurrent `requests`, and
    tokens per `step`. `short`, `full`, `cut`: whether a request had to wait for cache blocks (short), for a sequence
    slot (full), or for a step's token budget (cut)."""

    tokens: int
    requests: int
    step: int
    short: bool
    full: bool
    cut: bool

    def same(self, own: EngineLimits, other: EngineLimits) -> bool:
        """Whether the runs, made under the limits `own`, would have been identical under the limits `other`."""
        if other == own:
            return True
        if self.short or self.tokens + self.requests * other.block > _FILLED * other.kv_tokens:
            return False
        seated = other.max_seqs == own.max_seqs if self.full else other.max_seqs > self.requests
        budgets = [(limits.batched_tokens, limits.chunked) for limits in (own, other)]
        return seated and (budgets[0] == budgets[1] if self.cut else other.batched_tokens >= self.step)

    def joined(self, other: "RoomUsed") -> "RoomUsed":
        return RoomUsed(
            tokens=max(self.tokens, other.tokens),
            requests=max(self.requests, other.requests),
            step=max(self.step, other.step),
            short=self.short or other.short,
            full=self.full or other.full,
            cut=self.cut or other.cut,
        )


_UNKNOWN = RoomUsed(0, 0, 0, short=True, full=True, cut=True)  # so that no run under other limits counts as identical


class Sequence:
    """A request in an engine."""

    __slots__ = (
        "admitted",
        "asked",
        "done",
        "end_step",
        "fetched",
        "id",
        "known",
        "late",
        "shared",
        "start_step",
        "whole",
    )

    def __init__(self, number: int, known: int, asked: int, whole: int) -> None:
        self.id = number
        self.known = known  # tokens to compute before the next one can be sampled
        self.asked = asked  # tokens still to be sampled
        self.done = 0  # how many of the `known` tokens are computed
        self.whole = whole  # blocks that the sequence holds at its end
        self.shared = 0  # blocks in the prefix cache, for the common prefix
        self.fetched = 0  # blocks that it holds before it is admitted, with a cache computed elsewhere
        self.late = 0.0  # seconds between a step and its tokens, from the later pipeline stages
        self.start_step = self.end_step = self.admitted = 0


@dataclass(frozen=True)
class EngineRun:
    """The result of a simulated run. Times (requests,) in seconds, NaN for requests too large for the engine. `gaps_s`,
    `gap_counts`: inter-token latencies and how often each occurred; tokens that speculative decoding yields in one step
    count as one piece. `given_up`: the run was stopped early; the times of later events are the run's end."""

    arrival_s: np.ndarray
    first_s: np.ndarray
    end_s: np.ndarray
    output_len: np.ndarray
    input_len: np.ndarray
    gaps_s: np.ndarray
    gap_counts: np.ndarray
    preemptions: int
    steps: int
    room: RoomUsed = _UNKNOWN
    given_up: bool = False


def step_times(e: EngineShapes, limits: EngineLimits, longest: int) -> StepTimes:
    """The step times of one configuration (`e` has one row). `longest`: tokens of the longest request, for engines that
    process a whole prompt in one step; 0 for all other engines."""
    key = e.key(), limits.batched_tokens, limits.max_seqs, longest
    if key not in _TABLES:
        if len(_TABLES) >= _MOST_TABLES:
            _TABLES.clear()
        _TABLES[key] = _tabulated(e, limits, longest)
    return _TABLES[key]


def _tabulated(e: EngineShapes, limits: EngineLimits, longest: int) -> StepTimes:
    checked = 1 + int(e.guesses[0])
    most = max(limits.batched_tokens, longest, limits.max_seqs) + limits.max_seqs * (checked - 1) + COARSE
    tokens = np.concatenate([np.arange(FINE + 1), np.arange(FINE + COARSE, most + COARSE, COARSE)])
    seqs = np.arange(limits.max_seqs + 1)
    c, slope = e.device, decode_context_s(e, seqs)
    prompt = PromptAttention(
        overhead_us=c.prefill.overhead_us,
        tflops=float(c.prefill.tflops * e.prompt_speed[0]),
        short=c.prefill.short,
        occupancy=c.prefill.occupancy,
        gb_s=c.prefill.gb_s,
        sms=float(c.sms),
        layers=float(e.layers[0]),
        heads=float(e.heads[0]),
        head_dim=float(e.head_dim[0]),
        kv_bytes=float(e.prompt_bytes[0]),
        again_us=float(raise_us(e)[0]),
        window=float(e.window[0]),
        windowed=float(e.windowed[0]),
    )
    return StepTimes(
        linear=(linear_s(e, tokens) + communication_s(e, tokens)).tolist(),
        logits=logits_s(e, np.arange(limits.max_seqs * checked + 1)).tolist(),
        attention=(decode_attention_s(e, seqs, seqs * e.window) - slope * seqs * e.window).tolist(),
        per_context=slope.tolist(),
        prompt=prompt,
        pp=float(e.pp[0]),
        host_step=c.host.step_ms * float(e.step[0]) * 1e-3,
        host_seq=c.host.sequence_ms * float(e.persistent[0]) * 1e-3,
        launches=float(launches_s(e)[0]),
        graph_tokens=float(e.graph_tokens[0]),
        eager=bool(e.eager[0]),
        eager_prompts=bool(e.eager_prompts[0]),
        overlap=bool(e.overlap[0]),
        checked=checked,
        per_step=float(e.per_step[0]),
        guessing=tuple(guessing_s(e, seqs).tolist()) if checked > 1 else (),
        budget=float(limits.batched_tokens),
        others=float(e.others_s[0]),
        graph_decodes=float(e.graph_decodes[0]),
    )
