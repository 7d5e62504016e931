"""Simulates a serving engine event by event: continuous batching with vLLM's scheduler, with step times from steps.py.

Version 1 of vLLM's scheduler fills every step with the running sequences first (one token of each decoding sequence, a
chunk of each unfinished prompt), then with waiting requests while the token budget, the number of sequences and the KV
cache allow. When the cache is full, the sequence admitted last is preempted: it returns to the head of the queue and is
recomputed. Version 0 gave prompts precedence, in steps without decoding, and did not split them.

Consecutive decode steps without an arrival, an end or a lack of blocks are one event, with a closed-form time."""

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from autoscout.job.requests import Requests
from autoscout.simulate.serving.engine_run import EngineRun, RoomUsed, Sequence, step_times
from autoscout.simulate.serving.engine_shapes import EngineShapes
from autoscout.simulate.serving.held_back import EngineLimits, Turns
from autoscout.simulate.serving.step_times import StepTimes

_GOLDEN = 0.618034  # golden ratio - 1: its multiples modulo 1, which vary the time in the front end, are spread evenly
_LOOKS = 8  # how often `enough` is evaluated during a run
_WATERMARK = 0.01  # share of blocks that version 0 keeps free when it admits a request (vLLM's default)


def simulate(
    e: EngineShapes,
    limits: EngineLimits,
    requests: Requests,
    times: StepTimes | None = None,
    enough: Callable[[EngineRun], bool] | None = None,
) -> EngineRun:
    """Simulates one replica (`e`: one configuration) that serves `requests`. `times`: its step times, if already
    tabulated. `enough`: called now and then with the run so far; the simulation stops if it returns true."""
    longest = int((requests.input_len + requests.output_len).max())
    times = times or step_times(e, limits, longest if limits.version == 0 or not limits.chunked else 0)
    return EngineSimulation(times, limits, requests).run(enough)


class EngineSimulation:
    def __init__(self, times: StepTimes, limits: EngineLimits, requests: Requests) -> None:
        self.limits, self.requests, self.times = limits, requests, times
        self.inputs, self.outputs = requests.input_len.tolist(), requests.output_len.tolist()
        self.stages = int(self.times.pp)  # pipeline stages; a step has one micro batch for each
        n = len(requests)
        self.arrival, self.first, self.end = requests.arrival_s.astype(float).tolist(), [math.nan] * n, [math.nan] * n
        self.now, self.begun, self.step, self.steps, self.preemptions = 0.0, 0.0, 0, 0, 0  # `begun`: of the last step
        self.turns, self.holds = Turns(limits), limits.held > 0
        # closed loop: users, requests sent, and when the front end is free
        self.users, self.sent, self.front_end_free = requests.concurrency, 0, 0.0
        self.coming = [] if self.users else list(zip(self.arrival, range(n), strict=True))  # heap of (arrival, id)
        self.waiting: deque[Sequence] = deque()
        self.unseen: list[Sequence] = []  # requests that arrived after the next step was prepared
        self.prefilling: list[Sequence] = []
        self.decoding: dict[int, Sequence] = {}  # decoding sequences by id, in the order of admission
        self.ends: list[tuple[int, int, int]] = []  # heap of (last step, admission, id) of decoding sequences
        self.admissions = 0
        self.context = 0  # tokens of the decoding sequences
        block = limits.block
        self.phase = [0] * block  # [i]: decoding sequences that need a new block in step i (mod block)
        self.blocks = max(limits.kv_tokens // block, 0)
        self.free = self.blocks
        self.promised = 0  # blocks that the running sequences will hold at their ends
        self.held = self.at_once = self.most = 0  # peaks: promised blocks, running requests, tokens of a step
        self.short = self.cut = False  # whether a request waited for blocks (short), for token budget (cut)
        self.refused: list[int] = []
        self.prefix = requests.shared_prefix // block * block if limits.prefix_caching else 0
        self.prefix_ready = False
        self.gaps: list[float] = []
        self.gap_counts: list[int] = []
        self.stall = 0.0  # seconds that steps without decoding have delayed the next tokens
        self.owed = 0.0  # speculative decoding: tokens that steps yielded on average, minus those credited to sequences

    def run(self, enough: Callable[[EngineRun], bool] | None) -> EngineRun:
        for _ in range(self.users):
            self._send()
        every = max(len(self.inputs) // _LOOKS, 1)
        look = every if enough else math.inf
        coming = self.coming
        while True:
            if coming and coming[0][0] <= self.now:
                self._arrivals()
            if not (self.decoding or self.waiting or self.prefilling):
                if not coming:
                    return self._so_far()
                self.now = coming[0][0]
                continue
            self._one_event()
            if self.admissions >= look:
                look = self.admissions + every
                if enough and enough(run := replace(self._so_far(self.now), given_up=True)):
                    return run

    def _so_far(self, now: float = math.nan) -> EngineRun:
        """The run so far. Events that have not happened yet get the time `now` (NaN if omitted)."""
        first, end = np.array(self.first), np.array(self.end)
        if not math.isnan(now):
            rest = np.isnan(end)
            rest[self.refused] = False
            end[rest] = now
            first[rest & np.isnan(first)] = now
        tokens, full = self.held * self.limits.block + self.prefix, self.at_once >= self.limits.max_seqs
        cut = self.cut or self.stages > 1  # micro batches also split the budget
        return EngineRun(
            arrival_s=np.array(self.arrival),
            first_s=first,
            end_s=end,
            output_len=self.requests.output_len,
            input_len=self.requests.input_len,
            gaps_s=np.array(self.gaps),
            gap_counts=np.array(self.gap_counts),
            preemptions=self.preemptions,
            steps=self.steps,
            room=RoomUsed(tokens, self.at_once, self.most, self.short, full, cut),
        )

    def _arrivals(self) -> None:
        ahead = self.limits.ahead and (self.decoding or self.waiting or self.prefilling)
        while self.coming and self.coming[0][0] <= self.now:
            came, number = heapq.heappop(self.coming)
            if not self._enqueue(number, late=bool(ahead) and came > self.begun) and self.users:
                self._send()

    def _send(self) -> None:
        if self.sent < len(self.inputs):
            mean_s, each_s = self.requests.front_end_s
            self.front_end_free = max(self.front_end_free, self.now) + each_s
            through = self.front_end_free + mean_s * (0.5 + self.sent * _GOLDEN % 1)
            self.arrival[self.sent] = self.now
            heapq.heappush(self.coming, (through, self.sent))
            self.sent += 1

    def _enqueue(self, i: int, late: bool) -> bool:
        """Queues request i; returns False if it is too large. `late`: it must wait for one more step."""
        prompt_fits = self.limits.chunked or self.inputs[i] <= self.limits.batched_tokens
        whole = self._blocks(self.inputs[i] + self.outputs[i])
        if whole > self.blocks or not prompt_fits:
            self.short = self.cut = True
            self.refused.append(i)
            return False
        s = Sequence(i, self.inputs[i], self.outputs[i], whole)
        s.done = s.known - 1 if self.requests.received else 0
        (self.unseen if late else self.waiting).append(s)
        return True

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.limits.block)

    def _one_event(self) -> None:
        ready = (self.prefilling or self.waiting) and not (self.holds and self.decoding and self._turn_in())
        batch = self._admit() if ready else []
        if self.limits.version == 0 and batch and not self.requests.received:
            self._prompt_step(batch, decode=False)
        elif batch:
            self._prompt_step(batch, decode=True)
        elif self.decoding:
            self._decode_run()
        else:  # the first prompt does not fit an empty engine, which only V0's watermark can cause
            self._force()
        if self.unseen:
            self._see_all()

    def _see_all(self) -> None:
        self.waiting.extend(self.unseen)
        self.unseen.clear()

    def _turn_in(self) -> int:
        """Steps until a step may contain prompts again."""
        held = self.holds and len(self.decoding) + len(self.prefilling) >= self.limits.held_from
        return self.turns.left(len(self.prefilling) + len(self.waiting)) if held else 0

    def _admit(self) -> list[tuple[Sequence, int]]:
        """The prompt chunks of the next step, as (sequence, tokens), including those of newly admitted requests."""
        limits, v1, waiting, before = self.limits, self.limits.version == 1, self.waiting, self.preemptions
        long_prompt = limits.long_prompt * self.stages
        if v1 and self.phase[self.step % limits.block] > self.free:
            self._reserve()
        whole = limits.batched_tokens * self.stages
        budget = whole - (len(self.decoding) if v1 else 0)
        batch: list[tuple[Sequence, int]] = []
        for s in self.prefilling:
            if (tokens := min(s.known - s.done, budget, long_prompt)) > 0:
                batch.append((s, tokens))
                budget -= tokens
        if v1 and self.preemptions > before:
            return batch
        running = len(self.prefilling) + len(self.decoding)
        kept = self.phase[self.step % limits.block] if v1 else self.blocks * _WATERMARK
        while waiting and budget > 0 and running < limits.max_seqs:
            s = waiting[0]
            cached, shared = self._found(s)
            tokens = min(s.known - max(cached, s.done), long_prompt)
            if tokens > budget and limits.chunked and v1:
                tokens = budget
            elif tokens > budget and (batch or not limits.chunked):  # V0's chunks run back to back, as one step
                self.cut = True
                break
            # Reserves blocks for the whole prompt. vLLM allocates them chunk by chunk, with the same effect, because it
            # admits no other request before the prompt's last chunk.
            need = -(-s.known // limits.block) - shared - s.fetched
            if need + kept + (limits.reserved and self._to_come(s, need)) > self.free:
                self.short = True
                break
            waiting.popleft()
            self._start(s, need, cached, shared)
            batch.append((s, tokens))
            budget -= tokens
            running += 1
        self.at_once = max(self.at_once, running)
        if budget <= 0:
            self.cut = True
        elif whole - budget > self.most:
            self.most = whole - budget
        return batch

    def _found(self, s: Sequence) -> tuple[int, int]:
        """(tokens of the prompt that are in the prefix cache; blocks of them that take no free ones)"""
        cached = min(self.prefix, (s.known - 1) // self.limits.block * self.limits.block) if self.prefix_ready else 0
        return cached, cached // self.limits.block

    def _to_come(self, s: Sequence, need: int) -> float:
        """Blocks reserved for future tokens, in engines that avoid preemption."""
        return s.whole - need + self.limits.reserved * (self.promised - (self.blocks - self.free))

    def _start(self, s: Sequence, need: int, cached: int, shared: int) -> None:
        self.free -= need
        self.promised += s.whole
        self.held = max(self.held, self.promised)
        s.done, s.shared, s.fetched = max(cached, s.done), shared, 0
        s.admitted = self.admissions = self.admissions + 1
        self.prefilling.append(s)

    def _prompt_step(self, batch: list[tuple[Sequence, int]], decode: bool) -> None:
        tokens, pairs, finished = 0, 0.0, list[tuple[Sequence, int]]()
        for s, t in batch:
            tokens += t
            pairs += t * (s.done + (t + 1) / 2)
            s.done += t
            if s.done >= s.known:
                finished.append((s, t))
        decodes = len(self.decoding) if decode else 0
        if self.requests.received and tokens == len(batch):  # with separate engines for prompts, all sequences decode
            took = self.times.pace(len(self.decoding) + len(batch), self.context + sum(s.known for s, _ in batch))
        else:
            took = self.times.prompts(len(batch), tokens, pairs, decodes, self.context if decodes else 0)
        self.begun = self.now
        self.now += took
        self.steps += 1
        if self.holds:
            self.turns.read(alone=not decode)
        if decodes:
            self._tokens(got := self._gained(), took / got, got)
        else:
            self.stall += took if self.decoding else 0.0
        if finished:
            self.prefilling = [s for s in self.prefilling if s.done < s.known]
            if self.prefix and not self.prefix_ready:
                self.prefix_ready, first = True, finished[0][0]
                first.shared = min(self.prefix, first.known) // self.limits.block  # now cached
            for s, t in finished:
                if self.stages > 1:
                    s.late = self.times.under_way(t, s.known, took)
                self._sampled_first(s)

    def _gained(self) -> int:
        """Tokens that each decoding sequence gains in a step with prompts."""
        if self.times.per_step == 1:
            return 1
        self.owed = min(self.owed, 1.0) + self.times.per_step
        got = self._steps_in_memory(min(int(self.owed), self.ends[0][0] - self.step))
        self.owed -= got
        return got

    def _sampled_first(self, s: Sequence) -> None:
        """Completes a prompt: its step yields the first token, and the sequence starts to decode."""
        if math.isnan(self.first[s.id]):
            self.first[s.id] = self.now + s.late
        s.asked -= 1
        s.known += 1
        if s.asked == 0:
            self._release(s, s.known - 1)
            self._ended(s)
            return
        s.start_step, s.end_step = self.step, self.step + s.asked
        self.decoding[s.id] = s
        heapq.heappush(self.ends, (s.end_step, s.admitted, s.id))
        self.context += s.known
        self.phase[self._phase(s)] += 1

    def _phase(self, s: Sequence) -> int:
        """The step (mod block) in which a sequence, with blocks for `known` - 1 tokens now, needs another block."""
        return (s.start_step - (s.known - 1)) % self.limits.block

    def _decode_run(self) -> None:
        self._reserve()
        if not (seqs := len(self.decoding)):
            return
        steps = self._steps_alike(seqs)
        if self.coming and self._may_join(seqs):
            steps = min(steps, self.times.steps_within(seqs, self.context, self.coming[0][0] - self.now))
        self._decoded(steps, *self.times.paces(seqs, self.context, steps))

    def _steps_alike(self, seqs: int) -> int:
        """Decode steps of the same sequences, if no request comes."""
        steps = self._steps_in_memory(self.ends[0][0] - self.step)
        if self.holds and (self.waiting or self.prefilling):
            steps = min(steps, self._turn_in() or steps)
        return 1 if self.unseen and self._may_join(seqs) else steps

    def _may_join(self, seqs: int) -> bool:
        """Whether a request that comes now may be admitted while these sequences decode."""
        few = len(self.waiting) < 1 + (self.limits.held > self.limits.held_several)
        return few and seqs + len(self.prefilling) < self.limits.max_seqs

    def _decoded(self, steps: int, mean_s: float, last_s: float) -> None:
        self.now += mean_s * steps
        self.begun = self.now - last_s
        self.steps += steps
        if self.holds:
            self.turns.passed(steps)
        self._tokens(steps, mean_s, self.times.per_step)

    def _steps_in_memory(self, most: int) -> int:
        """The number of steps, up to `most`, for which there are free blocks."""
        block, seqs, free = self.limits.block, len(self.decoding), self.free
        if free >= (most // block + 1) * seqs:  # enough blocks in the worst case
            return most
        steps = free // seqs * block
        left, phase = free % seqs, self.phase
        while steps < most:
            left -= phase[(self.step + steps) % block]
            if left < 0:
                break
            steps += 1
        return max(min(steps, most), 1)

    def _reserve(self) -> None:
        """Preempts the sequences admitted last until every decoding sequence has a block for its next token."""
        while self.decoding and self.phase[self.step % self.limits.block] > self.free:
            last = self.prefilling[-1] if self.prefilling else None
            newest = next(reversed(self.decoding.values()))
            if last is not None and last.admitted > newest.admitted:
                self.prefilling.pop()
                self._release(last, last.known)
                self._back(last)
            else:
                self._preempt(newest)

    def _preempt(self, s: Sequence) -> None:
        done = self.step - s.start_step
        self._leave(s, s.known + done)
        self.ends.remove((s.end_step, s.admitted, s.id))
        heapq.heapify(self.ends)
        s.known, s.asked = s.known + done, s.asked - done
        self._back(s)

    def _back(self, s: Sequence) -> None:
        s.done = 0
        self.preemptions += 1
        self.short = True
        self.waiting.appendleft(s)

    def _leave(self, s: Sequence, known: int) -> None:
        """Removes a sequence of `known` tokens and frees its blocks. (The last token has no block.)"""
        del self.decoding[s.id]
        self.phase[self._phase(s)] -= 1
        self.context -= known
        self._release(s, known - 1)

    def _release(self, s: Sequence, tokens: int) -> None:
        """Frees the blocks of a sequence that has blocks for `tokens` tokens."""
        self.free += self._blocks(tokens) - s.shared
        self.promised -= s.whole

    def _tokens(self, steps: int, each_s: float, piece: float) -> None:
        """Credits `steps` tokens to each decoding sequence, one per `each_s`, in pieces of `piece` tokens."""
        gap = each_s * (piece if piece < steps else steps)
        block, seqs, phase, step, ends = self.limits.block, len(self.decoding), self.phase, self.step, self.ends
        begun, rest = step % block, steps % block
        self.free -= steps // block * seqs + sum(phase[begun : begun + rest])
        if begun + rest > block:
            self.free -= sum(phase[: begun + rest - block])
        stalled = 0
        if self.stall:
            stalled = 1
            self.gaps.append(gap + self.stall)
            self.gap_counts.append(seqs)
        self.gaps.append(gap)
        self.gap_counts.append(seqs * (steps - stalled))
        self.stall = 0.0
        self.step += steps
        self.context += seqs * steps
        while ends and ends[0][0] <= self.step:
            s = self.decoding[heapq.heappop(ends)[2]]
            self._leave(s, s.known + self.step - s.start_step)
            self._ended(s)

    def _ended(self, s: Sequence) -> None:
        self.end[s.id] = self.now + s.late
        if self.users:
            self._send()

    def _force(self) -> None:
        """Admits the first prompt in spite of the watermark, as version 0 does when nothing else runs."""
        s = self.waiting.popleft()
        self._start(s, self._blocks(s.known) - s.fetched, 0, 0)
        self._prompt_step([(s, s.known - s.done)], decode=False)
