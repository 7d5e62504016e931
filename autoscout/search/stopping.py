"""Decides, in sessions and in benchmarks, when a search ends before its budget is spent: if two successive outlooks
(forecasts of further gain) expect hardly any gain (settled), or after many experiments without improvement
(converged)."""

from collections.abc import Iterable

from autoscout.search.hyper import Hyper
from kb.journal import Event, Outlook

# _WORTH: relative expected gain below which an outlook expects hardly any gain. _SURE: number of successive outlooks
# that must agree.
_WORTH, _SURE = 0.0025, 2
_BETTER = 0.99  # ratio of costs that counts as an improvement


class Stopping:
    def __init__(self, hyper: Hyper, finite: bool = False) -> None:
        """`finite`: whether the strategy ends by itself, so that convergence is not tested."""
        self.hyper, self.finite = hyper, finite
        self.stale = 0  # experiments since the best cost improved by 1 %
        self._milestone: float | None = None  # the best cost when `stale` was last reset
        self._nothing_left = 0  # successive outlooks that expect hardly any gain

    def heard(self, events: Iterable[Event]) -> None:
        """Evaluates the outlooks among a strategy's events."""
        for event in events:
            if isinstance(event, Outlook):
                nothing = event.chance < self.hyper.settled and event.gain < _WORTH
                self._nothing_left = self._nothing_left + 1 if nothing else 0

    def measured(self, cost: float | None) -> None:
        """Counts one experiment with its cost (None: it failed)."""
        self.stale += 1
        if cost is not None:
            self.found(cost)

    def found(self, cost: float) -> None:
        """Records a cost that may be an improvement, without counting an experiment."""
        if self._milestone is None or cost < _BETTER * self._milestone:
            self.stale, self._milestone = 0, cost

    @property
    def settled(self) -> bool:
        return self._nothing_left >= _SURE

    @property
    def converged(self) -> bool:
        return self.stale >= self.hyper.patience and not self.finite
