"""The ensemble (paper appendix B): members weighted by their R² on rows that they were not fitted on.

ĉ = Σ wᵢ ĉᵢ,   wᵢ = max(0, Rᵢ²) / Σ max(0, Rⱼ²)          (equation 2)
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autoscout.simulate.linear import MEMBERS, matrix
from kb.records import Configuration

MIN_ROWS = 16  # twice the widest member's regressors: below that a held-out R² is chance
_FOLDS = 5


class Ensemble:
    """Fitted on (configurations, values); `weights` is empty when no member explains held-out rows."""

    def __init__(self, rows: Sequence[Configuration], values: Sequence[float], devices: Mapping[str, int]) -> None:
        from sklearn.linear_model import LinearRegression

        self.devices = devices
        target = np.asarray(values, dtype=float)
        self.models: dict[str, Any] = {}
        r2: dict[str, float] = {}
        for name, knobs in MEMBERS.items():
            x = matrix(rows, knobs, devices)
            r2[name] = _held_out_r2(x, target)
            self.models[name] = LinearRegression().fit(x, target)
        total = sum(max(0.0, r) for r in r2.values())
        self.r2 = r2
        self.weights = {name: max(0.0, r) / total for name, r in r2.items()} if total > 0 else {}
        # A line may cross zero; no step takes less than the fastest one seen, halved.
        self._floor = float(target.min()) / 2

    def predict(self, configuration: Configuration) -> tuple[float, dict[str, float]]:
        """The weighted mean and each member's own prediction, in the unit of the values fitted on."""
        members = {
            name: max(float(model.predict(matrix([configuration], MEMBERS[name], self.devices))[0]), self._floor)
            for name, model in self.models.items()
        }
        return sum(self.weights[name] * members[name] for name in self.weights), members


def fit(rows: Sequence[Configuration], values: Sequence[float], devices: Mapping[str, int]) -> Ensemble | None:
    """None when the rows are too few, or say nothing that holds on unseen rows."""
    if len(rows) < MIN_ROWS:
        return None
    ensemble = Ensemble(rows, values, devices)
    return ensemble if ensemble.weights else None


def _held_out_r2(x: np.ndarray, y: np.ndarray) -> float:
    """R² of out-of-fold predictions; folds go round the rows, so that the same rows give the same weights."""
    from sklearn.linear_model import LinearRegression

    fold = np.arange(len(y)) % _FOLDS
    predicted = np.empty_like(y)
    for i in range(_FOLDS):
        predicted[fold == i] = LinearRegression().fit(x[fold != i], y[fold != i]).predict(x[fold == i])
    spread = float(((y - y.mean()) ** 2).sum())
    return 1.0 - float(((y - predicted) ** 2).sum()) / spread if spread > 0 else 0.0
