"""Phases of an RL iteration, for trainers with their own timers. Code in the run's processes (worker/iterations) wraps
these timers, and each rank writes a JSON line per iteration."""

import os
import statistics
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from autoscout.space.attributes import attributes_of
from autoscout.space.language.expression import Expression
from autoscout.targets.command.preset import Preset, preset_of
from autoscout.targets.command.worker.iterations.phase_clock import PHASES
from autoscout.targets.jobs import declared
from kb import door
from kb.records import Configuration, Job, Measurement

FOLDER = Path(__file__).parent / "worker" / "iterations"
_PARTS = tuple(f"{phase}_s" for phase in PHASES)


def variables(preset: Preset, environment: Mapping[str, str]) -> dict[str, str]:
    """Returns environment variables that make the run's Python processes time their iterations; {} for other trainers.
    `environment`: the job's variables."""
    if not preset.phases:
        return {}
    before = environment.get("PYTHONPATH") or os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(FOLDER), *([before] if before else [])])}


def updates(job: Job, configuration: Configuration) -> int:
    """Returns the optimizer steps per iteration; 1 for trainers other than RL trainers."""
    names = declared(job).derived
    if not preset_of(job).phases or "updates" not in names:
        return 1
    return int(Expression("updates", names)({**attributes_of(job), **configuration.knobs}))


def forget(folder: Path) -> None:
    """Deletes the phase files of an earlier attempt."""
    for path in folder.glob("iterations-*.jsonl"):
        path.unlink()


def of_all_ranks(found: Measurement, folder: Path, job: Job) -> Measurement:
    """Returns the measurement with each phase's mean time added, per rank and over all ranks. Means are over iterations
    after warm-up, scaled to the median iteration. The status becomes "wrong" if the iterations do not have the job's
    number of samples."""
    warm = int(found.conditions.get("warmup_iterations", 1))
    ranks = []
    for path in sorted(folder.glob("iterations-*.jsonl"), key=lambda path: int(path.stem.rpartition("-")[2])):
        lines = [door.parsed_json(line) for line in path.read_bytes().splitlines(keepends=True) if line[-1:] == b"\n"]
        ranks.append(lines[warm:] or lines[-1:])
    if not ranks or not all(ranks):
        return found
    by_rank = {part: [statistics.fmean(line[part] for line in lines) for lines in ranks] for part in _PARTS}
    whole = statistics.fmean(line["step_time_s"] for line in ranks[0])
    share = found.metrics.get("step_time_s", whole) / whole
    metrics = {part: statistics.fmean(values) * share for part, values in by_rank.items()}
    metrics["idle_share"] = metrics["wait_s"] / whole / share
    found = replace(found, metrics={**found.metrics, **metrics}, per_rank={**found.per_rank, **by_rank})
    samples, wanted = ranks[0][0].get("samples", 0), job.traffic.global_batch
    fresh = updates(job, found.configuration) / ranks[0][0].get("passes", 1)
    if not samples or not wanted or round(wanted * fresh) == samples:
        return found
    return replace(
        found,
        status="wrong",
        evidence=f"an iteration drew {samples} answers, but traffic.global_batch = {wanted} needs "
        f"{wanted * fresh:g}: either the ranks are not connected (on CPUs, TRL needs --use_cpu), or the "
        "launch line has a different batch size",
    )
