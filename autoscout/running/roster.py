"""Chooses the hosts of the next experiment, and avoids hosts that have failed."""

import contextlib
import sys
from collections.abc import Sequence

from autoscout.running.cluster.choosing import Choose, first, of_nodes
from autoscout.running.cluster.placement import Placement
from kb.records import AutoscoutError, Node

DRAINED = 2  # failures after which a host is no longer used


class Roster:
    """Chooses the next hosts and counts failures. `placement`: hosts and devices of the next experiments; None: the
    first hosts that have not failed. `nodes`: the job's nodes that the next experiments use, if the job has several
    kinds of device; empty: the first nodes with enough devices."""

    def __init__(self, choose: Choose) -> None:
        self.placement: Placement | None = None
        self.nodes: Sequence[Node] = ()
        self._choose = choose
        self._failures: dict[str, list[str]] = {}

    @property
    def drained(self) -> list[str]:
        """Hosts that failed too often to be used again."""
        return [host for host, failures in self._failures.items() if len(failures) >= DRAINED]

    def chosen(self, ranks: int) -> Placement:
        if self.placement is not None:
            return self._part(self.placement, ranks)
        drained = frozenset(self.drained)
        with contextlib.suppress(AutoscoutError):  # hosts that failed once are used only if no other hosts are left
            return self._chosen(ranks, frozenset(self._failures))
        try:
            return self._chosen(ranks, drained)
        except AutoscoutError as error:
            if not drained:
                raise
            reasons = "; ".join(f"{host} is no longer used: {self._failures[host][-1]}" for host in sorted(drained))
            raise AutoscoutError(f"{error}; {reasons}") from error

    def _chosen(self, ranks: int, avoided: frozenset[str]) -> Placement:
        return self._part(self._choose(sys.maxsize if self.nodes else ranks, avoided), ranks)

    def _part(self, placement: Placement, ranks: int) -> Placement:
        return of_nodes(placement, self.nodes) if self.nodes else first(placement, ranks)

    def note(self, host: str, message: str) -> str:
        """Counts a failure of a host, unless the caller chose the placement and counts failures itself. Returns the
        `message`, extended if the host is no longer used."""
        if self.placement is not None:
            return message
        self._failures.setdefault(host, []).append(message)
        if len(self._failures[host]) < DRAINED:
            return message
        return f"{message}; {host} has failed {len(self._failures[host])} times and is no longer used"
