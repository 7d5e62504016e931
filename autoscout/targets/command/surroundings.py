"""Describes the environment of a user's own command: package versions, the device, and a hash of the code. Measurements
are comparable only if all three are equal, so an edit of the script invalidates earlier measurements."""

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from autoscout.line.containers import ENVIRONMENTS
from autoscout.line.launch_line import Line
from autoscout.running import interpreter
from autoscout.running.cluster import gpus
from autoscout.running.cluster.devices import SEPARATOR, device_kind
from autoscout.targets.command.arguments import Started, command_of
from autoscout.targets.command.preset import preset_of
from autoscout.targets.current_launch import command_line
from kb.records import AutoscoutError, Job, content_hash

_PACKAGES = (
    *("torch", "megatron-core", "transformer-engine", "deepspeed", "transformers", "accelerate", "trl", "peft"),
    *("llamafactory", "axolotl", "ms-swift", "litgpt", "nanotron", "torchtitan", "torchtune", "verl", "vllm"),
    *("sglang", "tensorrt-llm", "jax", "flash-attn", "triton"),
)
_PROBE = """import importlib.metadata as m, json, platform
found = {"python": platform.python_version()}
for name in NAMES:
    try: found[name] = m.version(name)
    except m.PackageNotFoundError: pass
print(json.dumps(found))
"""
_WORD = re.compile(r"[\w./-]+")
# Matches the first word of each command in a shell script, after shell keywords and variable assignments.
_STARTS = re.compile(
    r"(?:^|[;&|(\n])\s*(?:(?:do|then|else|until|while|if|exec|time|nohup)\s+|\w+=\S*[ \t]+)*"
    r"([A-Za-z_./][\w./-]*)(?=[\s;&|)]|$)"
)
_LARGEST = 2**20  # maximum size in bytes of a file that is hashed as code


def variables(job: Job, started: Started) -> dict[str, str]:
    """Returns the command's environment variables: those of this process, plus the job's. PATH begins with the folder
    of `launch.python` and ends with the folder of AutoScout's interpreter, so that no virtual environment has to be
    activated."""
    found = {**os.environ, "PYTHONUNBUFFERED": "1", **started.environment}
    first = [str(Path(job.launch.python).absolute().parent)] if job.launch.python else []
    path = [*first, found.get("PATH", os.defpath), str(Path(sys.executable).parent)]
    return {**found, "PATH": os.pathsep.join(path)}


def describe(job: Job, started: Started) -> dict[str, str]:
    """Returns package versions, devices, the hash of the code and the launcher, by name. Errors: AutoscoutError (exit
    2) if the command is not found or its interpreter fails."""
    cwd = Path(job.launch.path or ".")
    python = python_of(job, started)
    found: dict[str, str] = {}
    if python:
        found = interpreter.probe([python, "-c", _PROBE.replace("NAMES", repr(_PACKAGES))], python)
    kind = device_kind(job)
    devices = _cpu() if kind == "cpu" else _gpus()
    return {**found, **devices, "code": _code(job, started, cwd), "launcher": job.launch.launcher}


def found_program(name: str, cwd: Path, environment: dict[str, str]) -> str:
    """Returns the program's path. Errors: AutoscoutError (exit 2) if it is not found."""
    if not cwd.is_dir():
        raise AutoscoutError(
            f"launch.path: {cwd} is not a folder on this machine; correct launch.path, or run AutoScout on the "
            "machine that has it",
            2,
        )
    if "/" in name and not name.startswith("/"):
        name = str(cwd.absolute() / name)
    found = shutil.which(name, path=environment.get("PATH"))
    if found is None:
        raise AutoscoutError(
            f"launch.command: '{name}' cannot be run here: it is not on the PATH; write its full path, or set "
            "launch.python to an interpreter in the same folder",
            2,
        )
    return found


def python_of(job: Job, started: Started) -> str:
    """Returns the interpreter that runs the command; "" if unknown, as in a container.

    Errors: AutoscoutError (exit 2) if the command is not found."""
    cwd, environment = Path(job.launch.path or "."), variables(job, started)
    program = found_program(started.line.words[0], cwd, environment)
    if job.launch.python:
        # As in variables(), a relative path is relative to AutoScout's working directory, not to the command's.
        return os.path.abspath(job.launch.python) if "/" in job.launch.python else job.launch.python
    own = interpreter.of_program(program, environment["PATH"])
    if own or _elsewhere(started.line):
        return own
    # Otherwise, take the first word that is a Python interpreter or script; the launcher starts it.
    words = (str(cwd.absolute() / word) if "/" in word else word for word in _words(started.line, cwd))
    found = (interpreter.of_program(word, environment["PATH"]) for word in words)
    if python := next(filter(None, found), ""):
        return python
    # The root of the launcher's virtual environment, if it is in one. Any other folder may have an unrelated `python`.
    root = Path(program).parent.parent
    if (root / "bin/python").is_file() and ((root / "pyvenv.cfg").is_file() or (root / "conda-meta").is_dir()):
        return str(root / "bin/python")
    return sys.executable if Path(program).name == "torchrun" else ""


def _elsewhere(line: Line) -> bool:
    """Whether the line uses a program that runs Python in an environment of its own."""
    return bool({*line.names} & {*ENVIRONMENTS}) or any(word.startswith("--container-image") for word in line.words)


def _words(line: Line, cwd: Path) -> Sequence[str]:
    """Returns the words after a line's program; for a shell, the words of its script."""
    if line.first not in ("bash", "sh"):
        return line.words[1:]
    if line.words[1:2] == ("-c",):
        return _WORD.findall(line.words[2])
    try:
        return _WORD.findall((cwd / line.words[1]).read_text())
    except (OSError, UnicodeDecodeError, IndexError):
        return []


def lacking(job: Job) -> list[str]:
    """Returns the missing programs of a shell command, including the server that a preset starts. Without this check,
    the command would wait for the missing server until its time limit."""
    text = command_of(job)
    line = command_line(job)
    if not line.for_shell and preset_of(job).served is None:
        return []
    path = variables(job, Started(line=line, environment=job.launch.environment, files={}))["PATH"]
    names = dict.fromkeys(name for name in _STARTS.findall(text) if not re.search(rf"\b{re.escape(name)}\s*\(\)", text))
    names = names if line.for_shell else dict.fromkeys(line.words[:1])
    known = subprocess.run(
        ["bash", "-c", 'for name; do type -- "$name" >/dev/null 2>&1 && echo "$name"; done', "-", *names],
        cwd=job.launch.path or ".",
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    ).stdout.split("\n")
    return [name for name in names if name not in known]


def _cpu() -> dict[str, str]:
    text = ""
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text()
    model = re.search("^model name[^:]*:(.*)", text, re.MULTILINE)
    return {"device": model[1].strip() if model else "cpu", "devices": str(len(os.sched_getaffinity(0)))}


def _gpus() -> dict[str, str]:
    """Returns the GPUs by the driver's names; {} without a driver, since the command itself will report the problem."""
    seen = gpus.look()
    if not seen:
        return {}
    names = [gpu.name for gpu in seen]
    return {
        "device": " + ".join(sorted(set(names))),
        "devices": str(len(names)),
        "gpus": SEPARATOR.join(names),
        "driver": gpus.driver(),
    }


def _code(job: Job, started: Started, cwd: Path) -> str:
    """Returns a hash of the command, its code files and templates, and the patterns of metrics."""
    digest = hashlib.sha256()
    launch = job.launch
    preset = preset_of(job)
    digest.update(
        content_hash(
            [
                command_of(job),
                launch.environment,
                msgspec.to_builtins(launch.metrics),
                msgspec.to_builtins(preset.metrics),
                preset.measuring,
                *([msgspec.to_builtins(preset.same_model)] if preset.same_model else []),
            ]
        ).encode()
    )
    for name in [*started.words, *(rendered.origin for rendered in launch.render)]:
        path = cwd / name
        try:
            if path.is_file() and path.stat().st_size <= _LARGEST and not os.access(path, os.X_OK):
                digest.update(path.read_bytes())
        except (OSError, ValueError):
            continue
    head = cwd / ".git" / "HEAD"
    if head.is_file():
        digest.update(head.read_bytes())
    return digest.hexdigest()[:8]
