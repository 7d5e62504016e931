"""Joules per token without measurements: the devices' watts while computing and while waiting, times the seconds that
the step model predicts for each. Unverified: no table beside this checkout has watts or joules."""

import numpy as np

from autoscout.simulate.hardware.device import hardware
from autoscout.simulate.member import Columns, Prediction
from autoscout.simulate.training.fleet import devices
from autoscout.simulate.training.step import Training

COMPUTING, WAITING = 0.9, 0.4  # of the data sheet's limit; usual figures, not measured here
ERROR = 0.25  # log error of the usual figures, in addition to that of the time
_BUSY = ("compute", "recompute", "optimizer")


class TrainingEnergy:
    """`joules_per_token` of a step, all devices together."""

    name = "analytic-energy"

    def __init__(self) -> None:
        self.steps = Training()
        self.level = 0.0  # log of measured over predicted

    def applies(self, columns: Columns) -> str:
        names = devices(columns, "")
        if len(names) != 1:
            return "the energy model is for one kind of device"
        if (hw := hardware(names[0])) is None or not hw.watts:
            return f"no watts are known of {names[0] or 'the device (none named)'}"
        return self.steps.applies(columns)

    def fit(self, columns: Columns, values: np.ndarray) -> None:
        """Corrects the level: one row by half of its error, more rows by more."""
        self.level = 0.0
        error = np.log(np.asarray(values, dtype=float) / self.predict(columns).value)
        error = error[np.isfinite(error)]
        self.level = float(error.sum() / (len(error) + 1))

    def predict(self, columns: Columns) -> Prediction:
        step = self.steps.predict(columns)
        (name,) = devices(columns, "")
        hw = hardware(name)
        assert hw is not None  # applies() says so
        busy = sum((step.parts[part] for part in _BUSY), np.zeros(1)) / step.value
        watts = hw.watts * (WAITING + (COMPUTING - WAITING) * busy)
        tokens = np.asarray(columns["global_batch"], dtype=float) * np.asarray(columns["seq_len"], dtype=float)
        gpus = np.asarray(columns["gpus"], dtype=float)
        joules = np.exp(self.level) * gpus * watts * step.value / tokens
        return Prediction(value=joules, error=np.hypot(step.error, ERROR))
