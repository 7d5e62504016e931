"""Converts a table of measurements to landscapes: one, or one per combination of values of the grouping columns."""

import itertools
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from autoscout.job.words import listed
from autoscout.space.graph import Space
from autoscout.studies.bench.knob_columns import column, kinds_of, knobs_of, numbers
from autoscout.studies.bench.landscape import Goal, Landscape
from kb.query import Table
from kb.records import AutoscoutError, Objective, Value
from kb.table_files import read_table

_STATUSES = ("oom", "invalid", "timeout", "wrong", "killed")
# If the metrics of rows with equal knobs differ by a larger ratio, a setting that is not among the knobs must have
# varied.
_SUSPICIOUS_SPREAD = 2.0


class TableSource(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `bench --table`: the table, and the role of each column."""

    path: Path
    metric: str
    goal: Goal
    knobs: list[str] | None = None
    sparse: list[str] | None = None
    dense: list[str] | None = None
    where: str = ""
    group_by: list[str] = []
    status: str | None = None
    cost: str | None = None
    simulators: list[str] = []
    dummies: int = 0  # number of knobs to add that have the values 0 and 1 but no effect


def landscapes_of_table(source: TableSource) -> tuple[list[Landscape], list[str]]:
    """Returns (landscapes, remarks on assumptions). Errors: AutoscoutError (exit 2; 3 if nothing ran)."""
    table = read_table(source.path, source.where)
    if not table.rows:
        condition = f" for which {source.where}" if source.where else ""
        raise AutoscoutError(f"{source.path} has no rows{condition}", 2)
    notes: list[str] = []
    knobs = _knobs(source, table, notes)
    sparse, dense = kinds_of(table, knobs, source.sparse, source.dense)
    notes.append(f"sparse knobs: {listed(sparse) or 'none'}; dense knobs: {listed(dense) or 'none'}")
    places = [column(table, name, "--group-by") for name in source.group_by]
    groups: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for row in table.rows:
        groups.setdefault(tuple(row[i] for i in places), []).append(row)
    landscapes = []
    for values in sorted(groups, key=lambda g: [(v is None, isinstance(v, str), v) for v in g]):
        group = dict(zip(source.group_by, values, strict=True))
        name = ", ".join(f"{k}={v}" for k, v in group.items()) or source.path.name.split(".")[0]
        part = Table(table.columns, table.types, groups[values], False)
        landscape, remarks = _landscape(name, source, part, sparse, dense, group)
        notes += [f"{name}: {remark}" for remark in remarks]
        if landscape is not None:
            landscapes.append(landscape)
    if not landscapes:
        raise AutoscoutError(f"no row of {source.path} has a usable {source.metric}, so there is nothing to find", 3)
    return landscapes, notes


def _knobs(source: TableSource, table: Table, notes: list[str]) -> list[str]:
    column(table, source.metric, "--metric")
    roles = [("--status", source.status), ("--cost", source.cost)]
    roles += [("--simulator", name) for name in source.simulators] + [("--group-by", name) for name in source.group_by]
    taken = {source.metric}
    for option, name in roles:
        if name is not None:
            column(table, name, option)
            taken.add(name)
    if source.knobs is None:
        knobs, reasons = knobs_of(table, source.metric, taken)
        named = {*(source.sparse or []), *(source.dense or [])}
        knobs = [c for c in table.columns if c in knobs or (c in named and c not in taken)]
        notes.append(f"taken as knobs: {listed(knobs)} (--knobs changes this)")
        notes += [f"not knobs: {reason}" for reason in reasons]
    else:
        knobs = list(dict.fromkeys(source.knobs))
        for name in knobs:
            column(table, name, "--knobs")
            if name in taken:
                raise AutoscoutError(f"--knobs: '{name}' cannot be a knob: it has another role in this command", 2)
    if not knobs:
        raise AutoscoutError(f"{source.path} has no column that looks like a knob; name them with --knobs", 2)
    return knobs


def _landscape(
    name: str, source: TableSource, table: Table, sparse: list[str], dense: list[str], group: dict[str, Value]
) -> tuple[Landscape | None, list[str]]:
    """Returns first the landscape of one group of rows (None if no row ran); second the remarks to print."""
    acting = _acting(table, [*sparse, *dense])
    sparse, dense = [k for k in sparse if k in acting], [k for k in dense if k in acting]
    merged, remarks = _merge(source, table, acting)
    if all(np.isnan(m.truth) for m in merged.values()):
        return None, ["left out: no row has a usable metric"]
    if dummies := _dummies(source, table):
        merged = _with_dummies(merged, dummies)
        acting, sparse = [*acting, *dummies], [*sparse, *dummies]
    rows = [dict(m.knobs) for m in merged.values()]
    objective = Objective(minimize=source.metric) if source.goal == "min" else Objective(maximize=source.metric)
    space = Space.from_table(rows, sparse, dense, objective)
    ordered = [
        merged[_key({n: c.knobs.get(n) for n in acting})] for c in map(space.feasible.configuration, range(len(rows)))
    ]
    return Landscape(
        name=name,
        space=space,
        metric=source.metric,
        goal=source.goal,
        truth=np.array([m.truth for m in ordered]),
        status=np.array([m.status for m in ordered], dtype=object),
        cost=np.array([m.cost for m in ordered]) if source.cost else None,
        simulators={s: np.array([m.simulated[i] for m in ordered]) for i, s in enumerate(source.simulators)},
        group=group,
    ), remarks


class _Merged(msgspec.Struct):
    knobs: dict[str, Value]
    truth: float
    status: str
    cost: float
    simulated: list[float]


def _merge(source: TableSource, table: Table, knobs: list[str]) -> tuple[dict[Any, _Merged], list[str]]:
    """Returns (configurations by the values of their knobs, remarks). Rows with equal knobs are merged into the median
    of the rows that ran, or into a failure if most rows failed."""
    places = {name: table.columns.index(name) for name in knobs}
    by_knobs: dict[Any, list[tuple[Any, ...]]] = {}
    for row in table.rows:
        by_knobs.setdefault(_key({n: _value(row[i]) for n, i in places.items()}), []).append(row)
    metric = table.columns.index(source.metric)
    merged, spread, useless = {}, 1.0, 0
    for key, rows in by_knobs.items():
        statuses = [_status(source, table, row) for row in rows]
        values = numbers([row[metric] for row in rows])
        usable = np.isfinite(values) & (values > 0) & np.array([s == "ok" for s in statuses])
        if source.goal == "min" and any(v <= 0 for v, s in zip(values, statuses, strict=True) if s == "ok"):
            raise AutoscoutError(
                f"--metric {source.metric} has values of 0 or less, which cannot be compared as ratios; "
                f"exclude them with --where or add a constant to the column",
                2,
            )
        useless += int((~usable & np.array([s == "ok" for s in statuses])).sum())
        ran = 2 * usable.sum() >= len(rows) and usable.any()
        if ran:
            spread = max(spread, float(values[usable].max() / values[usable].min()))
        failed = next((s for s in statuses if s != "ok"), "error")
        merged[key] = _Merged(
            knobs={n: v for n, i in places.items() if (v := _value(rows[0][i])) is not None},
            truth=float(np.median(values[usable])) if ran else float("nan"),
            status="ok" if ran else failed,
            cost=_median(table, rows, source.cost) if source.cost else float("nan"),
            simulated=[_median(table, rows, s) for s in source.simulators],
        )
    return merged, _remarks(len(table.rows), merged, spread, useless, source.metric)


def _dummies(source: TableSource, table: Table) -> list[str]:
    names = [f"dummy{i + 1}" for i in range(source.dummies)]
    if taken := [name for name in names if name in table.columns]:
        raise AutoscoutError(f"--dummies: {source.path} already has a column {taken[0]}", 2)
    return names


def _with_dummies(merged: dict[Any, _Merged], names: list[str]) -> dict[Any, _Merged]:
    """Repeats every configuration for each setting of the dummy knobs, with the same outcome."""
    settings = [dict(zip(names, each, strict=True)) for each in itertools.product((0, 1), repeat=len(names))]
    return {
        (*key, *_key(setting)): msgspec.structs.replace(row, knobs=row.knobs | setting)
        for key, row in merged.items()
        for setting in settings
    }


def _remarks(rows: int, merged: dict[Any, _Merged], spread: float, useless: int, metric: str) -> list[str]:
    remarks = []
    failures = sum(m.status != "ok" for m in merged.values())
    if rows > len(merged):
        remarks.append(
            f"{rows:,} rows are {len(merged):,} configurations; {metric} is the median of the rows that share all knobs"
        )
    if spread > _SUSPICIOUS_SPREAD:
        remarks.append(
            f"rows that share all knobs differ by up to ×{spread:.1f}: is a knob or a --group-by column missing?"
        )
    if useless:
        remarks.append(f"{useless:,} rows that are ok have no usable {metric}: they count as failures")
    if failures:
        remarks.append(f"{failures:,} of {len(merged):,} configurations fail")
    return remarks


def _acting(table: Table, knobs: list[str]) -> list[str]:
    """The knobs that vary in the table, or one knob if none varies."""
    acting = [k for k in knobs if len({_value(row[table.columns.index(k)]) for row in table.rows}) > 1]
    return acting or [k for k in knobs if any(row[table.columns.index(k)] is not None for row in table.rows)][:1]


def _status(source: TableSource, table: Table, row: tuple[Any, ...]) -> str:
    if source.status is None:
        return "ok"
    text = str(row[table.columns.index(source.status)]).strip().lower()
    if text == "ok":
        return "ok"
    if "out of memory" in text or "outofmemory" in text:
        return "oom"
    return next((status for status in _STATUSES if status in text), "error")


def _median(table: Table, rows: list[tuple[Any, ...]], name: str) -> float:
    values = numbers([row[table.columns.index(name)] for row in rows])
    return float(np.nanmedian(values)) if np.isfinite(values).any() else float("nan")


def _value(cell: Any) -> Value | None:
    """A cell as a knob's value; None: the knob is inactive."""
    if cell is None or (isinstance(cell, float) and np.isnan(cell)):
        return None
    return cell if isinstance(cell, bool | int | float | str) else _plain(cell)


def _plain(cell: Any) -> Value:
    try:
        return float(cell)  # for example a Decimal
    except (TypeError, ValueError):
        return str(cell)


def _key(knobs: dict[str, Any]) -> tuple[Any, ...]:
    return tuple((isinstance(v, bool), v) for v in knobs.values())
