"""Inference from the final rounds: ratios of costs with intervals that stay valid under interim looks, that is,
although it is decided after several rounds whether to continue.

    log cost of configuration x in round r = a_x + p_r + ε        (a randomised block design; Fisher 1935)

A round measures every configuration once, in a new random order, so that the machine's drift between rounds (p_r)
affects all configurations alike, and drift within a round becomes noise. Least squares estimates a_reference − a_x, and
Student's t distribution gives its interval. Looks are planned: each gets a share of the error probability of 5 % (alpha
spending: Lan and DeMets 1983, with Bonferroni's bound over looks), divided equally among the configurations that are
compared with the reference (Bonferroni; Dunnett 1955 has the exact, slightly narrower intervals). With a probability of
95 %, all intervals are right, whenever the session stops. docs/statistics.md has simulated error rates.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from scipy.special import ndtr, stdtrit

from autoscout.tuning.modes import Division
from autoscout.tuning.repeats import FLOOR, Noise

LEVEL = 0.95
_STILL = 0.006  # if the reference scatters less than this, the first look gets most of the error probability
_WIDEST = 700.0  # largest logarithm whose exponential fits in a double

Round = Sequence[tuple[str, float]]  # (configuration id, cost); unmeasured or failed ones are absent


_UNKNOWN = Noise()


class Contrast(msgspec.Struct, frozen=True):
    """A comparison of two configurations. `log`: log(cost of the first / cost of the second); above 0 the second is
    cheaper. `error`: standard error of `log`, with `dof` degrees of freedom; `share`: the part of the total error
    probability of 5 % that this comparison may use."""

    log: float
    error: float
    dof: int
    share: float

    @property
    def half(self) -> float:
        """Half-width of the interval on the log scale; inf without degrees of freedom or share."""
        return self.error * quantile(self.share, self.dof)

    @property
    def low(self) -> float:
        return self.log - self.half

    @property
    def high(self) -> float:
        return self.log + self.half


def quantile(share: float, dof: int) -> float:
    """Two-sided quantile of Student's t distribution for `share` of the error probability of 5 %."""
    return float(stdtrit(dof, 1 - (1 - LEVEL) * share / 2)) if dof and share else math.inf


def plan(limit: int, noise: Noise) -> dict[int, float]:
    """The looks (interim decisions): number of rounds → share of the error probability of 5 %. The plan may depend on
    the reference's scatter before the first round, because that is independent of the rounds: on a quiet machine the
    first look should decide; on others only large gains end the rounds early, and most of the 5 % is left for the last
    look."""
    if limit < 3:
        return {2: 1.0}
    quiet = 0.8 if noise.dof and noise.squares / noise.dof <= _STILL**2 else 0.4 if not noise.dof else 0.1
    if limit < 5:
        return {2: quiet, limit: 1 - quiet}
    return {2: quiet, 4: (1 - quiet) / 3, limit: (1 - quiet) * 2 / 3}


class Fit(msgspec.Struct, frozen=True):
    """Estimates from the rounds. `level`: configuration id → log-cost, up to a common constant; `covariance`: of the
    levels, in units of noise²; `noise`: standard deviation of one log-cost, with `dof` degrees of freedom; `share`:
    share of the error probability of 5 % for each comparison with the reference. `others`: fits for other plausible
    divisions of the runs into usual and slow ones (modes.py); `slow`: number of slow runs."""

    level: dict[str, float]
    covariance: np.ndarray
    noise: float
    dof: int
    rounds: int
    share: float
    others: Sequence["Fit"] = ()
    slow: int = 0

    @property
    def quiet(self) -> bool:
        """Whether repeats scatter as little as on a dedicated system; False if there were slow runs."""
        return not self.slow and Noise(self.noise**2 * self.dof, self.dof).quiet

    def contrast(self, one: str, other: str) -> Contrast:
        """Compares two configurations; the interval spans those of all plausible divisions of runs (modes.py)."""
        own = self.likeliest(one, other)
        usual = quantile(own.share, own.dof)
        if not self.others or not math.isfinite(usual):
            return own
        half = max(
            abs(each.log - own.log) + each.half for each in (own, *(f.likeliest(one, other) for f in self.others))
        )
        return msgspec.structs.replace(own, error=half / usual)

    def likeliest(self, one: str, other: str) -> Contrast:
        """Like `contrast`, but by the most probable division of the runs alone (usual or slow)."""
        names = list(self.level)
        i, j = names.index(one), names.index(other)
        v = self.covariance[i, i] + self.covariance[j, j] - 2 * self.covariance[i, j]
        error = self.noise * math.sqrt(max(v, 0.0))
        return Contrast(self.level[one] - self.level[other], error, self.dof, self.share)


def design_of(rounds: Sequence[Round]) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Configuration ids (k), one-hot columns of each run's configuration and round (n, k + rounds), log-costs (n,)."""
    names = list(dict.fromkeys(name for row in rounds for name, _ in row))
    rows = [(names.index(name), r, math.log(c)) for r, row in enumerate(rounds) for name, c in row]
    n, k = len(rows), len(names)
    design = np.zeros((n, k + len(rounds)))
    at = np.arange(n)
    design[at, [name for name, _, _ in rows]] = 1
    design[at, [k + r for _, r, _ in rows]] = 1
    return names, design, np.array([log for _, _, log in rows])


def fit(rounds: Sequence[Round], share: float, noise: Noise = _UNKNOWN, slow: Division | None = None) -> Fit:
    """Least squares over all rounds. `share`: as in Fit; `noise`: an estimate from other runs, which is pooled with
    that of the rounds (but never lowers the variance below that of the rounds alone); `slow`: which runs were slow."""
    names, design, y = design_of(rounds)
    k = len(names)
    if slow is not None and slow.shared:
        design = np.column_stack([design, slow.slow])
    elif slow is not None:  # each slow run gets its own column, so that it does not affect the estimates
        design = np.column_stack([design, np.eye(len(y))[:, slow.slow]])
    values, vectors = np.linalg.eigh(design.T @ design)
    known = values > 1e-9 * values[-1]
    inverse = (vectors[:, known] / values[known]) @ vectors[:, known].T
    effects = inverse @ (design.T @ y)
    dof = len(y) - int(known.sum())
    squares = float(((y - design @ effects) ** 2).sum())
    pooled = (squares + noise.squares) / max(1, dof + noise.dof)
    variance = max(pooled, squares / dof if dof else 0.0, FLOOR**2)
    return Fit(
        level={name: float(effects[i]) for i, name in enumerate(names)},
        covariance=inverse[:k, :k],
        noise=math.sqrt(variance),
        dof=dof + noise.dof,
        rounds=len(rounds),
        share=share,
        slow=0 if slow is None else int(slow.slow.sum()),
    )


def factor(log: float) -> float:
    """The ratio of two costs from its logarithm; values too large for a double are cut off."""
    return math.exp(min(max(log, -_WIDEST), _WIDEST))


def percent(log: float) -> str:
    """ "+6.6 %" for the logarithm of a ratio; never "-0.0 %"."""
    return f"{round(100 * (factor(log) - 1), 1) + 0.0:+.1f} %"


def expected_excess(mean: float, deviation: float) -> float:
    """E[max(x, 0)] for x ~ N(mean, deviation²)."""
    u = mean / deviation
    return mean * float(ndtr(u)) + deviation * math.exp(-0.5 * u * u) / math.sqrt(2 * math.pi)


def ratio(slower: Sequence[float], faster: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Geometric mean of slower / faster over pairs, and its 95 % interval, which assumes a single look."""
    logs = np.log(slower) - np.log(faster)
    mean = float(logs.mean())
    if len(logs) < 2:
        return math.exp(mean), None, None
    half = half_width([float(x) for x in logs])
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def half_width(values: Sequence[float]) -> float:
    """Half-width of the 95 % interval of the mean of at least two values (Student's t)."""
    return quantile(1.0, len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
