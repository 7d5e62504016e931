"""What a target's knobs mean to the simulators, where these have other names for it: a catalog's `[simulated]`."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from autoscout.space.language.expression import Expression


def columns(
    simulated: Mapping[str, Expression], attributes: Mapping[str, Any], knobs: Mapping[str, np.ndarray], n: int
) -> dict[str, np.ndarray]:
    """(n,) each: the columns that the expressions make of n rows of knobs. NaN or "" where one reads a knob that is
    inactive and has no `off` value."""
    if not simulated:
        return {}
    env = {**attributes, **{name: v.astype(object) if v.dtype.kind == "U" else v for name, v in knobs.items()}}
    return {name: _plain(*expression.on(env, n), n) for name, expression in simulated.items()}


def _plain(values: Any, undefined: np.ndarray, n: int) -> np.ndarray:
    """Without objects, which no simulator takes."""
    found = np.broadcast_to(np.asarray(values), n)
    named = found.dtype.kind in "OU" and any(isinstance(v, str) for v in found[~undefined])
    found = found.astype(str if named else float)
    return np.where(undefined, "" if named else np.nan, found) if undefined.any() else found
