"""The guard (paper §3.3): are the simulators still to be believed? MAPE of the last checks against ε."""

from collections import deque


class Guard:
    def __init__(self, epsilon: float, window: int) -> None:
        self.epsilon = epsilon
        self.errors: deque[float] = deque(maxlen=window)

    def check(self, predicted: float, measured: float | None) -> float:
        """Adds one check; returns the mean absolute percentage error of the window, as a fraction. What was
        predicted to run and failed (None) counts as an error of 100 %."""
        self.errors.append(1.0 if measured is None else abs(predicted - measured) / abs(measured))
        return self.mape

    @property
    def mape(self) -> float:
        return sum(self.errors) / len(self.errors) if self.errors else 0.0

    @property
    def trusted(self) -> bool:
        return self.mape <= self.epsilon
