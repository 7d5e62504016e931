"""The interface of a simulator: a function from columns to predictions, with an error estimate of its own.

`Columns` name everything that a prediction may depend on, knobs and the job's attributes alike (layers, hidden, gpus,
seq_len …): each is a scalar or an array of n values. So one call predicts one configuration, a whole space
(`{**attributes_of(job), **space.columns(codes)}`) or a table of measured rows of many jobs.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
import numpy as np

Columns = Mapping[str, Any]


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """`value`: (n,) in the metric's unit, NaN where the member cannot predict. `error`: (n,) standard deviation of
    log(value), so that exp(±1.64 error) spans 90 %. `parts`: (n,) each, a breakdown, usually in the value's unit."""

    value: np.ndarray
    error: np.ndarray
    parts: dict[str, np.ndarray] = {}


class Member(Protocol):
    name: str

    def applies(self, columns: Columns) -> str:
        """ "", or why this member cannot predict here, in words."""
        ...

    def fit(self, columns: Columns, values: np.ndarray) -> None:
        """Learns from measured rows; analytic members may correct a constant, or do nothing."""
        ...

    def predict(self, columns: Columns) -> Prediction: ...
