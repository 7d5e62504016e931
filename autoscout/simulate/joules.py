"""Predicts watts and joules per token of training: the devices' power while they compute, communicate and wait, times
the predicted seconds of each. The constants come from whole nodes of H100 in MLPerf Training's power results
(docs/lab/simulators-training.md, tests/tools/published_power.py)."""

from collections.abc import Sequence

import numpy as np

from autoscout.simulate.hardware.device import hardware
from autoscout.simulate.member import Columns, Prediction
from autoscout.simulate.training.fleet import devices
from autoscout.simulate.training.step import Training

# COMPUTING: power while kernels compute, as a share of the power limit. EXCHANGING, WAITING: power while ranks
# communicate and while no kernel runs, as shares of the default limit. (See the module's docstring for the source.)
COMPUTING, EXCHANGING, WAITING = 0.95, 0.8, 0.3
ERROR = 0.15  # log error of the power, in addition to the error of the predicted time
_COMPUTING, _EXCHANGING = ("compute", "recompute", "optimizer"), ("tp", "cp", "ep", "pp", "dp")


class TrainingEnergy:
    """Predicts `joules_per_token` of a training step, summed over all devices."""

    name = "analytic-energy"

    def __init__(self) -> None:
        self.steps = Training()
        self.level = 0.0  # correction learned by `fit`: log(measured / predicted)

    def applies(self, columns: Columns) -> str:
        for name in (names := devices(columns, "")):
            if (hw := hardware(name)) is None or not hw.watts:
                return f"the power draw of {name or 'the device (none named)'} is not known"
        if "gpu" in columns and len(names) > 1:
            return "the energy model needs rows of one kind of device, or a column with the count of each kind"
        return self.steps.applies(columns)

    def fit(self, columns: Columns, values: np.ndarray) -> None:
        self.level = 0.0
        self.level = level(values, self.predict(columns))

    def predict(self, columns: Columns) -> Prediction:
        return self.watts_and_joules(columns)[1]

    def watts_and_joules(self, columns: Columns) -> tuple[np.ndarray, Prediction]:
        """((n,) mean power of all devices together during a step in watts, the result of `predict`)"""
        step = self.steps.predict(columns)
        tokens = np.asarray(columns["global_batch"], dtype=float) * np.asarray(columns["seq_len"], dtype=float)
        drawn = watts(columns, step)
        joules = np.exp(self.level) * drawn * step.value / np.where(tokens > 0, tokens, np.nan)
        return drawn, Prediction(value=joules, error=np.hypot(step.error, ERROR))


def watts(columns: Columns, step: Prediction) -> np.ndarray:
    """(n,) mean power of all devices together in watts, given the predicted times of a `step`."""
    names = devices(columns, "")
    counts = [columns["gpus"]] if len(names) == 1 else [columns[name] for name in names]
    limits = [hw.watts if (hw := hardware(name)) else np.nan for name in names]
    full = sum((np.asarray(n, dtype=float) * w for n, w in zip(counts, limits, strict=True)), np.zeros(1))
    limit = np.asarray(columns.get("power_cap", 100.0), dtype=float)
    most = COMPUTING * np.where(limit > 0, np.minimum(limit / 100, 1.0), 1.0)
    computing, exchanging = (_share(step, parts) for parts in (_COMPUTING, _EXCHANGING))
    waiting = np.minimum(WAITING, most) * (1 - computing - exchanging)
    return full * (most * computing + np.minimum(EXCHANGING, most) * exchanging + waiting)


def _share(step: Prediction, parts: Sequence[str]) -> np.ndarray:
    """(n,) share of the step time that the components `parts` take."""
    return sum((step.parts[part] for part in parts), np.zeros(1)) / step.value


def level(values: np.ndarray, predicted: Prediction) -> float:
    """The correction log(measured / predicted), shrunk towards 0: one measured row corrects half of its error."""
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.log(np.asarray(values, dtype=float) / predicted.value)
    error = error[np.isfinite(error)]
    return float(error.sum() / (len(error) + 1))
