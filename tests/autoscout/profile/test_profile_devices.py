"""Which GPUs a job finds and its configurations use, on machines that are only lists of names."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from profile_bench import configuration, tiny_job

from autoscout.cluster import devices
from autoscout.targets.megatron.environment import WORKER, describe
from autoscout.targets.megatron.profiler import worker_config
from kb.records import AutoscoutError, Cluster, Job, Node

A100, A40, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA A40", "NVIDIA H100 80GB HBM3"


def job_on(*nodes: tuple[str, int], python: str = "") -> Job:
    cluster = Cluster(nodes=[Node(device=kind, count=count, memory_gib=40.0) for kind, count in nodes])
    return msgspec.structs.replace(tiny_job(python=python), cluster=cluster)


MIXED = job_on(("a100", 2), ("a40", 1))


@pytest.mark.parametrize(
    ("job", "gpus"),
    [
        (MIXED, [A40, A100, A100]),
        (job_on(("a100", 1), ("a100", 1)), [A100, A100, A40]),
        (job_on(("a100-40g", 1)), ["NVIDIA A100-PCIE-40GB"]),
        (job_on(("homemade", 2)), ["Lorem", "Ipsum"]),
        (job_on(("homemade", 1), ("a40", 1)), [A40, "Lorem"]),
    ],
    ids=["mixed", "nodes-of-one-kind", "variant", "unknown", "unknown-and-known"],
)
def test_enough_gpus(job: Job, gpus: list[str]) -> None:
    assert devices.shortage(job, gpus) == ""


@pytest.mark.parametrize(
    ("job", "gpus", "said"),
    [
        (MIXED, [A100, A100], f"needs 3 GPUs but this machine shows 2 (2 {A100}); an experiment on several hosts"),
        (MIXED, [A100, A40, A40], f"needs 2 a100 but this machine shows 1 (1 {A100}, 2 {A40})"),
        (job_on(("h100", 1)), [A100], "needs 1 h100 but this machine shows 0"),
        (job_on(("a40", 1)), ["NVIDIA RTX A4000"], "needs 1 a40"),
        (job_on(("a100", 1), ("a100-40g", 1)), [A100, A40], "needs 1 a100-40g"),
        (job_on(("homemade", 2)), ["Lorem"], "needs 2 GPUs but"),
    ],
    ids=["total", "kind", "other-kind", "similar-name", "claimed-once", "unknown"],
)
def test_missing_gpus(job: Job, gpus: list[str], said: str) -> None:
    assert said in devices.shortage(job, gpus)
    assert ("several hosts" in devices.shortage(job, gpus)) == (len(gpus) < job.devices)


@pytest.mark.parametrize(
    ("job", "knobs", "gpus", "visible"),
    [
        (MIXED, {"dp": 3, "a100": 2, "a40": 1}, [A40, A100, A100], "1,2,0"),
        (MIXED, {"dp": 2, "a100": 2, "a40": 0}, [A40, A100, A100], "1,2"),
        (MIXED, {"a100": 0, "a40": 1}, [A100, A100, A40], "2"),
        (job_on(("a100-40g", 1), ("a40", 1)), {"a100_40g": 1, "a40": 0}, [A40, A100], "1"),
        (job_on(("slow", 1), ("h100", 1)), {"dp": 2, "slow": 1, "h100": 1}, [H100, "Lorem"], "1,0"),
        (job_on(("a100", 2)), {"tp": 2}, [A40, A100, A100, A100], "1,2"),
        (job_on(("a100", 2)), {"tp": 2}, [A100, A100, A100], None),
    ],
    ids=["all", "one-kind", "the-other", "variant", "job-order", "one-kind-among-others", "alike"],
)
def test_a_configuration_sees_its_gpus_only(
    job: Job, knobs: dict[str, int], gpus: list[str], visible: str | None
) -> None:
    variables = worker_config(job, configuration(**knobs), gpus)["environment"]
    assert variables.get("CUDA_VISIBLE_DEVICES") == visible
    assert variables["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_names_survive_the_environment() -> None:
    assert devices.gpus_of({"gpus": f"{A100}, {A40}"}) == [A100, A40]
    assert devices.gpus_of({"gpus": ""}) == devices.gpus_of({}) == []


@pytest.mark.parametrize(("given", "seen"), [("", "2,0"), ("4,5,6", "6,4"), ("GPU-a,GPU-b,GPU-c", "GPU-c,GPU-a")])
def test_indices_count_among_the_gpus_that_the_ranks_were_given(given: str, seen: str) -> None:
    code = "import os, train; train._adopt({'CUDA_VISIBLE_DEVICES': '2,0'}); print(os.environ['CUDA_VISIBLE_DEVICES'])"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": given, "PYTHONPATH": str(WORKER)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == seen


def target_with(folder: Path, gpus: list[str]) -> str:
    """An interpreter whose probe reports these GPUs."""
    found = {"torch": "2", "megatron-core": "0", "devices": str(len(gpus)), "gpus": ", ".join(gpus)}
    path = folder / "python"
    path.write_text(f"#!/bin/sh\necho '{json.dumps(found)}'\n")
    path.chmod(0o755)
    return str(path)


def test_a_machine_that_lacks_gpus_is_refused(tmp_path: Path) -> None:
    python = target_with(tmp_path, [A100, A40])
    assert describe(job_on(("a100", 1), ("a40", 1), python=python))["gpus"] == f"{A100}, {A40}"
    for job, said in (
        (job_on(("a100", 2), python=python), "needs 2 a100"),
        (job_on(("a100", 8), python=python), "needs 8 GPUs"),
    ):
        with pytest.raises(AutoscoutError, match=said) as refused:
            describe(job)
        assert refused.value.exit_code == 2


def test_a_machine_without_gpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AutoscoutError, match="torch sees no GPU") as refused:
        describe(job_on(("a100", 1), python=target_with(tmp_path, [])))
    assert refused.value.exit_code == 2


@pytest.mark.engine
def test_the_probe_of_a_target_without_gpus() -> None:
    """With a build of torch for CPUs too."""
    command = [sys.executable, str(WORKER / "probe.py"), "cuda"]
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=hidden, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert (found["devices"], found["gpus"]) == ("0", "")
