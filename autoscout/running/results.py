"""The files of one experiment's folder: what the ranks are told and what they leave behind.

experiment.json is written before the ranks start; each leaves rank-R.log and either rank-R.json (the
measurement) or rank-R.error.json. Together they are enough to rebuild the Measurement.
"""

import contextlib
import itertools
import json
import math
import os
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from autoscout.targets.vllm import measurement
from kb.records import AutoscoutError, Configuration, Measurement

_LEFT = ("rank-*", "launcher.log", "effective.json", "server.json")  # by an earlier attempt


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What experiment.json says about the experiment, beside what the worker needs."""

    configuration: Configuration
    name: str
    context: str
    environment: dict[str, str]
    ranks: int
    started: float  # unix time


class RankError(msgspec.Struct, frozen=True, kw_only=True):
    """An exception in one rank. `phase`: import, groups, config, build or train; `steps`: iterations done."""

    rank: int = -1
    type: str
    message: str
    traceback: str
    in_megatron: bool  # raised in Megatron's code or below it
    phase: str
    steps: int
    time: float


@contextlib.contextmanager
def writing(place: Path | str) -> Iterator[None]:
    """Turns the operating system's refusal (disk full, …) into AutoscoutError."""
    try:
        yield
    except OSError as error:
        raise AutoscoutError(f"{place}: cannot write the experiment's files ({error.strerror})") from error


def prepare(folder: Path, about: About, worker: dict[str, Any]) -> Path:
    """Empties the folder of an earlier attempt and writes experiment.json; returns its path.

    Errors: AutoscoutError when the folder cannot be written.
    """
    experiment = folder / "experiment.json"
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for stale in [path for pattern in _LEFT for path in folder.glob(pattern)]:
            stale.unlink()
        part = folder / "experiment.json.part"
        part.write_bytes(msgspec.json.encode({"about": about, **worker}))
        os.replace(part, experiment)
    return experiment


def collect(folder: Path) -> Measurement | None:
    """The measurement of a finished experiment from its folder alone; None when it is not complete.

    Complete means that every rank's result is there, whoever was killed afterwards.
    """
    try:
        experiment = json.loads((folder / "experiment.json").read_bytes())
        about = msgspec.convert(experiment["about"], About)
        ranks = [json.loads((folder / f"rank-{rank}.json").read_bytes()) for rank in range(about.ranks)]
    except (OSError, KeyError, ValueError, msgspec.ValidationError):
        return None
    if "plan" in experiment:
        return measurement.measurement(folder, about, ranks[0], collect)
    step = statistics.median(ranks[0]["iterations_s"])
    memory = [rank["peak_memory_gib"] for rank in ranks]
    at = max(rank["time"] for rank in ranks)
    cost = max(0.0, at - about.started)
    losses, grad_norms = _finite(ranks[0]["losses"]), _finite(ranks[0]["grad_norms"])
    diverged = len(losses) < len(ranks[0]["losses"]) or len(grad_norms) < len(ranks[0]["grad_norms"])
    return Measurement(
        configuration=about.configuration,
        name=about.name,
        context=about.context,
        status="wrong" if diverged else "ok",
        evidence=f"not a number: losses {ranks[0]['losses']}, gradient norms {ranks[0]['grad_norms']}"
        if diverged
        else "",
        metrics={
            "step_time_s": step,
            "step_time_min_s": min(ranks[0]["iterations_s"]),
            "tokens_per_s": experiment["global_batch"] * experiment["seq_len"] / step,
            "peak_memory_gib": max(memory),
            "cpu_s": sum(rank["cpu_s"] for rank in ranks),
        },
        iterations_s=ranks[0]["iterations_s"],
        losses=losses,
        grad_norms=grad_norms,
        rank_memory_gib=memory,
        cost_s=cost,
        device_s=cost * about.ranks,
        environment=about.environment,
        at=at,
    )


def _finite(values: list[float]) -> list[float]:
    """The values before the first NaN or infinity, which JSON has no words for."""
    return list(itertools.takewhile(math.isfinite, values))


def errors(folder: Path) -> list[RankError]:
    """What the ranks wrote about their exceptions, first error first."""
    found = []
    for path in folder.glob("rank-*.error.json"):
        error = msgspec.json.decode(path.read_bytes(), type=RankError)
        found.append(msgspec.structs.replace(error, rank=int(path.name.split(".")[0].removeprefix("rank-"))))
    return sorted(found, key=lambda error: error.time)


def log_tail(folder: Path, rank: int) -> str:
    """The last line that a rank printed; "" when it printed none."""
    try:
        lines = (folder / f"rank-{rank}.log").read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].strip() if lines else ""
