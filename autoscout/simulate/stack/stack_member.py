"""The closed form as a simulator that searches ask."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from autoscout.job.objective import constraint
from autoscout.simulate.member import Columns, Prediction
from autoscout.simulate.stack.designs import evaluate
from autoscout.simulate.stack.workloads import Workload
from kb.records import Objective

# Standard deviation of log(measured / predicted) over published steps (tests/tools/stack_published.py); against the
# same model chunk by chunk it is 0.02.
ERROR = 0.32


def within_limits(objective: Objective, found: Mapping[str, Any], n: int) -> np.ndarray:
    """(n,) whether designs keep the objective's constraints; `found`: their metrics."""
    kept = np.ones(n, dtype=bool)
    for metric, sign, bound in map(constraint, objective.constraints):
        kept &= found[metric] <= bound if sign == "<=" else found[metric] >= bound
    return kept


class ClosedForm:
    name = "closed form"

    def __init__(self, objective: Objective, workloads: list[tuple[float, Workload]]) -> None:
        self._objective, self._metric, self._workloads = objective, objective.metric, workloads

    def applies(self, columns: Columns) -> str:
        return "" if "npus_1" in columns else "the configuration describes no network"

    def fit(self, columns: Columns, values: np.ndarray) -> None:
        """Learns nothing: its reference is a model too."""

    def predict(self, columns: Columns) -> Prediction:
        found: dict[str, Any] = evaluate(columns, self._workloads)
        value = found[self._metric]
        kept = within_limits(self._objective, found, len(value))
        value = np.where(kept, value, np.inf if self._objective.minimize else 0.0)  # the worst value beyond a limit
        parts = {n.removeprefix("part_"): v for n, v in found.items() if n.startswith("part_")}
        return Prediction(
            value=value,
            error=np.full(value.shape, ERROR),
            parts=parts if self._metric == "latency_s" else {},
        )
