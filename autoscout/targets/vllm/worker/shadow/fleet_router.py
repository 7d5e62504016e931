"""Assigns requests to the engines of a fleet by the policies of existing routers.

A policy is data (targets/vllm/routers.toml): `deals` names one of the rules below, and further keys are the rule's
parameters. The router only uses information that a real router has: which requests it sent to each engine, and which
requests are unanswered."""

import hashlib
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class EngineLoad(NamedTuple):
    """The load of an engine. `number`: the engine's index in the fleet. `in_flight`: number of unanswered requests.
    `waiting`: number of unanswered requests that have not begun. `used`: fraction of KV cache blocks in use."""

    number: int
    in_flight: int
    waiting: int
    used: float


class FleetRouter:
    """Chooses an engine for each request. `engines`: number of engines, including failed ones."""

    def __init__(self, policy: dict[str, Any], engines: int) -> None:
        self._policy, self._engines = policy, engines
        self._pick: Callable[[Sequence[EngineLoad], list[int], int], int] = {
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

    def pick(self, loads: Sequence[EngineLoad], prompt: list[int], session: int) -> int:
        """Returns the index of the engine for a request. `loads`: loads of the engines that have not failed, in order.
        `session`: the request's session, -1 for none."""
        chosen = self._pick(loads, prompt, session)
        self._dealt += 1
        self.sent[chosen] += 1
        return chosen

    def _round_robin(self, loads: Sequence[EngineLoad], prompt: list[int], session: int) -> int:
        return loads[self._dealt % len(loads)].number

    def _least_load(self, loads: Sequence[EngineLoad], prompt: list[int], session: int) -> int:
        """Returns the least loaded engine; equally loaded engines take turns. With some policies, waiting requests have
        more weight if a cache is more than half full."""
        first, more = self._dealt % len(loads), self._policy.get("waiting_for_cache", 0.0)
        turned = [*loads[first:], *loads[:first]]
        return min(turned, key=lambda e: e.in_flight + e.waiting * more * max(0.0, e.used - 0.5)).number

    def _two_choices(self, loads: Sequence[EngineLoad], prompt: list[int], session: int) -> int:
        two = self._random.sample(list(loads), min(2, len(loads)))
        return min(two, key=lambda e: e.in_flight).number

    def _prefix(self, loads: Sequence[EngineLoad], prompt: list[int], session: int) -> int:
        """Returns the engine to which the longest prefix of the prompt was sent, if this prefix is a large enough
        fraction of the prompt and loads are balanced; else the least loaded engine."""
        hashes = self._hashes(prompt)
        most, least = max(e.in_flight for e in loads), min(loads, key=lambda e: e.in_flight)
        uneven = most - least.in_flight > self._policy["apart"] and most > least.in_flight * self._policy["times"]
        known = {e.number: self._known(hashes, e.number) for e in loads}
        best = max(loads, key=lambda e: (known[e.number], -e.in_flight)).number
        if uneven or known[best] <= self._policy["share"] * len(hashes):
            best = self._least_load(loads, prompt, session)
        self._seen[best].update(hashes)
        return best

    def _hashes(self, prompt: list[int]) -> list[int]:
        """Returns the hash of each prefix of whole blocks."""
        found, last, size = [], 0, self._policy["block"]
        for at in range(0, len(prompt) - size + 1, size):
            last = hash((last, *prompt[at : at + size]))
            found.append(last)
        return found

    def _known(self, hashes: list[int], engine: int) -> int:
        seen = self._seen[engine]
        return next((i for i, one in enumerate(hashes) if one not in seen), len(hashes))

    def _session(self, loads: Sequence[EngineLoad], prompt: list[int], session: int) -> int:
        """Returns the engine with the highest hash of (engine, session), so that a failed engine affects only its own
        sessions. A request without a session counts as a separate session."""
        name = f"s{session}" if session >= 0 else f"r{self._dealt}"
        return max(loads, key=lambda e: hashlib.sha1(f"{name}/{e.number}".encode()).digest()).number
