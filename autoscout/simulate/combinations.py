"""Distinct combinations of column values, so that a quantity that depends on few columns is computed once for each.

In a space of a million configurations, the columns that determine a pipeline stage's time take a few thousand distinct
combinations, and those that determine the gradient exchange a few hundred."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from autoscout.simulate.member import Columns

Array = np.ndarray
_SPAN = 4096  # integers with max − min below this are coded as value − min, which needs no sorting
_FEW = 16  # columns with up to this many distinct values are coded value by value, which is faster than sorting
_ROOM = 16  # most entries per row of the lookup table that ranks keys; more possible keys are sorted to save memory


class Combinations:
    """The distinct combinations of the values in the columns `names`."""

    def __init__(self, columns: Columns, names: Iterable[str]) -> None:
        self.columns: dict[str, Any] = {name: columns[name] for name in names if name in columns}
        self.n = max((np.size(value) for value in self.columns.values()), default=1)
        arrays = {name: np.asarray(value) for name, value in self.columns.items()}
        self._long = {name: array for name, array in arrays.items() if array.ndim == 1 and len(array) == self.n > 1}
        self._codes = {name: _coded(array) for name, array in self._long.items()}

    def of(self, unread: Collection[str] = ()) -> tuple[dict[str, Any], Array]:
        """(columns with one row per distinct combination, (n,) index of each row's combination). Differences in the
        `unread` columns are ignored."""
        chosen = [code for name, code in self._codes.items() if name not in unread]
        first, of = _joined(chosen, self.n)
        return {name: self._long[name][first] if name in self._long else v for name, v in self.columns.items()}, of


def at(columns: Columns, rows: slice, m: int) -> dict[str, Any]:
    """The columns (m rows each) restricted to `rows`; scalars stay unchanged."""
    return {name: v[..., rows] if np.shape(v)[-1:] == (m,) else v for name, v in columns.items()}


def distinct(columns: Mapping[str, Array], names: Iterable[str], n: int) -> tuple[Array, Array]:
    """For each distinct combination of values in the columns `names`, the index of one of its rows; and (n,) the number
    of each row's combination. Columns that differ between software profiles have the shape (profiles, n)."""
    each = (values for name in names for values in np.atleast_2d(columns[name]))
    return _joined([_coded(values) for values in each if len(values) > 1], n)


def _joined(codes: list[tuple[Array, int]], n: int) -> tuple[Array, Array]:
    key, size = np.zeros(n, dtype=np.int64), 1
    for code, many in codes:
        if many == 1:
            continue
        if size * many > _ROOM * n:
            key, size = _ranked(key, size)
        key, size = key * many + code, size * many
    key, size = _ranked(key, size)
    rows = np.empty(size, dtype=np.int64)
    rows[key] = np.arange(n)
    # Number the combinations in the order of their rows, so that reading these rows is sequential if few rows repeat.
    rows.sort()
    number = np.empty(size, dtype=np.int64)
    number[key[rows]] = np.arange(size)
    return rows, number[key]


def _ranked(key: Array, size: int) -> tuple[Array, int]:
    """The rank of each key among the distinct keys, and the number of distinct keys."""
    if size > _ROOM * len(key):
        values, rank = np.unique(key, return_inverse=True)
        return rank, len(values)
    occurs = np.zeros(size, dtype=bool)
    occurs[key] = True
    found = np.flatnonzero(occurs)
    rank = np.empty(size, dtype=np.int64)
    rank[found] = np.arange(len(found))
    return rank[key], len(found)


def _coded(values: Array) -> tuple[Array, int]:
    """(an integer code from 0 for each value, the number of possible codes)."""
    if values.dtype == bool:
        return values.view(np.uint8), 2
    if values.dtype.kind in "iuf" and (found := _whole(values)) is not None:
        return found
    codes, left = np.zeros(len(values), dtype=np.uint16), np.full(len(values), True)
    for code in range(_FEW):
        value = values[np.argmax(left)]
        left &= (values != value) if value == value else ~np.isnan(values)
        if not left.any():
            return codes, code + 1
        codes += left
    known, codes = np.unique(values, return_inverse=True)
    return codes, len(known)


def _whole(values: Array) -> tuple[Array, int] | None:
    """(code, number of codes) for integers in a small range, with one extra code for NaN; None for any other values."""
    low, high = np.fmin.reduce(values), np.fmax.reduce(values)
    if not high - low < _SPAN:
        return None
    span = int(high - low) + 1
    if values.dtype.kind != "f":
        return (values - low).astype(np.uint16), span
    above = values - low
    if none := bool(np.isnan(above.sum())):
        above = np.where(np.isnan(above), span, above)
    codes = above.astype(np.uint16)
    return None if np.any(codes != above) else (codes, span + none)
