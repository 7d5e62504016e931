"""Detects whether streams of numbers have changed by more than a tolerated factor (a band), and since when, with a
Shiryaev-Roberts e-detector (Shin, Ramdas and Rinaldo 2024).

    z = ± log(now / usual), clipped to between −CUT and FAR times the band
    M ← (M + 1) · (1 + λ (z − band) / ((CUT + 1) band))

There is one M for each stream, each direction and each bet λ. As long as the conditional mean of z, given earlier
observations, is at most the band, each factor has a mean of at most 1, so the mean of M is at most the number of
observations, whatever the distribution of z. The same is true for the mean of all M, so if the alarm threshold is
`calm`, the first false alarm comes after at least `calm` observations on average. Only the lower bound CUT limits the
bets λ. If the upper bound were also 4, a load of 7 times the usual one would need 32 observations for an alarm, as many
as a load of twice the usual one."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

CUT, FAR = 4.0, 16.0  # lower and upper bound on z, in units of the band
_BETS = np.array([0.2, 0.5, 0.95])


class BandWatch:
    """Watches several streams for a change beyond a band. `band`: tolerated |log(now / usual)|, such as log(1.2);
    `calm`: lower bound on the mean number of observations before a false alarm."""

    def __init__(self, streams: Sequence[str], band: float, calm: float) -> None:
        self._streams, self._band, self._calm = list(streams), band, calm
        self.seen = 0
        self._sums = np.zeros((len(self._streams), 2, len(_BETS)))
        self._best = np.ones_like(self._sums)  # CUSUM: product of the factors since the most probable change
        self._starts = np.zeros(self._sums.shape, int)

    def see(self, logs: Mapping[str, float]) -> bool:
        """Adds one observation of some of the streams (log(now / usual) by name); returns whether there is an alarm."""
        for i, stream in enumerate(self._streams):
            if stream not in logs:
                continue
            z = logs[stream] / self._band
            factors = 1 + np.outer(np.clip([z, -z], -CUT, FAR) - 1, _BETS) / (CUT + 1)
            self._sums[i] = (self._sums[i] + 1) * factors
            self._starts[i][self._best[i] <= 1] = self.seen
            self._best[i] = np.maximum(1.0, self._best[i]) * factors
        self.seen += 1
        return self.share >= 1

    @property
    def share(self) -> float:
        """The statistic as a share of the alarm threshold; at 1 or above, there is an alarm."""
        return float(self._sums.mean()) / self._calm

    @property
    def since(self) -> int:
        """Number of observations before the most probable time of the change."""
        return int(self._starts.flat[int(np.argmax(self._sums))])


def log_ratio(now: float, usual: float) -> float:
    """log(now / usual), finite even for zeros."""
    return math.log(max(now, 1e-9) / max(usual, 1e-9))
