"""Watts and joules per token without measurements: the devices' watts while computing and while waiting, times the
seconds that the step model predicts for each. Unverified: no table beside this checkout has watts or joules."""

import numpy as np

from autoscout.simulate.hardware.device import hardware
from autoscout.simulate.member import Columns, Prediction
from autoscout.simulate.training.fleet import devices
from autoscout.simulate.training.step import Training

# Of the device's limit, and of its default one; usual figures, not measured here.
COMPUTING, WAITING = 0.9, 0.4
ERROR = 0.25  # log error of the usual figures, in addition to that of the time
_BUSY = ("compute", "recompute", "optimizer")


class TrainingEnergy:
    """`joules_per_token` of a step, all devices together."""

    name = "analytic-energy"

    def __init__(self) -> None:
        self.steps = Training()
        self.level = 0.0  # log of measured over predicted

    def applies(self, columns: Columns) -> str:
        for name in (names := devices(columns, "")):
            if (hw := hardware(name)) is None or not hw.watts:
                return f"no watts are known of {name or 'the device (none named)'}"
        if "gpu" in columns and len(names) > 1:
            return "the energy model is for rows of one kind of device, or with a column that counts each kind"
        return self.steps.applies(columns)

    def fit(self, columns: Columns, values: np.ndarray) -> None:
        self.level = 0.0
        self.level = level(values, self.predict(columns))

    def predict(self, columns: Columns) -> Prediction:
        step = self.steps.predict(columns)
        tokens = np.asarray(columns["global_batch"], dtype=float) * np.asarray(columns["seq_len"], dtype=float)
        joules = np.exp(self.level) * watts(columns, step) * step.value / tokens
        return Prediction(value=joules, error=np.hypot(step.error, ERROR))


def watts(columns: Columns, step: Prediction) -> np.ndarray:
    """(n,) of all devices together, on average over the `step` that was predicted for these columns."""
    names = devices(columns, "")
    counts = [columns["gpus"]] if len(names) == 1 else [columns[name] for name in names]
    limits = [hw.watts if (hw := hardware(name)) else np.nan for name in names]
    full = sum((np.asarray(n, dtype=float) * w for n, w in zip(counts, limits, strict=True)), np.zeros(1))
    busy = sum((step.parts[part] for part in _BUSY), np.zeros(1)) / step.value
    limit = np.asarray(columns.get("power_cap", 100.0), dtype=float)
    computing = COMPUTING * np.where(limit > 0, np.minimum(limit / 100, 1.0), 1.0)
    waiting = np.minimum(WAITING, computing)
    return full * (waiting + (computing - waiting) * busy)


def level(values: np.ndarray, predicted: Prediction) -> float:
    """Log of measured over predicted, by which predictions are corrected: one row by half of its error, more rows by
    more."""
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.log(np.asarray(values, dtype=float) / predicted.value)
    error = error[np.isfinite(error)]
    return float(error.sum() / (len(error) + 1))
