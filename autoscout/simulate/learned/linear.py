"""The four simulators of Table 2 of the AutoScout paper: linear regressions of the metric on subsets of the knobs. Each
also has a variant that regresses log(metric) on log2 of the knobs, because knobs mostly multiply the cost."""

import numpy as np

from autoscout.simulate.encode import FittedColumns, length
from autoscout.simulate.hardware.device import kinds
from autoscout.simulate.member import Columns, Prediction

DEVICES = "devices"  # one regressor per kind of device: the number of devices of that kind (two kinds in the paper)
TABLE_2: dict[str, tuple[str, ...]] = {
    "3D-Parallelism": (DEVICES, "mbs", "tp", "pp", "dp"),
    "5D-Parallelism": (DEVICES, "mbs", "tp", "pp", "dp", "ep", "cp", "sp"),
    "DDP-Aware": (DEVICES, "mbs", "tp", "pp", "dp", "ddp_optim"),
    "Communication-Aware": (DEVICES, "mbs", "tp", "pp", "dp", "ar", "tp_comm"),
}
PER_DOUBLING = 0.35  # log error added per doubling of a knob beyond its fitted range

_DEGREES = {"tp", "pp", "dp", "ep", "cp", "mbs"}


class LinearMember:
    """A regression of Table 2 as published; with `log`, its variant in logarithms."""

    def __init__(self, name: str, knobs: tuple[str, ...], log: bool = False) -> None:
        self.name = f"log {name}" if log else name
        self.knobs, self.log = knobs, log
        self._seen: FittedColumns | None = None
        self._kinds: list[str] = []

    @property
    def min_rows(self) -> int:
        return 2 * (len(self.knobs) - 1)  # two rows per knob, because a fit to fewer is arbitrary

    def applies(self, columns: Columns) -> str:
        if self._seen is None:
            return f"not fitted: this model needs at least {self.min_rows} measured rows"
        return ""

    def why_outside(self, columns: Columns) -> str:
        return self._seen.why_outside(columns) if self._seen else ""

    def fit(self, columns: Columns, values: np.ndarray) -> None:
        """Fits by minimum-norm least squares, so that a knob that never varied gets a slope of 0."""
        if len(values) < self.min_rows:
            self._seen = None
            return
        self._kinds = kinds_of(columns) if DEVICES in self.knobs else []
        self._seen = FittedColumns({k: v for k, v in columns.items() if k in (*self.knobs, *self._kinds, "gpu")})
        x = self._features(columns)
        y = np.log(values) if self.log else values
        self._mean_x, self._mean_y = x.mean(0), y.mean()
        self._slope = np.linalg.lstsq(x - self._mean_x, y - self._mean_y, rcond=1e-9)[0]
        # A linear model may predict negative values, so predictions are clipped at half of the smallest measured value.
        self._floor = float(values.min()) / 2
        self._spread = float(np.std(np.log(values) - np.log(self._values(x)))) or 1e-6

    def predict(self, columns: Columns) -> Prediction:
        if self._seen is None:
            nothing = np.full(length(columns), np.nan)
            return Prediction(value=nothing, error=nothing)
        outside = self._seen.outside(columns)
        error = np.sqrt(self._spread**2 + (PER_DOUBLING * outside) ** 2)
        value = self._values(self._features(columns))
        return Prediction(value=value, error=np.broadcast_to(error, len(value)))

    def _values(self, x: np.ndarray) -> np.ndarray:
        y = self._mean_y + (x - self._mean_x) @ self._slope
        return np.maximum(np.exp(y) if self.log else y, self._floor)

    def _features(self, columns: Columns) -> np.ndarray:
        n, knobs = length(columns), [name for name in self.knobs if name != DEVICES]
        features = [*(_devices(columns, kind) for kind in self._kinds), *(_feature(columns, name) for name in knobs)]
        x = np.stack([np.broadcast_to(feature, n) for feature in features], axis=1)
        return np.log2(1 + x) if self.log else x


def table_2(log: bool = False) -> list[LinearMember]:
    return [LinearMember(name, knobs, log) for name, knobs in TABLE_2.items()]


def _feature(columns: Columns, name: str) -> np.ndarray:
    if name == "ar":
        return (~np.isin(np.asarray(columns.get("ar", "none")), ("none", ""))).astype(float)
    if name == "ddp_optim":
        return np.nan_to_num(np.asarray(columns.get("distopt", False)).astype(float))
    absent = 1.0 if name in _DEGREES else 0.0
    return np.maximum(np.nan_to_num(np.asarray(columns.get(name, absent)).astype(float), nan=absent), 0.0)


def kinds_of(columns: Columns) -> list[str]:
    """The kinds of device that rows run on: on a mixed cluster the knobs named after kinds, else the values of the
    column `gpu`."""
    return kinds(list(columns)) or np.unique(np.asarray(columns.get("gpu", "")).astype(str)).tolist()


def _devices(columns: Columns, kind: str) -> np.ndarray:
    """(n,) number of devices of a kind: on a mixed cluster the knob named after the kind, else the column `gpus` in the
    rows of that kind."""
    if kind in columns:
        return np.maximum(np.nan_to_num(np.asarray(columns[kind]).astype(float)), 0.0)
    of_kind = np.asarray(columns.get("gpu", "")).astype(str) == kind
    return np.where(of_kind, np.nan_to_num(np.asarray(columns.get("gpus", 0)).astype(float)), 0.0)
