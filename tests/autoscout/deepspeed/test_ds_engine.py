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
