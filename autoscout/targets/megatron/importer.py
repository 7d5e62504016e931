"""Logs of Megatron-LM's training script: the table of arguments, the iteration lines, memory, and how it ended.

One log is one measurement: the median of the logged iteration times without the first, which is never typical.
"""

import re
import statistics
from itertools import islice
from pathlib import Path

from autoscout.targets.found import Cell, Reader, Row, Source
from kb.records import Job, shape

_RANK = r"^\s*(?:\[?\w+\]?:\s*)?"  # some launchers name the rank before each line
_ARGUMENT = re.compile(_RANK + r"(\w+) \.{2,} ?(.*?)\s*$")
_ITERATION = re.compile(r"iteration\s+(\d+)/\s*\d+ \|.*?elapsed time per iteration \(ms\):\s*([\d.]+)")
_LOSS = re.compile(r"lm loss:\s*([\d.]+E?[+-]?\d*)")
_MEMORY = re.compile(r"memory \(MB\) \|.*?max allocated:\s*([\d.]+)")
_OUT_OF_MEMORY = re.compile(r"out of memory|OutOfMemoryError", re.IGNORECASE)
_ERROR = re.compile(_RANK + r"([\w.]*(?:Error|Exception): .*)$")
_SHAPE = {"num_layers": "layers", "hidden_size": "hidden", "num_attention_heads": "heads"}
_KEPT = ("world_size", "transformer_impl", "params_dtype", "num_experts", "fp8", "attention_backend")
MEANING = {"step_time_s": "step_time_s@s", "tokens_per_s": "tokens_per_s", "peak_memory_gib": "peak_memory_gib@gib"}


def recognizes(path: Path) -> bool:
    return any(_looks_like_one(file) for file in _files(path)[:20])


def read(path: Path, job: Job, knobs: set[str]) -> Source:
    """`knobs`: Megatron's arguments that are knobs of the job's space."""
    rows = [_row(file, path, job, knobs) for file in _files(path) if path.is_file() or _looks_like_one(file)]
    columns = list(dict.fromkeys(name for row in rows for name in row.cells))
    return Source(reader="megatron", columns=columns, rows=iter(rows), meaning=MEANING)


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(f for f in path.rglob("*") if f.suffix in (".log", ".out", ".txt") and f.is_file())


def _looks_like_one(path: Path) -> bool:
    try:
        with open(path, errors="replace") as file:
            return any("arguments ---" in line or _ITERATION.search(line) for line in islice(file, 5000))
    except OSError:
        return False


def _row(path: Path, root: Path, job: Job, knobs: set[str]) -> Row:
    where = str(path.relative_to(root)) if root.is_dir() else path.name
    arguments: dict[str, str] = {}
    times: list[float] = []
    memory: list[float] = []
    failed = oom = ""
    with open(path, errors="replace") as file:
        for line in file:
            if found := _ITERATION.search(line):
                times.append(float(found[2]) / 1000)
            elif found := _MEMORY.search(line):
                memory.append(float(found[1]) / 1024)  # Megatron divides bytes by 1024² and calls it MB
            elif found := _ARGUMENT.match(line):
                arguments.setdefault(found[1], found[2])
            elif _OUT_OF_MEMORY.search(line):
                oom = oom or line.strip()
            elif found := _ERROR.match(line):
                failed = failed or found[1]
    cells: dict[str, Cell] = {
        name: value for name, value in arguments.items() if (name in knobs or name in _KEPT) and value != "None"
    }
    if problem := _another_job(arguments, job):
        return Row(where, cells, problem)
    if oom:
        return Row(where, {**cells, "status": "oom", "evidence": "out of memory"})
    if len(times) < 2:
        if failed:
            return Row(where, {**cells, "status": "error", "evidence": failed[:200]})
        return Row(where, cells, f"logs {len(times)} iterations; at least 2 are needed")
    step = statistics.median(times[1:])
    tokens = job.traffic.global_batch * job.traffic.seq_len
    measured = {"step_time_s": step, "tokens_per_s": tokens / step}
    if memory:
        measured["peak_memory_gib"] = max(memory)
    return Row(where, {**cells, **measured})


def _another_job(arguments: dict[str, str], job: Job) -> str:
    model = shape(job.model)
    wanted = {argument: getattr(model, name) for argument, name in _SHAPE.items()}
    wanted |= {"seq_length": job.traffic.seq_len, "global_batch_size": job.traffic.global_batch}
    for argument, value in wanted.items():
        if argument in arguments and arguments[argument] != str(value):
            return f"is of another job: {argument} {arguments[argument]}, not {value}"
    return ""


READER = Reader(
    recognizes=recognizes,
    read=lambda path, job, space, part: read(path, job, {knob.sets for knob in space.knobs}),
    rank=6,
)
