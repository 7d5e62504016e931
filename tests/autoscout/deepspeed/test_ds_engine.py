"""The real DeepSpeed on two CPU ranks: `make .venv-deepspeed/ready` makes its environment."""

import json
import os
import shutil
from pathlib import Path

import msgspec
import pytest

from autoscout.space.explain import completed, parse
from autoscout.targets.deepspeed import profiler
from autoscout.targets.jobs import JobSpace, load_job, profiler_of
from autoscout.tuning import loop, session
from kb import journal as journals
from kb import store
from kb.records import Budget, MetricSource, Objective

ROOT = Path(__file__).parents[3]
PYTHON = Path(os.environ.get("AUTOSCOUT_DEEPSPEED", ROOT / ".venv-deepspeed" / "bin" / "python"))
pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-deepspeed: make .venv-deepspeed/ready"),
]


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("real")
    for name in ("train.py", "ds_config.json", "job.toml"):
        shutil.copy(ROOT / "fixtures" / "deepspeed" / name, folder)
    path = folder / "job.toml"
    text = path.read_text().replace("--layers 4", "--layers 2 --hidden 64")
    path.write_text(text.replace('python = ".venv-deepspeed/bin/python"', f'python = "{PYTHON}"\nlauncher = "warm"'))
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(PYTHON.parents[1] / "ops"))
    found = load_job(path)
    return msgspec.structs.replace(found, launch=msgspec.structs.replace(found.launch, measure_s=1.0, timeout_s=300.0))


@pytest.fixture(scope="module")
def running(job):
    made = profiler_of(job)
    yield made
    made.close()


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_tiny_gpt_trains_at_every_stage_to_the_same_losses(job, running, tmp_path, stage):
    space = JobSpace.of_job(job)
    found = running.run(completed(space, parse(space, [f"stage={stage}", "mbs=8"]), space.reference), "it", tmp_path)
    assert found.status == "ok", found.evidence
    assert found.metrics["samples_per_s"] > 0
    assert found.losses[0] == pytest.approx(7.8, abs=0.3)
    sent = json.loads((tmp_path / "ds_config.json").read_text())
    assert sent["zero_optimization"]["stage"] == stage
    assert profiler.ignored(tmp_path) == ""  # what the engine says that it trains with is what it was given


def test_what_deepspeed_refuses_is_invalid(job, running, tmp_path):
    path = Path(job.launch.path) / "ds_config.json"
    text = path.read_text()
    path.write_text(text.replace('"train_batch_size"', '"fp16": {"enabled": true}, "train_batch_size"'))
    try:
        found = running.run(JobSpace.of_job(job).reference, "it", tmp_path)
    finally:
        path.write_text(text)
    assert found.status == "invalid", found.evidence
    assert "not supported" in found.evidence


def test_18_the_engine_counts_its_model(job, tmp_path):
    info = profiler.model_info(job, JobSpace.of_job(job).reference, tmp_path / profiler.INFO, 300)
    assert info["num_params"] > 2 * 2048 * 64


@pytest.mark.parametrize(("metric", "better"), [("flops_per_gpu", max), ("step_time_s", min)])
def test_24_flops_and_latency_are_tuned(job, tmp_path, metric, better):
    """A session of two experiments: the verdict follows the metric's own direction."""
    goal = Objective(maximize=metric) if better is max else Objective(minimize=metric)
    flops = {"flops_per_gpu": MetricSource(file="{folder}/metrics.json", json="FLOPS_per_gpu")}
    metrics = {**job.launch.metrics, **(flops if better is max else {})}
    launch = msgspec.structs.replace(job.launch, metrics=metrics, repeats=0)
    limit = {"stage": [0], "reduce_bucket": [50000], "offload_optimizer": ["none"], "mbs": [1, 8]}
    narrow = msgspec.structs.replace(job.space, limit=limit)
    own = msgspec.structs.replace(job, objective=goal, launch=launch, space=narrow, budget=Budget(profiles=2))
    kb = tmp_path / "kb.duckdb"
    done = session.tune(
        own, kb, session.SessionOptions(warm_start="off"), lambda event: None, lambda note: None, loop.Stop()
    )
    past = journals.events(store.journalled(kb, done.session) / "journal.jsonl")
    measured = [e.measurement for e in past if isinstance(e, journals.ExperimentEnded)]
    assert {m.status for m in measured} == {"ok"}, [m.evidence for m in measured]
    assert len({m.configuration.id for m in measured}) == 2
    assert all(m.metrics[metric] > 0 for m in measured)
    best = next(e for e in reversed(past) if isinstance(e, journals.BestFound))
    searched = [m.metrics[metric] for m in measured[:2]]
    assert best.value == pytest.approx(better(searched), rel=0.5)
