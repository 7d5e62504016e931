"""The wall-clock limit of a session (`budget.wall`): which experiments still end before it."""

import time
from collections import deque

_LATEST = 5  # the mean duration of so many latest experiments is expected of the next ones


class WallClock:
    """Counts seconds from the start of the first experiment. `limit_s`: seconds until the limit."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.waited_s = 0.0  # seconds of waiting for devices that others used, which do not count
        self._begun_at: float | None = None  # monotonic seconds
        self._ends = deque([0.0], _LATEST + 1)  # `elapsed_s` at the ends of the latest experiments

    @property
    def elapsed_s(self) -> float:
        return 0.0 if self._begun_at is None else time.monotonic() - self._begun_at - self.waited_s

    def started(self) -> None:
        """An experiment started."""
        self._begun_at = self._begun_at or time.monotonic()

    def ended(self) -> None:
        """An experiment ended."""
        self._ends.append(self.elapsed_s)

    def late(self, experiments: int, reserve: float = 1.0) -> bool:
        """Whether so many more experiments would end after the limit. `reserve`: the largest share of the limit that is
        kept for them."""
        pace = (self._ends[-1] - self._ends[0]) / max(1, len(self._ends) - 1)  # several may run at a time
        return self.elapsed_s + min(experiments * pace, reserve * self.limit_s) > self.limit_s
