"""Simulators' predictions of how close a pool's rows are to their bounds."""

from collections.abc import Mapping

import numpy as np

from autoscout.search.belief.prior_means import Predictor
from autoscout.search.pool import CandidatePool

MEMORY = "memory"  # the name of the bound set by devices; other bounds are named by their constraint's text
_MOST = 3.0  # largest |y|: beyond twenty times a bound, the distance carries no information


class Foreseen:
    def __init__(self, pool: CandidatePool, predictors: Mapping[str, Predictor]) -> None:
        """`predictors`: bound → codes → y as defined in peaks.py and limits.py (NaN: no prediction)."""
        self._pool, self._predictors = pool, predictors
        self._known = {name: np.zeros(0) for name in predictors}  # y of the pool's rows so far
        self._else = dict.fromkeys(predictors, 0.0)  # y of rows without a prediction: the median of the first rows

    def __contains__(self, name: str) -> bool:
        return name in self._predictors

    def __len__(self) -> int:
        return len(self._predictors)

    def within(self, rows: np.ndarray) -> np.ndarray:
        """The `rows` that no simulator predicts to break a constraint; all of them if there is none."""
        over = [self.of(name, rows) > 0 for name in self._predictors if name != MEMORY]
        kept = rows[~np.any(over, axis=0)] if over else rows
        return kept if len(kept) else rows

    def of(self, name: str, rows: np.ndarray) -> np.ndarray:
        """(len(rows),) y of a bound; 0, at the bound, where no simulator predicts it."""
        if name not in self._predictors:
            return np.zeros(len(rows))
        known = self._known[name]
        if len(fresh := self._pool.codes[len(known) :]):
            predicted = np.clip(self._predictors[name](fresh), -_MOST, _MOST)
            if not len(known) and not np.isnan(predicted).all():
                self._else[name] = float(np.nanmedian(predicted))
            known = self._known[name] = np.append(known, np.nan_to_num(predicted, nan=self._else[name]))
        return known[rows]
