"""Decides when a search ends by itself, both in sessions and in comparisons: two successive outlooks expect next to no
gain, or there was no improvement for a long time."""

from collections.abc import Iterable

from autoscout.search.hyper import Hyper
from kb.journal import Event, Outlook

_WORTH, _SURE = 0.0025, 2  # relative expected gain below which searching stops; consecutive outlooks that must agree
_BETTER = 0.99  # cost ratio that counts as an improvement


class Stopping:
    def __init__(self, hyper: Hyper, finite: bool = False) -> None:
        """`finite`: the strategy decides itself when to end."""
        self.hyper, self.finite = hyper, finite
        self.stale = 0  # experiments since the best improved by 1 %
        self._milestone: float | None = None  # the best cost when `stale` was last reset
        self._nothing_left = 0  # successive outlooks that expect next to no gain

    def heard(self, events: Iterable[Event]) -> None:
        """Takes in events that the strategy emitted."""
        for event in events:
            if isinstance(event, Outlook):
                nothing = event.chance < self.hyper.settled and event.gain < _WORTH
                self._nothing_left = self._nothing_left + 1 if nothing else 0

    def measured(self, cost: float | None) -> None:
        """Counts one experiment of the search; None: it failed."""
        self.stale += 1
        if cost is not None:
            self.found(cost)

    def found(self, cost: float) -> None:
        """Takes in a cost, whether an experiment measured it or not."""
        if self._milestone is None or cost < _BETTER * self._milestone:
            self.stale, self._milestone = 0, cost

    @property
    def settled(self) -> bool:
        return self._nothing_left >= _SURE

    @property
    def converged(self) -> bool:
        return self.stale >= self.hyper.patience and not self.finite
