"""Step times of one engine from tables of plain floats, which are fast enough for the hundreds of thousands of steps of
an event simulation. This file imports nothing of AutoScout, because shadow runs load it with the engine's interpreter.

All times are in seconds. engine_run.step_times() fills the tables from steps.py."""

import math
from dataclasses import dataclass
from functools import cached_property

FINE = 512  # up to this many tokens, the table has one entry per token
COARSE = 32  # tokens per table entry above FINE
TILE = 128  # columns, and largest number of rows, of a kernel's output tile


@dataclass(frozen=True)
class PromptAttention:
    """The constants of operators.Prefill, with the shape of one device's prefill attention. `heads`, `kv_bytes`: per
    device; `windowed`: share of layers with a sliding window."""

    overhead_us: float
    tflops: float
    short: float
    occupancy: float
    gb_s: float
    sms: float
    layers: float
    heads: float
    head_dim: float
    kv_bytes: float
    again_us: float = 0.0  # microseconds per layer and token of context from earlier steps
    window: float = 0.0  # window size in tokens
    windowed: float = 0.0

    def seconds(self, seqs: float, tokens: float, pairs: float) -> float:
        """Seconds of all layers' prefill attention in one step, as in operators.prefill_us."""
        if tokens <= 0:
            return 0.0
        if self.windowed:
            pairs -= self.windowed * max(pairs - tokens * self.window, 0.0)
        seqs = seqs if seqs > 1e-9 else 1e-9
        length = tokens / seqs if tokens > seqs else 1.0
        keys = pairs / tokens + length / 2
        width = self.heads * self.head_dim
        compute = 4e-6 * width * pairs / self.tflops * (1 + self.short * TILE / (keys if keys > 1 else 1.0))
        full = seqs * self.heads * math.ceil(length / TILE) / self.sms  # tiles per multiprocessor
        if full < 1:
            compute /= full**self.occupancy
        moved = tokens * width * 4 + seqs * keys * self.kv_bytes
        us = self.overhead_us + compute + 1e-3 * moved / self.gb_s
        if self.again_us and keys > length:
            us += seqs * (keys - length) * self.again_us
        return (us if tokens >= 1 else tokens * us) * self.layers * 1e-6


@dataclass(frozen=True)
class StepTimes:
    """Tables of seconds. `linear`: products, elementwise kernels and communication, by number of tokens (see FINE and
    COARSE); `logits`: by number of sampled tokens; `attention`: decode attention by number of sequences, without its
    time per token of context, which is `per_context`; `guessing`: draft tokens by number of sequences. `checked`:
    tokens per sequence in a decode step, above 1 with speculation; `per_step`: mean tokens that a sequence gains in a
    decode step; `budget`: most tokens of a pipeline's micro batch; `others`: wait of a decode step for other engines
    (lockstep.py); `graph_tokens`, `graph_decodes`: tokens of the largest step, and of the largest decode step, with a
    CUDA graph."""

    linear: list[float]
    logits: list[float]
    attention: list[float]
    per_context: list[float]
    prompt: PromptAttention
    pp: float
    host_step: float
    host_seq: float
    launches: float
    graph_tokens: float
    eager: bool
    eager_prompts: bool
    overlap: bool
    checked: int = 1
    per_step: float = 1.0
    guessing: tuple[float, ...] = ()
    budget: float = math.inf
    others: float = 0.0
    graph_decodes: float = math.inf

    def passes(self, tokens: float) -> float:
        if tokens <= FINE:
            return self.linear[math.ceil(tokens)]
        return self.linear[min(FINE + math.ceil((tokens - FINE) / COARSE), len(self.linear) - 1)]

    def host(self, seqs: int) -> float:
        """CPU seconds of the engine for a step with `seqs` sequences."""
        return self.host_step + self.host_seq * seqs

    def whole(self, on_device: float, seqs: int, one_by_one: bool) -> float:
        host = self.host_step + self.host_seq * seqs
        if one_by_one and on_device < self.launches:
            on_device = self.launches
        if self.overlap:
            return on_device if on_device > host else host
        return on_device + host

    def decode(self, seqs: int) -> float:
        """Device seconds of a decode step (with a pipeline, of one of its micro batches), without the time per token of
        context."""
        if self.pp == 1 and self.checked == 1 and seqs <= FINE:
            return self.linear[seqs] + self.logits[seqs] + self.attention[seqs]
        return self._decode(seqs)

    def _decode(self, seqs: int) -> float:
        each = math.ceil(seqs / min(max(seqs, 1), self.pp))
        tokens = each * self.checked
        guessing = self.guessing[each] if self.guessing else 0.0
        return self.passes(tokens) + self.logits[tokens] + self.attention[each] + guessing

    def context(self, seqs: int) -> float:
        """Seconds that each token of context adds to a decode step with `seqs` sequences."""
        m = min(max(seqs, 1), self.pp)
        return self.per_context[math.ceil(seqs / m)] / m

    @cached_property
    def _paces(self) -> dict[int, tuple[float, float, float, float]]:
        return {}

    def _pace(self, seqs: int) -> tuple[float, float, float, float]:
        """(device seconds of a decode step without context, seconds per token of context, least seconds, seconds that
        the host adds), which are kept, because a simulation asks for them with each event."""
        host, each = self.host(seqs), seqs / min(max(seqs, 1), self.pp) * self.checked
        launched = self.launches if self.eager or each > self.graph_decodes else 0.0
        least, added = (max(launched, host), 0.0) if self.overlap else (launched, host)
        found = self._paces[seqs] = self.decode(seqs), self.context(seqs), least, added
        return found

    def pace(self, seqs: int, context: float) -> float:
        """Seconds from one token to the next of `seqs` sequences that have `context` tokens together."""
        base, slope, least, added = self._paces.get(seqs) or self._pace(seqs)
        on_device = base + slope * context + self.others
        return ((on_device if on_device > least else least) + added) / self.per_step

    def paces(self, seqs: int, context: float, steps: int) -> tuple[float, float]:
        """(mean seconds of the next decode steps, seconds of the last one)"""
        base, slope, least, added = self._paces.get(seqs) or self._pace(seqs)
        first, more = base + slope * context, slope * seqs * (steps - 1)
        on_device = first + more / 2 + self.others
        mean = ((on_device if on_device > least else least) + added) / self.per_step
        if steps == 1:
            return mean, mean
        on_device = first + more + self.others
        return mean, ((on_device if on_device > least else least) + added) / self.per_step

    def steps_within(self, seqs: int, context: float, seconds: float) -> int:
        """Decode steps until `seconds` have passed. Each step takes longer than the one before."""
        growth = (self._paces.get(seqs) or self._pace(seqs))[1] * seqs / self.per_step
        first = self.pace(seqs, context)
        if growth * seconds < 1e-9 * first * first:
            return max(1, math.ceil(seconds / first))
        middle = first - growth / 2
        return max(1, math.ceil((math.sqrt(middle * middle + 2 * growth * seconds) - middle) / growth))

    def prompts(self, seqs: int, tokens: int, pairs: float, decodes: int, context: int) -> float:
        """Seconds of a step with `tokens` tokens of `seqs` prompts and with `decodes` decoding sequences. `pairs`:
        (query, key) pairs of the prompts under the causal mask; `context`: tokens of all decoding sequences."""
        if self.pp == 1 and self.checked == 1:  # `_batch` of the most frequent case
            once = self.passes(tokens + decodes) + self.logits[seqs + decodes]
            once += self.prompt.seconds(seqs, tokens, pairs)
            if decodes:
                once += self.attention[decodes] + self.per_context[decodes] * context
        else:
            m = min(max(seqs + decodes, tokens / self.budget), self.pp)
            once = self._batch(seqs, tokens, pairs, decodes, context, m)
        one_by_one = self.eager or self.eager_prompts or tokens + decodes * self.checked > self.graph_tokens
        return self.whole(once, seqs + decodes, one_by_one)

    def under_way(self, tokens: int, keys: int, step_s: float) -> float:
        if self.pp == 1:
            return 0.0
        parts = min(max(math.ceil(tokens / self.budget), 1), self.pp)
        last = math.ceil(tokens / parts)
        alone = self.prompts(1, last, last * (keys - (last - 1) / 2), 0, 0)
        return max(alone - (1 - (parts - 1) / self.pp) * step_s, 0.0)

    def on_device(self, seqs: int, tokens: int, pairs: float, decodes: int, context: int) -> float:
        """Device seconds of one batch in all layers, without other micro batches."""
        one_by_one = self.eager or tokens + decodes > self.graph_tokens
        seconds = self._batch(seqs, tokens, pairs, decodes, context, 1.0)
        return max(seconds, self.launches) if one_by_one else seconds

    def _batch(self, seqs: int, tokens: int, pairs: float, decodes: int, context: int, m: float) -> float:
        """Device seconds of one of m equal micro batches of a step (arguments as for `prompts`)."""
        checked = decodes * self.checked
        once = self.passes((tokens + checked) / m) + self.logits[math.ceil((seqs + checked) / m)]
        once += self.prompt.seconds(seqs / m, tokens / m, pairs / m)
        if decodes:
            each = math.ceil(decodes / m)
            once += self.attention[each] + self.per_context[each] * context / m
            once += self.guessing[each] if self.guessing else 0.0
        return once
