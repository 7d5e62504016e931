"""A landscape: a space whose every configuration has a known outcome, so that searches can be scored on it."""

from collections.abc import Callable
from functools import cached_property
from typing import Literal

import msgspec
import numpy as np

from autoscout.search.belief.prior_means import Predictor
from autoscout.space.graph import Space
from kb.records import Configuration, Measurement, Status, Value

Goal = Literal["min", "max"]
SHUFFLED = ", shuffled"  # end of the name of a landscape whose outcomes were permuted
_PEAK_NOISE = 0.005  # log noise of reported peak memory


class Landscape(msgspec.Struct, kw_only=True, dict=True):
    """`truth`: (n,) noise-free metric in the order of `space.feasible`, NaN where the experiment fails. `status`: (n,)
    how the experiment ends. `cost`: (n,) what each experiment costs, or None. `simulators`: (n,) free predictions of
    each. `peaks`: (ranks,) peak GiB of a row that ran, which strategies get as from a real run; None: unknown. `broke`:
    (n,) the metric of rows that run but break a constraint (their `truth` is NaN), NaN elsewhere; None: none."""

    name: str
    space: Space
    metric: str
    goal: Goal
    truth: np.ndarray
    status: np.ndarray
    cost: np.ndarray | None = None
    simulators: dict[str, np.ndarray] = {}
    foreseen: dict[str, np.ndarray] = {}  # bound → (n,) predicted closeness to it (search/strategy.py)
    peaks: Callable[[int, Configuration], np.ndarray] | None = None
    broke: np.ndarray | None = None
    default: Configuration | None = None  # what an expert would start from; None: unknown
    group: dict[str, Value] = {}

    @cached_property
    def optimum(self) -> float:
        return float(np.nanmin(self.truth) if self.goal == "min" else np.nanmax(self.truth))

    def prepare(self) -> None:
        """Computes what all runs need: the list of configurations and its index."""
        assert len(self.sorted_codes[0]) == len(self.truth)

    def shuffled(self, seed: int = 0) -> "Landscape":
        """A copy with all outcomes permuted among the configurations. If a strategy still finds good ones sooner than
        by chance, that comes from the space's shape, not from what its knobs do. Simulators keep their predictions."""
        dealt = np.random.default_rng(seed).permutation(len(self.truth))
        peaks = self.peaks
        return msgspec.structs.replace(
            self,
            name=f"{self.name}{SHUFFLED}",
            truth=self.truth[dealt],
            status=self.status[dealt],
            cost=None if self.cost is None else self.cost[dealt],
            broke=None if self.broke is None else self.broke[dealt],
            peaks=None if peaks is None else lambda row, _: peaks(*self._of(int(dealt[row]))),
        )

    def _of(self, row: int) -> tuple[int, Configuration]:
        return row, self.space.feasible.configuration(row)

    def regret(self, value: float) -> float:
        """Distance of a metric value from the optimum, as a share of it; 0 is the optimum."""
        return abs(value - self.optimum) / self.optimum

    def within(self, share: float) -> int:
        """Number of configurations within this share of the optimum."""
        return int((abs(self.truth - self.optimum) <= share * self.optimum).sum())

    def better(self, a: float, b: float) -> bool:
        return a < b if self.goal == "min" else a > b

    def rows(self, codes: np.ndarray) -> np.ndarray:
        """(k, knobs) codes → (k,) rows of `space.feasible`."""
        if codes is self.space.feasible.codes:
            return np.arange(len(codes))
        keys, order = self.sorted_codes
        wanted = _keys(codes)
        found = order[np.minimum(np.searchsorted(keys, wanted), len(order) - 1)]
        if not (_keys(self.space.feasible.codes[found]) == wanted).all():
            raise ValueError("codes that are not a valid configuration")
        return found

    def predictor(self, name: str) -> Predictor:
        """A simulator in the form that strategies use: rows of codes → predicted metric values."""
        predicted = self.simulators[name]
        return lambda codes: predicted[self.rows(codes)]

    def foretold(self) -> dict[str, Predictor]:
        """For each constraint that is predicted: rows of codes → the metric that it bounds."""
        return {name: lambda codes, levels=levels: levels[self.rows(codes)] for name, levels in self.foreseen.items()}

    def measure(self, row: int, configuration: Configuration, noise: float, seed: int, repeat: int = 0) -> Measurement:
        """One experiment; the result carries lognormal noise that depends on (seed, row, repeat) only."""
        spent = 0.0 if self.cost is None or np.isnan(self.cost[row]) else float(self.cost[row])
        value = float(self.truth[row])
        if np.isnan(value) and self.broke is not None:
            value = float(self.broke[row])
        if noise and not np.isnan(value):
            value *= float(np.exp(noise * np.random.default_rng((seed, row, repeat)).standard_normal()))
        status: Status = self.status[row]
        metrics, ranks = {} if np.isnan(value) else {self.metric: value}, []
        if self.peaks is not None and status == "ok":
            error = np.random.default_rng((seed, row, repeat, 1)).standard_normal() if noise else 0.0
            ranks = (self.peaks(row, configuration) * np.exp(_PEAK_NOISE * error)).tolist()
            metrics["peak_memory_gib"] = max(ranks)
        return Measurement(
            configuration=configuration,
            name=self.space.name(configuration),
            context=self.name,
            status=status,
            metrics=metrics,
            rank_memory_gib=ranks,
            evidence="" if status == "ok" else f"the landscape has {status}",
            cost_s=spent,
            device_s=spent,
        )

    @cached_property
    def sorted_codes(self) -> tuple[np.ndarray, np.ndarray]:
        keys = _keys(self.space.feasible.codes)
        order = np.argsort(keys)
        return keys[order], order


def _keys(codes: np.ndarray) -> np.ndarray:
    """(n, knobs) → (n,) opaque values that sort and compare."""
    codes = np.ascontiguousarray(codes, dtype=np.int16)
    return codes.view(np.dtype((np.void, codes.itemsize * codes.shape[1]))).ravel()
