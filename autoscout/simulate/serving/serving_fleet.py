"""Several simulated engines on one clock: a router assigns requests, and some engines may read prompts for the others.

It follows vLLM's shadow (targets/vllm/worker/shadow/engine_fleet.py), with the same router; tests/tools/fleet_ranks.py
compares the two. A request whose prompt is read elsewhere waits until the answering engine has a place and blocks for
it; then its KV cache crosses the node's links."""

import heapq
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autoscout.job.requests import Requests
from autoscout.simulate.serving.cache_tiers import Tier
from autoscout.simulate.serving.engine_run import EngineRun
from autoscout.simulate.serving.fleet_router import FleetRouter
from autoscout.simulate.serving.held_back import EngineLimits
from autoscout.simulate.serving.prefix_cache import PrefixCache, SharedPaths
from autoscout.simulate.serving.routed_engine import ARRIVAL, TRANSFER, RoutedEngine
from autoscout.simulate.serving.step_times import StepTimes

_CHECKED, _WARM = 4, 16  # requests of an experiment before the measured ones: equivalence prompts and an open warm-up


class FleetLoad:
    """What a load's requests share, and how they follow each other, for the simulations of many fleets. `think_s`:
    seconds between an answer and the next turn."""

    def __init__(self, requests: Requests, think_s: float = 0.0) -> None:
        self.requests, self.think_s = requests, think_s
        self.read_only = replace(requests, output_len=np.ones_like(requests.output_len), concurrency=0)
        self.received = replace(requests, received=True, concurrency=0)
        self.both = replace(requests, concurrency=0)
        self.paths = SharedPaths(requests)
        talks = requests.talks
        self.session = talks.session.tolist() if talks else [-1] * len(requests)
        self.sessions = _sessions(talks) if talks else [[[i]] for i in range(len(requests))]
        # request → (its session, its stage there)
        self.places = {
            i: (s, n) for s, stages in enumerate(self.sessions) for n, some in enumerate(stages) for i in some
        }
        self.turns = (talks.stage % 2 == 0).tolist() if talks else [True] * len(requests)


@dataclass(frozen=True)
class EngineGroup:
    """Equal engines. `role`: "reads" (prompts for other engines), "answers" (their requests), or "both". `link`: as in
    RoutedEngine. `tiers`: (tokens, seconds per token) of the tiers behind a device, nearest first: the host's memory,
    of which each engine has its own, and files, which all engines of the node share."""

    count: int
    role: str
    times: StepTimes
    limits: EngineLimits
    link: tuple[float, float] = (0.0, 0.0)
    tiers: Sequence[tuple[int, float]] = ()


def simulate_fleet(
    groups: Sequence[EngineGroup], policy: Mapping[str, Any], load: FleetLoad, delay_s: float = 0.0
) -> EngineRun:
    """The run of a whole fleet. `policy`: a router's (routers.toml). `delay_s`: from sending a request until the router
    assigns it."""
    return _Fleet(groups, policy, load, delay_s).run()


class _Fleet:
    def __init__(
        self, groups: Sequence[EngineGroup], policy: Mapping[str, Any], load: FleetLoad, delay_s: float
    ) -> None:
        self.load, self.delay_s = load, delay_s
        self.requests, self.users = load.requests, _Users(load)
        self.events: list[tuple[float, int, int, int]] = []  # heap of (time, kind, request, engine)
        self.engines: list[RoutedEngine] = []
        self.roles: dict[str, list[RoutedEngine]] = {}
        of_role = {"reads": load.read_only, "answers": load.received, "both": load.both}
        for group in groups:
            shared = [Tier(*tier) for tier in group.tiers[1:]]
            for _ in range(group.count):
                tiers = [*(Tier(*tier) for tier in group.tiers[:1]), *shared]
                cached = load.paths.any and group.limits.prefix_caching
                cache = PrefixCache(load.paths, group.limits.block, tiers) if cached else None
                number = len(self.engines)
                engine = RoutedEngine(
                    number, group.times, group.limits, of_role[group.role], cache, self.events, group.link
                )
                self.engines.append(engine)
                self.roles.setdefault(group.role, []).append(engine)
        self.routers = {role: FleetRouter(dict(policy), len(self.engines)) for role in self.roles}
        self.first = "reads" if "reads" in self.roles else "both"
        self.last = "answers" if "answers" in self.roles else "both"
        block = next(iter(self.routers.values())).block
        self.beginnings: Sequence[Sequence[int]] = load.paths.beginnings(block) if block else [()] * len(self.requests)
        self.placed = [-1] * len(self.requests)
        self.arrival = [math.nan] * len(self.requests)

    def run(self) -> EngineRun:
        self._warm_up()
        for at, i in self.users.first():
            self._send(i, at)
        events, engines, ats = self.events, self.engines, [engine.at for engine in self.engines]
        while True:
            at = min(ats)
            if events and events[0][0] <= at:
                at, kind, i, number = heapq.heappop(events)
                if kind == ARRIVAL:
                    number = self._assign(i, at, self.first)
                elif kind == TRANSFER:
                    engines[number].transferred(i, at)
                else:
                    engines[number].in_flight -= 1
                    if engines[number].requests is self.load.read_only and not math.isnan(engines[number].end[i]):
                        number = self._assign(i, at, self.last)
                    else:
                        for then, j in self.users.ended(i, at):
                            self._send(j, then)
                        continue
            elif at < math.inf:
                number = ats.index(at)
                engines[number].advance()
            else:
                return self._whole()
            ats[number] = engines[number].at

    def _send(self, i: int, at: float) -> None:
        self.arrival[i] = at
        heapq.heappush(self.events, (at + self.delay_s, ARRIVAL, i, -1))

    def _assign(self, i: int, at: float, role: str) -> int:
        number = self.routers[role].pick(self.roles[role], self.beginnings[i], self.load.session[i])
        engine = self.engines[number]
        engine.in_flight += 1
        engine.arrive(i, at)
        self.placed[i] = number
        return number

    def _warm_up(self) -> None:
        """Assigns the requests that precede an experiment's measured ones. They leave common beginnings in the engines'
        caches; their other tokens do not recur."""
        for role, router in self.routers.items():
            there, begun = self.roles[role], deque[RoutedEngine]()
            for _ in range(_CHECKED):
                router.pick(there, (), -1)
            for i in range(len(self.requests) if self.requests.concurrency else _WARM):
                if i >= len(self.requests):
                    break
                if len(begun) == (self.requests.concurrency or _WARM):
                    begun.popleft().in_flight -= 1
                node, shared = self.load.paths.prompts[i][0]
                shared *= (node, shared) in self.load.paths.common
                known = self.beginnings[i][: shared // router.block] if router.block else ()
                engine = self.engines[router.pick(there, known, self.load.session[i])]
                engine.in_flight += 1
                begun.append(engine)
                if shared and engine.cache is not None:
                    engine.cache.keep([(node, shared)])
            for engine in there:
                engine.in_flight = 0

    def _whole(self) -> EngineRun:
        there, load, asked = self.roles[self.last], self.load, self.requests
        placed = [self.engines[k] for k in self.placed]
        first, end = (np.array([getattr(e, what)[i] for i, e in enumerate(placed)]) for what in ("first", "end"))
        unread = np.array([engine.requests is load.read_only for engine in placed])
        return EngineRun(
            arrival_s=np.array(self.arrival),
            first_s=np.where(unread, np.nan, first),
            end_s=np.where(unread, np.nan, end),
            output_len=asked.output_len,
            input_len=asked.input_len,
            gaps_s=np.concatenate([engine.gaps for engine in there]),
            gap_counts=np.concatenate([engine.gap_counts for engine in there]),
            preemptions=sum(engine.preemptions for engine in self.engines),
            steps=sum(engine.steps for engine in self.engines),
        )


class _Users:
    """Who sends which request when. A session begins when it arrives, in a closed loop when a user is free; its next
    stage begins when the last one has ended."""

    def __init__(self, load: FleetLoad) -> None:
        self._load = load
        self._left = [len(stages[0]) for stages in load.sessions]
        self._next = 0

    def first(self) -> Iterator[tuple[float, int]]:
        load, users = self._load, self._load.requests.concurrency
        begun = load.sessions[:users] if users else load.sessions
        self._next = len(begun)
        at = [0.0] * len(load.requests) if users else load.requests.arrival_s.tolist()
        return ((at[i], i) for stages in begun for i in stages[0])

    def ended(self, i: int, at: float) -> list[tuple[float, int]]:
        load = self._load
        session, stage = load.places[i]
        self._left[session] -= 1
        if self._left[session]:
            return []
        stages = load.sessions[session]
        if stage + 1 < len(stages):
            then = stages[stage + 1]
            self._left[session] = len(then)
            sent = at + load.think_s * load.turns[then[0]]
            return [(sent, j) for j in then]
        if load.requests.concurrency and self._next < len(load.sessions):
            self._next += 1
            return [(at, j) for j in load.sessions[self._next - 1][0]]
        return []


def _sessions(talks: Any) -> list[list[list[int]]]:
    """Each session's requests by stage."""
    found: dict[int, dict[int, list[int]]] = {}
    for i, (session, stage) in enumerate(zip(talks.session.tolist(), talks.stage.tolist(), strict=True)):
        found.setdefault(session, {}).setdefault(stage, []).append(i)
    return [[stages[n] for n in sorted(stages)] for stages in found.values()]
