"""Imports logs of Megatron-LM's training script: arguments, iterations, memory, and how the run ended.

The arguments are converted to a configuration by inverting the mapping from knobs to flags (current_launch.py).
Arguments with the value None or False also determine knobs.

Each run is one measurement: the median of the logged iteration times, without the first iteration, which includes
start-up. A table of arguments, or an iteration number that does not increase, starts a new run. A run that ended with
an exception is a failure, even if it logged iterations. Warnings are ignored."""

import ast
import re
import statistics
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

import msgspec

from autoscout.job.lengths import tokens_of_step
from autoscout.space.graph import Space
from autoscout.targets.current_launch import apart, wished
from autoscout.targets.found import Cell, Reader, Row, RowSource
from autoscout.targets.jobs import JobSpace
from autoscout.targets.megatron.arguments import flags
from autoscout.targets.megatron.training_line import ASKED, USUAL, respelled
from kb.records import Configuration, Job, shape

_RANK = r"^\s*(?:\[?\w+\]?:\s*)?"  # some launchers prefix lines with the rank
_ARGUMENT = re.compile(_RANK + r"(\w+) \.{2,} ?(.*?)\s*$")
_ITERATION = re.compile(r"iteration\s+(\d+)/\s*\d+ \|.*?elapsed time per iteration \(ms\):\s*([\d.]+)")
_NAN_LOSS = re.compile(r"lm loss:\s*[+-]?(?:nan|inf)\b|number of nan iterations:\s*[1-9]", re.IGNORECASE)
_MEMORY = re.compile(r"memory \(MB\) \|.*?max allocated:\s*([\d.]+)")
_OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|Error: (?:CUDA|HIP).*out of memory|std::bad_alloc", re.IGNORECASE)
_ERROR = re.compile(_RANK + r"([\w.]*(?:Error|Exception)(?::.*)?)$")
_KILLED = re.compile(r"oom-kill|Out of memory: Killed process", re.IGNORECASE)
_SHAPE = {"num_layers": "layers", "hidden_size": "hidden", "num_attention_heads": "heads"}
_KEPT = ("world_size", "transformer_impl", "params_dtype", "num_experts", "fp8", "attention_backend")
# Arguments whose flag has a different name, and arguments that have an effect only with a certain value of a second
# argument.
_FLAG = {"fp8": "--fp8-format"}
_ONLY_WITH = {
    "moe_flex_dispatcher_backend": ("moe_token_dispatcher_type", "flex"),
    "data_parallel_sharding_strategy": ("use_megatron_fsdp", "True"),
    "optimizer_offload_fraction": ("optimizer_cpu_offload", "True"),
    "cross_entropy_fusion_impl": ("cross_entropy_loss_fusion", "True"),
}
_DTYPES = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.uint8": "fp8"}
_OFF = ("None", "False", "", "fp32", "torch.float32")
_BATCH = "--global-batch-size"  # compared separately, because in fine-tuning it depends on packing
MEANING = {"step_time_s": "step_time_s@s", "tokens_per_s": "tokens_per_s", "peak_memory_gib": "peak_memory_gib@gib"}


def recognizes(path: Path) -> bool:
    return any(_looks_like_one(file) for file in _files(path)[:20])


def read(path: Path, job: Job, space: Space) -> RowSource:
    logs = [file for file in _files(path) if path.is_file() or _looks_like_one(file)]
    whole = _whole(job) if job.target == "megatron" else space
    rows = [row for file in logs for row in _rows(file, path, job, space, whole)]
    columns = list(dict.fromkeys(name for row in rows for name in row.cells))
    return RowSource(reader="megatron", columns=columns, rows=iter(rows), meaning=MEANING)


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
    """The arguments, results and failure of one run, as read from a log."""

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
                run.failed, run.oom = "", False  # the run continued despite the exception
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


def _whole(job: Job) -> Space:
    """Returns the job's space without the restrictions of its [space], because a log may have any configuration."""
    everything = msgspec.structs.replace(job.space, fix={}, limit={}, allow=ASKED)
    return JobSpace.of_job(msgspec.structs.replace(job, space=everything))


def _rows(path: Path, root: Path, job: Job, space: Space, whole: Space) -> list[Row]:
    where = str(path.relative_to(root)) if root.is_dir() else path.name
    runs = _runs(path)
    names = [where] if len(runs) == 1 else [f"{where}, run {i}" for i in range(1, len(runs) + 1)]
    return [_row(name, run, job, space, whole) for name, run in zip(names, runs, strict=True)]


def _row(where: str, run: _Run, job: Job, space: Space, whole: Space) -> Row:
    kept: dict[str, Cell] = {name: v for name, v in run.arguments.items() if name in _KEPT and v != "None"}
    if problem := _another_job(run.arguments, job):
        return Row(where, kept, problem)
    if job.target == "megatron":
        knobs, problem = _knobs(run.arguments, job, space, whole) if run.arguments else ({}, "")
    else:  # the job treats the script as a user's own command
        names = {knob.sets for knob in space.knobs}
        knobs, problem = {n: v for n, v in run.arguments.items() if n in names and v != "None"}, ""
    cells = {**knobs, **kept}
    if problem:
        return Row(where, cells, problem)
    if run.oom:
        return Row(where, {**cells, "status": "oom", "evidence": "out of memory"})
    if run.failed:
        return Row(where, {**cells, "status": "error", "evidence": run.failed[:200]})
    if run.not_finite:
        return Row(where, {**cells, "status": "wrong", "evidence": "lm loss is not finite"})
    if len(run.times) < 2:
        return Row(where, cells, f"the run logs {len(run.times)} iterations, but at least 2 are needed")
    step = statistics.median(run.times[1:])
    measured = {"step_time_s": step, "tokens_per_s": tokens_of_step(job.traffic) / step if step else 0.0}
    if run.memory:
        measured["peak_memory_gib"] = max(run.memory)
    return Row(where, {**cells, **measured})


def _another_job(arguments: dict[str, str], job: Job) -> str:
    model = shape(job.model)
    wanted = {argument: getattr(model, name) for argument, name in _SHAPE.items()}
    wanted |= {"seq_length": job.traffic.seq_len, "world_size": job.devices}
    if not job.traffic.lengths:
        wanted["global_batch_size"] = job.traffic.global_batch
    for argument, value in wanted.items():
        if argument in arguments and arguments[argument] != str(value):
            return f"the run is of a different job: its {argument} is {arguments[argument]}, not {value}"
    return ""


def _knobs(arguments: dict[str, str], job: Job, space: Space, whole: Space) -> tuple[dict[str, Cell], str]:
    """Returns (knob → value; the reason why the run does not belong to the job, or ""). Values outside the space are
    kept unchanged."""

    def mapped(configuration: Configuration) -> Mapping[str, object]:
        found = flags(job, Configuration({"mbs": 1, **configuration.knobs}))
        return {flag: value for flag, value in found.items() if flag != "--data-path"}

    given = respelled(_flags(arguments), job.model.layers)
    found = wished(whole, given, mapped, USUAL)
    there, cells = mapped(Configuration(found.knobs)), dict[str, Cell](found.knobs)
    for name, heard in found.heard.items():
        knob = whole.knob[name]
        far = {flag: apart(given[flag], there.get(flag)) for flag in sorted(heard) if flag != _BATCH}
        logged = arguments.get(knob.sets, "None")
        wrong = next((flag for flag, distance in far.items() if distance == 1), "")
        if name not in space.knob:
            wrong = wrong or (next(iter(far), "") if found.knobs[name] != knob.off else "")
            del cells[name]
        elif any(far.values()) and logged != "None":
            cells[name], wrong = logged, ""
        if wrong:
            return cells, f"the run has {' '.join([wrong, *given[wrong]])}, which is not in this job's space"
    batch = given.get(_BATCH, [""])[0]
    if job.traffic.lengths and batch and batch != str(there[_BATCH]):
        return cells, f"the run is of a different job: its global_batch_size is {batch}, not {there[_BATCH]}"
    if arguments.get("tp_comm_overlap_cfg", "None") != "None":
        cells.pop("tp_comm", None)  # the log has only the name of the file with this knob's value
    return cells, ""


def _flags(arguments: dict[str, str]) -> dict[str, list[str]]:
    """Returns the flags that correspond to the arguments."""
    found: dict[str, list[str]] = {}
    for name, value in arguments.items():
        needs, which = _ONLY_WITH.get(name, ("", ""))
        if value in _OFF or (needs and arguments.get(needs) != which):
            continue
        flag = _FLAG.get(name, "--" + name.replace("_", "-"))
        found[flag] = [] if value == "True" else _words(value)
    chunks = arguments.get("virtual_pipeline_model_parallel_size", "None")
    if chunks not in ("None", "1"):
        found["--num-virtual-stages-per-pipeline-rank"] = [chunks]
        if arguments.get("overlap_p2p_comm") == "False":
            found["--no-overlap-p2p-communication"] = []
    return found


def _words(value: str) -> list[str]:
    if not value.startswith("["):
        return [_DTYPES.get(value, value)]
    try:
        return [str(each) for each in ast.literal_eval(value)]
    except (ValueError, SyntaxError):
        return [value]


READER = Reader(
    recognizes=recognizes,
    read=lambda path, job, space, part: read(path, job, space),
    rank=6,
    folders=True,
    has=lambda path: path in _files(path.parent) and _looks_like_one(path),
)
