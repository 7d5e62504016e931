"""Step times of one engine, from tables of plain floats: the event simulation asks for hundreds of thousands of them. A
shadow's process, whose interpreter lacks our packages, loads only this file.

Seconds throughout. events.step_times() makes them from the arrays of steps.py.
"""

import math
from dataclasses import dataclass

FINE = 512  # up to this many tokens step times are tabulated individually
COARSE = 32  # step size of the table above that
TILE = 128  # columns and at most rows of a kernel's output tile


@dataclass(frozen=True)
class PromptAttention:
    """Constants of operators.Prefill on one device, for all layers together; `heads`, `kv_bytes`: per device."""

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
    again_us: float = 0.0  # per layer, for each token of context that earlier steps computed
    window: float = 0.0  # tokens that a token attends to, in those layers that have a window
    windowed: float = 0.0

    def seconds(self, seqs: float, tokens: float, pairs: float) -> float:
        """Seconds of one step, as in operators.prefill_us."""
        if tokens <= 0:
            return 0.0
        seqs = max(seqs, 1e-9)
        if self.windowed:
            pairs -= self.windowed * max(pairs - tokens * self.window, 0.0)
        length = max(tokens / seqs, 1.0)
        keys = pairs / tokens + length / 2
        width = self.heads * self.head_dim
        compute = 4e-6 * width * pairs / self.tflops * (1 + self.short * TILE / max(keys, 1.0))
        full = seqs * self.heads * math.ceil(length / TILE) / self.sms  # tiles
        if full < 1:
            compute /= full**self.occupancy
        moved = tokens * width * 4 + seqs * keys * self.kv_bytes
        us = self.overhead_us + compute + 1e-3 * moved / self.gb_s
        if self.again_us and keys > length:
            us += seqs * (keys - length) * self.again_us
        return (us if tokens >= 1 else tokens * us) * self.layers * 1e-6


@dataclass(frozen=True)
class StepTimes:
    """`linear`: products, elementwise kernels and communication, by number of tokens (exact, then in coarse steps);
    `logits`: by number of sampled tokens; `attention`: of decoding sequences, without the part that depends on their
    context; `per_context`: what one token of context adds, by number of sequences. `checked`: tokens of a sequence in a
    decode step: more than one with speculation, which takes `guessing` (by number of sequences) and yields `per_step`
    tokens. `budget`: most tokens of a pipeline's micro batch. `others`: how long a decode step waits for other engines'
    prompts. `graph_decodes`: tokens of the largest decode step that runs from a CUDA graph."""

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
        """Seconds of the engine's own work for a step."""
        return self.host_step + self.host_seq * seqs

    def whole(self, on_device: float, seqs: int, one_by_one: bool) -> float:
        host = self.host_step + self.host_seq * seqs
        if one_by_one and on_device < self.launches:
            on_device = self.launches
        if self.overlap:
            return on_device if on_device > host else host
        return on_device + host

    def decode(self, seqs: int) -> float:
        """Seconds on the device, without the context's part; a pipeline's micro batches take turns."""
        if self.pp == 1 and self.checked == 1 and seqs <= FINE:
            return self.linear[seqs] + self.logits[seqs] + self.attention[seqs]
        return self._decode(seqs)

    def _decode(self, seqs: int) -> float:
        each = math.ceil(seqs / min(max(seqs, 1), self.pp))
        tokens = each * self.checked
        guessing = self.guessing[each] if self.guessing else 0.0
        return self.passes(tokens) + self.logits[tokens] + self.attention[each] + guessing

    def token(self, on_device: float, seqs: int) -> float:
        """Seconds from one token to the next, given a step's time on the device."""
        each = seqs / min(max(seqs, 1), self.pp) * self.checked
        return self.whole(on_device + self.others, seqs, self.eager or each > self.graph_decodes) / self.per_step

    def context(self, seqs: int) -> float:
        """Seconds per token of context of all sequences together."""
        m = min(max(seqs, 1), self.pp)
        return self.per_context[math.ceil(seqs / m)] / m

    def prompts(self, seqs: int, tokens: int, pairs: float, decodes: int, context: int) -> float:
        """Seconds of a step with `tokens` of `seqs` prompts, whose queries see `pairs` keys in total, and `decodes`
        decoding sequences with `context` tokens in total."""
        if self.pp == 1 and self.checked == 1:
            once = self._alone(seqs, tokens, pairs, decodes, context)
        else:
            m = min(max(seqs + decodes, tokens / self.budget), self.pp)
            once = self._batch(seqs, tokens, pairs, decodes, context, m)
        one_by_one = self.eager or self.eager_prompts or tokens + decodes * self.checked > self.graph_tokens
        return self.whole(once, seqs + decodes, one_by_one)

    def under_way(self, tokens: int, keys: int, step_s: float) -> float:
        """As steps.under_way_s."""
        if self.pp == 1:
            return 0.0
        parts = min(max(math.ceil(tokens / self.budget), 1), self.pp)
        last = math.ceil(tokens / parts)
        alone = self.prompts(1, last, last * (keys - (last - 1) / 2), 0, 0)
        return max(alone - (1 - (parts - 1) / self.pp) * step_s, 0.0)

    def on_device(self, seqs: int, tokens: int, pairs: float, decodes: int, context: int) -> float:
        """Seconds for one batch to pass through all layers, if nothing else runs."""
        one_by_one = self.eager or tokens + decodes > self.graph_tokens
        seconds = self._batch(seqs, tokens, pairs, decodes, context, 1.0)
        return max(seconds, self.launches) if one_by_one else seconds

    def _alone(self, seqs: int, tokens: int, pairs: float, decodes: int, context: int) -> float:
        """Seconds of one batch without guesses, the case that is simulated most."""
        once = self.passes(tokens + decodes) + self.logits[seqs + decodes] + self.prompt.seconds(seqs, tokens, pairs)
        if decodes:
            once += self.attention[decodes] + self.per_context[decodes] * context
        return once

    def _batch(self, seqs: int, tokens: int, pairs: float, decodes: int, context: int, m: float) -> float:
        """Seconds of one of m equal micro batches of such a step."""
        checked = decodes * self.checked
        once = self.passes((tokens + checked) / m) + self.logits[math.ceil((seqs + checked) / m)]
        once += self.prompt.seconds(seqs / m, tokens / m, pairs / m)
        if decodes:
            each = math.ceil(decodes / m)
            once += self.attention[each] + self.per_context[each] * context / m
            once += self.guessing[each] if self.guessing else 0.0
        return once
