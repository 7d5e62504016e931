"""From what the ranks of an experiment left in its folder to its measurement."""

import itertools
import json
import math
import statistics
from pathlib import Path
from typing import Any

import msgspec

from autoscout.running.results import About
from kb.records import Measurement


def measurement(folder: Path) -> Measurement | None:
    """The measurement of a finished experiment from its folder alone; None when it is not complete.

    Complete means that every rank's result is there, whoever was killed afterwards.
    """
    try:
        experiment = json.loads((folder / "experiment.json").read_bytes())
        about = msgspec.convert(experiment["about"], About)
        ranks = [json.loads((folder / f"rank-{rank}.json").read_bytes()) for rank in range(about.ranks)]
    except (OSError, KeyError, ValueError, msgspec.ValidationError):
        return None
    flags = experiment["arguments"]
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
            "tokens_per_s": flags["--global-batch-size"] * flags["--seq-length"] / step,
            "peak_memory_gib": max(memory),
            "cpu_s": sum(rank["cpu_s"] for rank in ranks),
            **_energy(ranks, flags["--global-batch-size"] * flags["--seq-length"]),
        },
        iterations_s=ranks[0]["iterations_s"],
        losses=losses,
        grad_norms=grad_norms,
        rank_memory_gib=memory,
        per_rank={
            name: [rank[name] for rank in ranks]
            for name in ("reserved_memory_gib", "allocated_memory_gib")
            if all(name in rank for rank in ranks)
        },
        cost_s=cost,
        device_s=cost * about.ranks,
        environment=about.environment,
        at=at,
    )


def _energy(ranks: list[dict[str, Any]], tokens: int) -> dict[str, float]:
    """`tokens` of an iteration; {} where the driver does not tell it of every rank."""
    if not all("energy_j" in rank for rank in ranks):
        return {}
    return {"joules_per_token": sum(rank["energy_j"] for rank in ranks) / tokens / len(ranks[0]["iterations_s"])}


def _finite(values: list[float]) -> list[float]:
    """The values before the first NaN or infinity, which JSON has no words for."""
    return list(itertools.takewhile(math.isfinite, values))
