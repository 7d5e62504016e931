"""A table of measured rows as what simulators are scored on: columns, measured values, and what the rows belong to.

Tables are those of `kb.tables`: one row a run (columns such as iteration_time_s, peak_memory_gib, tpot_ms) or one row a
metric (`metric`, `value`, `unit`). What a row has to say about training is in tables.py, about serving in
serving_tables.py.
"""

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from autoscout.simulate import serving_tables, tables
from autoscout.simulate.encode import take
from autoscout.simulate.hardware import hardware
from autoscout.words import listed
from kb.records import AutoscoutError, Task
from kb.tables import read_table

_SHAPE = ("layers", "hidden", "heads")
_METRICS = ("iteration_time_s", "step_time_s", "iteration_time_median_s", "peak_memory_gib", "mem_max_allocated_bytes")
_LONG = ("metric", "value", "unit", "status")
_ABOUT = ("source", "source_ref", "evidence", "framework", "model", "other", "params_b", "s_per_sample", "version")


class Rows(NamedTuple):
    """Rows that measured one metric, (n,) each. `job`: rows with the same one are layouts of one job on one cluster.
    A value of inf is a run that died for lack of memory."""

    task: Task
    metric: str
    columns: dict[str, Any]
    values: np.ndarray
    groups: dict[str, np.ndarray]
    job: np.ndarray


class Measured(NamedTuple):
    rows: int
    sets: list[Rows]
    skipped: dict[str, int]  # why a row (of a metric) cannot be predicted → how many
    unknown: list[str]  # columns that nothing reads


def read(path: Path) -> Measured:
    """Errors: AutoscoutError (exit code 2) with one sentence when no row can be scored."""
    table = read_table(path)
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    skipped: Counter[str] = Counter()
    sets = [*_training(rows, skipped), *_serving(rows, skipped)]
    if not sets:
        why = ", ".join(f"{n} rows: {reason}" for reason, n in skipped.most_common(3))
        named = f"{path}: none of its {len(rows)} rows can be predicted"
        expected = "it measures nothing that is predicted (iteration_time_s, peak_memory_gib, tpot_ms …)"
        raise AutoscoutError(f"{named}; {why or expected}", 2)
    return Measured(len(rows), sets, dict(skipped), _unknown(table.columns))


def _training(rows: list[dict[str, Any]], skipped: Counter[str]) -> list[Rows]:
    found = []
    for metric, values in (("step_time_s", tables.step_seconds(rows)), ("peak_memory_gib", tables.peak_gib(rows))):
        measured = np.flatnonzero(~np.isnan(values) & (values > 0))
        if not len(measured):
            continue
        some = [rows[i] for i in measured]
        columns = tables.columns_of(some)
        why = _why_not(some, columns, ("seq_len", "global_batch") if metric == "step_time_s" else ("seq_len",))
        skipped.update(w for w in why if w)
        ok = np.flatnonzero(why == "")
        if len(ok):
            columns = {**{n: np.full(len(some), np.nan) for n in ("global_batch",)}, **columns}
            groups = _groups(some, columns)
            job = _jobs(groups, columns, len(some))
            parts = ({n: g[ok] for n, g in groups.items()}, job[ok])
            found.append(Rows("pretrain", metric, take(columns, ok), values[measured][ok], *parts))
    return found


def _serving(rows: list[dict[str, Any]], skipped: Counter[str]) -> list[Rows]:
    columns, metrics = serving_tables.columns_of_rows(rows)
    found = []
    for metric, values in metrics.items():
        measured = np.flatnonzero(np.isfinite(values) & (values > 0))
        if metric == "peak_memory_gib" or not len(measured):
            continue
        why = columns["why_not"][measured]
        skipped.update(str(w) for w in why if w)
        ok = measured[why == ""]
        if len(ok):
            some = take(columns, ok)
            groups = {name: some[name] for name in ("source", "gpu", "framework", "model")}
            found.append(Rows("serve", metric, some, values[ok], groups, _jobs(groups, some, len(ok))))
    return found


def _why_not(rows: list[dict[str, Any]], columns: dict[str, np.ndarray], needed: tuple[str, ...]) -> np.ndarray:
    """(n,) "" or why a row cannot be predicted, in words."""
    why = np.full(len(rows), "", dtype=object)

    def lacking(name: str) -> np.ndarray:
        return np.isnan(columns[name]) if name in columns else np.ones(len(rows), dtype=bool)

    why[lacking("gpus") & lacking("dp")] = "no n_gpus"
    for name in reversed(needed):
        why[lacking(name)] = f"no {name}"
    for i in np.flatnonzero(np.any([lacking(name) for name in _SHAPE], axis=0)):
        model = rows[i].get("model")
        why[i] = f"the shape of {model} is not known" if model else f"no {listed(_SHAPE)}"
    devices = columns.get("gpu", np.full(len(rows), ""))
    for name in np.unique(devices):
        if hardware(str(name)) is None:
            why[devices == name] = f"no constants for device {name}" if name else "no gpu"
    return why


def _groups(rows: list[dict[str, Any]], columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    sizes = zip(columns["layers"], columns["hidden"], strict=True)
    shape = [f"{layers:g} layers of {hidden:g}" for layers, hidden in sizes]
    return {
        "source": np.array([str(row.get("source") or "table") for row in rows]),
        "gpu": np.array([h.name if (h := hardware(str(name))) else str(name) for name in columns["gpu"]]),
        "model": np.array([str(row.get("model") or own) for row, own in zip(rows, shape, strict=True)]),
    }


def _jobs(groups: dict[str, np.ndarray], columns: dict[str, Any], n: int) -> np.ndarray:
    """What is computed, and on what: of one such job only layouts and software switches differ."""
    names = ("gpus", "seq_len", "global_batch", "input_len", "output_len", "batch", "concurrency", "rate", "framework")
    keys = [*groups.values(), *(np.broadcast_to(columns[name], n).astype(str) for name in names if name in columns)]
    return np.array(["/".join(map(str, key)) for key in zip(*keys, strict=True)])


def _unknown(columns: list[str]) -> list[str]:
    known = {*tables.ALIASES, *tables.NUMBERS, *tables.NAMES, *_METRICS, *_LONG, *_ABOUT}
    return [name for name in columns if name not in known and not serving_tables.reads(name)]
