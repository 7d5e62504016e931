"""The closed form as a simulator that searches ask."""

from typing import Any

import numpy as np

from autoscout.simulate.member import Columns, Prediction
from autoscout.simulate.stack.designs import evaluate
from autoscout.simulate.stack.workloads import Workload

ERROR = 0.05  # standard deviation of the logarithm, against the same model chunk by chunk (docs/full-stack.md)


class ClosedForm:
    name = "closed form"

    def __init__(self, metric: str, workloads: list[tuple[float, Workload]]) -> None:
        self._metric, self._workloads = metric, workloads

    def applies(self, columns: Columns) -> str:
        return "" if "npus_1" in columns else "the configuration describes no network"

    def fit(self, columns: Columns, values: np.ndarray) -> None:
        """Nothing of it is learned: what it is held against is a model too."""

    def predict(self, columns: Columns) -> Prediction:
        found: dict[str, Any] = evaluate(columns, self._workloads)
        value = found[self._metric]
        parts = {n.removeprefix("part_"): v for n, v in found.items() if n.startswith("part_")}
        return Prediction(
            value=value,
            error=np.full(value.shape, ERROR),
            parts=parts if self._metric == "latency_s" else {},
        )
