"""Effort and gain of each bandit arm: experiments, wins (new best configurations), gain per device-second."""

import math

import msgspec

_SIGMAS = 1.645  # half-width of a 90 % interval in standard deviations


class Effort(msgspec.Struct, kw_only=True):
    """Sums over an arm's experiments. `gain`: relative reduction of the best cost by an experiment, at least 0;
    `device_s`: its device-seconds."""

    experiments: int = 0
    wins: int = 0
    gain: float = 0.0
    device_s: float = 0.0
    gain2: float = 0.0  # sum of gain²; below, the sums of device_s² and of gain × device_s
    device2: float = 0.0
    both: float = 0.0

    def add(self, gain: float, device_s: float) -> None:
        self.experiments += 1
        self.wins += gain > 0
        self.gain += gain
        self.device_s += device_s
        self.gain2 += gain * gain
        self.device2 += device_s * device_s
        self.both += gain * device_s


class Rate(msgspec.Struct, frozen=True):
    """Gain per device-second with its 90 % interval."""

    value: float
    low: float
    high: float


def rates(efforts: dict[str, Effort]) -> dict[str, Rate]:
    """Arm → rate, for arms with experiments. The rate is a ratio of sums with the interval of the ratio estimator
    (Cochran, Sampling Techniques, 6.3). For an arm without a win, or with only one experiment, the upper limit assumes
    the win probability 1 − 0.1^(1/n), at which n experiments without a win have a probability of 10 %, and for each
    win the average gain of all arms' wins, or the arm's own gain if it is larger."""
    wins = sum(e.wins for e in efforts.values())
    usual = sum(e.gain for e in efforts.values()) / wins if wins else 0.0
    found = {}
    for name, e in efforts.items():
        n = e.experiments
        if not e.device_s:
            continue
        value, each = e.gain / e.device_s, e.device_s / n
        if n < 2 or not e.wins:
            often = 1 - 0.1 ** (1 / n)
            found[name] = Rate(value, 0.0, max(value, often * max(usual, e.gain) / each))
            continue
        left = max(0.0, e.gain2 - 2 * value * e.both + value * value * e.device2)
        error = _SIGMAS * math.sqrt(n / (n - 1) * left) / e.device_s
        found[name] = Rate(value, max(0.0, value - error), value + error)
    return found
