"""A clock that nobody waits for."""

import math


class VirtualClock:
    """Seconds, as driving.Busy; `total` over all loads."""

    def __init__(self) -> None:
        self.total = self._origin = 0.0

    def now(self) -> float:
        return self.total - self._origin

    def skip(self, seconds: float) -> None:
        """It goes on at all: else who waits for a moment that is nearer than a float can say would wait for ever."""
        if seconds > 0:
            self.total = max(self.total + seconds, math.nextafter(self.total, math.inf))

    def begin(self, total: float) -> None:
        """A new load, once all before it has ended."""
        self.total = self._origin = max(self.total, total)
