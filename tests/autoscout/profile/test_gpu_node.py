"""What docs/lab/gpu-check.md says of a GPU node, on the devices at hand: `make gpu-check`. Without GPUs four CPU ranks
show the same, but for what needs a GPU. PROVE_JOB names a job with another interpreter or other devices."""

import contextlib
import importlib.util
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from autoscout.job.device_names import device_meant, is_cpu
from autoscout.machine.calibrate import calibrate
from autoscout.running import processes
from autoscout.running.cluster import gpus, slots
from autoscout.running.equivalence import Losses
from autoscout.running.torchrun import Torchrun
from autoscout.running.warm_launcher import WarmRunner
from autoscout.simulate.ensemble import Simulators
from autoscout.targets.jobs import JobSpace, load_job, simulators_of
from autoscout.targets.megatron import arguments
from autoscout.targets.megatron.environment import launcher
from autoscout.targets.megatron.profiler import RANK, MegatronProfiler
from autoscout.targets.megatron.shadow import shadow
from autoscout.targets.tracing import ShadowAsked
from kb.records import Cluster, Configuration, Job, LaunchSettings, Measurement, Model, Node, Objective, Traffic
from tui.text import table

pytestmark = [
    pytest.mark.engine,
    pytest.mark.thorough,
    pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="needs the megatron extra"),
]

FREED_GIB = 1.0  # memory that may still be in use after a kill, because the driver frees it late
SHADOW_S = 120.0
LAYOUTS: list[tuple[int, dict[str, Any]]] = [  # (devices, 0 for all; knobs): every kind of knob
    (1, {"mbs": 1}),
    (1, {"ar": "selective"}),
    (1, {"ar": "full", "ar_method": "uniform", "ar_layers": 1}),
    (2, {"mbs": 2, "dp": 2}),
    (2, {"tp": 2}),
    (2, {"tp": 2, "sp": True}),
    (2, {"pp": 2}),
    (2, {"cp": 2}),
    (2, {"mbs": 1, "pp": 2, "vpp": 2, "overlap_p2p": True}),
    (0, {"mbs": 1, "distopt": True, "overlap_grad": True, "overlap_param": True}),
    (0, {"mbs": 1, "tp": 2, "distopt": True}),
    (2, {"mbs": 2, "dp": 2, "ep": 2}),
    (0, {"mbs": 1, "tp": 2, "sp": True, "ep": 2, "etp": 1}),
]
HOLD = "import torch; seen.append(torch.empty(torch.cuda.mem_get_info()[0] - 2**28, dtype=torch.uint8, device='cuda'))"


class GpuNode:
    """Experiments that share interpreter and devices."""

    def __init__(self, job: Job | None, folder: Path) -> None:
        self.folder = folder
        self.launch = job.launch if job else LaunchSettings()
        self.node = job.cluster.nodes[0] if job else _this_machine()
        self.on_gpus = not is_cpu(self.node.device)
        self.runs: list[tuple[Job, Measurement]] = []
        self._alone: dict[int, Measurement] = {}
        self._warm: dict[str, WarmRunner] = {}
        self.environment: dict[str, str] = {}
        self.environment = self.profiler(self.job(self.node.count)).environment()

    def job(self, count: int, experts: int = 0, vocab: int = 0, **changes: Any) -> Job:
        """A model that is large enough to be meaningful on a GPU, and small enough for a CPU."""
        size: dict[str, Any] = {"layers": 4, "hidden": 2048, "heads": 16, "vocab": vocab or 32000, "ffn": 5632}
        if not self.on_gpus:
            size: dict[str, Any] = {"layers": 4, "hidden": 64, "heads": 4, "vocab": vocab or 512}
        model = Model(gated=True, norm="rmsnorm", bias=False, position="rope", dtype="bf16", experts=experts, **size)
        changes |= {"launcher": "warm"} if "command_prefix" in changes and not self.on_gpus else {}
        return Job(
            name=f"prove-{count}",
            target="megatron",
            model=model,
            traffic=Traffic(seq_len=2048 if self.on_gpus else 64, global_batch=8),
            cluster=Cluster(nodes=[msgspec.structs.replace(self.node, count=count)]),
            objective=Objective(minimize="step_time_s"),
            launch=msgspec.structs.replace(
                self.launch, iterations=3, measure_s=4.0, transformer_engine=self.on_gpus, **changes
            ),
        )

    def profiler(self, job: Job) -> MegatronProfiler:
        """With a warm process, which is kept, with its imports, as long as ranks start in the same way."""
        if launcher(job) != "warm":
            return MegatronProfiler(job, Torchrun(job, RANK), self.environment)
        key = " ".join(job.launch.command_prefix)
        if key not in self._warm:
            self.close()  # keep only one waiting process with torch in memory
            self._warm[key] = WarmRunner(job, RANK, arguments.variables(job, Configuration({})))
        return MegatronProfiler(job, self._warm[key], self.environment)

    def close(self) -> None:
        for warm in self._warm.values():
            warm.close()
        self._warm.clear()

    def measured(self, job: Job, knobs: dict[str, Any]) -> Measurement:
        configuration = Configuration({"mbs": 4, **knobs})
        name = " ".join(f"{knob}={value}" for knob, value in configuration.knobs.items())
        found = self.profiler(job).run(configuration, name, self.folder / f"{len(self.runs):02d}")
        self.runs.append((job, found))
        return found

    def alone(self, experts: int = 0) -> Measurement:
        """The reference: one device."""
        if experts not in self._alone:
            self._alone[experts] = self.measured(self.job(1, experts), {})
        return self._alone[experts]

    @contextlib.contextmanager
    def faulty(self, fault: str, rank: int | None = None, reading: int = 3) -> Iterator[list[str]]:
        """A command prefix that makes a rank (1, or the only one) run `fault` at its `reading`-th reading of the clock
        (by default in its second step)."""
        folder = self.folder / "fault"
        folder.mkdir(exist_ok=True)
        rank = min(1, self.node.count - 1) if rank is None else rank
        (folder / "sitecustomize.py").write_text(
            "import os, sys, time\nplain, seen = time.perf_counter, []\n"
            "def perf_counter():\n"
            f"    if sys._getframe(1).f_code.co_name == '_iteration' and os.environ.get('RANK') == '{rank}':\n"
            f"        seen.append(1)\n        if len(seen) == {reading}:\n            {fault}\n"
            "    return plain()\ntime.perf_counter = perf_counter\n"
        )
        self.close()  # a warm process would not have the new fault
        path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
        yield ["env", f"PYTHONPATH={path}", *self.launch.command_prefix]


def _this_machine() -> Node:
    """GPUs by their name, else four CPU ranks."""
    seen = gpus.ours()
    if not seen:
        return Node(device="cpu", count=4)
    kind = device_meant(seen[0].name, seen[0].total_gib)
    return Node(device=kind or "gpu", count=len(seen), memory_gib=seen[0].total_gib or 0.0)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuNode]:
    path = os.environ.get("PROVE_JOB")
    with slots.machine(lambda: None, lambda: False):
        found = GpuNode(load_job(path) if path else None, tmp_path_factory.mktemp("gpu"))
        yield found
        found.close()


def several(node: GpuNode) -> None:
    if node.node.count < 2:
        pytest.skip("it needs two devices")


def test_the_jobs_devices_are_recognized_and_nobody_else_uses_them(node):
    assert node.environment["device"]
    if node.on_gpus:
        assert gpus.held(os.environ.get("CUDA_VISIBLE_DEVICES", "")) == ""
        assert node.environment["capability"]


def test_the_worker_runs_megatron_lms_kernels(node):
    if not node.on_gpus:
        pytest.skip("Transformer Engine needs a GPU")
    assert "transformer-engine" in node.environment, "attention would not be fused"


def test_this_machine_can_be_calibrated(node):
    python = [*node.launch.command_prefix, node.launch.python] if node.launch.python else [sys.executable]
    assert calibrate(python, "", True, lambda text: None).errors


@pytest.mark.parametrize(("count", "knobs"), LAYOUTS, ids=str)
def test_a_layout_runs_and_computes_the_same_as_one_device(count, knobs, node):
    experts, split = 4 if "ep" in knobs else 0, math.prod(int(knobs.get(name, 1)) for name in ("tp", "pp", "cp"))
    if max(count, split * (2 if experts else 1)) > node.node.count:
        pytest.skip("it needs more devices")
    reference, job = node.alone(experts), node.job(count or node.node.count, experts)
    found = node.measured(job, {**knobs, "dp": max(1, job.devices // split)})
    assert (reference.status, found.status) == ("ok", "ok"), found.evidence
    assert Losses(job.model.dtype, job.model.hidden, job.model.layers).compare(reference, found) == ""


def test_the_guard_catches_what_trains_something_else(node):
    """Rule P9: Megatron-core runs this layout without complaint, and mixes up the messages of its stages."""
    several(node)
    job = node.job(2)
    trapped = node.measured(job, {"mbs": 1, "pp": 2, "vpp": 2})
    if trapped.status == "ok":  # newer engines refuse it
        assert Losses(job.model.dtype, job.model.hidden, job.model.layers).compare(node.alone(), trapped)


def test_a_configuration_that_does_not_fit_is_oom(node):
    """On GPUs by memory that is held: the shadow of a model that is far too large would end the experiment first."""
    if not node.on_gpus:
        found = node.measured(node.job(1, vocab=2**40), {})
    else:
        with node.faulty(HOLD, rank=0, reading=1) as prefix:
            found = node.measured(node.job(1, command_prefix=prefix), {})
    assert found.status == "oom", found.evidence


def test_a_collective_that_hangs_is_a_timeout_that_names_it(node):
    several(node)
    with node.faulty("time.sleep(600)") as prefix:
        limit_s = 120.0 if node.on_gpus else 40.0
        found = node.measured(node.job(2, timeout_s=limit_s, command_prefix=prefix), {"tp": 2})
    assert found.status == "timeout"
    assert "hung" in found.evidence


def test_a_killed_rank_leaves_nothing_running_and_no_memory_taken(node):
    """Killed by its process id during a run, as a scheduler or the kernel does it."""
    before = gpus.ours()
    with node.faulty("os.kill(os.getpid(), 9)") as prefix:
        job = node.job(min(2, node.node.count), command_prefix=prefix)
        found = node.measured(job, {"mbs": 2, "dp": job.devices})
    assert found.status == "killed"
    assert "was killed from outside with SIGKILL" in found.evidence
    node.close()
    assert [pid for pid in processes.family(os.getpid()) if pid != os.getpid() and _is_rank(pid)] == []
    assert (gpus.more_than(before) or 0.0) <= FREED_GIB if before else True


def _is_rank(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"train.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def test_predictions_stand_beside_what_was_measured(node):
    """Memory of the shadows beside that of tensors on GPUs only. `pytest -rP` shows the table."""
    rows = []
    for job, found in node.runs:
        if found.status == "ok" and not job.launch.command_prefix:
            step_s, tensors = (
                found.metrics["step_time_s"],
                max(found.per_rank.get("allocated_memory_gib", []), default=0),
            )
            traced = _traced(job, found) if node.on_gpus else None
            rows.append([found.name, str(job.devices), *map(_cell, (step_s, _predicted(job, found), tensors, traced))])
    print(table(rows, ["experiment", "ranks", "s a step", "predicted", "GiB of tensors", "its shadow"]))
    assert all(float(row[3]) > 0 for row in rows)


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _predicted(job: Job, found: Measurement) -> float:
    space = JobSpace.of_job(job)
    simulators = Simulators(job, space, [], bases=lambda: simulators_of(job))
    knobs = found.configuration.knobs
    nearest = space.nearest(knobs, firm=knobs)  # the space has active knobs that are not set here
    assert nearest is not None
    return float(simulators.ensemble.explain(simulators.columns([nearest]))[0].value[0])


def _traced(job: Job, found: Measurement) -> float | None:
    traced = shadow(ShadowAsked(job, found.configuration, found.name, limit_s=SHADOW_S))
    return traced.allocated if traced.verdict == "starts" else None
