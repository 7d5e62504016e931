"""One device: real kernels of a rank whose job has many, nobody to send to."""

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from autoscout.simulate.hardware.device import hardware
from autoscout.simulate.shadow.pricing import priced
from autoscout.simulate.shadow.traced import Rank, Step, Timed
from autoscout.targets.megatron.environment import WORKER
from tests.verbs import run

engine = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="needs the megatron extra"),
]
JOB = """
name = "many"
task = "pretrain"
target = "megatron"
model = {{ layers = 4, hidden = 64, heads = 4, vocab = 512, dtype = "fp32", bias = false, experts = {experts} }}
traffic = {{ seq_len = 64, global_batch = 64 }}
cluster.nodes = [{{ device = "{device}", count = 16 }}]
objective.minimize = "step_time_s"
"""


def job(folder: Path, device: str = "cpu", experts: int = 0) -> str:
    path = folder / "job.toml"
    path.write_text(JOB.format(device=device, experts=experts))
    return str(path)


def rank(number: int) -> Rank:
    step = Step(forward_backward=1, optimizer=1, left=1)
    sent = [[3, "allreduce", "tp", 2, 2**20, "forward"]]
    return Rank(rank=number, verdict="starts", steps=[step], micro_batches=8, micro_batches_traced=3, collectives=sent)


def test_measured_kernels_take_the_place_of_prices_and_collectives_are_priced_as_before() -> None:
    h100 = hardware("h100")
    assert h100 is not None
    knobs = {"tp": 2, "pp": 1, "dp": 1}
    timed = Timed(rank=0, verdict="starts", micro_batch_s=0.5, once_s=0.25, optimizer_s=0.125)
    alone = priced([rank(0)], knobs, h100, "bf16")
    found = priced([rank(0)], knobs, h100, "bf16", [timed])
    assert alone is not None
    assert found is not None
    waits = found.parts.pop("dp")  # for the slower of two ranks
    assert found.parts == {"kernels": 4.0, "tp": alone.parts["tp"], "optimizer": 0.125, "once": 0.25}
    assert waits == pytest.approx(4.0 * 0.01 * math.sqrt(2 * math.log(2)))
    assert found.step_s == pytest.approx(4.375 + alone.parts["tp"] + waits)


def test_the_fullest_of_unequal_stages_sets_the_pace() -> None:
    h100 = hardware("h100")
    assert h100 is not None
    timed = [
        Timed(rank=0, verdict="starts", micro_batch_s=0.25),
        Timed(rank=1, verdict="starts", micro_batch_s=0.5),
    ]
    found = priced([rank(1), rank(0)], {"tp": 1, "pp": 2, "dp": 1}, h100, "bf16", timed)
    assert found is not None
    assert found.parts["kernels"] == 4.0
    assert found.bubble_s >= 0.25  # the slow stage waits for the other's micro batch


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_without_others_a_gather_repeats_and_a_reduction_keeps_its_share(tmp_path: Path) -> None:
    script = tmp_path / "alone.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(WORKER / 'one_device')!r})\n"
        "import json, loopback, torch, torch.distributed as dist\n"
        "loopback.install()\n"
        "dist.init_process_group('fake', rank=1, world_size=4, store=dist.HashStore())\n"
        "own, out = torch.tensor([1.0, 2.0]), torch.full((8,), float('nan'))\n"
        "dist.all_gather_into_tensor(out, own)\n"
        "share = torch.empty(2); dist.reduce_scatter_tensor(share, input=torch.arange(8.0))\n"
        "uneven = torch.full((5,), float('nan')); dist.all_to_all_single(uneven, own, [2, 1, 1, 1], [1, 1, 0, 0])\n"
        "listed = [torch.zeros(2) for _ in range(4)]; dist.all_gather(listed, own)\n"
        "came = torch.full((64,), float('nan')); dist.irecv(came, 0)\n"
        "again = torch.full((64,), float('nan')); dist.recv(again, 0)\n"
        "print(json.dumps([out.tolist(), share.tolist(), uneven.tolist(), [t.tolist() for t in listed],"
        " bool(came.isfinite().all()), torch.equal(came, again)]))\n"
    )
    said = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True).stdout
    out, share, uneven, listed, finite, same = json.loads(said)
    assert out == [1.0, 2.0] * 4
    assert listed == [[1.0, 2.0]] * 4
    assert share == [0.0, 1.0]
    assert uneven == [1.0, 2.0, 1.0, 2.0, 1.0]
    assert finite
    assert same


def test_a_device_that_is_not_there_is_named(tmp_path: Path) -> None:
    found = run("shadow", job(tmp_path, "h100"), "tp=2", "mbs=1", "--one-device", "--kb", str(tmp_path / "kb.duckdb"))
    assert found.returncode == 2
    assert "a run on one device needs one free h100" in found.stderr


def test_it_runs_stages_not_single_ranks(tmp_path: Path) -> None:
    found = run("shadow", job(tmp_path), "tp=2", "mbs=1", "--one-device", "--rank", "3")
    assert found.returncode == 2
    assert "omit --parts and --rank" in found.stderr


class TestRealKernels:
    pytestmark = engine

    @pytest.mark.parametrize(
        ("experts", "knobs"),
        [
            pytest.param(0, ("tp=2", "pp=4", "mbs=1"), marks=pytest.mark.thorough),
            pytest.param(8, ("pp=2", "ep=4", "mbs=1"), marks=pytest.mark.thorough),
            pytest.param(0, ("tp=2", "cp=2", "pp=2", "vpp=2", "mbs=1"), marks=pytest.mark.thorough),
        ],
    )
    def test_a_rank_of_every_stage_that_differs_runs(
        self, tmp_path: Path, experts: int, knobs: tuple[str, ...]
    ) -> None:
        kb = str(tmp_path / "kb.duckdb")
        found = run("shadow", job(tmp_path, experts=experts), *knobs, "--one-device", "--json", "--kb", kb)
        assert found.returncode == 0, found.stderr
        told = json.loads(found.stdout)
        stages = {r["rank"] for r in told["ranks"]}
        assert {t["rank"] for t in told["timed"]} == stages
        assert len(stages) > 1
        parameters = {r["rank"]: r["parameters"] for r in told["ranks"] if r.get("imbalance", 1.0) == 1.0}
        assert {t["rank"]: t["parameters"] for t in told["timed"]} == parameters
        assert all(t["micro_batch_s"] > 0 and t["optimizer_s"] > 0 for t in told["timed"])
