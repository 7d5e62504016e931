"""Boosted trees (scikit-learn) that predict log(metric) from all knobs and attributes. With many rows they interpolate
best, but they do not extrapolate. They are used alone, or to learn the error of a base simulator."""

from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from autoscout.simulate.encode import FittedColumns, length
from autoscout.simulate.learned.linear import PER_DOUBLING
from autoscout.simulate.member import Columns, Member, Prediction

MIN_ROWS = 40  # a leaf has at least five rows, so fewer rows allow too few splits


def _one_thread() -> AbstractContextManager[Any]:
    """Limits OpenMP to one thread. Its threads mostly wait for each other while experiments occupy the cores (a fit of
    1.5 s took more than 120 s next to one busy process on two cores)."""
    from threadpoolctl import threadpool_limits

    return threadpool_limits(1, user_api="openmp")


class Trees:
    """Gradient-boosted trees as a simulator. With a `base`, they learn log(measured / base), and their correction fades
    outside the fitted range, so that only the base extrapolates."""

    def __init__(self, base: Member | None = None) -> None:
        self.base = base
        self.name = f"{base.name} + trees" if base else "trees"
        self.min_rows = MIN_ROWS
        self._seen: FittedColumns | None = None
        self._model: Any = None

    def applies(self, columns: Columns) -> str:
        if self._seen is None:
            return f"not fitted: this model needs at least {self.min_rows} measured rows"
        return self.base.applies(columns) if self.base else ""

    def why_outside(self, columns: Columns) -> str:
        return self._seen.why_outside(columns) if self._seen else ""

    def fit(self, columns: Columns, values: np.ndarray) -> None:
        from sklearn.ensemble import HistGradientBoostingRegressor

        self._seen = None
        target, known = self._target(columns, values)
        if known.sum() < self.min_rows:
            return
        seen = FittedColumns(columns)
        self._inputs = seen.varying
        if not self._inputs:
            return
        self._seen = seen
        self._model = HistGradientBoostingRegressor(
            max_iter=60,
            learning_rate=0.2,
            max_leaf_nodes=16,
            min_samples_leaf=5,
            early_stopping=False,  # pyright: ignore[reportArgumentType]
            random_state=0,
        )
        x = seen.matrix(columns, self._inputs)[known]
        with _one_thread():
            self._model.fit(x, target[known])
            self._spread = float(np.std(target[known] - self._model.predict(x))) or 1e-6

    def predict(self, columns: Columns) -> Prediction:
        n = length(columns)
        if self._seen is None:
            nothing = np.full(n, np.nan)
            return Prediction(value=nothing, error=nothing)
        outside = np.broadcast_to(self._seen.outside(columns), n)
        error = np.sqrt(self._spread**2 + (PER_DOUBLING * outside) ** 2)
        with _one_thread():
            learned = self._model.predict(self._seen.matrix(columns, self._inputs))
        if self.base is None:
            return Prediction(value=np.exp(learned), error=error)
        base = self.base.predict(columns)
        fade = 2.0**-outside
        error = np.sqrt(self._spread**2 + (1 - fade) * base.error**2)
        return Prediction(value=base.value * np.exp(fade * learned), error=error)

    def _target(self, columns: Columns, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """((n,) log(measured) or log(measured / base), (n,) mask of rows where it is finite)."""
        target = np.log(values)
        if self.base is not None:
            self.base.fit(columns, values)
            with np.errstate(divide="ignore", invalid="ignore"):  # a rate of 0 means out of memory
                target = target - np.log(self.base.predict(columns).value)
        return target, np.isfinite(target)
