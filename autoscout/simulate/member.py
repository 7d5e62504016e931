"""The interface of a simulator (a member of the ensemble), which predicts a metric from columns, and its error.

`Columns` map names of knobs and job attributes (layers, hidden, gpus, seq_len …) to a scalar or an array of n values.
One call therefore predicts a single configuration, a whole space (`{**attributes_of(job), **space.columns(codes)}`) or
a table of measurements of many jobs."""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
import numpy as np

Columns = Mapping[str, Any]


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """A predicted metric of n rows. `value`: (n,) in the metric's unit, NaN where the member cannot predict. `error`:
    (n,) standard deviation of log(value), so that exp(±1.64 error) spans 90 %. `parts`: (n,) each, the components of
    the value, such as compute and communication, usually in its unit."""

    value: np.ndarray
    error: np.ndarray
    parts: dict[str, np.ndarray] = {}


class Member(Protocol):
    name: str

    def applies(self, columns: Columns) -> str:
        """ "", or the reason why this member cannot predict these columns."""
        ...

    def fit(self, columns: Columns, values: np.ndarray) -> None:
        """Learns from (n,) measured values; an analytic member may fit a correction, or do nothing."""
        ...

    def predict(self, columns: Columns) -> Prediction: ...
