"""Simulators' forecasts of how close a pool's rows are to their bounds: y = log(value / bound), above 0 if broken."""

from collections.abc import Mapping

import numpy as np

from autoscout.search.belief.prior_means import Predictor
from autoscout.search.pool import CandidatePool

MEMORY = "memory"  # name of the bound that the devices set; other bounds are named by the text of their constraint
_MOST = 3.0  # limit on |y|: beyond twenty times a bound, the distance carries no information


class Foreseen:
    def __init__(self, pool: CandidatePool, predictors: Mapping[str, Predictor]) -> None:
        """`predictors`: for each bound, a function from rows of codes to y (NaN: no prediction)."""
        self._pool, self._predictors = pool, predictors
        self._known = {name: np.zeros(0) for name in predictors}  # y of the pool's rows
        self._else = dict.fromkeys(predictors, 0.0)  # y of rows without a prediction: the median of the initial rows

    def __contains__(self, name: str) -> bool:
        return name in self._predictors

    def __len__(self) -> int:
        return len(self._predictors)

    def within(self, rows: np.ndarray) -> np.ndarray:
        """The `rows` that are not predicted to break a constraint other than memory; all `rows` if that leaves none."""
        over = [self.of(name, rows) > 0 for name in self._predictors if name != MEMORY]
        kept = rows[~np.any(over, axis=0)] if over else rows
        return kept if len(kept) else rows

    def of(self, name: str, rows: np.ndarray) -> np.ndarray:
        """(len(rows),) predicted y = log(value / bound) for the bound `name`; 0 if no simulator predicts it."""
        if name not in self._predictors:
            return np.zeros(len(rows))
        known = self._known[name]
        if len(fresh := self._pool.codes[len(known) :]):
            predicted = np.clip(self._predictors[name](fresh), -_MOST, _MOST)
            if not len(known) and not np.isnan(predicted).all():
                self._else[name] = float(np.nanmedian(predicted))
            known = self._known[name] = np.append(known, np.nan_to_num(predicted, nan=self._else[name]))
        return known[rows]
