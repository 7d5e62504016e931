"""Reads a job file: strict TOML. Each mistake is reported in a sentence with its place, cause and remedy."""

import os
import re
import tomllib
import typing
from pathlib import Path
from typing import Any

import msgspec

from autoscout.job import finetune, latent, mixture, segments
from autoscout.job.device_names import an_example, is_cpu, kinds, stem_of, unknown
from autoscout.job.duration import seconds
from autoscout.job.hf_config import shape_of
from autoscout.job.lengths import of_file
from autoscout.job.metrics import HIGHEST_RATE
from autoscout.job.names import LONGEST_NAME, is_name
from autoscout.job.presets import models
from autoscout.job.shipped import job_file
from autoscout.job.strict import converted, read_toml, unsaid
from autoscout.job.toml_text import toml
from autoscout.job.trace import with_trace_id
from autoscout.job.words import nearest_name
from kb.door import shown
from kb.records import AutoscoutError, Cluster, Guard, Job, MetricSource, Model, Sessions, Traffic

# Largest values of [model]: they keep all sizes that are computed from them below 2**64.
_MOST = {"layers": 100_000, "heads": 2**20, "kv_heads": 2**20, "head_dim": 2**20, "experts": 2**20, "topk": 2**20}
_MOST |= {"hidden": 2**24, "ffn": 2**26, "expert_ffn": 2**26, "shared_ffn": 2**26, "vocab": 2**28}
_MOST |= {"window": 2**28}
_NOT_NEGATIVE = ("kv_heads", "head_dim", "ffn", "experts", "expert_ffn", "shared_ffn", "dense_layers", "window")
_MOST_TRAFFIC = {
    "seq_len": 2**28,
    "global_batch": 2**24,
    "concurrency": 2**24,
    "shared_prefix": 2**28,
    "requests": 2**28,
}
_MOST_DEVICES = 2**20
# suffixes of files from which `init` creates a job; users may pass such a file in place of a job file
_STARTS_FROM = (".sh", ".sbatch", ".slurm", ".json", ".yaml", ".yml")
_PATHS = (
    ("model", "from"),
    ("traffic", "trace"),
    ("traffic", "segments"),
    ("traffic", "lengths"),  # the name of a file, or a list of quantiles
    ("cluster", "hosts"),
    ("launch", "recorded"),
    ("launch", "model_path"),
    ("launch", "kv_folder"),
    ("launch", "path"),
    ("space", "catalog"),
)


def read_job(path: str | Path) -> Job:
    """Reads a job file and checks what every target requires; targets/jobs.py makes the checks of a single target.

    Errors: AutoscoutError (exit 2) naming the file, the key and the nearest known key."""
    path = job_file(path)
    if path.suffix == ".py" and path.is_file():
        line = f"autoscout init --out job.toml -- torchrun --nproc-per-node 2 {path}"
        raise AutoscoutError(f"{path}: this is a script; make a job from the line that starts it: {line} …", 2)
    if path.suffix in _STARTS_FROM and path.is_file():
        raise AutoscoutError(
            f"{path}: this is not a job file; `autoscout init {path} --out job.toml` writes one from it", 2
        )
    return job_of_file(read_toml(path, "job file"), path, Path.cwd() if is_pipe(path) else path.parent)


def job_of_file(data: dict[str, Any], path: Path, folder: Path) -> Job:
    """Returns the job of a parsed file. `folder`: the base of its relative paths. Errors: see `read_job`."""
    data = _with_paths_from(folder, data)
    if isinstance(model := data.get("model"), dict) and "preset" in model:
        data["model"] = {**_preset(path, model["preset"]), **model}
    if isinstance(model := data.get("model"), dict) and "from" in model:
        config = model.pop("from")
        if not isinstance(config, str) or "preset" in model:
            raise AutoscoutError(
                f"{path}: model.from must be the path of a config.json, and cannot be combined with model.preset", 2
            )
        data["model"] = {**shape_of(Path(config), str(data.get("task", "pretrain"))), **model}
    if isinstance(model := data.get("model"), dict) and isinstance(lora := model.get("lora"), dict):
        usual = finetune.usual_modules(data.get("target", ""), bool(model.get("experts")))
        data["model"] = {**model, "lora": {"modules": usual, **lora}}
    for share in _tables(data.get("traffic"), "mix"):
        if isinstance(model := share.get("model"), dict) and "preset" in model:
            share["model"] = {**_preset(path, model["preset"]), **model}
    job = unsaid(converted(path, data, Job))
    traffic = with_trace_id(job.traffic)
    if job.objective.metric == HIGHEST_RATE and not (traffic.rate or traffic.concurrency or _traced(traffic)):
        traffic = msgspec.structs.replace(traffic, rate=1.0)  # requests per second with which the search begins
    job = msgspec.structs.replace(job, traffic=traffic, cluster=_of_records(job.cluster))
    if isinstance(file := job.traffic.lengths, str):
        job = msgspec.structs.replace(job, traffic=msgspec.structs.replace(job.traffic, lengths=of_file(Path(file))))
    kinds()  # reads the device records first, since their mistakes would otherwise be reported for this file
    refuse(path, _problems(job))
    return job


def refuse(path: str | Path, problems: typing.Iterator[str]) -> None:
    """Raises an AutoscoutError (exit 2) for the first of `problems`, if there are any, naming the job file."""
    try:
        problem = next(problems, None)
    except AutoscoutError as error:
        problem = str(error)
    if problem:
        raise AutoscoutError(f"{path}: {problem}", 2)


def from_here(text: bytes) -> bytes:
    """Returns the text of a job file that comes from a pipe, with relative paths made absolute (relative to the working
    directory). A text that is not a job file is returned unchanged."""
    try:
        data = tomllib.loads(text.decode("utf-8-sig"))
        placed = _with_paths_from(Path.cwd(), data)
        return text if placed == data else toml(placed).encode()
    except (ValueError, TypeError, RecursionError):  # the problem is reported later, when the text is parsed again
        return text


def is_pipe(path: Path) -> bool:
    """Whether a job file is a pipe (standard input or the output of a process), which has no folder for relative
    paths."""
    return path == Path("-") or path.is_relative_to("/dev") or path.is_fifo()


def _with_paths_from(folder: Path, data: dict[str, Any]) -> dict[str, Any]:
    """Returns a job file's content with relative paths made absolute. Values of a wrong type are not changed."""

    def absolute(name: Any) -> Any:
        is_path = isinstance(name, str) and name and not Path(name).is_absolute()
        return str((folder / name).resolve()) if is_path else name

    placed = {table: dict(keys) if isinstance(keys, dict) else keys for table, keys in data.items()}
    launch = placed.get("launch", {})
    if isinstance(launch, dict) and (data.get("target") == "command" or launch.get("render")):
        placed["launch"] = launch = {**launch, "path": launch.get("path") or "."}
    for table, key in _PATHS:
        keys = placed.get(table)
        if isinstance(keys, dict) and keys.get(key) not in (None, "slurm", "ray"):
            keys[key] = [absolute(each) for each in keys[key]] if isinstance(keys[key], list) else absolute(keys[key])
    draft = launch.get("draft") if isinstance(launch, dict) else None
    # A draft model that is not a folder here is a name on the Hugging Face Hub.
    if isinstance(draft, dict) and os.path.exists(folder / str(draft.get("model", ""))):
        launch["draft"] = {**draft, "model": absolute(draft.get("model", ""))}
    return placed


def _of_records(cluster: Cluster) -> Cluster:
    """Returns the cluster with device names replaced by those of the device records, so that different spellings give
    the same job. A node that states a memory size keeps its device name."""
    nodes = [
        node if node.memory_gib else msgspec.structs.replace(node, device=stem_of(node.device) or node.device)
        for node in cluster.nodes
    ]
    return msgspec.structs.replace(cluster, nodes=nodes)


def _traced(traffic: Traffic) -> bool:
    return bool(traffic.trace or traffic.segments)


def with_budget(job: Job, profiles: int | None, wall: str | None, device_time: str | None = None) -> Job:
    """Returns the job with the given limits of the budget replaced. Errors: AutoscoutError (exit 2) if the budget
    allows no experiment."""
    asked = {"profiles": profiles, "wall": wall or None, "device_time": device_time or None}
    budget = msgspec.structs.replace(job.budget, **{name: value for name, value in asked.items() if value is not None})
    if budget.profiles < 1:
        raise AutoscoutError(f"--profiles {budget.profiles} allows no experiment; give at least 1", 2)
    for option, given in (("--wall", budget.wall), ("--device-time", budget.device_time)):
        if seconds(given) <= 0:
            raise AutoscoutError(f"{option} {given} allows no experiment; give a longer time", 2)
    return msgspec.structs.replace(job, budget=budget)


def _tables(table: Any, name: str) -> list[dict[str, Any]]:
    """Returns the list of tables with this name; [] if it is missing or has a different type."""
    found = table.get(name) if isinstance(table, dict) else None
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _preset(path: Path, name: Any) -> dict[str, Any]:
    presets = models()
    if not isinstance(name, str) or name not in presets:
        unknown = f"model.preset = {name!r}{nearest_name(str(name), presets)}"
        raise AutoscoutError(f'{path}: {unknown} (for a model without a preset, set from = "its config.json")', 2)
    return presets[name]


def _problems(job: Job) -> typing.Iterator[str]:
    model, objective = job.model, job.objective
    if not is_name(job.name):
        allowed = f"{LONGEST_NAME} ASCII letters, digits, '.', '_' and '-', and begin with a letter or a digit"
        yield f"name = {shown(job.name)} becomes the name of a folder; use at most {allowed}"
    if model != Model():
        yield from _model_problems(model)
        yield from _traffic_problems(job)
    yield from finetune.finetune_problems(job)
    yield from latent.latent_problems(job)
    yield from mixture.mixture_problems(job)
    yield from segments.segment_problems(job)
    yield from _not_positive("budget", job.budget, ("profiles",))
    yield from _not_positive("launch", job.launch, ("iterations", "measure_s", "timeout_s", "repeats"))
    if job.launch.iterations < 2:
        yield "launch.iterations must be at least 2, because one iteration does not show the variation"
    if job.launch.warmup < 1:
        yield "launch.warmup must be at least 1, because the first iteration is slower than the others"
    if not job.cluster.nodes:
        yield f"cluster.nodes is empty; write for example nodes = [{{ device = '{an_example()}', count = 8 }}]"
    yield from _negative("cluster", job.cluster, ("together",))
    yield from _negative("cluster.network", job.cluster.network, ("between_nodes_gbps", "between_kinds_gbps"))
    if (job.cluster.include or job.cluster.exclude) and not job.cluster.hosts:
        yield (
            "cluster.include and cluster.exclude choose among cluster.hosts; set cluster.hosts to a host file, "
            "'slurm' or 'ray'"
        )
    for i, node in enumerate(job.cluster.nodes):
        yield from _negative(f"cluster.nodes[{i}]", node, ("memory_gib", "price_per_hour"))
        if node.count < 1:
            yield f"cluster.nodes[{i}].count must be at least 1"
        if node.count > _MOST_DEVICES:
            yield f"cluster.nodes[{i}].count = {node.count} is too many; at most {_MOST_DEVICES:,} can be tuned"
        if not node.memory_gib and node.device not in kinds():
            give = "for a device without a record, give memory_gib, or run `autoscout calibrate` on the device"
            yield f"cluster.nodes[{i}].device = '{node.device}'{unknown(node.device)} ({give})"
    if len({is_cpu(node.device) for node in job.cluster.nodes}) == 2:
        yield "cluster.nodes mixes CPU ranks and GPUs; a job must have either CPU nodes only or GPU nodes only"
    if bool(objective.minimize) == bool(objective.maximize):
        yield "objective must have either minimize or maximize, and not both"
    for name, source in job.launch.metrics.items():
        yield from _metric_problems(f"launch.metrics.{name}", source)
    yield from _guard_problems(job.guard)
    if job.launch.launcher == "replay" and not job.launch.recorded:
        yield "launch.launcher = 'replay' needs launch.recorded, the journal with the recorded answers"
    if not (0 <= job.budget.failures < 1 or (job.budget.failures >= 1 and job.budget.failures.is_integer())):
        yield (
            f"budget.failures = {job.budget.failures:g} must be a share of the experiments (from 0, the default, "
            "to below 1) or a whole number of experiments (1 or more)"
        )
    for name in ("wall", "device_time"):
        if seconds(getattr(job.budget, name)) <= 0:
            yield f"budget.{name} = '{getattr(job.budget, name)}' allows no experiment; give a longer time"


def _guard_problems(guard: Guard) -> typing.Iterator[str]:
    if not guard.command:
        if guard != Guard():
            yield "guard needs a command that prints a number; set guard.command"
        return
    try:
        if not re.compile(guard.pattern).groups:
            yield "guard.pattern needs a group for the number, such as 'acc = ([\\d.]+)'"
    except re.error as error:
        yield f"guard.pattern: '{guard.pattern}' is not a valid pattern ({error})"
    if guard.at_least is None and guard.at_most is None:
        yield "guard needs a limit for the number that guard.command prints; set guard.at_least or guard.at_most"


def _metric_problems(where: str, source: str | MetricSource) -> typing.Iterator[str]:
    if isinstance(source, str):
        source = MetricSource(pattern=source)
    ways = [way for way in (source.pattern, source.between, source.counter, source.json) if way]
    if len(ways) != 1:
        yield f"{where} needs exactly one of the settings pattern, between, counter and json"
    for pattern in (source.pattern, source.between, source.counter):
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            yield f"{where}: '{pattern}' is not a valid pattern ({error}); literal brackets and dots need a backslash"
        else:
            if pattern and pattern in (source.pattern, source.counter) and not compiled.groups:
                yield f"{where}: '{pattern}' has no group; put the number's pattern in parentheses: ([\\d.]+)"


def _model_problems(model: Model) -> typing.Iterator[str]:
    yield from _negative("model", model, (*_NOT_NEGATIVE, "windowed_layers"))
    for name in ("layers", "hidden", "heads", "vocab"):
        if not getattr(model, name):
            yield f"model.{name} is missing or 0; set it"
    yield from _not_positive("model", model, ("layers", "hidden", "heads", "vocab"))
    for name, most in _MOST.items():
        if getattr(model, name) > most:
            yield f"model.{name} = {getattr(model, name)} is more than any model has; at most {most:,} can be tuned"
            return  # the next checks divide by this value
    if model.experts:
        yield from _not_positive("model", model, ("topk",))
    if model.hidden % model.heads and not (model.head_dim or model.latent):
        yield f"model.hidden {model.hidden} is not a multiple of model.heads {model.heads}; give model.head_dim"
    if model.kv_heads and model.heads % model.kv_heads:
        yield (
            f"model.heads {model.heads} is not a multiple of model.kv_heads {model.kv_heads}; correct one of the two"
        )
    head_dim = model.head_dim or model.hidden // model.heads
    if model.position == "rope" and not model.latent and head_dim % 2:
        yield f"rotary positions need an even head size, but here it is {head_dim}; correct model.head_dim"
    if model.experts and model.topk > model.experts:
        yield f"model.topk {model.topk} is more than model.experts {model.experts}; correct one of the two"


def _traffic_problems(job: Job) -> typing.Iterator[str]:
    traffic = job.traffic
    for name, most in _MOST_TRAFFIC.items():
        if getattr(traffic, name) > most:
            yield f"traffic.{name} = {getattr(traffic, name)} is more than any run has; at most {most:,} can be tuned"
    if job.task != "serve":  # a user's script or the knobs may determine batch and sequence length
        own = job.launch.command or job.launch.script or job.task == "rl"
        refused = _negative if own else _not_positive
        yield from refused("traffic", traffic, ("seq_len", "global_batch"))
        return
    yield from _negative("traffic", traffic, ("rate", "concurrency", "shared_prefix", "requests"))
    if job.launch.draft and not job.launch.draft.model and job.launch.draft.method != "mtp":
        yield f"launch.draft.method = '{job.launch.draft.method}' needs launch.draft.model, the draft model's folder"
    if traffic.sessions:
        yield from _session_problems(traffic, traffic.sessions)
    if traffic.rate and traffic.concurrency:
        yield "traffic has both rate (open loop) and concurrency (closed loop); keep one of them"
    if not (traffic.rate or traffic.concurrency or _traced(traffic)):
        yield "traffic of a serving job needs rate, concurrency or a trace; set one of them"
    for name in ("input_len", "output_len"):
        lengths = getattr(traffic, name)
        lengths = lengths if isinstance(lengths, list) else [lengths]
        if not _traced(traffic) and not (lengths and min(lengths) > 0):
            yield f"traffic.{name} = {getattr(traffic, name)} must be more than 0 (or give a trace)"
        if lengths != sorted(lengths):
            yield f"traffic.{name} must give quantiles from the smallest to the largest: {sorted(lengths)}"


def _session_problems(traffic: Traffic, sessions: Sessions) -> typing.Iterator[str]:
    yield from _not_positive("traffic.sessions", sessions, ("groups",))
    yield from _negative("traffic.sessions", sessions, ("think_s", "sub_calls"))
    turns = sessions.turns if isinstance(sessions.turns, list) else [sessions.turns]
    if not turns or min(turns) < 1 or turns != sorted(turns):
        yield f"traffic.sessions.turns = {sessions.turns} must be at least 1; quantiles must be in ascending order"
    if sessions.groups > 1 and not traffic.shared_prefix:
        yield (
            "the sessions of a group share a prefix (traffic.sessions.groups); set its length in traffic.shared_prefix"
        )
    if _traced(traffic):
        yield (
            "traffic has both sessions and a trace; remove traffic.sessions, because a trace with block hashes "
            "defines its own sessions"
        )


def _not_positive(where: str, struct: Any, names: tuple[str, ...]) -> typing.Iterator[str]:
    for name in names:
        value = getattr(struct, name)
        if value <= 0:
            yield f"{where}.{name} = {value} must be more than 0"


def _negative(where: str, struct: Any, names: tuple[str, ...]) -> typing.Iterator[str]:
    for name in names:
        value = getattr(struct, name)
        if value < 0:
            yield f"{where}.{name} = {value} must not be negative"
