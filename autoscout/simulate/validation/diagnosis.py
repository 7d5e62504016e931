"""Explains why a measurement is outside the analytic model's 90 % interval: the load saturates the server, the row is
outside of the validated range, or it ran other software than assumed."""

from typing import Any

import numpy as np

from autoscout.simulate.engine_records import standing_for
from autoscout.simulate.learned.weighing import SPAN
from autoscout.simulate.member import Columns, Prediction
from autoscout.simulate.serving.served_by import family, strange_releases
from autoscout.simulate.serving.serving_device import device, has_constants
from autoscout.simulate.serving.simulator import ServingSimulator
from autoscout.simulate.training.fleet import fleets
from autoscout.simulate.training.inputs import by_precision, complete
from autoscout.simulate.training.priced import MEMORY_ONLY
from autoscout.simulate.training.software import members
from autoscout.simulate.training.step import Training, doubts
from kb.records import Task

Array = np.ndarray
UNEXPLAINED = "no reason known"
_TIMES = ("step_time_s", "step_time_min_s")
_FULL = 0.97  # a server predicted to answer less than this share of the arrivals is saturated
_MOST = 2 / 3  # other software counts as the reason if it explains this share of a group's rows outside their intervals


def reasons(task: Task, metric: str, columns: Columns, values: Array, said: Prediction, groups: Array) -> Array:
    """(n,) why each measurement is outside its 90 % interval, as text; "" if it is inside or has no prediction.
    `groups`: (n,) rows with equal values are assumed to have run the same software."""
    with np.errstate(divide="ignore", invalid="ignore"):
        off = np.log(np.asarray(said.value, dtype=float) / values)
    missed = np.isfinite(off) & (np.abs(off) > SPAN * said.error)
    found = np.where(missed, UNEXPLAINED, "").astype(object)
    if not missed.any():
        return found
    if task == "serve":
        return np.where(missed, _of_serving(metric, columns, len(values)), "").astype(object)
    if metric in _TIMES:
        range_of = out_of_range(columns, len(values))
        found[missed & (range_of != "")] = range_of[missed & (range_of != "")]
        other = _other_software(columns, values, said, groups, missed)
        found[other != ""] = other[other != ""]
    return found


def out_of_range(columns: Columns, n: int) -> Array:
    """(n,) "" or the conditions in which a training row differs from the validated range of the time model."""
    found = np.full(n, "", dtype=object)
    for rows, some in by_precision(columns):
        x = complete(some)
        for fleet in fleets(some, x.n, ""):
            terms = doubts(x.take(fleet.rows), fleet.kinds)
            for why, error in terms.items():
                here = rows[fleet.rows[np.broadcast_to(error, len(fleet.rows)) > 0]]
                found[here] = [f"{before}, {why}" if before else f"out of range: {why}" for before in found[here]]
    return found


def _other_software(columns: Columns, values: Array, said: Prediction, groups: Array, missed: Array) -> Array:
    """(n,) for a missed row, a text that names the software profile that fits its group's missed rows best, if the
    profile's predictions put this row and at least the share _MOST of them inside their intervals; else ""."""
    n, model = len(values), Training()
    profiles: dict[tuple[Any, ...], str] = {}
    for member in members():
        own = {k: v for when, filled in member.filled if not when for k, v in filled.items() if k not in MEMORY_ONLY}
        profiles.setdefault(tuple(own.items()), member.name)
    off = {}
    for own, name in profiles.items():
        other = {**columns, "software": np.full(n, ""), **{k: np.full(n, v) for k, v in own}}
        off[name] = np.abs(np.log(model.predict(other).value / values))
    found = np.full(n, "", dtype=object)
    for group in np.unique(groups):
        rows = np.flatnonzero((groups == group) & missed)
        if not len(rows):
            continue
        name = min(off, key=lambda name: float(np.nan_to_num(off[name][rows], nan=np.inf).mean()))
        inside = off[name][rows] <= SPAN * said.error[rows]
        if inside.mean() >= _MOST:
            found[rows[inside]] = (
                f"other software: the time is as if the run used {name.removesuffix(', loss split over tp')}"
            )
    return found


def _of_serving(metric: str, columns: Columns, n: int) -> Array:
    rate = np.broadcast_to(np.asarray(columns.get("rate", 0.0), dtype=float), (n,))
    engines = np.broadcast_to(np.asarray(columns.get("framework", ""), dtype=str), (n,))
    kinds = np.broadcast_to(np.asarray(columns.get("gpu", ""), dtype=str), (n,))
    borrowed = {kind: has_constants(kind) and bool(device(kind).borrowed) for kind in np.unique(kinds).tolist()}
    found = np.full(n, UNEXPLAINED, dtype=object)
    found[[borrowed[kind] for kind in kinds]] = "out of range: kernels or host of another device"
    usual = standing_for("unnamed", "serve")
    other = np.array([family(name) is not usual for name in engines.tolist()])
    found[other] = [f"other software: the engine is {name}" for name in engines[other]]
    strange = strange_releases(columns, n)
    found[strange != ""] = strange[strange != ""]
    if (rate > 0).any() and metric.endswith("_ms"):
        full = ServingSimulator("requests_per_s").predict(columns).value < _FULL * rate
        found[full & (rate > 0)] = "saturated: requests arrive faster than they are answered"
    return found
