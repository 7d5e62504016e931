"""The recorded session of a 1.1B model on one H100 (docs/lab/gpu-check.md): what is predicted beside what was measured.

No constant is fitted to it.
"""

import json
import statistics
from pathlib import Path

import msgspec
import pytest

from autoscout.simulate.ensemble import Simulators
from autoscout.simulate.training.memory import estimate_gib
from autoscout.space.attributes import attributes_of
from autoscout.targets.jobs import JobSpace, simulators_of
from kb.records import Job, Measurement

RECORDED = Path(__file__).parents[2] / "fixtures" / "recorded" / "h100-session.jsonl"
EVENTS = [json.loads(line) for line in RECORDED.read_text().splitlines()]
JOB = msgspec.convert(next(e["job"] for e in EVENTS if e["type"] == "session_started"), Job)
SEARCHED = [e for e in EVENTS if e["type"] == "experiment_ended" and e["purpose"] == "search"]
MEASURED = [msgspec.convert(e["measurement"], Measurement) for e in SEARCHED]


@pytest.fixture(scope="module")
def ratios() -> dict[str, float]:
    """Predicted seconds of a step over measured ones, by configuration."""
    # The space of the catalog's release, which measured it, whichever is installed.
    job = msgspec.structs.replace(JOB, launch=msgspec.structs.replace(JOB.launch, command_prefix=["env"]))
    simulators = Simulators(job, JobSpace.of_job(job), [], bases=lambda: simulators_of(job))
    found = simulators.ensemble.predict(simulators.columns([m.configuration for m in MEASURED])).value
    return {m.name: float(v) / m.metrics["step_time_s"] for m, v in zip(MEASURED, found, strict=True)}


def test_every_step_is_predicted_within_a_tenth_unless_the_host_decides(ratios: dict[str, float]) -> None:
    assert len(ratios) == 9
    assert all(0.9 < ratio < 1.1 for name, ratio in ratios.items() if "mbs1" not in name), ratios
    assert all(ratio > 0.75 for ratio in ratios.values()), ratios


def test_what_recomputation_costs_is_told_whatever_it_repeats(ratios: dict[str, float]) -> None:
    """Of micro batches of four and more; with one the host of that machine is slower than the GPU."""
    filling = [ratio for name, ratio in ratios.items() if "mbs1" not in name]
    usual = statistics.median(filling)
    assert all(abs(ratio / usual - 1) < 0.05 for ratio in filling), ratios


def test_memory_is_foretold_within_a_tenth_whatever_is_recomputed() -> None:
    for m in MEASURED:
        assert estimate_gib(attributes_of(JOB), m.configuration) == pytest.approx(m.metrics["peak_memory_gib"], rel=0.1)
