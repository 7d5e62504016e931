"""A simulated clock. Waiting takes no real time: it only advances the clock."""

import math


class VirtualClock:
    """A clock like driving.Busy. now() returns the seconds since the load began; `total`: seconds of all loads."""

    def __init__(self) -> None:
        self.total = self._origin = 0.0

    def now(self) -> float:
        return self.total - self._origin

    def skip(self, seconds: float) -> None:
        """Advances at least to the next floating-point number, since a shorter wait would never end."""
        if seconds > 0:
            self.total = max(self.total + seconds, math.nextafter(self.total, math.inf))

    def begin(self, total: float) -> None:
        """Begins a new load at `total`, when all earlier work has ended."""
        self.total = self._origin = max(self.total, total)
