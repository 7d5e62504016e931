"""Chooses the columns of a table that are knobs (settings, not measurements), unless the user names them."""

import re
from collections.abc import Iterable

import numpy as np

from autoscout.job.words import listed, meant
from kb.query import Table
from kb.records import AutoscoutError

_MEASURED_NAME = re.compile(
    r"(_(ms|us|ns|s|sec|seconds|gib|gb|mib|mb|std|per_s|rps|pct|joules|watts)$)|[+-]$|"
    r"latency|throughput|runtime|elapsed|duration|memory|energy|power|status|error|repeats|timestamp|mfu|tokens_per",
    re.IGNORECASE,
)
_SAME_RANKING = 0.99


def column(table: Table, name: str, option: str) -> int:
    """The index of a column. Errors: AutoscoutError (exit 2) that suggests the nearest name."""
    if name not in table.columns:
        raise AutoscoutError(f"{option}: there is no column '{name}'{meant(name, table.columns)}", 2)
    return table.columns.index(name)


def knobs_of(table: Table, metric: str, taken: Iterable[str]) -> tuple[list[str], list[str]]:
    """Returns (columns that are knobs, reasons why the remaining columns are not knobs, as text).

    `taken`: columns with another role. Excluded are constants, columns named like a measurement, columns with distinct
    values in more than half of all rows (measurements and identifiers), and columns that rank rows as the metric does,
    because these would reveal the result. (A column that is needed to distinguish rows stays.)"""
    metric_values = numbers([row[table.columns.index(metric)] for row in table.rows])
    knobs: list[str] = []
    reasons: dict[str, list[str]] = {}
    for i, name in enumerate(table.columns):
        if name in taken or name == metric:
            continue
        values = [row[i] for row in table.rows]
        reason = _why_no_knob(name, values)
        if reason:
            reasons.setdefault(reason, []).append(name)
        else:
            knobs.append(name)
    for name in list(knobs):
        others = [k for k in knobs if k != name]
        if _ranks_alike(table, name, metric_values) and _distinct(table, others) == _distinct(table, knobs):
            knobs = others
            reasons.setdefault(f"ranks the rows as {metric} does, so it is computed from it", []).append(name)
    return knobs, [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]


def _why_no_knob(name: str, values: list) -> str:
    distinct = {v for v in values if v is not None}
    if len(distinct) + (None in values) < 2:
        return "constant"
    if _MEASURED_NAME.search(name):
        return "named like a measurement"
    if len(distinct) > max(len(values) / 2, 8):
        return "differs in most rows, so it is measured or an identifier"
    return ""


def _ranks_alike(table: Table, name: str, metric: np.ndarray) -> bool:
    values = numbers([row[table.columns.index(name)] for row in table.rows])
    return abs(_rank_correlation(values, metric)) >= _SAME_RANKING


def _distinct(table: Table, names: list[str]) -> int:
    places = [table.columns.index(name) for name in names]
    return len({tuple(row[i] for i in places) for row in table.rows})


def kinds_of(
    table: Table, knobs: list[str], sparse: list[str] | None, dense: list[str] | None
) -> tuple[list[str], list[str]]:
    """Returns (sparse knobs, dense knobs). If the user gives one of the lists, all other knobs are of the other kind.
    If the user gives neither, knobs are dense if they are numbers with three or more values, else sparse. Errors:
    AutoscoutError (exit 2) for a name that is not a knob, or if two given lists overlap or omit a knob."""
    for option, names in (("--sparse", sparse), ("--dense", dense)):
        for name in names or []:
            if name not in knobs:
                raise AutoscoutError(f"{option}: '{name}' is not one of the knobs ({listed(knobs)})", 2)
    both = set(sparse or []) & set(dense or [])
    if both:
        raise AutoscoutError(f"{listed(sorted(both))} cannot be both --sparse and --dense", 2)
    if sparse is not None or dense is not None:
        chosen = set(sparse) if sparse is not None else set(knobs) - set(dense or [])
        if sparse is not None and dense is not None and (left := [k for k in knobs if k not in {*sparse, *dense}]):
            raise AutoscoutError(f"{listed(left)}: give --sparse or --dense for every knob, or only one of the two", 2)
    else:
        chosen = {name for name in knobs if not _is_ordered(table, name)}
    return [k for k in knobs if k in chosen], [k for k in knobs if k not in chosen]


def _is_ordered(table: Table, name: str) -> bool:
    values = {row[table.columns.index(name)] for row in table.rows} - {None}
    return len(values) > 2 and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)


def numbers(values: list) -> np.ndarray:
    """Returns the values as floats, (n,); NaN for a value that is not a number."""
    return np.array([_number(v) for v in values], dtype=float)


def _number(value: object) -> float:
    if value is None or isinstance(value, bool | str):
        return float("nan")
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return float("nan")


def _rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's ρ over the rows where both values are numbers; 0 if there are too few."""
    from scipy.stats import spearmanr

    both = np.isfinite(a) & np.isfinite(b)
    if both.sum() < 10 or len(np.unique(a[both])) < 3:
        return 0.0
    rho = float(np.asarray(spearmanr(a[both], b[both]))[0])
    return 0.0 if np.isnan(rho) else rho
