"""How close to their bounds simulators predict the rows of a pool to be."""

from collections.abc import Mapping

import numpy as np

from autoscout.search.belief.prior_means import Predictor
from autoscout.search.pool import CandidatePool

MEMORY = "memory"  # the bound that devices are; others go by their constraint as written
_MOST = 3.0  # largest |y|: beyond twenty times a bound, how far says nothing


class Foreseen:
    def __init__(self, pool: CandidatePool, predictors: Mapping[str, Predictor]) -> None:
        """`predictors`: bound → codes → y as peaks.py and limits.py tell it (NaN: cannot say)."""
        self._pool, self._predictors = pool, predictors
        self._known = {name: np.zeros(0) for name in predictors}  # y of the pool's rows, as far as they were asked for
        self._else = dict.fromkeys(predictors, 0.0)  # of rows of which nothing is said: the median of the first asked

    def __contains__(self, name: str) -> bool:
        return name in self._predictors

    def within(self, rows: np.ndarray) -> np.ndarray:
        """Of some rows those that no simulator predicts to break a constraint; all of them if none is left."""
        over = [self.of(name, rows) > 0 for name in self._predictors if name != MEMORY]
        kept = rows[~np.any(over, axis=0)] if over else rows
        return kept if len(kept) else rows

    def of(self, name: str, rows: np.ndarray) -> np.ndarray:
        """(len(rows),) y of a bound; 0, at the bound, where no simulator predicts it."""
        if name not in self._predictors:
            return np.zeros(len(rows))
        known = self._known[name]
        if len(fresh := self._pool.codes[len(known) :]):
            said = np.clip(self._predictors[name](fresh), -_MOST, _MOST)
            if not len(known) and not np.isnan(said).all():
                self._else[name] = float(np.nanmedian(said))
            known = self._known[name] = np.append(known, np.nan_to_num(said, nan=self._else[name]))
        return known[rows]
