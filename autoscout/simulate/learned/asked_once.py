"""One analytic member that several learned ones build on: fitted once, and asked once for the same columns."""

import numpy as np

from autoscout.simulate.member import Columns, Member, Prediction


class Shared:
    """Caches its last fit and its last prediction by the identity of the columns: a caller that changes columns in
    place must pass a new mapping (`Ensemble` always does)."""

    def __init__(self, member: Member) -> None:
        self.member, self.name = member, member.name
        self._fitted: tuple[Columns, int] | None = None
        self._asked: tuple[Columns, Prediction] | None = None

    def applies(self, columns: Columns) -> str:
        return self.member.applies(columns)

    def fit(self, columns: Columns, values: np.ndarray) -> None:
        if self._fitted is None or self._fitted[0] is not columns or self._fitted[1] != len(values):
            self.member.fit(columns, values)
            self._fitted, self._asked = (columns, len(values)), None

    def predict(self, columns: Columns) -> Prediction:
        if self._asked is None or self._asked[0] is not columns:
            self._asked = columns, self.member.predict(columns)
        return self._asked[1]
