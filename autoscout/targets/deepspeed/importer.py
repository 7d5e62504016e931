"""Folders that DeepSpeed's autotuning leaves: one per experiment, with exp.json, ds_config.json, metrics.json, logs.

`throughput` is samples per second, so a step takes train_batch_size / throughput. An experiment without metrics.json
failed; stderr.log says how.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autoscout.targets.found import Reader, Row, Source
from kb.records import AutoscoutError, Job

MEANING = {"step_time_s": "step_time_s@s", "tokens_per_s": "tokens_per_s"}
_OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|(?:Error|error): .*(?:out of memory|can't allocate memory)")


def recognizes(path: Path) -> bool:
    return path.is_dir() and any(True for _ in _experiments(path))


def read(path: Path, job: Job) -> Source:
    rows = [_row(folder, path, job) for folder in _experiments(path)]
    columns = list(dict.fromkeys(name for row in rows for name in row.cells))
    return Source(reader="deepspeed", columns=columns, rows=iter(rows), meaning=MEANING)


def _experiments(path: Path) -> Iterator[Path]:
    for name in ("exp.json", "ds_config.json"):
        found = sorted({file.parent for file in path.rglob(name)})
        if found:
            yield from (f for f in found if "profile_model_info" not in f.name)
            return


def _row(folder: Path, root: Path, job: Job) -> Row:
    where = str(folder.relative_to(root))
    try:
        config = _config(folder)
    except (OSError, ValueError, RecursionError, AutoscoutError) as error:
        return Row(where, {}, f"its configuration cannot be read ({error})")
    cells = {name: value for name, value in _flat(config).items() if not name.startswith("autotuning")}
    try:
        metrics = json.loads((folder / "metrics.json").read_text())
    except FileNotFoundError:
        return Row(where, {**cells, **_failure(folder)})
    except (OSError, ValueError, RecursionError) as error:
        return Row(where, cells, f"metrics.json cannot be read ({error})")
    if not isinstance(metrics, dict):
        return Row(where, cells, "metrics.json is no table of metrics")
    micro, steps = config.get("train_micro_batch_size_per_gpu", 0), config.get("gradient_accumulation_steps", 1)
    numbers = isinstance(micro, int) and isinstance(steps, int)
    batch = config.get("train_batch_size") or (micro * steps * job.devices if numbers else 0)
    if not isinstance(batch, int):
        return Row(where, cells, f"its train_batch_size {batch!r} is no whole number")
    wanted = job.traffic.global_batch
    if wanted and batch and batch != wanted:
        return Row(where, cells, f"trains {batch} samples a step, the job {wanted}")
    measured = {f"deepspeed_{name}": value for name, value in metrics.items() if isinstance(value, int | float)}
    throughput = metrics.get("throughput")
    if isinstance(throughput, int | float) and throughput > 0:
        measured["step_time_s"] = batch / throughput
        measured["tokens_per_s"] = throughput * job.traffic.seq_len
    return Row(where, {**cells, **measured})


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "ds_config.json"
    found = json.loads((path if path.exists() else folder / "exp.json").read_text())
    found = found.get("ds_config", found) if isinstance(found, dict) else None
    if not isinstance(found, dict):
        raise AutoscoutError("is no configuration of DeepSpeed")
    return found


def _flat(config: dict[str, Any], before: str = "") -> dict[str, Any]:
    """{"zero_optimization": {"stage": 2}} → {"zero_optimization.stage": 2}."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{before}{name}.")
        elif not isinstance(value, list):
            flat[f"{before}{name}"] = value
    return flat


def _failure(folder: Path) -> dict[str, str]:
    try:
        said = (folder / "stderr.log").read_text(errors="replace")
    except OSError:
        said = ""
    if _OUT_OF_MEMORY.search(said):
        return {"status": "oom", "evidence": "out of memory"}
    last = next((line.strip() for line in reversed(said.splitlines()) if "Error" in line), "")
    return {"status": "error", "evidence": last or "left no metrics.json"}


READER = Reader(recognizes=recognizes, read=lambda path, job, space, part: read(path, job), rank=3)
