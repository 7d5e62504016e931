"""`autoscout predict` says of each part what it rests on."""

from pathlib import Path

import msgspec
import pytest

from autoscout.simulate.grounds import grounds
from autoscout.targets.jobs import load_job
from kb.records import Node

SERVED, TRAINED = Path("fixtures/jobs/llama-3-8b-serve.toml"), Path("fixtures/jobs/llama-3.2-3b.toml")


def of(path: Path, kind: str, **parts: float) -> dict[str, tuple[str, str]]:
    job = load_job(path)
    on = msgspec.structs.replace(job, cluster=msgspec.structs.replace(job.cluster, nodes=[Node(device=kind, count=8)]))
    return {one.part: (one.basis, one.source) for one in grounds(on, parts)}


@pytest.mark.parametrize(
    ("kind", "weights", "exchanges"),
    [("h100", "fit", "table"), ("b200", "guess", "table"), ("rtx5090", "guess", "guess")],
)
def test_a_servers_parts_rest_on_what_was_measured_on_its_device(kind, weights, exchanges):
    """Elementwise kernels of a B200 are an H100's."""
    found = of(SERVED, kind, weights=3.0, attention=1.0, communication=1.0, host=0.0)
    assert (found["weights"][0], found["communication"][0]) == (weights, exchanges)
    assert "host" not in found  # takes no time


def test_what_is_another_devices_says_whose():
    assert of(SERVED, "b200", host=1.0)["host"][1] == "host of h100, scaled by the ratio of the devices' data sheets"
    assert of(TRAINED, "h200", compute=1.0, tp=1.0)["tp"] == (
        "guess",
        "island of h100, scaled by the ratio of the devices' data sheets",
    )


def test_a_trained_step_on_a_device_whose_kernels_were_measured():
    found = of(TRAINED, "a100", compute=1.0, tp=1.0, bubble=1.0)
    assert {part: basis for part, (basis, _) in found.items()} == {"compute": "fit", "tp": "fit"}
    assert "op_aiconfigurator_nccl_perf" in found["tp"][1]
