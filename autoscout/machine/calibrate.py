"""Implements `autoscout calibrate`: measures this machine and writes a device record in the format of
fixtures/hardware.

The micro-benchmarks (microbench.py) run with the target's interpreter in a separate process, which ends when this
process ends. Constants that a single machine cannot measure (the network between nodes; links if it has only one
device) come from a shipped record."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from autoscout.job.toml_text import toml
from autoscout.machine.device_fits import Groups, fit_record
from autoscout.running import processes
from kb.records import AutoscoutError

_GRACE_S = 2.0  # seconds that a process gets to exit before it is killed
_SCRIPT = Path(__file__).parent / "microbench.py"


class Calibration(msgspec.Struct, frozen=True):
    """The result of a calibration. `record`: content of the device's file; `errors`: mean relative error of each fit on
    the rows that it was fitted to; `took_s`: duration in seconds."""

    device: str
    record: dict[str, Any]
    errors: dict[str, float]
    took_s: float


def calibrate(python: list[str], name: str, quick: bool, progress: Callable[[str], None]) -> Calibration:
    """Measures the machine with the interpreter `python` (a command). `name`: the name of the device record; "": "cpu"
    or the GPU's name.

    Errors: AutoscoutError (exit 2) if the interpreter does not exist or lacks torch, (exit 1) if a benchmark fails."""
    began = time.monotonic()
    groups = measure(python, quick, progress)
    facts = groups["device"][0]
    chosen = name or ("cpu" if facts["kind"] == "cpu" else "-".join(re.findall(r"[\w.-]+", facts["name"].lower())))
    record, errors = fit_record(groups, name)
    return Calibration(chosen, record, errors, time.monotonic() - began)


def write(calibration: Calibration, folder: Path) -> Path:
    """Writes the record to a file in `folder`, atomically; returns its path."""
    path = folder / f"{calibration.device}.toml"
    fits = ", ".join(f"{group} {error:.0%}" for group, error in calibration.errors.items())
    head = f"Measured by `autoscout calibrate` on this machine; mean errors of the fits: {fits}"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".part", delete=False) as file:
        file.write(toml(_rounded(calibration.record), [head]))
    os.replace(file.name, path)
    return path


def _rounded(value: Any) -> Any:
    """Rounds numbers to six significant digits, which exceeds the measurements' precision."""
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def measure(python: list[str], quick: bool, progress: Callable[[str], None]) -> Groups:
    """Runs microbench.py and returns its rows by group."""
    if shutil.which(python[0]) is None:
        raise AutoscoutError(f"{python[0]}: there is no such interpreter; give one that has torch with --python", 2)
    command = [*python, str(_SCRIPT), "auto", "1" if quick else "0", str(processes.WORKER / "leash.py")]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            processes.leashed(command),
            stdout=subprocess.PIPE,
            stderr=errors,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        try:
            groups = _read(process, progress)
            code = process.wait()
        finally:
            processes.end(process, _GRACE_S)
        errors.seek(0)
        lines = errors.read().decode(errors="replace").strip().splitlines()
    if code:
        raise _failure(python, code, lines)
    return groups


def _read(process: subprocess.Popen[bytes], progress: Callable[[str], None]) -> Groups:
    groups: Groups = {}
    assert process.stdout is not None
    for line in process.stdout:
        with contextlib.suppress(json.JSONDecodeError):
            found = json.loads(line)
            groups[found["group"]] = found["rows"]
            progress(f"measured: {found['group']}")
    return groups


def _failure(python: list[str], code: int, lines: list[str]) -> AutoscoutError:
    last = lines[-1] if lines else f"exit code {code}"
    if "No module named 'torch'" in last:
        return AutoscoutError(
            f"{' '.join(python)}: the interpreter has no torch; install torch, or name a different "
            "interpreter with --python",
            2,
        )
    return AutoscoutError(f"the micro-benchmarks failed: {last}")
