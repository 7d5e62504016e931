"""Python's truth values and ==, applied elementwise to arrays.

An inactive knob without an `off` value is NaN in a column of numbers and None in a column of objects."""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

_WIDEST = 2**62  # sums of larger integers could overflow int64, so these are stored as Python integers


def truth(x: Any) -> Any:
    """Python's truth value, elementwise. An inactive knob is false."""
    if not isinstance(x, np.ndarray):
        return bool(x)
    if x.dtype == bool:
        return x
    if x.dtype == object:
        return np.fromiter((bool(v) for v in x), bool, len(x))
    return (x != 0) & ~np.isnan(x) if x.dtype.kind == "f" else x != 0


def equal(a: Any, b: Any) -> Any:
    """Python's ==, elementwise; two inactive knobs are equal."""
    if not isinstance(a, np.ndarray) and not isinstance(b, np.ndarray):
        return a == b
    if is_object(a) or is_object(b):
        return np.asarray(objects(a) == objects(b), dtype=bool)
    if isinstance(a, str | None) or isinstance(b, str | None):
        numbers = np.asarray(a if isinstance(a, np.ndarray) else b)
        absent = a is None or b is None
        return np.isnan(numbers) if absent and is_float(numbers) else np.zeros(len(numbers), dtype=bool)
    same = np.equal(a, b)
    if is_float(a) and is_float(b):
        same |= np.isnan(a) & np.isnan(b)
    return same


def column(values: list[Any]) -> np.ndarray:
    """Converts values to an array: bool, int64 or float64 if all are numbers (NaN for a missing one), else objects."""
    kinds = {type(v) for v in values}
    present = kinds - {type(None)}
    narrow = all(abs(v) < _WIDEST for v in values if isinstance(v, int))
    if present == {bool} and kinds == present:
        return np.array(values, dtype=bool)
    if present <= {bool, int} and kinds == present and narrow:
        return np.array(values, dtype=np.int64)
    if present <= {bool, int, float} and all(abs(v) < 2**53 for v in values if isinstance(v, int)):
        return np.array([np.nan if v is None else v for v in values], dtype=np.float64)
    out = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):  # out[:] = values would turn tuples into a second dimension
        out[i] = value
    return out


def negated(x: Any) -> Any:
    return ~x if isinstance(x, np.ndarray) else not x


def is_object(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype == object


def is_float(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype.kind == "f"


def objects(x: Any) -> Any:
    """Returns `x` as an array of Python objects, in which None replaces NaN."""
    if not isinstance(x, np.ndarray) or x.dtype == object:
        return x if isinstance(x, np.ndarray) else np.array([x], dtype=object)
    out = np.empty(len(x), dtype=object)
    out[:] = [None if v != v else v for v in x.tolist()]
    return out


def at(x: Any, where: np.ndarray) -> Any:
    return x[where] if isinstance(x, np.ndarray) else x


def merged(n: int, parts: list[tuple[Any, Any]]) -> np.ndarray:
    """Combines `parts`, pairs (rows, values), to one (n,) array that can hold all values. Later parts overwrite."""
    arrays = [v if isinstance(v, np.ndarray) else column([v]) for _, v in parts]
    types = {a.dtype for a in arrays}
    if len(types) > 1 and np.dtype(object) in types:
        arrays = [objects(a) for a in arrays]
    out = np.zeros(n, dtype=np.result_type(*arrays))
    for (places, _), values in zip(parts, arrays, strict=True):
        out[places] = values
    return out


def too_wide(operation: Callable[[Any, Any], Any], a: Any, b: Any) -> bool:
    """Whether numpy's result may be wrong: an integer may overflow 64 bits, or is too large for an exact double."""
    if is_float(a) or is_float(b) or isinstance(a, float) or isinstance(b, float):
        return any(isinstance(x, int) and abs(x) > 2**53 for x in (a, b))
    largest = [
        max(abs(int(x.max(initial=0))), abs(int(x.min(initial=0)))) if isinstance(x, np.ndarray) else abs(x)
        for x in (a, b)
    ]
    return (largest[0] * largest[1] if operation is operator.mul else sum(largest)) >= _WIDEST
