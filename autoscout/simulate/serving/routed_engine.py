"""One engine of a simulated fleet: the event simulation of events.py, which gets its requests one by one.

A run of decode steps is planned as a whole, up to the first end of an answer, and cut where a request arrives that may
join it."""

import heapq
import math
from collections import deque

from autoscout.job.requests import Requests
from autoscout.simulate.serving.cache_tiers import Link
from autoscout.simulate.serving.engine_run import Sequence
from autoscout.simulate.serving.events import EngineSimulation
from autoscout.simulate.serving.held_back import EngineLimits
from autoscout.simulate.serving.prefix_cache import PrefixCache
from autoscout.simulate.serving.step_times import StepTimes

END, TRANSFER, ARRIVAL = range(3)  # kinds of events, in their order at the same time


class RoutedEngine(EngineSimulation):
    """`cache`: None if no requests share beginnings. `link`: (seconds, seconds per token) of a transfer from an engine
    that read the prompt. A request waits for it, as for a transfer from the host's memory; transfers are sequential.

    `at`: time of the engine's next event, infinity if it has nothing to do. `events`: the fleet's heap of (time, kind,
    request, engine), which gets the ends of answers and of transfers."""

    def __init__(
        self,
        number: int,
        times: StepTimes,
        limits: EngineLimits,
        requests: Requests,
        cache: PrefixCache | None,
        events: list[tuple[float, int, int, int]],
        link: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        super().__init__(times, limits, requests)
        self.number, self.cache, self._events = number, cache, events
        self._link = cache.tiers[0].link if cache and cache.tiers else Link(*link)
        self._all_remote = requests.received
        self._some_remote = requests.received or bool(cache and cache.tiers)
        self.coming, self.prefix = [], 0
        self.at, self.in_flight = math.inf, 0
        self._remote: list[Sequence] = []  # their caches are on another engine
        self._unseen_remote: list[Sequence] = []
        self._fetched: dict[int, Sequence] = {}  # their caches are under way
        self._planned, self._seqs = 0, 0  # decode steps under way, and their sequences
        # tokens of prompts that were found once files had been read; 0: files were only looked for
        self._promoted: dict[int, int] = {}
        self._soon = False  # whether a transfer may begin after the next step

    @property
    def queued(self) -> int:
        return len(self.waiting) + len(self.unseen) + len(self._remote)

    @property
    def used(self) -> float:
        return 1 - self.free / max(self.blocks, 1)

    def arrive(self, i: int, at: float) -> None:
        """Takes a request. Its answer ends at once if it does not fit into the engine."""
        late = self._reach(at)
        if not self._enqueue(i, late):
            self.end[i] = math.nan
            self._tell(at, END, i)
        self._set_next()

    def transferred(self, i: int, at: float) -> None:
        """Takes a request whose cache has arrived, on the device or (from files) in the host's memory."""
        late = self._reach(at)
        s = self._fetched.pop(i)
        if s.fetched:
            self.unseen.append(s)
        else:
            (self._unseen_remote if late else self._remote).insert(0, s)
        if not late:
            self._see_all()
        self._set_next()

    def _see_all(self) -> None:
        """Requests that have their blocks go before those that wait for blocks, each in turn."""
        super()._see_all()
        if self._some_remote and len(self.waiting) > 1:
            self.waiting = deque(sorted(self.waiting, key=lambda s: not s.fetched))

    def _force(self) -> None:
        """A request whose cache has arrived goes before a preempted one, which waits for the blocks of such requests.
        (While caches are under way, the engine waits for them.)"""
        if self._fetched:
            return
        if (first := next((s for s in self.waiting if s.fetched), None)) is not None:
            self.waiting.remove(first)
            self.waiting.appendleft(first)
        super()._force()

    def _busy(self) -> bool:
        """Whether there is something to compute. An engine that has nothing else sees its new requests at once."""
        if self.waiting or self.prefilling or self.decoding:
            return True
        if self.unseen:
            self._see_all()
        return bool(self.waiting)

    def _reach(self, at: float) -> bool:
        """Goes on to the first step's end after `at`. Returns whether the next step was prepared before."""
        if self._planned and self._may_join(self._seqs):
            steps = self.times.steps_within(self._seqs, self.context, at - self.now)
            if steps < self._planned:
                self._planned = 0
                self._decoded(steps, *self.times.paces(self._seqs, self.context, steps))
        if self.at == math.inf:
            self.now = max(self.now, at)
            return False
        if not self._busy():
            return False
        return self.limits.ahead and at > self.begun

    def advance(self) -> None:
        """Ends the steps under way, or begins the next ones."""
        if self._planned:
            steps, self._planned = self._planned, 0
            self._decoded(steps, *self._plan_s)
            if not self.limits.ahead:  # requests that are sent when others end may begin in the next step
                self._set_next()
                return
        looked = False
        if self._remote or self._unseen_remote:
            looked = self._fetch()
        else:
            self._soon = False
        before, busy = self.steps, self._busy()
        if busy:
            self._one_event()
        if self._planned or self.steps > before or looked or (not self._fetched and (busy or self._remote)):
            self._set_next()
        else:  # it has nothing to do, or waits for a transfer
            self.at = math.inf

    def _set_next(self) -> None:
        """An engine that has nothing to do finds out when it is to begin the next steps."""
        self.at = self._plan_end if self._planned else self.now

    def _enqueue(self, i: int, late: bool) -> bool:
        if not super()._enqueue(i, late):
            return False
        if self._some_remote:
            s = (self.unseen if late else self.waiting).pop()
            (self._unseen_remote if late else self._remote).append(s)
        return True

    def _fetch(self) -> bool:
        """Begins the transfers of the caches for which there are blocks, if there is a place for another request.
        Returns whether files were looked for, so that more transfers may begin after the next step."""
        if not self._busy():
            self._remote += self._unseen_remote
            self._unseen_remote = []
        waiting, self._remote = self._remote, []
        looked = list[Sequence]()
        for n, s in enumerate(waiting):
            cached, shared = self._found(s)
            need = self._blocks(s.known) - shared
            seated = len(self.decoding) + len(self.prefilling) < self.limits.max_seqs
            if seated and self._promotes(s, cached):
                if s.id not in self._fetched:
                    looked.append(s)
                continue
            if not seated or need > self.free:
                self._remote = waiting[n:]
                break
            tokens = self._elsewhere(s, cached)
            if not tokens:
                self.waiting.append(s)
                continue
            self.free -= need
            s.done, s.fetched = max(s.done, cached + tokens * (not self._all_remote)), need
            self._fetched[s.id] = s
            self._tell(self._link.arrival(self.now, tokens), TRANSFER, s.id)
        self._soon = bool(self._unseen_remote or looked)
        self._remote += looked + self._unseen_remote
        self._unseen_remote = []
        return bool(looked)

    def _promotes(self, s: Sequence, cached: int) -> bool:
        """Whether a request has to wait for files. As in vLLM, these are looked for during a step, also for a prompt
        that they lack, and what they have is read into the host's memory before the request gets blocks. Meanwhile
        other requests go on."""
        if self.cache is None or len(self.cache.tiers) < 2:
            return False
        if s.id not in self._promoted:
            self._promoted[s.id] = 0
            return True
        here, files = self.cache.behind(s.id, cached)
        if not files or self._promoted[s.id]:
            return False
        self._promoted[s.id] = found = cached + here + files
        self.cache.promote(s.id, found)
        self._fetched[s.id] = s
        self._tell(self.cache.tiers[1].link.arrival(self.now, files), TRANSFER, s.id)
        return True

    def _elsewhere(self, s: Sequence, cached: int) -> int:
        """Tokens of a prompt that only another engine or the host's memory has."""
        if self._all_remote or self.cache is None:
            return s.known - cached
        return max(self.cache.behind(s.id, cached)[0], self._promoted.get(s.id, 0) - cached)

    def _decode_run(self) -> None:
        if self.phase[self.step % self.limits.block] > self.free:
            self._reserve()
        self._seqs = seqs = len(self.decoding)
        if not seqs:
            return
        self._planned = steps = 1 if self._soon and self._may_join(seqs) else self._steps_alike(seqs)
        self._plan_s = self.times.paces(seqs, self.context, steps)
        self._plan_end = self.now + self._plan_s[0] * steps

    def _found(self, s: Sequence) -> tuple[int, int]:
        if self.cache is None:
            return 0, 0
        self.cache.trim(self.free)
        return self.cache.found(s.id)

    def _start(self, s: Sequence, need: int, cached: int, shared: int) -> None:
        super()._start(s, need, cached, shared)
        if self.cache is not None:
            self.cache.take(s.id)

    def _release(self, s: Sequence, tokens: int) -> None:
        if self.cache is not None:
            s.shared = self.cache.give(s.id, max(tokens - self.inputs[s.id], 0))
        super()._release(s, tokens)

    def _ended(self, s: Sequence) -> None:
        super()._ended(s)
        self._tell(self.end[s.id], END, s.id)

    def _tell(self, at: float, kind: int, i: int) -> None:
        heapq.heappush(self._events, (at, kind, i, self.number))
