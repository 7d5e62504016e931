"""One engine of a simulated fleet: the event simulation of events.py, which gets its requests one by one.

A run of decode steps is planned as a whole, up to the first end of an answer, and cut where a request arrives that may
join it."""

import heapq
import math
from collections import deque

from autoscout.job.requests import Requests
from autoscout.simulate.serving.engine_run import Sequence
from autoscout.simulate.serving.events import EngineSimulation
from autoscout.simulate.serving.held_back import EngineLimits
from autoscout.simulate.serving.prefix_cache import PrefixCache
from autoscout.simulate.serving.step_times import StepTimes

END, TRANSFER, ARRIVAL = range(3)  # kinds of events, in their order at the same time


class RoutedEngine(EngineSimulation):
    """`cache`: None if no requests share beginnings. `link`: (seconds, seconds per token) of a transfer from an engine
    that read the prompt, or from the host's memory, which a request then waits for; transfers are sequential.

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
        self.number, self.cache, self._events, self._link = number, cache, events, link
        self._all_remote = requests.received
        self._some_remote = requests.received or bool(cache and cache.host)
        self.coming, self.prefix = [], 0
        self.at, self.in_flight = math.inf, 0
        self._remote: list[Sequence] = []  # their caches are on another engine
        self._unseen_remote: list[Sequence] = []
        self._fetched: dict[int, Sequence] = {}  # their caches are under way
        self._planned, self._seqs = 0, 0  # decode steps under way, and their sequences
        self._soon = False  # whether a transfer may begin after the next step
        self._link_free = 0.0

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
        """Takes a request whose cache has arrived."""
        late = self._reach(at)
        self.unseen.append(self._fetched.pop(i))
        if not late:
            self._see_all()
        self._set_next()

    def _see_all(self) -> None:
        """Requests that have their blocks go before those that wait for blocks, each in turn."""
        super()._see_all()
        if self._some_remote and len(self.waiting) > 1:
            self.waiting = deque(sorted(self.waiting, key=lambda s: not s.fetched))

    def _force(self) -> None:
        if not self._fetched:  # else all blocks are taken by requests whose caches are under way
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
        if self._remote or self._unseen_remote:
            self._fetch()
        else:
            self._soon = False
        before, busy = self.steps, self._busy()
        if busy:
            self._one_event()
        if self._planned or self.steps > before or (not self._fetched and (busy or self._remote)):
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

    def _fetch(self) -> None:
        """Begins the transfers of the caches for which there are blocks, if there is a place for another request."""
        if not self._busy():
            self._remote += self._unseen_remote
            self._unseen_remote = []
        waiting, self._remote = self._remote, []
        for n, s in enumerate(waiting):
            cached, shared = self._found(s)
            need = self._blocks(s.known) - shared
            if len(self.decoding) + len(self.prefilling) >= self.limits.max_seqs or need > self.free:
                self._remote = waiting[n:]
                break
            tokens = s.known - cached if self._all_remote or self.cache is None else self.cache.on_host(s.id, cached)
            if not tokens:
                self.waiting.append(s)
                continue
            self.free -= need
            s.done, s.fetched = max(s.done, cached + tokens * (not self._all_remote)), need
            self._link_free = max(self.now, self._link_free) + self._link[0] + self._link[1] * tokens
            self._fetched[s.id] = s
            self._tell(self._link_free, TRANSFER, s.id)
        self._soon = bool(self._unseen_remote)
        self._remote += self._unseen_remote
        self._unseen_remote = []

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
        self.end[s.id] = self.now + s.late
        self._tell(self.end[s.id], END, s.id)

    def _tell(self, at: float, kind: int, i: int) -> None:
        heapq.heappush(self._events, (at, kind, i, self.number))
