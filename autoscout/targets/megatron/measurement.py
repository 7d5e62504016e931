"""Creates an experiment's measurement from the result files of its ranks."""

import itertools
import json
import math
import statistics
from pathlib import Path
from typing import Any

import msgspec

from autoscout.job.lengths import mean
from autoscout.running import early
from autoscout.running.results import About
from kb.records import Measurement
from kb.sharing import hosts

_OF_RANKS = ("step_time_s", "alone_s", "cpu_s", "peak_memory_gib", "reserved_memory_gib", "allocated_memory_gib")


def measurement(folder: Path) -> Measurement | None:
    """Returns the measurement of a finished experiment from its folder; None if a rank's result is missing. Ranks that
    were killed after writing their results do not matter."""
    try:
        experiment = json.loads((folder / "experiment.json").read_bytes())
        about = msgspec.convert(experiment["about"], About)
        ranks = [json.loads((folder / f"rank-{rank}.json").read_bytes()) for rank in range(about.ranks)]
    except (OSError, KeyError, ValueError, msgspec.ValidationError):
        return None
    kinds = experiment.get("kinds") or [rank.get("device", "") for rank in ranks]
    step = statistics.median(ranks[0]["iterations_s"])
    memory = [rank["peak_memory_gib"] for rank in ranks]
    at = max(rank["time"] for rank in ranks)
    cost = max(rank.get("took_s", 0.0) for rank in ranks)
    losses, grad_norms = _finite(ranks[0]["losses"]), _finite(ranks[0]["grad_norms"])
    ended = ranks[0].get("ended", "")
    diverged = len(losses) < len(ranks[0]["losses"]) or len(grad_norms) < len(ranks[0]["grad_norms"])
    return Measurement(
        configuration=about.configuration,
        name=about.name,
        context=about.context,
        status="wrong" if diverged else "ok",
        evidence=f"not finite: losses {ranks[0]['losses']}, gradient norms {ranks[0]['grad_norms']}"
        if diverged
        else ended,
        fidelity="short" if ended else "measured",
        metrics={
            "step_time_s": step,
            "step_time_min_s": min(ranks[0]["iterations_s"]),
            "tokens_per_s": _tokens(experiment) / step,
            "peak_memory_gib": max(memory),
            "cpu_s": sum(rank["cpu_s"] for rank in ranks),
            **_parts(ranks),
            **_energy(ranks, _tokens(experiment)),
            **_of_the_start(ranks),
        },
        iterations_s=ranks[0]["iterations_s"],
        losses=losses,
        grad_norms=grad_norms,
        rank_memory_gib=memory,
        per_rank={name: [rank[name] for rank in ranks] for name in _OF_RANKS if all(name in rank for rank in ranks)},
        rank_devices=[
            f"{_host(rank)}:{kind}:{rank['index']}" for rank, kind in zip(ranks, kinds, strict=True) if "index" in rank
        ],
        conditions={
            "warmup_iterations": float(len(ranks[0].get("warmup_s", []))),
            **early.conditions(ranks[0]["iterations_s"], bool(ended)),
        },
        cost_s=cost,
        device_s=cost * about.ranks,
        environment=about.environment,
        at=at,
    )


def _energy(ranks: list[dict[str, Any]], tokens: float) -> dict[str, float]:
    """Returns joules per token (`tokens`: of an iteration); {} unless the driver reports energy for every rank."""
    if not all("energy_j" in rank for rank in ranks):
        return {}
    return {"joules_per_token": sum(rank["energy_j"] for rank in ranks) / tokens}


def _parts(ranks: list[dict[str, Any]]) -> dict[str, float]:
    """Returns part of a step (worker/step_clock.py) → mean seconds over ranks; {} if a rank reports none. The mean is
    used because ranks of a pipeline wait at different times."""
    parts = [rank.get("parts_s") or {} for rank in ranks]
    return {name: statistics.fmean(each[name] for each in parts) for name in parts[0] if all(name in p for p in parts)}


def _tokens(experiment: dict[str, Any]) -> float:
    """Returns tokens per step without padding."""
    flags = experiment["arguments"]
    if lengths := experiment.get("lengths"):
        return experiment["samples"] * mean(lengths)
    return flags["--global-batch-size"] * flags["--seq-length"]


def _of_the_start(ranks: list[dict[str, Any]]) -> dict[str, float]:
    """Returns start-up phase → seconds on the slowest rank. The first step includes compilation and allocation."""
    names = [name for name in ranks[0] if name.startswith("start_")]
    parts = {name: max(rank[name] for rank in ranks) for name in names}
    first = [rank["warmup_s"][0] for rank in ranks if rank.get("warmup_s")]
    return {**parts, **({"start_first_step_s": max(first)} if first else {})}


def _host(rank: dict[str, Any]) -> str:
    """Returns the host's name as stored: hashed, unless the user chose otherwise."""
    return hosts.named(str(rank.get("host", ""))).replace(":", "-")


def _finite(values: list[float]) -> list[float]:
    """Returns the values before the first NaN or infinity, which JSON cannot represent."""
    return list(itertools.takewhile(math.isfinite, values))
