"""Several objectives in the default strategy: one search that finds a Pareto front.

Every second experiment optimizes the job's first objective (only every eighth once hardly any gain is expected in it).
All other experiments maximize the expected hypervolume improvement (hypervolume.py). The first objective is modelled as
usual (surrogate.py); each further objective has a Gaussian process of its log-cost."""

import numpy as np

from autoscout.job.objective import others
from autoscout.search.belief.encoding import EncodedRows, Encoding
from autoscout.search.belief.posterior import Belief, Posterior, Prior
from autoscout.search.hypervolume import expected_gain, front, reference
from kb.records import Objective

_HELD, _FITTED = 150, 80  # limits on measured rows in the model, and on rows used to fit hyper-parameters
_GROWTH, _STEPS = 1.25, 30  # growth of the data that triggers a new fit, as in surrogate.py; limit on its steps
# limit on the front's points for three or more objectives, because the number of boxes grows as a power of the number
# of points
_CORNERS = 40


class Trade:
    def __init__(self, objective: Objective, encoding: Encoding) -> None:
        self.objective = objective
        self.first = True  # whether this step optimizes only the first objective
        self._told: dict[int, list[np.ndarray]] = {}  # row → (objectives,) log-costs, for each measurement
        # Rows that broke a constraint: the model uses them, but they are excluded from the front.
        self._broke: set[int] = set()
        self._others = [OtherObjective(encoding) for _ in objective.also]

    def tell(self, row: int, costs: list[float], kept: bool = True) -> None:
        """Adds a result. `costs`: of each objective, in order; `kept`: whether the run kept the constraints."""
        if not kept:
            self._broke.add(row)
        self._told.setdefault(row, []).append(np.log(costs))

    def turn(self, first: bool) -> None:
        """Sets whether to optimize only the first objective, which is always the case until a row keeps all
        constraints."""
        self.first = first or not self._told.keys() - self._broke

    def held(self) -> np.ndarray:
        """(n,) rows that the model uses: those on the front, and the latest."""
        rows, costs = np.array(list(self._told)), self._costs()
        on_front = front(costs[self._kept(rows)])
        best = (costs[:, None] == on_front[None]).all(axis=2).any(axis=1)
        latest = np.arange(len(rows)) >= len(rows) - _HELD
        return rows[best | latest]

    def gain(
        self, first: np.ndarray, encoded: EncodedRows, mean: np.ndarray, deviation: np.ndarray, rows: EncodedRows
    ) -> np.ndarray:
        """(c,) expected hypervolume improvement of c candidates `rows`, whose first objective is `mean` ± `deviation`
        (c,). `encoded`: the rows of `held()`; `first`: (n,) their first objective, on the same scale."""
        held = self.held()
        logs = self._costs(held)
        means, deviations = [mean], [deviation]
        for j, other in enumerate(self._others, start=1):
            other.fit(encoded, logs[:, j])
            found = other.predicted(encoded, logs[:, j], rows)
            means.append(found[0])
            deviations.append(found[1])
        points = np.column_stack([first, logs[:, 1:]])[self._kept(held)]
        beyond = reference(points)
        if points.shape[1] > 2:
            points = front(points)  # sorted by the first objective
            points = points[np.linspace(0, len(points) - 1, min(len(points), _CORNERS)).astype(int)]
        return expected_gain(np.stack(means, axis=1), np.stack(deviations, axis=1), points, beyond)

    def _kept(self, rows: np.ndarray) -> np.ndarray:
        return ~np.isin(rows, list(self._broke))

    def _costs(self, rows: np.ndarray | None = None) -> np.ndarray:
        """(n, objectives) mean log-costs of `rows`, by default of all."""
        chosen = self._told if rows is None else {int(row): self._told[int(row)] for row in rows}
        return np.array([np.mean(values, axis=0) for values in chosen.values()])

    @property
    def why(self) -> str:
        """The criterion for proposals in this step, as text; "" if only the first objective is optimized."""
        if self.first:
            return ""
        metrics = [self.objective.metric, *(other.metric for other in others(self.objective))]
        return f"largest expected gain of hypervolume of {', '.join(metrics)}"


class OtherObjective:
    """The model of a further objective, for n rows and c candidates."""

    def __init__(self, encoding: Encoding) -> None:
        self._posterior = Posterior(encoding, Prior())
        self._fitted_on, self._centre, self._unit = 0, 0.0, 1.0

    def fit(self, rows: EncodedRows, logs: np.ndarray) -> None:
        """Refits the hyper-parameters if the number of rows has grown enough. `logs`: (n,) log-costs."""
        if len(logs) < _GROWTH * self._fitted_on:
            return
        self._fitted_on, self._centre = len(logs), float(logs.mean())
        self._unit = max(float(logs.std()), 1e-3)
        at = np.arange(len(logs))[:: len(logs) // _FITTED + 1]
        scaled = (logs[at] - self._centre) / self._unit
        self._posterior.fit(rows[at], scaled, np.zeros((len(at), 0)), np.zeros(0), np.zeros(len(at)), _STEPS)

    def predicted(self, rows: EncodedRows, logs: np.ndarray, candidates: EncodedRows) -> tuple[np.ndarray, np.ndarray]:
        """((c,) expected log-costs, (c,) standard deviations) of the candidates."""
        measured, asked = (
            self._posterior.features(each, np.zeros((len(each), 0)), np.zeros(0)) for each in (rows, candidates)
        )
        belief = Belief(self._posterior, measured, asked, np.zeros(len(logs)))
        mean = belief.mean((logs - self._centre) / self._unit)
        return self._centre + self._unit * mean, self._unit * belief.deviation
