"""Predicts joules per output token of a server: predicted power divided by predicted tokens per second. The power lies
between the power of decoding (memory-bound) and of matrix products (compute-bound). The predictions were compared with
MLPerf Inference's power results for busy nodes of H200 and B200 (docs/lab/simulators-training.md,
tests/tools/published_power.py)."""

import numpy as np

from autoscout.simulate.hardware.device import hardware
from autoscout.simulate.joules import COMPUTING, level
from autoscout.simulate.member import Columns, Prediction
from autoscout.simulate.serving.engine_shapes import columns_at, numbers
from autoscout.simulate.serving.serving_device import device, has_constants
from autoscout.simulate.serving.setup import setup
from autoscout.simulate.serving.simulator import ServingSimulator, rows_of
from autoscout.simulate.serving.steps import linear_s, prefill_attention_s

Array = np.ndarray
ANSWERING = 0.65  # power as a share of the default limit while few sequences decode; a usual figure, not measured
FULL = 0.5  # share of time in products and prefill attention above which the device draws full power
TOKENS = 8192.0  # tokens of a step at which products are compute-bound
ERROR = 0.2  # log error of the power, in addition to the error of the predicted rate


class ServingEnergy:
    """Predicts `joules_per_token` of the answers, summed over all devices that serve together."""

    name = "analytic-serving-energy"

    def __init__(self) -> None:
        self.rates = ServingSimulator("requests_per_s")
        self.level = 0.0  # correction learned by `fit`: log(measured / predicted)

    def applies(self, columns: Columns) -> str:
        if why := self.rates.applies(columns):
            return why
        known = [hw for kind in _kinds(columns) if (hw := hardware(kind)) is not None and hw.watts]
        return "" if known else "the power draw of the device is not known"

    def fit(self, columns: Columns, values: np.ndarray) -> None:
        self.level = 0.0
        self.level = level(values, self.predict(columns))

    def predict(self, columns: Columns) -> Prediction:
        """Joules per output token. NaN where the rate or the power draw is unknown; inf if no request can be served."""
        return self.watts_and_joules(columns)[1]

    def watts_and_joules(self, columns: Columns) -> tuple[Array, Prediction]:
        """((n,) power of all devices together in watts, the result of `predict`)"""
        served = self.rates.predict(columns)
        watts, outputs = self._drawn(columns, served.value)
        with np.errstate(divide="ignore"):
            joules = watts / (served.value * outputs)
        return watts, Prediction(value=np.exp(self.level) * joules, error=np.hypot(served.error, ERROR))

    def _drawn(self, columns: Columns, requests_per_s: Array) -> tuple[Array, Array]:
        """((n,) power of all devices in watts, (n,) tokens of an answer); NaN where the power draw is unknown."""
        n = rows_of(columns)
        kinds = np.broadcast_to(np.asarray(columns["gpu"], dtype=str), (n,))
        watts, outputs = np.full(n, np.nan), np.full(n, np.nan)
        for kind in _kinds(columns):
            hw, rows = hardware(kind), np.flatnonzero(kinds == kind)
            if hw is not None and hw.watts and has_constants(kind):
                limits, outputs[rows] = drawn(columns_at(columns, rows, n), kind, requests_per_s[rows])
                watts[rows] = hw.watts * limits
        return watts, outputs


def drawn(columns: Columns, kind: str, requests_per_s: Array) -> tuple[Array, Array]:
    """((n,) power of all devices as a multiple of one device's default limit, (n,) tokens of an answer)."""
    n = len(requests_per_s)
    s = setup(columns, device(kind), n)
    cached = np.where(s.prefix_caching, np.minimum(s.shared_prefix, s.input_len - 1), 0.0)
    prompt, one, many = s.input_len - cached, np.ones(n), np.full(n, TOKENS)
    products = (prompt + s.output_len) * linear_s(s.engine, many) / TOKENS
    attention = prefill_attention_s(s.engine, one, prompt, prompt * (cached + (prompt + 1) / 2))
    readers = numbers(columns, "prefill", 0.0, n)
    devices = s.engine.tp * s.engine.pp * s.replicas + readers
    busy = requests_per_s / s.replicas * (products + attention) / s.engine.pp  # a stage has 1/pp of the layers
    limit = np.minimum(numbers(columns, "power_cap", 100.0, n) / 100, 1.0)
    computing, answering = COMPUTING * limit, np.minimum(ANSWERING, COMPUTING * limit)
    return devices * (answering + (computing - answering) * np.minimum(busy / FULL, 1.0)), s.output_len


def _kinds(columns: Columns) -> list[str]:
    return np.unique(np.asarray(columns["gpu"], dtype=str)).tolist()
