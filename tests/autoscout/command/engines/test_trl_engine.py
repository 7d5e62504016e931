"""GRPO of the real TRL on two CPU ranks: `make .venv-trl/ready` makes its environment."""

import os
from pathlib import Path

import msgspec
import pytest

from autoscout.targets.command.phases import PHASES
from autoscout.targets.command.profiler import CommandProfiler
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.targets.target import target_of
from kb.records import Measurement

PYTHON = Path(".venv-trl/bin/python").absolute()
pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-trl: make .venv-trl/ready"),
]


def run(folder: Path, *changes: tuple[str, str], **knobs) -> Measurement:
    text = Path("fixtures/own/grpo.toml").read_text()
    here = ("[launch]", f'[launch]\npython = "{PYTHON}"\npath = "{Path("fixtures/own").absolute()}"')
    for old, new in (here, ("iterations = 6", "iterations = 4"), *changes):
        assert old in text
        text = text.replace(old, new)
    folder.mkdir()
    (folder / "job.toml").write_text(text)
    job = load_job(folder / "job.toml")
    reference = JobSpace.of_job(job).reference
    profiler = CommandProfiler(job)
    try:
        return profiler.run(
            msgspec.structs.replace(reference, knobs={**reference.knobs, **knobs}), "one", folder / "run"
        )
    finally:
        profiler.close()


def test_micro_batches_and_checkpointing_train_the_same_by_the_guard(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", os.pathsep.join([str(PYTHON.parent), os.environ["PATH"]]))
    reference = run(tmp_path / "a")
    other = run(tmp_path / "b", mbs=8, checkpointing=False)
    assert (reference.status, other.status) == ("ok", "ok"), (reference.evidence, other.evidence)
    job = load_job(tmp_path / "a" / "job.toml")
    assert target_of(job).equivalence(job).compare(reference, other) == ""
    assert len(reference.losses) >= 6
    for found in (reference, other):
        spent = [found.metrics[f"{phase}_s"] for phase in PHASES]
        assert sum(spent) == pytest.approx(found.metrics["step_time_s"], rel=0.02)
        assert len(found.per_rank["rollout_s"]) == 2
        assert found.metrics["logprobs_s"] > 0, "the reference model's, for --beta"
    warmer = run(tmp_path / "c", ("--beta 0.04", "--beta 0.04 --temperature 3.0"))
    assert "update" in target_of(job).equivalence(job).compare(reference, warmer), "other answers were drawn"
