"""The real DeepSpeed over two hosts of one host file, two CPU ranks on one and one on the other."""

import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from ds_configs import CONFIG
from test_ds_engine import PYTHON, ROOT

from autoscout.running import outcome as failures
from autoscout.space.explain import completed, parse
from autoscout.targets.deepspeed.command_line import job_of
from autoscout.targets.jobs import JobSpace, load_job, profiler_of

sys.path.insert(0, str(ROOT / "tests" / "tools"))
import namespace_hosts

pytestmark = [
    pytest.mark.engine,
    pytest.mark.hosts,
    pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-deepspeed: make .venv-deepspeed/ready"),
    pytest.mark.skipif(bool(namespace_hosts.missing()), reason=f"hosts of namespaces: {namespace_hosts.missing()}"),
]
OPTIMIZER = {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}}
TWELVE = {**CONFIG, "train_batch_size": 12, "train_micro_batch_size_per_gpu": [1, 2, 4], "optimizer": OPTIMIZER}


@pytest.fixture(scope="module")
def hosts() -> Iterator[namespace_hosts.Hosts]:
    with namespace_hosts.hosts(2) as found:
        yield found


@pytest.fixture
def job(hosts, place, monkeypatch):
    monkeypatch.setenv("PATH", f"{hosts.bin}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", os.environ.get("TORCH_EXTENSIONS_DIR", str(PYTHON.parents[1] / "ops")))
    monkeypatch.chdir(place.folder)
    shutil.copy(ROOT / "fixtures" / "deepspeed" / "train.py", place.folder)
    (place.folder / "hostfile").write_text("h0 slots=2\nh1 slots=1\n")
    script = ["train.py", "--layers", "1", "--hidden", "32", "--length", "32"]
    made = job_of(place.config(TWELVE), script, "cpu", 1, Path("hostfile"), str(PYTHON), r"loss: ([\d.]+|nan)")
    found = load_job(place.toml(made))
    return msgspec.structs.replace(found, launch=msgspec.structs.replace(found.launch, timeout_s=200.0))


def chosen(job, *words: str):
    space = JobSpace.of_job(job)
    return completed(space, parse(space, list(words)), space.reference)


def test_uneven_slots_train_one_batch_together(job, tmp_path):
    found = profiler_of(job).run(chosen(job, "stage=1", "mbs=2"), "it", tmp_path / "run")
    assert (found.status, found.evidence) == ("ok", "")
    assert found.metrics["samples_per_s"] > 0
    assert found.losses[0] == pytest.approx(7.7, abs=0.4)
    assert '"train_batch_size": 12' in (tmp_path / "run" / "ds_config.json").read_text()


def test_a_killed_node_is_no_fact_about_the_configuration(job, hosts, tmp_path):
    def kill() -> None:
        until = time.monotonic() + 150
        while "loss" not in _said(tmp_path / "run" / "output.log") and time.monotonic() < until:
            time.sleep(0.1)
        hosts.kill(1)

    longer = msgspec.structs.replace(job.launch, iterations=100_000)
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        lost = profiler_of(msgspec.structs.replace(job, launch=longer)).run(chosen(job), "it", tmp_path / "run")
    finally:
        killer.join()
        hosts.start_again(1)
        hosts.wait_for(1)
    assert (lost.status, lost.conditions) == ("infrastructure", {failures.HOST_LOST: 1.0})
    assert lost.evidence.startswith("a host failed: h1")
    assert profiler_of(job).run(chosen(job), "it", tmp_path / "again").status == "ok"


def _said(log: Path) -> str:
    return log.read_text(errors="replace") if log.is_file() else ""
