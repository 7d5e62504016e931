"""`autoscout doctor --prove` on CPU ranks: what broke it, and its report. The whole takes minutes:
docs/lab/gpu-check.md"""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from autoscout.machine import prove_report
from autoscout.machine.devices_here import here
from autoscout.machine.prove import Proof, Prover, ProveRun, ProveStep, _least
from autoscout.machine.prove_runs import Runs
from kb.records import Cluster, Job, Node, Objective

PROOF = Proof(
    at=1795343989.0,
    machine={"host": "secret", "device": "AMD EPYC", "torch": "2.13.0", "gpus": ""},
    steps=[
        ProveStep(name="devices", came="passed", found="4 × AMD | EPYC", claim="devices are told", took_s=1.4),
        ProveStep(name="kill -9", came="failed", found="it was taken for timeout (log: x)", claim="nothing is left"),
        ProveStep(name="Transformer Engine", came="not run", found="it needs a GPU", claim="the kernels are theirs"),
    ],
    experiments=[
        ProveRun(name="tp=2", ranks=2, status="ok", verdict="", measured_s=0.5, predicted_s=0.25, allocated_gib=28.59)
    ],
)


def test_the_report_says_what_held_what_did_not_and_what_was_not_asked(tmp_path: Path) -> None:
    as_json, as_text = prove_report.write(PROOF, tmp_path / "out")
    assert json.loads(as_json.read_bytes())["experiments"][0]["predicted_s"] == 0.25
    text = as_text.read_text()
    assert "on AMD EPYC: torch 2.13.0\n" in text
    assert "secret" not in text
    assert "| devices | ✓ passed | 4 × AMD / EPYC | 1 |" in text
    assert "| kill -9 | ✗ failed | it was taken for timeout | 0 |" in text
    assert "| tp=2 | 2 | ok | 0.5 | 0.25 |  | 28.59 |  | yes |" in text
    assert text.endswith(
        "Confirmed: devices are told.\n\nNot true here: nothing is left.\n\nNot asked: the kernels are theirs.\n"
    )
    assert [step.name for step in PROOF.failed] == ["kill -9"]


def test_what_is_proved_so_far_is_kept_after_every_step(tmp_path: Path) -> None:
    """A node may be taken away in the middle."""
    kept: list[Proof] = []
    absent = Node(device="h100", count=4)
    job = Job(name="x", target="megatron", objective=Objective(minimize="step_time_s"), cluster=Cluster(nodes=[absent]))
    proof = Prover(job, tmp_path, print).run(kept.append)
    assert [step.came for step in proof.steps] == ["failed"]
    assert kept == [msgspec.structs.replace(proof, at=kept[0].at)]


def test_a_fault_is_planted_beside_what_the_interpreter_finds_today(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/opt/theirs")
    with Runs(None, tmp_path, print).faulty("pass") as prefix:
        assert prefix == ["env", f"PYTHONPATH={tmp_path / 'fault'}:/opt/theirs"]


@pytest.mark.parametrize(("visible", "count"), [("", 4), ("1,GPU-c", 2), ("MIG-x", 4)])
def test_the_gpus_that_were_given_are_proved(
    visible: str, count: int, driver: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All of the node's were asked for, of which torch shows fewer."""
    driver("printf '%s, GPU-%s, NVIDIA H100 80GB HBM3, 5, 81559\\n' 0 a 1 b 2 c 3 d")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    node = Runs(None, tmp_path, print).node
    assert (node.device, node.count) == ("h100", count)
    assert here() == ("h100", count)


@pytest.mark.parametrize(
    ("knobs", "devices"), [({}, 1), ({"tp": 2, "distopt": True}, 2), ({"tp": 2, "ep": 2}, 4), ({"mbs": 1, "ep": 2}, 2)]
)
def test_a_layout_needs_as_many_devices_as_its_degrees_say(knobs: dict, devices: int) -> None:
    assert _least(knobs) == devices


def one_cpu() -> Job:
    alone = Cluster(nodes=[Node(device="cpu", count=1)])
    return Job(name="x", target="megatron", objective=Objective(minimize="step_time_s"), cluster=alone)


def test_what_one_cpu_cannot_show_is_not_claimed(tmp_path: Path) -> None:
    claims = {name: claim for name, claim, _ in Prover(one_cpu(), tmp_path, print).to_take()}
    assert claims["experiments"] == "every kind of knob that 1 device allows runs, and computes the same as one device"
    assert claims["kill -9"] == "a killed rank leaves nothing running"


@pytest.mark.engine
@pytest.mark.thorough
@pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="needs the megatron extra")
def test_layouts_that_need_more_devices_are_counted(tmp_path: Path) -> None:
    prover = Prover(one_cpu(), tmp_path, print)
    try:
        assert prover._all() == "6 of 6 agree with one device, in bf16; 9 need more devices"
    finally:
        prover.runs.close()


@pytest.mark.engine
@pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="needs the megatron extra")
def test_a_rank_is_really_killed_and_nothing_is_left(tmp_path: Path) -> None:
    said = Prover(None, tmp_path, print)._kill()
    assert said.startswith("rank 1 was killed from outside with SIGKILL")
    assert "nothing is left running; there is no GPU" in said
