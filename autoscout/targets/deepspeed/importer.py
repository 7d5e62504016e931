"""Imports the folders of DeepSpeed's autotuning: one per experiment, with exp.json, ds_config.json, metrics.json and
logs.

`throughput` is in samples per second, so the step time is train_batch_size / throughput. An experiment without
metrics.json failed, for a reason in stderr.log. "auto" values and lists are skipped, since they do not determine the
configuration. Truncated files are reported, with a description of the missing content."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autoscout.line import nested
from autoscout.targets.found import Reader, Row, RowSource
from kb import door
from kb.records import AutoscoutError, Job

MEANING = {"step_time_s": "step_time_s@s", "tokens_per_s": "tokens_per_s", "samples_per_s": "samples_per_s"}
_OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|(?:Error|error): .*(?:out of memory|can't allocate memory)")
# Matches the exception that ended the run, but not "0 errors", "error_if_nonfinite" or warnings.
_FAILED = re.compile(r"^(?:\S+: )?(?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b.*", re.MULTILINE)
_INTERRUPTED = re.compile(r"\bKeyboardInterrupt\b")
# Settings before DeepSpeed 0.3.16 → their present names.
_OLD_NAMES = {"cpu_offload": "offload_optimizer.device", "cpu_offload_params": "offload_param.device"}


def recognizes(path: Path) -> bool:
    return path.is_dir() and any(True for _ in _experiments(path))


def read(path: Path, job: Job) -> RowSource:
    rows = [_row(folder, path, job) for folder in _experiments(path)]
    columns = list(dict.fromkeys(name for row in rows for name in row.cells))
    return RowSource(reader="deepspeed", columns=columns, rows=iter(rows), meaning=MEANING)


def _experiments(path: Path) -> Iterator[Path]:
    """Yields the folders of experiments. After an interrupted run, exp.json or ds_config.json may be missing."""
    found = sorted({file.parent for name in ("exp.json", "ds_config.json") for file in path.rglob(name)})
    yield from (f for f in found if "profile_model_info" not in f.name)


def _row(folder: Path, root: Path, job: Job) -> Row:
    where = str(folder.relative_to(root))
    try:
        config = _config(folder)
    except (OSError, ValueError, AutoscoutError) as error:
        return Row(where, {}, f"the configuration cannot be read ({error})")
    settings = ((name, value) for name, value in nested.leaves(config) if not isinstance(value, list))
    cells = {n: v for n, v in settings if v not in ("auto", None) and not n.startswith("autotuning")}
    try:
        metrics = door.parsed_json((folder / "metrics.json").read_text())
    except FileNotFoundError:
        failure = _failure(folder)
        return Row(where, cells, failure["evidence"]) if not failure["status"] else Row(where, {**cells, **failure})
    except (OSError, ValueError) as error:
        return Row(where, cells, f"metrics.json cannot be read ({error})")
    if not isinstance(metrics, dict):
        return Row(where, cells, "metrics.json is not a table of metrics")
    micro, steps = config.get("train_micro_batch_size_per_gpu", 0), config.get("gradient_accumulation_steps", 1)
    numbers = isinstance(micro, int) and isinstance(steps, int)
    batch = config.get("train_batch_size")
    if batch in (None, "auto", 0):
        batch = micro * steps * job.devices if numbers else 0
    if not isinstance(batch, int) or isinstance(batch, bool):
        return Row(where, cells, f"the run's train_batch_size {batch!r} is not a whole number")
    wanted = job.traffic.global_batch
    if wanted and batch and batch != wanted:
        return Row(where, cells, f"the run trains {batch} samples per step, but the job trains {wanted}")
    measured = {f"deepspeed_{name}": value for name, value in metrics.items() if isinstance(value, int | float)}
    throughput = metrics.get("throughput")
    if isinstance(throughput, int | float) and throughput > 0:
        measured["samples_per_s"] = throughput
        if not batch:
            return Row(
                where, {**cells, **measured}, 'the batch sizes are "auto", so the number of samples per step is unknown'
            )
        measured["step_time_s"] = batch / throughput
        if job.traffic.seq_len:
            measured["tokens_per_s"] = throughput * job.traffic.seq_len
    elif not measured:
        return Row(where, cells, "metrics.json has no number; it may be from a different version of DeepSpeed")
    return Row(where, {**cells, **measured})


def _config(folder: Path) -> dict[str, Any]:
    """Returns the configuration from ds_config.json; from exp.json if ds_config.json is missing or truncated."""
    problem: Exception = AutoscoutError("the file is not a configuration of DeepSpeed")
    for name in ("ds_config.json", "exp.json"):
        try:
            found = door.parsed_json((folder / name).read_text())
        except (OSError, ValueError) as error:
            problem = error if (folder / name).exists() else problem
            continue
        found = found.get("ds_config", found) if isinstance(found, dict) else None
        if isinstance(found, dict):
            return _of_today(found)
    raise problem


def _of_today(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the config with DeepSpeed's older settings renamed: stage 2's cpu_offload became
    offload_optimizer.device."""
    zero = config.get("zero_optimization")
    if not isinstance(zero, dict):
        return config
    found = {name: value for name, value in zero.items() if name not in _OLD_NAMES}
    for old, new in _OLD_NAMES.items():
        if zero.get(old) is True:
            found.setdefault(new.partition(".")[0], {"device": "cpu"})
    return {**config, "zero_optimization": found}


def _failure(folder: Path) -> dict[str, str]:
    try:
        log = (folder / "stderr.log").read_text(errors="replace")
    except OSError:
        log = ""
    if _OUT_OF_MEMORY.search(log):
        return {"status": "oom", "evidence": "out of memory"}
    if _INTERRUPTED.search(log):
        return {"status": "", "evidence": "the run was interrupted before it measured anything"}
    last = next((found[0] for found in reversed(list(_FAILED.finditer(log)))), "")
    return {"status": "error", "evidence": last or "left no metrics.json"}


READER = Reader(
    recognizes=recognizes,
    read=lambda path, job, space, part: read(path, job),
    rank=3,
    folders=True,
    has=lambda path: any((path.parent / name).exists() for name in ("exp.json", "ds_config.json")),
)
