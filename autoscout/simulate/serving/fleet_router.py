"""Assigns requests to the engines of a fleet by the policies of existing routers. This file imports nothing of
AutoScout, because shadow runs load it with the engine's interpreter.

A policy is data (routers.toml): `deals` names one of the rules below, and further keys are the rule's parameters. The
router only uses information that a real router has: which requests it sent to each engine, and which requests are
unanswered."""

import hashlib
import operator
import random
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

_in_flight = operator.attrgetter("in_flight")


class Loaded(Protocol):
    """An engine's load. `number`: the engine's index in the fleet. `in_flight`: number of unanswered requests.
    `queued`: number of unanswered requests that have not begun. `used`: fraction of KV cache blocks in use."""

    @property
    def number(self) -> int: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def queued(self) -> int: ...
    @property
    def used(self) -> float: ...


class EngineLoad(NamedTuple):
    number: int
    in_flight: int
    queued: int
    used: float


class FleetRouter:
    """Chooses an engine for each request. `engines`: number of engines, including failed ones."""

    def __init__(self, policy: dict[str, Any], engines: int) -> None:
        self._policy = policy
        self.block: int = policy.get("block", 0)  # tokens; 0: the policy does not look at prompts
        self._pick: Callable[[Sequence[Loaded], Sequence[int], int], int] = {
            "round_robin": self._round_robin,
            "least_load": self._least_load,
            "two_choices": self._two_choices,
            "prefix": self._prefix,
            "session": self._session,
        }[policy["deals"]]
        self._dealt = 0
        self._random = random.Random(0)
        # hashes of the prefixes that were sent to each engine
        self._seen: list[set[int]] = [set() for _ in range(engines)]
        self.sent = [0] * engines

    def pick(self, loads: Sequence[Loaded], beginnings: Sequence[int], session: int) -> int:
        """Returns the index of the engine for a request. `loads`: loads of the engines that have not failed, in order.
        `beginnings`: hashes of the prompt's beginnings of 1, 2, … whole blocks, if `block` is not 0. `session`: the
        request's session, -1 for none."""
        chosen = self._pick(loads, beginnings, session)
        self._dealt += 1
        self.sent[chosen] += 1
        return chosen

    def _round_robin(self, loads: Sequence[Loaded], beginnings: Sequence[int], session: int) -> int:
        return loads[self._dealt % len(loads)].number

    def _least_load(self, loads: Sequence[Loaded], beginnings: Sequence[int], session: int) -> int:
        """Returns the least loaded engine; equally loaded engines take turns. With some policies, waiting requests have
        more weight if a cache is more than half full."""
        first, more = self._dealt % len(loads), self._policy.get("waiting_for_cache", 0.0)
        turned = [*loads[first:], *loads[:first]]
        least = min(turned, key=_in_flight)
        if not more or least.used <= 0.5:  # others have no less load, because waiting requests only add to it
            return least.number
        return min(turned, key=lambda e: e.in_flight + (e.used > 0.5 and e.queued * more * (e.used - 0.5))).number

    def _two_choices(self, loads: Sequence[Loaded], beginnings: Sequence[int], session: int) -> int:
        two = self._random.sample(list(loads), min(2, len(loads)))
        return min(two, key=_in_flight).number

    def _prefix(self, loads: Sequence[Loaded], beginnings: Sequence[int], session: int) -> int:
        """Returns the engine to which the longest prefix of the prompt was sent, if this prefix is a large enough
        fraction of the prompt and loads are balanced; else the least loaded engine."""
        most, least = max(e.in_flight for e in loads), min(loads, key=_in_flight)
        uneven = most - least.in_flight > self._policy["apart"] and most > least.in_flight * self._policy["times"]
        known = {e.number: self._known(beginnings, e.number) for e in loads}
        best = max(loads, key=lambda e: (known[e.number], -e.in_flight)).number
        if uneven or known[best] <= self._policy["share"] * len(beginnings):
            best = self._least_load(loads, beginnings, session)
        self._seen[best].update(beginnings)
        return best

    def _known(self, beginnings: Sequence[int], engine: int) -> int:
        """Returns how many of the beginnings were sent to the engine. With a beginning, all shorter ones were."""
        seen = self._seen[engine]
        return bisect_left(beginnings, True, key=lambda one: one not in seen)

    def _session(self, loads: Sequence[Loaded], beginnings: Sequence[int], session: int) -> int:
        """Returns the engine with the highest hash of (engine, session), so that a failed engine affects only its own
        sessions. A request without a session counts as a separate session."""
        name = f"s{session}" if session >= 0 else f"r{self._dealt}"
        return max(loads, key=lambda e: _hashed(f"{name}/{e.number}")).number


def beginnings(prompt: list[int], block: int) -> list[int]:
    """Returns the hash of each beginning of whole blocks."""
    found, last = list[int](), 0
    for at in range(0, len(prompt) - block + 1, block):
        last = hash((last, *prompt[at : at + block]))
        found.append(last)
    return found


@lru_cache(1 << 16)
def _hashed(text: str) -> bytes:
    return hashlib.sha1(text.encode()).digest()
