"""A landscape: a space in which the outcome of every configuration is known, so that searches can be scored."""

from collections.abc import Callable
from functools import cached_property
from typing import Literal

import msgspec
import numpy as np

from autoscout.search.belief.prior_means import Predictor
from autoscout.space.graph import Space
from kb.records import Configuration, Measurement, Status, Value

Goal = Literal["min", "max"]
SHUFFLED = ", shuffled"  # suffix of the name of a landscape whose outcomes were permuted
_PEAK_NOISE = 0.005  # standard deviation of the log of reported peak memory


class Landscape(msgspec.Struct, kw_only=True, dict=True):
    """Arrays are in the order of `space.feasible`. `truth`: (n,) noise-free metric, NaN where the experiment fails.
    `status`: (n,) how the experiment ends. `cost`: (n,) device-seconds of the experiment; None: unknown. `simulators`:
    name → (n,) predictions, which cost nothing. `peaks`: returns the (ranks,) peak GiB of a row that ran, which
    strategies get as from a real run; None: unknown. `broke`: (n,) metric of rows that run but break a constraint
    (their `truth` is NaN), NaN elsewhere; None: no row breaks a constraint."""

    name: str
    space: Space
    metric: str
    goal: Goal
    truth: np.ndarray
    status: np.ndarray
    cost: np.ndarray | None = None
    simulators: dict[str, np.ndarray] = {}
    foreseen: dict[str, np.ndarray] = {}  # bound → (n,) predicted log(value / bound), see Search.foreseen
    peaks: Callable[[int, Configuration], np.ndarray] | None = None
    broke: np.ndarray | None = None
    default: Configuration | None = None  # an expert's first configuration; None: unknown
    group: dict[str, Value] = {}

    @cached_property
    def optimum(self) -> float:
        return float(np.nanmin(self.truth) if self.goal == "min" else np.nanmax(self.truth))

    def prepare(self) -> None:
        """Computes in advance what all runs need: the list of configurations and its index."""
        assert len(self.sorted_codes[0]) == len(self.truth)

    def shuffled(self, seed: int = 0) -> "Landscape":
        """Returns a copy with all outcomes permuted among the configurations. A strategy that still finds good outcomes
        sooner than by chance exploits the shape of the space, not the effects of knobs. Predictions stay in place."""
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
        """Relative distance of a metric value from the optimum; 0 at the optimum."""
        return abs(value - self.optimum) / self.optimum

    def within(self, share: float) -> int:
        return int((abs(self.truth - self.optimum) <= share * self.optimum).sum())

    def better(self, a: float, b: float) -> bool:
        return a < b if self.goal == "min" else a > b

    def rows(self, codes: np.ndarray) -> np.ndarray:
        """Returns the row indices in `space.feasible`, (k,), of rows of codes (k, knobs)."""
        if codes is self.space.feasible.codes:
            return np.arange(len(codes))
        keys, order = self.sorted_codes
        wanted = _keys(codes)
        found = order[np.minimum(np.searchsorted(keys, wanted), len(order) - 1)]
        if not (_keys(self.space.feasible.codes[found]) == wanted).all():
            raise ValueError("codes that are not a valid configuration")
        return found

    def predictor(self, name: str) -> Predictor:
        """A simulator as strategies use it: a function from rows of codes to predicted metric values."""
        predicted = self.simulators[name]
        return lambda codes: predicted[self.rows(codes)]

    def foretold(self) -> dict[str, Predictor]:
        """For each predicted bound, a function from rows of codes to the predicted log(value / bound)."""
        return {name: lambda codes, levels=levels: levels[self.rows(codes)] for name, levels in self.foreseen.items()}

    def measure(self, row: int, configuration: Configuration, noise: float, seed: int, repeat: int = 0) -> Measurement:
        """The result of one experiment, with lognormal noise that depends only on (seed, row, repeat)."""
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
    """Returns one opaque key per row of codes, for sorting and searching."""
    codes = np.ascontiguousarray(codes, dtype=np.int16)
    return codes.view(np.dtype((np.void, codes.itemsize * codes.shape[1]))).ravel()
