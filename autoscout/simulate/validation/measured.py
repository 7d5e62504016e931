"""Reads a table of measurements in the form in which simulators are scored: columns, measured values, groups and jobs.

All formats of `kb.table_files` are supported. A table is wide, with one row per run (and columns such as
iteration_time_s, peak_memory_gib, tpot_ms), or long, with one row per metric (columns `metric`, `value`, `unit`).
training_tables.py interprets training rows, serving_tables.py serving rows."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from autoscout.job.headers import ALIASES
from autoscout.job.outcome_words import outcome
from autoscout.job.words import listed
from autoscout.simulate.encode import take
from autoscout.simulate.hardware.device import hardware
from autoscout.simulate.serving.weight_formats import KV_BYTES, WEIGHT_BYTES, formats_of, lookup
from autoscout.simulate.validation import column_names, serving_tables, training_tables
from kb.records import AutoscoutError, Task
from kb.table_files import read_table

_SHAPE = ("layers", "hidden", "heads")
_LONG = ("metric", "value", "unit", "status")
_ABOUT = ("source", "source_ref", "evidence", "framework", "model", "other", "params_b", "s_per_sample", "version")
# Names of models and runs that the columns cannot describe: encoders, reinforcement learning, other types of layers.
_UNLIKE = re.compile(r"mimo|vlm|multimodal|grpo|rlhf|\bt5|bert|mamba|retro|deepseek|\bdsv?[23]", re.IGNORECASE)
# if a model has up to this many experts, each is assumed as wide as a dense block (as in Mixtral); more are narrower
_COARSE = 16


class MeasuredRows(NamedTuple):
    """The n rows that measured a metric; arrays are (n,). `values`: measured values, inf for runs out of memory;
    `groups`: source, gpu and model of each row; `job`: equal for all layouts of one job on one cluster."""

    task: Task
    metric: str
    columns: dict[str, Any]
    values: np.ndarray
    groups: dict[str, np.ndarray]
    job: np.ndarray


class MeasuredTable(NamedTuple):
    """All measurements of a table. `sets`: by metric; `runs`: all training runs that finished or ran out of memory
    (with a value of inf)."""

    rows: int
    sets: list[MeasuredRows]
    runs: MeasuredRows | None
    skipped: dict[str, int]  # reason why rows (or one of their metrics) cannot be predicted → number of rows
    unknown: list[str]  # ignored columns


def read(path: Path) -> MeasuredTable:
    """Reads a table of measurements. Errors: AutoscoutError (exit code 2) if no row can be predicted."""
    table = read_table(path)
    names = column_names.plain_all(table.columns)
    found = read_rows([dict(zip(names, row, strict=True)) for row in table.rows], names)
    if not found.sets and (found.runs is None or not np.isinf(found.runs.values).any()):
        why = ", ".join(f"{n} rows: {reason}" for reason, n in Counter(found.skipped).most_common(3))
        named = f"{path}: none of its {found.rows} rows can be predicted"
        expected = "the table has no metric that can be predicted (iteration_time_s, peak_memory_gib, tpot_ms …)"
        raise AutoscoutError(f"{named}; {why or expected}", 2)
    return found


def read_rows(rows: list[dict[str, Any]], names: Sequence[str] = ()) -> MeasuredTable:
    """Interprets rows whose column names were normalised by column_names.plain. `names`: all columns."""
    skipped: Counter[str] = Counter()
    metrics = [n for n in dict.fromkeys(name for row in rows for name in row) if _measures(n)]
    rows = [_with_status(row, metrics, skipped) for row in rows]
    sets = [*_training(rows, skipped), *_serving(rows, skipped)]
    return MeasuredTable(len(rows), sets, _runs(rows), dict(skipped), _unknown(list(names)))


def _measures(name: str) -> bool:
    return training_tables.measures(name) or serving_tables.measures(name)


def _with_status(row: dict[str, Any], metrics: Sequence[str], skipped: Counter[str]) -> dict[str, Any]:
    """Adds the status of a row that states its failure in place of a metric, such as OOM. `metrics`: columns of
    metrics; other texts in them are counted in `skipped`."""
    if column_names.status_of(row) != "ok":
        return row
    for name in metrics:
        value = row.get(name)
        if isinstance(value, str) and column_names.stated(value) and column_names.number(value) is None:
            if outcome(value) not in (None, "ok"):
                return {**row, "status": value}
            skipped[f"its {name} is not a number"] += 1
    return row


def _training(rows: list[dict[str, Any]], skipped: Counter[str]) -> list[MeasuredRows]:
    found = []
    for metric, values in (
        ("step_time_s", training_tables.step_seconds(rows)),
        ("peak_memory_gib", training_tables.peak_gib(rows)),
    ):
        needed = ("seq_len", "global_batch") if metric == "step_time_s" else ("seq_len",)
        measured = np.flatnonzero(np.isfinite(values) & (values > 0))
        some = _predictable([rows[i] for i in measured], needed, metric, values[measured], skipped)
        found += [some] if some else []
    failed = sum(column_names.status_of(row) == "failed" for row in rows)
    skipped.update({"its status is a failure": failed} if failed else {})
    return found


def _runs(rows: list[dict[str, Any]]) -> MeasuredRows | None:
    """Training runs that finished or ran out of memory; several rows of a run in a long table count once. None if no
    run was out of memory."""
    distinct: dict[Any, tuple[dict[str, Any], float]] = {}
    for i, row in enumerate(rows):
        status = column_names.status_of(row)
        if "Megatron-Bridge" in str(row.get("framework", "")) and not column_names.stated(row.get("ar")):
            continue  # unusable source: its runs may recompute or offload, but its tables do not state this
        key = (row.get("source"), row["source_ref"]) if column_names.stated(row.get("source_ref")) else i
        if status == "oom" or (status == "ok" and key not in distinct):
            distinct[key] = row, np.inf if status == "oom" else 1.0
    if not any(np.isinf(value) for _, value in distinct.values()):
        return None
    told, values = [row for row, _ in distinct.values()], np.array([value for _, value in distinct.values()])
    return _predictable(told, ("seq_len",), "peak_memory_gib", values, Counter())


def _predictable(
    rows: list[dict[str, Any]], needed: tuple[str, ...], metric: str, values: np.ndarray, skipped: Counter[str]
) -> MeasuredRows | None:
    if not rows:
        return None
    columns = training_tables.columns_of(rows)
    why = _why_not(rows, columns, needed)
    skipped.update(w for w in why if w)
    ok = np.flatnonzero(why == "")
    if not len(ok):
        return None
    columns = {**{n: np.full(len(rows), np.nan) for n in ("global_batch",)}, **columns}
    groups = _groups(rows, columns)
    job = _jobs(groups, columns, len(rows))
    parts = ({n: g[ok] for n, g in groups.items()}, job[ok])
    return MeasuredRows("pretrain", metric, take(columns, ok), values[ok], *parts)


def _serving(rows: list[dict[str, Any]], skipped: Counter[str]) -> list[MeasuredRows]:
    columns, metrics = serving_tables.columns_of_rows(rows)
    if not metrics:
        return []
    too_fast = _too_fast(columns, metrics)
    found = []
    for metric, values in metrics.items():
        measured = np.flatnonzero(np.isfinite(values) & (values > 0))
        if metric == "peak_memory_gib" or not len(measured):
            continue
        why = np.where(columns["why_not"] != "", columns["why_not"], too_fast)[measured]
        skipped.update(str(w) for w in why if w)
        ok = measured[why == ""]
        if len(ok):
            groups = {name: columns[name][ok] for name in ("source", "gpu", "framework", "model")}
            some = take({name: v for name, v in columns.items() if name not in serving_tables.LABELS}, ok)
            found.append(MeasuredRows("serve", metric, some, values[ok], groups, _jobs(groups, some, len(ok))))
    return found


def _too_fast(columns: dict[str, np.ndarray], metrics: dict[str, np.ndarray]) -> np.ndarray:
    """(n,) "" or the reason that a row must be wrong: it is faster than reading, at the data sheet's bandwidth, all
    weights (of experts, only the selected experts) once per generated token, and the keys and values of its tokens.
    Formats that are not known count as one byte."""
    c = columns
    attention = c["hidden"] * c["head_dim"] * (2 * c["heads"] + 2 * c["kv_heads"])
    width = np.where(c["topk"] > 0, c["topk"] * c["expert_ffn"], c["ffn"])
    weights = c["layers"] * (attention + (2.0 + c["gated"]) * c["hidden"] * width)
    formats = formats_of(np.char.lower(c["dtype"]), c["quantization"], np.full(len(weights), ""))
    each = np.min([lookup(n, WEIGHT_BYTES, np.where(np.char.find(n, "4") >= 0, 0.5, 1.0)) for n in formats], axis=0)
    kept = lookup(c["kv_cache_dtype"], KV_BYTES, np.where(each > 1, 2.0, 1.0))
    keys = 2 * c["layers"] * c["kv_heads"] * c["head_dim"] * kept * (c["input_len"] + c["output_len"] / 2)
    keys = np.where((c["window"] > 0) | (c["kv_lora_rank"] > 0), 0.0, keys)
    rates = [hw.memory_gb_s if (hw := hardware(str(name))) else np.inf for name in c["gpu"]]
    read = weights * each + keys * np.maximum(c["batch"], 1) / (c["dp"] * c["pp"])
    least_s = read / (1e9 * np.array(rates) * c["tp"]) * np.maximum(c["output_len"] - 1, 0)
    whole = metrics.get("e2el_mean_ms", np.full(len(least_s), np.nan)) / 1e3
    fast = whole < least_s
    return np.where(fast, "faster than its devices can read the weights", "").astype(object)


def _why_not(rows: list[dict[str, Any]], columns: dict[str, np.ndarray], needed: tuple[str, ...]) -> np.ndarray:
    n = len(rows)
    why = np.full(n, "", dtype=object)

    def column(name: str, otherwise: float = np.nan) -> np.ndarray:
        found = columns.get(name, np.full(n, np.nan))
        return np.where(np.isnan(found), otherwise, found)

    degrees = column("tp", 1.0) * column("pp", 1.0) * column("cp", 1.0)
    few = column("gpus") < degrees * 0.999
    why[few] = "n_gpus is less than tp × pp × cp"
    dp = np.fmax(column("dp", 0.0), np.floor(column("gpus") / degrees))
    small = (column("global_batch") < column("mbs", 1.0) * dp * 0.999) & ~few
    why[small] = "global_batch is less than one micro_batch per replica"
    fine = (column("experts", 0.0) > _COARSE) & np.isnan(column("expert_ffn"))
    why[fine] = "no expert_ffn (with so many experts, each is narrower than ffn)"
    why[np.isnan(column("gpus")) & np.isnan(column("dp"))] = "no n_gpus"
    for name in reversed(needed):
        why[np.isnan(column(name))] = f"no {name}"
    for i in np.flatnonzero(np.any([np.isnan(column(name)) for name in _SHAPE], axis=0)):
        model = rows[i].get("model")
        lacking = [name for name in _SHAPE if np.isnan(column(name)[i])]
        why[i] = f"the shape of {model} is not known" if model else f"no {listed(lacking)}"
    for i, row in enumerate(rows):
        if match := _UNLIKE.search(" ".join(str(row.get(name, "")) for name in ("suite", "case", "model"))):
            why[i] = f"a kind of model or run that is not predicted ({match[0].lower()})"
        if training_tables.by_stage(row):
            why[i] = "a plan whose stages recompute different shares of their operators"
        precision = str(row.get("precision", "")).lower()
        if "Megatron-Bridge" in str(row.get("framework", "")) and not re.search(r"bf16|fp\d", precision):
            why[i] = "no precision (Megatron-Bridge has FP8 and BF16 rows)"
        if "litgpt" in str(row.get("framework", "")) and "full.yaml" in str(row.get("other", "")):
            why[i] = "litgpt's full fine-tuning: its peaks leave no room for the optimizer that its table implies"
    why[_unsaid_precision(rows) & (why == "")] = "no precision (other rows of its source compute in 8 or 4 bits)"
    devices = columns.get("gpu", np.full(n, ""))
    for name in np.unique(devices):
        if hardware(str(name)) is None:
            why[devices == name] = f"no constants for device {name}" if name else "no gpu"
    return why


def _unsaid_precision(rows: list[dict[str, Any]]) -> np.ndarray:
    """(n,) whether a row's precision is unknown: it states none, but its source also has rows with 8 or 4 bits,
    which are at least twice as fast."""
    sources = [str(row.get("source")) for row in rows]
    said = [str(row.get("precision") or "").lower() for row in rows]
    fewer = {source for source, name in zip(sources, said, strict=True) if "fp8" in name or "fp4" in name}
    return np.array([source in fewer and not name for source, name in zip(sources, said, strict=True)], dtype=bool)


def _groups(rows: list[dict[str, Any]], columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    sizes = zip(columns["layers"], columns["hidden"], strict=True)
    shape = [f"{layers:g} layers of {hidden:g}" for layers, hidden in sizes]
    return {
        "source": np.array([str(row.get("source") or "table") for row in rows]),
        "gpu": np.array([h.name if (h := hardware(str(name))) else str(name) for name in columns["gpu"]]),
        "model": np.array([str(row.get("model") or own) for row, own in zip(rows, shape, strict=True)]),
    }


def _jobs(groups: dict[str, np.ndarray], columns: dict[str, Any], n: int) -> np.ndarray:
    """(n,) names of jobs. Rows of one job have the same workload and devices; layout and software may differ."""
    names = ("gpus", "seq_len", "global_batch", "input_len", "output_len", "batch", "concurrency", "rate", "framework")
    keys = [*groups.values(), *(np.broadcast_to(columns[name], n).astype(str) for name in names if name in columns)]
    return np.array(["/".join(map(str, key)) for key in zip(*keys, strict=True)])


def _unknown(columns: list[str]) -> list[str]:
    known = {
        *ALIASES,
        *column_names.numbers(),
        *column_names.NAMES,
        *_LONG,
        *_ABOUT,
        *training_tables.ALSO_READ,
    }
    known = {name for name in columns if name in known or training_tables.measures(name) or serving_tables.reads(name)}
    return [name for name in columns if name not in known]
