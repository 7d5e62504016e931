"""Drafts a job file from a user's answers to a few questions, for the first session in the terminal UI.

The code of `autoscout init` interprets the model or launch command and the devices; the answers correct it."""

import shutil
from pathlib import Path
from typing import Any

import msgspec

from autoscout.job.device_names import is_cpu
from autoscout.job.duration import seconds
from autoscout.job.objective import constraint
from autoscout.job.toml_text import toml
from autoscout.line.launch_line import split
from autoscout.machine.devices_here import NO_GPU, times_on_gpus
from autoscout.machine.starting import described
from autoscout.targets.guessed_load import REVIEW_PROMISE
from autoscout.targets.target import target

_TRAINS = ("pretrain", "finetune")
# folders to search for other interpreters, relative to the current folder
_ENVIRONMENTS = (".venv", ".venv-vllm", "venv")
_SERVED = {"input_len": 512, "output_len": 128, "concurrency": 16}  # an ordinary chat load, for the user to replace


class ModelEngine(msgspec.Struct, frozen=True, kw_only=True):
    """A target that can run a model of a given shape. `python`: the interpreter in which it is installed; "":
    AutoScout's. `missing`: how to install it; "" if it is installed."""

    name: str
    serves: bool
    found: str
    python: str = ""
    missing: str = ""


class JobAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """The user's answers. `source`: a preset's name, a config.json or its folder, or any other input of `init`. "" and
    0 keep the values that `init` chooses. `length`: tokens per sample (training) or per prompt (serving); `batch`:
    samples per step, or users; `limits`: constraints, separated by commas."""

    source: str
    engine: str = ""
    python: str = ""
    device: str = ""
    count: int = 0
    length: int = 0
    batch: int = 0
    limits: str = ""
    profiles: int = 30
    wall: str = "1h"


class Drafted(msgspec.Struct, frozen=True, kw_only=True):
    """A drafted job. `text`: content of the job file; `notes`: points for the user to review; `own`: whether the source
    is the user's launch command, so that this command determines the engine and the training data."""

    name: str
    text: str
    notes: list[str]
    own: bool
    job: dict[str, Any]


def engines(folder: Path) -> list[ModelEngine]:
    """The targets that can run a model of a given shape, installed ones first. No target is imported or started."""
    found = [_engine(name, "serve" in target(name).tasks, folder) for name in ("megatron", "vllm")]
    return sorted(found, key=lambda e: bool(e.missing))


def _engine(name: str, serves: bool, folder: Path) -> ModelEngine:
    kind = target(name)
    installed = kind.installed()
    if all(package in installed for package in kind.packages):
        return ModelEngine(name=name, serves=serves, found=", ".join(f"{p} {v}" for p, v in installed.items()))
    package = kind.packages[-1].replace("-", "_")
    places = [folder / place for place in _ENVIRONMENTS]
    if program := shutil.which(name):
        places.append(Path(program).resolve().parents[1])
    for place in places:
        if any(place.glob(f"lib/python*/site-packages/{package}*")) and (place / "bin/python").exists():
            return ModelEngine(name=name, serves=serves, found=f"in {place}", python=str(place / "bin/python"))
    return ModelEngine(name=name, serves=serves, found="not here", missing=kind.how)


def drafted(answers: JobAnswers, folder: Path) -> Drafted:
    """Drafts the job. Errors: AutoscoutError (exit 2) for a source that describes neither a model nor a launch, and for
    invalid constraints and times."""
    job, notes = _described(answers.source.strip(), folder)
    own = "current" in job.get("launch", {})
    if not own and answers.engine:
        _with_engine(job, answers)
    if answers.device or answers.count:
        nodes = job["cluster"]["nodes"]
        given = {"device": answers.device, "count": answers.count}
        job["cluster"]["nodes"] = [{**node, **{k: v for k, v in given.items() if v}} for node in nodes]
        notes = [note for note in notes if not note.startswith(NO_GPU)]
    if own and job["task"] == "serve":
        job["traffic"] |= {"input_len": answers.length} if answers.length else {}
        job["traffic"] |= {"concurrency": answers.batch} if answers.batch and "rate" not in job["traffic"] else {}
    if limits := [text.strip() for text in answers.limits.split(",") if text.strip()]:
        for text in limits:
            constraint(text)
        job["objective"]["constraints"] = limits
        notes = [note for note in notes if note != REVIEW_PROMISE]
    _precise(job, notes, own)
    seconds(answers.wall)
    job["budget"] = {"profiles": answers.profiles} | ({"wall": answers.wall} if answers.wall else {})
    known = ("traffic:", "export:") if job["task"] == "serve" else ("traffic:",)
    notes = [note for note in notes if own or not note.startswith(known)]
    return Drafted(name=job["name"], text=toml(job, notes), notes=notes, own=own, job=job)


def _precise(job: dict[str, Any], notes: list[str], own: bool) -> None:
    """Sets single precision for training on CPU ranks; on GPUs, Transformer Engine and a longer timeout."""
    cpu = all(is_cpu(node["device"]) for node in job["cluster"]["nodes"])
    if not own and cpu and "dtype" not in job["model"]:
        job["model"]["dtype"] = "fp32"
    elif not own and not cpu:
        job["model"].pop("dtype", None)
        notes[:] = [note for note in notes if not note.startswith("dtype:")]
    if own and not cpu:
        job["launch"] = times_on_gpus(job["target"]) | job["launch"]
    if not own:
        ours = ("transformer_engine", "timeout_s", "measure_s")
        launch = {name: value for name, value in job.pop("launch", {}).items() if name not in ours}
        launch |= {} if cpu or job["target"] != "megatron" else {"transformer_engine": True}
        launch |= {} if cpu else times_on_gpus(job["target"])
        job |= {"launch": launch} if launch else {}


def _described(source: str, folder: Path) -> tuple[dict[str, Any], list[str]]:
    path = folder / Path(source).expanduser()
    if path.is_dir() and (path / "config.json").is_file():
        path = path / "config.json"
    if path.is_file():
        return described([str(path)], folder)
    return described(split(source, "the launch line cannot be read"), folder)


def _with_engine(job: dict[str, Any], answers: JobAnswers) -> None:
    serves = "serve" in target(answers.engine).tasks and "pretrain" not in target(answers.engine).tasks
    job["target"] = answers.engine
    if serves:
        job["task"], job["objective"] = "serve", {"maximize": "output_tokens_per_s"}
        job["traffic"] = {
            **_SERVED,
            "input_len": answers.length or _SERVED["input_len"],
            "concurrency": answers.batch or _SERVED["concurrency"],
        }
    else:
        job["task"] = job["task"] if job["task"] in _TRAINS else "pretrain"
        job["traffic"] |= {"seq_len": answers.length} if answers.length else {}
        job["traffic"] |= {"global_batch": answers.batch} if answers.batch else {}
    if answers.python:
        job.setdefault("launch", {})["python"] = answers.python


def write(draft: Drafted, folder: Path) -> Path:
    """Writes the draft to NAME.toml in the folder, or NAME-2.toml etc. if a file with other content exists; returns the
    path. Errors: OSError."""
    number = 1
    while True:
        path = folder / (f"{draft.name}.toml" if number == 1 else f"{draft.name}-{number}.toml")
        if not path.exists():
            path.write_text(draft.text)
            return path
        if path.read_text(errors="replace") == draft.text:
            return path
        number += 1
