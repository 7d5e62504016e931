"""A simulated clock: waiting only advances it."""

import math


class VirtualClock:
    """Seconds since the load began, like driving.Busy; `total` counts over all loads."""

    def __init__(self) -> None:
        self.total = self._origin = 0.0

    def now(self) -> float:
        return self.total - self._origin

    def skip(self, seconds: float) -> None:
        """Advances by at least one float step: a wait for a time closer than float precision would never end."""
        if seconds > 0:
            self.total = max(self.total + seconds, math.nextafter(self.total, math.inf))

    def begin(self, total: float) -> None:
        """Starts a new load at `total`, by when all earlier work has ended."""
        self.total = self._origin = max(self.total, total)
