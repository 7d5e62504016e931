"""The files of one experiment's folder: the ranks' input and their results.

experiment.json is written before the ranks start; each rank R leaves rank-R.log and either rank-R.json (the
measurement) or rank-R.error.json. Together they are enough for the target to rebuild the Measurement.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from kb.records import AutoscoutError, Configuration, Measurement

_LEFT = ("rank-*", "launcher.log", "effective.json", "server.json")  # files that an earlier attempt may have left
_LAST = 2**20


class About(msgspec.Struct, frozen=True, kw_only=True):
    """The description of the experiment in experiment.json, which also contains the worker's input."""

    configuration: Configuration
    name: str
    context: str
    environment: dict[str, str]
    ranks: int


class RankError(msgspec.Struct, frozen=True, kw_only=True):
    """An exception that a rank recorded. `phase`: import, groups (process groups are created), config, build (of the
    model) or train; `steps`: number of completed iterations."""

    rank: int = -1
    type: str
    message: str
    traceback: str
    in_megatron: bool  # whether Megatron's code is in the traceback
    phase: str
    steps: int
    time: float
    memory: dict[str, float] = {}  # of the device: free_gib before the first allocation, total_gib, peak reserved_gib


@contextlib.contextmanager
def writing(place: Path | str) -> Iterator[None]:
    """Raises AutoscoutError in place of OSError (a full disk, for example)."""
    try:
        yield
    except OSError as error:
        problem = f"cannot write the experiment's files ({error.strerror})"
        raise AutoscoutError(f"{place}: {problem}; free some space, or make the folder writable") from error


def prepare(folder: Path, about: About, worker: dict[str, Any]) -> Path:
    """Removes the files of an earlier attempt and writes experiment.json; returns its path. Errors: AutoscoutError if
    the folder cannot be written."""
    experiment = folder / "experiment.json"
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for stale in [path for pattern in _LEFT for path in folder.glob(pattern)]:
            stale.unlink()
        part = folder / "experiment.json.part"
        part.write_bytes(msgspec.json.encode({"about": about, **worker}))
        os.replace(part, experiment)
    return experiment


def in_context(found: Measurement, about: About, started: float, cost_s: float, devices: int) -> Measurement:
    """Adds the experiment's description and cost to a measurement. `started`: unix time; `cost_s`: seconds of wall
    time; `devices`: number of devices in use."""
    return msgspec.structs.replace(
        found,
        context=about.context,
        environment=about.environment,
        cost_s=cost_s,
        device_s=cost_s * devices,
        at=started + cost_s,
    )


def errors(folder: Path) -> list[RankError]:
    found = []
    for path in folder.glob("rank-*.error.json"):
        error = msgspec.json.decode(path.read_bytes(), type=RankError)
        found.append(msgspec.structs.replace(error, rank=int(path.name.split(".")[0].removeprefix("rank-"))))
    return sorted(found, key=lambda error: error.time)


def logs(folder: Path) -> dict[int, str]:
    """Rank (-1: the launcher) → the last _LAST bytes of its output."""
    found = {}
    for path in folder.glob("*.log"):
        number = path.stem.removeprefix("rank-")
        with contextlib.suppress(OSError), open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST))
            found[int(number) if number.isdigit() else -1] = file.read().decode(errors="replace")
    return dict(sorted(found.items()))


def log_tail(folder: Path, rank: int) -> str:
    """The last line that a rank printed; "" if there is none."""
    try:
        lines = (folder / f"rank-{rank}.log").read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].strip() if lines else ""
