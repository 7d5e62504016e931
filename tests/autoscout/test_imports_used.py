"""What is imported for a job's neighbour is worth experiments, and makes predictions surer."""

from pathlib import Path

import msgspec

from autoscout.importing.bring_in import ImportOptions, bring_in_all
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.tuning import session
from autoscout.tuning.loop import Stop
from autoscout.tuning.predict import predict
from kb import journal, store

JOB = load_job(Path("fixtures/jobs/smallest-cpu-replay.toml"))
LONGER = msgspec.structs.replace(JOB, name="longer", traffic=msgspec.structs.replace(JOB.traffic, seq_len=128))
# Optuna 5.0.0 with random suggestions on fixtures/recorded/smallest-cpu.jsonl, in ms and 1.9 times as long.
STUDY = Path(__file__).parent / "tool_files" / "optuna" / "landscape.log"
MEANT = ["value=step_time_s", *(f"user_{knob}={knob}" for knob in ("pp", "tp", "dp", "cp", "vpp"))]


def imported(kb: Path) -> Path:
    [done] = bring_in_all(kb, STUDY, LONGER, ImportOptions(MEANT, units=["value=ms"])).imports
    assert (done.good, done.rows) == (36, 36)
    return kb


def seconds(kb: Path) -> list[float]:
    """Of every experiment of a session on the recorded table."""
    chosen = session.SessionOptions(fidelity="profile")
    name = session.tune(JOB, kb, chosen, lambda event: None, lambda note: None, Stop()).session
    events = journal.events(store.sessions_folder(kb) / name / "journal.jsonl")
    return [e.measurement.metrics["step_time_s"] for e in events if isinstance(e, journal.ExperimentEnded)]


def test_a_study_of_a_neighbour_saves_experiments(tmp_path: Path):
    cold, warm = seconds(tmp_path / "cold.duckdb"), seconds(imported(tmp_path / "kb" / "warm.duckdb"))
    assert len(warm) < len(cold)
    assert min(warm[:3]) < min(cold)


def test_a_study_makes_predictions_surer(tmp_path: Path):
    space = JobSpace.of_job(LONGER)
    before, after = (predict(space, space.reference.knobs, kb) for kb in (None, imported(tmp_path / "kb.duckdb")))
    assert after.rows > 0
    assert after.high / after.low < before.high / before.low
