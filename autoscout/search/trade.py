"""Several objectives at once: one search that leaves a front behind (Knowles 2006, ParEGO).

Every second experiment optimizes the job's first objective (every eighth once that promises next to nothing); the
others optimize a scalarization of all objectives, with weights redrawn each time so that all parts of the front are
visited:

    s(x) = max_j w_j u_j(x) + ρ Σ_j w_j u_j(x),    u_j: log-cost above the best seen, in units of its spread
"""

import numpy as np

from autoscout.job.objective import others
from kb.records import Objective

_RHO = 0.05


class Trade:
    def __init__(self, objective: Objective, rng: np.random.Generator) -> None:
        self.objective, self.rng = objective, rng
        self.first = True  # whether the first objective alone counts now
        self._weights = np.zeros(0)
        self._told: dict[int, list[np.ndarray]] = {}  # row → (objectives,) log-costs of each measurement

    def tell(self, row: int, costs: list[float]) -> None:
        """`costs`: one per objective, the first and then `also`."""
        self._told.setdefault(row, []).append(np.log(costs))

    def turn(self, first: bool) -> None:
        self.first = first
        self._weights = self.rng.dirichlet(np.ones(1 + len(self.objective.also)))

    def logs(self) -> dict[int, list[float]]:
        """Row → the log-costs that count now."""
        if self.first or not self._told:
            return {row: [float(v[0]) for v in values] for row, values in self._told.items()}
        means = np.array([np.mean(values, axis=0) for values in self._told.values()])
        least, unit = means.min(axis=0), np.maximum(means.std(axis=0), 1e-3)

        def mixed(logs: np.ndarray) -> float:
            weighted = self._weights * (logs - least) / unit
            return float(weighted.max() + _RHO * weighted.sum()) * float(unit[0])

        return {row: [mixed(v) for v in values] for row, values in self._told.items()}

    @property
    def why(self) -> str:
        """ "" or the present weights, in words."""
        if self.first:
            return ""
        metrics = [self.objective.metric, *(other.metric for other in others(self.objective))]
        return "for " + ", ".join(f"{w:.0%} {m}" for w, m in zip(self._weights, metrics, strict=True))
