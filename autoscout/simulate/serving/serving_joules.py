"""Joules per output token of a server without measurements: its devices' watts while they read prompts and while they
answer, over the tokens that it is predicted to answer with. Unverified: no table beside this checkout has watts."""

import numpy as np

from autoscout.simulate.hardware.device import hardware
from autoscout.simulate.joules import COMPUTING, level
from autoscout.simulate.member import Columns, Prediction
from autoscout.simulate.serving.engine_shapes import numbers
from autoscout.simulate.serving.serving_device import device, has_constants
from autoscout.simulate.serving.setup import setup
from autoscout.simulate.serving.simulator import ServingSimulator, columns_at, rows_of
from autoscout.simulate.serving.steps import prefill_step_s

Array = np.ndarray
ANSWERING = 0.65  # of the default limit while decoding, which memory bounds; a usual figure, not measured here
ERROR = 0.35  # log error of the usual figures, in addition to that of the rate


class ServingEnergy:
    """`joules_per_token` of the answers, all devices that serve together."""

    name = "analytic-serving-energy"

    def __init__(self) -> None:
        self.rates = ServingSimulator("requests_per_s")
        self.level = 0.0  # log of measured over predicted

    def applies(self, columns: Columns) -> str:
        if why := self.rates.applies(columns):
            return why
        known = [hw for kind in _kinds(columns) if (hw := hardware(kind)) is not None and hw.watts]
        return "" if known else "no watts are known of the device"

    def fit(self, columns: Columns, values: np.ndarray) -> None:
        self.level = 0.0
        self.level = level(values, self.predict(columns))

    def predict(self, columns: Columns) -> Prediction:
        """NaN where no rate is predicted or no watts are known; inf where nothing is served."""
        served = self.rates.predict(columns)
        n = rows_of(columns)
        kinds = np.broadcast_to(np.asarray(columns["gpu"], dtype=str), (n,))
        joules = np.full(n, np.nan)
        for kind in _kinds(columns):
            hw, rows = hardware(kind), np.flatnonzero(kinds == kind)
            if hw is None or not hw.watts or not has_constants(kind):
                continue
            watts, outputs = _watts(columns_at(columns, rows, n), kind, served.value[rows])
            with np.errstate(divide="ignore"):
                joules[rows] = hw.watts * watts / (served.value[rows] * outputs)
        return Prediction(value=np.exp(self.level) * joules, error=np.hypot(served.error, ERROR))


def _watts(columns: Columns, kind: str, requests_per_s: Array) -> tuple[Array, Array]:
    """(of all devices of each row, as multiples of one's default limit; tokens of an answer)."""
    n = len(requests_per_s)
    s = setup(columns, device(kind), n)
    cached = np.where(s.prefix_caching, np.minimum(s.shared_prefix, s.input_len - 1), 0.0)
    tokens = s.input_len - cached
    one = np.ones(n)
    prompt = prefill_step_s(s.engine, one, tokens, tokens * (cached + (tokens + 1) / 2))
    prompt = np.maximum(prompt - prefill_step_s(s.engine, one, one, one), 0.0)  # beside answers, which read the weights
    readers = numbers(columns, "prefill", 0.0, n)
    devices = s.engine.tp * s.engine.pp * s.replicas + readers
    reading = np.clip(requests_per_s / s.replicas * prompt, 0.0, 1.0)
    limit = np.minimum(numbers(columns, "power_cap", 100.0, n) / 100, 1.0)
    computing, answering = COMPUTING * limit, np.minimum(ANSWERING, COMPUTING * limit)
    return devices * (answering + (computing - answering) * reading), s.output_len


def _kinds(columns: Columns) -> list[str]:
    return np.unique(np.asarray(columns["gpu"], dtype=str)).tolist()
