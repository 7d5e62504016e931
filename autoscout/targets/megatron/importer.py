"""Imports logs of Megatron-LM's training script: arguments, iteration lines, memory, and how the run ended.

One run is one measurement: the median of the logged iteration times without the first, which is never typical. A table
of arguments starts a new run, and so does an iteration number that does not increase. A run ended by an exception has
failed, however far it came; warnings end nothing.
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
_NAN_LOSS = re.compile(r"lm loss:\s*[+-]?(?:nan|inf)\b|number of nan iterations:\s*[1-9]", re.IGNORECASE)
_MEMORY = re.compile(r"memory \(MB\) \|.*?max allocated:\s*([\d.]+)")
_OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|Error: (?:CUDA|HIP).*out of memory|std::bad_alloc", re.IGNORECASE)
_ERROR = re.compile(_RANK + r"([\w.]*(?:Error|Exception)(?::.*)?)$")
_KILLED = re.compile(r"oom-kill|Out of memory: Killed process", re.IGNORECASE)
_SHAPE = {"num_layers": "layers", "hidden_size": "hidden", "num_attention_heads": "heads"}
_KEPT = ("world_size", "transformer_impl", "params_dtype", "num_experts", "fp8", "attention_backend")
MEANING = {"step_time_s": "step_time_s@s", "tokens_per_s": "tokens_per_s", "peak_memory_gib": "peak_memory_gib@gib"}


def recognizes(path: Path) -> bool:
    return any(_looks_like_one(file) for file in _files(path)[:20])


def read(path: Path, job: Job, knobs: set[str]) -> Source:
    """`knobs`: Megatron's arguments that are knobs of the job's space."""
    logs = [file for file in _files(path) if path.is_file() or _looks_like_one(file)]
    rows = [row for file in logs for row in _rows(file, path, job, knobs)]
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


class _Run:
    """One run in a log."""

    def __init__(self, arguments: dict[str, str]) -> None:
        self.arguments = arguments
        self.iteration = 0
        self.times: list[float] = []
        self.memory: list[float] = []
        self.failed = ""  # the first exception since the last iteration
        self.oom = self.not_finite = False


def _runs(path: Path) -> list[_Run]:
    run = _Run({})
    runs = [run]
    with open(path, errors="replace") as file:
        for line in file:
            if "arguments ---" in line and "end of" not in line:
                if run.arguments or run.times:
                    run = _Run({})
                    runs.append(run)
            elif found := _ITERATION.search(line):
                if int(found[1]) <= run.iteration:
                    run = _Run(run.arguments)
                    runs.append(run)
                run.iteration = int(found[1])
                run.times.append(float(found[2]) / 1000)
                run.failed, run.oom = "", False  # it continued
                run.not_finite = run.not_finite or bool(_NAN_LOSS.search(line))
            elif found := _MEMORY.search(line):
                run.memory.append(float(found[1]) / 1024)  # Megatron divides bytes by 1024² and calls it MB
            elif found := _ARGUMENT.match(line):
                run.arguments.setdefault(found[1], found[2])
            elif found := _ERROR.match(line):
                run.failed = run.failed or found[1]
                run.oom = run.oom or bool(_OUT_OF_MEMORY.search(line))
            elif _KILLED.search(line):
                run.failed, run.oom = run.failed or line.strip(), True
    return runs


def _rows(path: Path, root: Path, job: Job, knobs: set[str]) -> list[Row]:
    where = str(path.relative_to(root)) if root.is_dir() else path.name
    runs = _runs(path)
    names = [where] if len(runs) == 1 else [f"{where}, run {i}" for i in range(1, len(runs) + 1)]
    return [_row(name, run, job, knobs) for name, run in zip(names, runs, strict=True)]


def _row(where: str, run: _Run, job: Job, knobs: set[str]) -> Row:
    cells: dict[str, Cell] = {
        name: value for name, value in run.arguments.items() if (name in knobs or name in _KEPT) and value != "None"
    }
    if problem := _another_job(run.arguments, job):
        return Row(where, cells, problem)
    if run.oom:
        return Row(where, {**cells, "status": "oom", "evidence": "out of memory"})
    if run.failed:
        return Row(where, {**cells, "status": "error", "evidence": run.failed[:200]})
    if run.not_finite:
        return Row(where, {**cells, "status": "wrong", "evidence": "lm loss is not a number"})
    if len(run.times) < 2:
        return Row(where, cells, f"logs {len(run.times)} iterations; at least 2 are needed")
    step = statistics.median(run.times[1:])
    tokens = job.traffic.global_batch * job.traffic.seq_len
    measured = {"step_time_s": step, "tokens_per_s": tokens / step if step else 0.0}
    if run.memory:
        measured["peak_memory_gib"] = max(run.memory)
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
