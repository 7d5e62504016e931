"""`autoscout doctor --prove`: runs on this machine what the documentation claims of a GPU node, and reports what held.

A step passes, fails, or is not run, with the reason; on a machine without GPUs the same steps run on CPU ranks over
gloo, and those that need a GPU are named. prove_report.py writes the results.
"""

import contextlib
import math
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from autoscout.cluster import devices, gpus
from autoscout.job import presets
from autoscout.machine import calibrate
from autoscout.running import processes
from autoscout.running.equivalence import Losses
from autoscout.running.interfaces import Profiler
from autoscout.running.torchrun import Torchrun
from autoscout.running.warm_launcher import Warm
from autoscout.simulate.ensemble import Simulators
from autoscout.targets.jobs import JobSpace, simulators_of
from autoscout.targets.megatron import arguments
from autoscout.targets.megatron.environment import launcher
from autoscout.targets.megatron.profiler import RANK, MegatronProfiler
from autoscout.targets.megatron.shadow import shadow
from kb.records import AutoscoutError, Cluster, Configuration, Job, Launch, Measurement, Model, Node, Objective, Traffic

Said = Callable[[str], None]
_FREED_GIB = 1.0  # memory that may still be in use after a kill: the driver is slow
_DENSE: tuple[tuple[int, dict[str, Any]], ...] = (  # (devices: 0 all, knobs): every kind of knob
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
)
_EXPERTS: tuple[tuple[int, dict[str, Any]], ...] = (
    (2, {"mbs": 2, "dp": 2, "ep": 2}),
    (0, {"mbs": 1, "tp": 2, "sp": True, "ep": 2, "etp": 1}),
)
_HOLD = "import torch; seen.append(torch.empty(torch.cuda.mem_get_info()[0] - 2**28, dtype=torch.uint8, device='cuda'))"
_SHADOW_S = 120.0
_TRAP = {"mbs": 1, "pp": 2, "vpp": 2}  # rule P9: Megatron-core runs it without complaint and trains something else


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """`claim`: what the documentation says that this step confirms by passing."""

    name: str
    came: Literal["passed", "failed", "not run"]
    found: str
    claim: str = ""
    took_s: float = 0.0


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """`verdict`: how it differs from one device, "" if it agrees. Seconds per step; GiB of the fullest rank:
    `peak_memory_gib` includes what is not the allocator's, `allocated_gib` is of tensors alone, `shadow_gib` is its
    shadow's figure for those."""

    name: str
    ranks: int
    status: str
    verdict: str
    measured_s: float | None = None
    predicted_s: float | None = None
    peak_memory_gib: float | None = None
    allocated_gib: float | None = None
    shadow_gib: float | None = None


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    at: float
    machine: dict[str, str]
    steps: list[Step]
    experiments: list[Experiment]

    @property
    def failed(self) -> list[Step]:
        return [step for step in self.steps if step.came == "failed"]


class Prover:
    """One proof: its jobs share interpreter and devices. `folder` gets the experiments."""

    def __init__(self, job: Job | None, folder: Path, say: Said) -> None:
        """`job`: whose interpreter and devices are used; None: ours and this machine's."""
        self.folder, self.say = folder, say
        self.launch = job.launch if job else Launch()
        self.node = _node(job)
        self.on_gpus = self.node.device != "cpu"
        self.steps: list[Step] = []
        self.experiments: list[Experiment] = []
        self._of_experiments: list[tuple[Job, Measurement]] = []
        self.environment: dict[str, str] = {}
        self._runs = 0
        self._warm: dict[str, Warm] = {}

    def run(self, keep: Callable[[Proof], object]) -> Proof:
        """`keep` gets the proof so far after every step: a node may be taken away midway."""
        try:
            for name, claim, step in self.to_take():
                self._take(name, claim, step)
                keep(self._proof())
                if name == "devices" and self.steps[-1].came == "failed":
                    break
        finally:
            self._close()
        return self._proof()

    def to_take(self) -> list[tuple[str, str, Callable[[], Step | str]]]:
        """(name, what it confirms by passing on these devices, step)."""
        devices = f"{self.node.count} device{'s allow' if self.node.count > 1 else ' allows'}"
        freed = " and no memory taken" if self.on_gpus else ""
        return [
            ("devices", "the job's devices are told by what they are", self._devices),
            ("Transformer Engine", "the worker runs Megatron-LM's kernels", self._transformer_engine),
            ("calibration", "this machine can be calibrated", self._calibration),
            ("experiments", f"every kind of knob that {devices} runs, and computes the same as on one", self._all),
            ("guard", "the guard catches what trains something else", self._trap),
            ("out of memory", "a configuration that does not fit is oom", self._out_of_memory),
            ("hung collective", "a collective that hangs is a timeout that names it", self._hang),
            ("kill -9", f"a killed rank leaves nothing running{freed}", self._kill),
            ("prediction", "what is predicted stands beside what is measured", self._prediction),
        ]

    def _proof(self) -> Proof:
        machine = {"host": platform.node(), "python": platform.python_version(), **self.environment}
        return Proof(at=time.time(), machine=machine, steps=self.steps, experiments=self.experiments)

    def _take(self, name: str, claim: str, step: Callable[[], Step | str]) -> None:
        """A step that returns a string has passed."""
        began = time.monotonic()
        try:
            came = step()
        except AutoscoutError as error:
            came = Step(name=name, came="failed", found=str(error))
        if isinstance(came, str):
            came = Step(name=name, came="passed", found=came)
        came = msgspec.structs.replace(came, claim=claim, took_s=time.monotonic() - began)
        self.steps.append(came)
        self.say(f"{came.name}: {came.came}, {came.found}")

    # ---- steps ----------------------------------------------------------------------------------------------------

    def _devices(self) -> str:
        self.environment = self._profiler(self._job(self.node.count)).environment()
        shown = f"{self.node.count} × {self.environment.get('device', '')}"
        if not self.on_gpus:
            return f"{shown}; no GPU is named, so all ranks are processes on CPUs"
        if busy := gpus.held(os.environ.get("CUDA_VISIBLE_DEVICES", "")):
            raise AutoscoutError(f"others use the GPUs: {busy}")
        memory = self.environment.get("gpu_memory_gib", "not told")
        return f"{shown}, GiB {memory}, compute capability {self.environment.get('capability', 'not told')}"

    def _transformer_engine(self) -> Step | str:
        version = self.environment.get("transformer-engine")
        if not self.on_gpus:
            return self._not_run("Transformer Engine", "it needs a GPU")
        if version is None:
            raise AutoscoutError("it is not installed, so attention would not be fused")
        return f"version {version}"

    def _calibration(self) -> str:
        python = [*self.launch.command_prefix, self.launch.python] if self.launch.python else [sys.executable]
        found = calibrate.calibrate(python, "", True, lambda text: None)
        worst = max(found.errors.items(), key=lambda item: item[1], default=("", 0.0))
        return f"{found.device} in {found.took_s:.0f} s, the worst fit is {worst[0]} ({worst[1]:.0%})"

    def _all(self) -> str:
        left_out = 0
        for experts, layouts in ((0, _DENSE), (4, _EXPERTS)):
            reference = self._measured(self._job(1, experts=experts), {})
            self._note(self._job(1, experts=experts), reference, "")
            for count, knobs in layouts:
                if max(count, _least(knobs)) > self.node.count:
                    left_out += 1
                    continue
                job = self._job(count or self.node.count, experts=experts)
                measured = self._measured(job, _filled(knobs, job.devices))
                check = Losses(job.model.dtype, job.model.hidden, job.model.layers)
                self._note(job, measured, check.compare(reference, measured) if measured.status == "ok" else "")
        wrong = [e for e in self.experiments if e.status != "ok" or e.verdict]
        if wrong:
            said = "; ".join(f"{e.name} on {e.ranks}: {e.verdict or e.status}" for e in wrong)
            raise AutoscoutError(f"{len(wrong)} of {len(self.experiments)} did not: {said}")
        more = f"; {left_out} need more devices" if left_out else ""
        count = len(self.experiments)
        return f"{count} of {count} agree with one device, in {self._job(1).model.dtype}{more}"

    def _trap(self) -> Step | str:
        if self.node.count < 2:
            return self._not_run("guard", "it needs two devices")
        job = self._job(2)
        reference, trapped = self._measured(self._job(1), {"mbs": 1}), self._measured(job, _TRAP)
        if trapped.status != "ok":
            return f"what trains wrong elsewhere is refused here: {trapped.evidence[:200]}"
        said = Losses(job.model.dtype, job.model.hidden, job.model.layers).compare(reference, trapped)
        if not said:
            raise AutoscoutError("interleaving that mixes up messages was taken for right")
        return said

    def _out_of_memory(self) -> str:
        if not self.on_gpus:
            measured = self._measured(self._job(1, vocab=2**40), {})
        else:  # a model that is far too large would be rejected by its shadow, and not run
            with self._faulty(_HOLD, rank=0, reading=1) as prefix:
                measured = self._measured(self._job(1, command_prefix=prefix), {})
        if measured.status != "oom":
            raise AutoscoutError(f"it was taken for {measured.status}: {measured.evidence}")
        return measured.evidence

    def _hang(self) -> Step | str:
        if self.node.count < 2:
            return self._not_run("hung collective", "it needs two devices")
        with self._faulty("time.sleep(600)") as prefix:
            job = self._job(2, timeout_s=40.0 if not self.on_gpus else 120.0, command_prefix=prefix)
            measured = self._measured(job, {"tp": 2})
        if measured.status != "timeout" or "hung" not in measured.evidence:
            raise AutoscoutError(f"it was taken for {measured.status}: {measured.evidence}")
        return measured.evidence

    def _kill(self) -> str:
        """Kills a rank in mid-run, by process id, as a scheduler or the kernel would."""
        before = gpus.look()
        with self._faulty("os.kill(os.getpid(), 9)") as prefix:
            measured = self._measured(self._job(min(2, self.node.count), command_prefix=prefix), _dp(self.node.count))
        if measured.status != "killed" or signal.Signals.SIGKILL.name not in measured.evidence:
            raise AutoscoutError(f"it was taken for {measured.status}: {measured.evidence}")
        self._close()
        if left := [pid for pid in processes.family(os.getpid()) if pid != os.getpid() and _is_rank(pid)]:
            raise AutoscoutError(f"processes are left: {left}")
        more = gpus.more_than(before) if before else None
        if more is not None and more > _FREED_GIB:
            raise AutoscoutError(f"{more:.1f} GiB stay taken on a GPU")
        freed = (
            f"at most {max(more, 0.0):.2f} GiB more are taken than before" if more is not None else "no GPU to look at"
        )
        return f"{measured.evidence.split(' (log')[0]}; nothing is left running; {freed}"

    def _prediction(self) -> Step | str:
        pairs = [(e.predicted_s, e.measured_s) for e in self.experiments if e.predicted_s and e.measured_s]
        if not pairs:
            return self._not_run("prediction", "nothing predicts these jobs")
        said = f"{len(pairs)} steps, mean relative error {_error(pairs):.0%}"
        self.experiments = [
            msgspec.structs.replace(experiment, shadow_gib=self._traced(job, measured))
            for experiment, (job, measured) in zip(self.experiments, self._of_experiments, strict=True)
        ]
        traced = [(e.shadow_gib, e.allocated_gib) for e in self.experiments if e.shadow_gib and e.allocated_gib]
        if not traced:
            return f"{said}; shadows are held against memory on GPUs only"
        return f"{said}; {len(traced)} peaks of memory, mean relative error of their shadows {_error(traced):.2%}"

    # ---- what they share ------------------------------------------------------------------------------------------

    def _not_run(self, name: str, why: str) -> Step:
        return Step(name=name, came="not run", found=why)

    def _job(self, count: int, experts: int = 0, **changes: Any) -> Job:
        """A model that is large enough to be meaningful on a GPU, and small enough for a CPU."""
        model: dict[str, Any] = {"layers": 4, "hidden": 2048, "heads": 16, "vocab": 32000, "ffn": 5632}
        traffic = Traffic(seq_len=2048, global_batch=8)
        if not self.on_gpus:
            model = {"layers": 4, "hidden": 64, "heads": 4, "vocab": 512}
            traffic = Traffic(seq_len=64, global_batch=8)
        model |= {"gated": True, "norm": "rmsnorm", "bias": False, "position": "rope", "dtype": "bf16"}
        model |= {"experts": experts} | ({"vocab": changes.pop("vocab")} if "vocab" in changes else {})
        launch = msgspec.structs.replace(
            self.launch, iterations=3, measure_s=4.0, transformer_engine=self.on_gpus, **changes
        )
        if "command_prefix" in changes and not self.on_gpus:
            launch = msgspec.structs.replace(launch, launcher="warm")
        return Job(
            name=f"prove-{count}",
            target="megatron",
            model=Model(**model),
            traffic=traffic,
            cluster=Cluster(nodes=[msgspec.structs.replace(self.node, count=count)]),
            objective=Objective(minimize="step_time_s"),
            launch=launch,
        )

    def _profiler(self, job: Job) -> Profiler:
        """Keeps one warm process, with what it has imported, as long as ranks are started in the same way."""
        if launcher(job) != "warm":
            return MegatronProfiler(job, Torchrun(job, RANK), self.environment)
        key = " ".join(job.launch.command_prefix)
        if key not in self._warm:
            self._close()  # one that waits with torch in memory is enough
            self._warm[key] = Warm(job, RANK, arguments.variables(job, Configuration({})))
        return MegatronProfiler(job, self._warm[key], self.environment)

    def _close(self) -> None:
        for warm in self._warm.values():
            warm.close()
        self._warm.clear()

    def _measured(self, job: Job, knobs: dict[str, Any]) -> Measurement:
        self._runs += 1
        configuration = Configuration({"mbs": 4, **knobs})
        return self._profiler(job).run(configuration, _named(configuration), self.folder / f"{self._runs:02d}")

    def _note(self, job: Job, measured: Measurement, verdict: str) -> None:
        self.experiments.append(
            Experiment(
                name=measured.name + (" (experts)" if job.model.experts else ""),
                ranks=job.devices,
                status=measured.status,
                verdict=verdict or measured.evidence,
                measured_s=measured.metrics.get("step_time_s"),
                predicted_s=_predicted(job, measured.configuration),
                peak_memory_gib=measured.metrics.get("peak_memory_gib"),
                allocated_gib=max(measured.per_rank.get("allocated_memory_gib", []), default=None),
            )
        )
        self._of_experiments.append((job, measured))
        self.say(f"  {self.experiments[-1].name} on {job.devices}: {measured.status} {verdict}")

    def _traced(self, job: Job, measured: Measurement) -> float | None:
        if not self.on_gpus or measured.status != "ok":
            return None
        try:
            found = shadow(job, measured.configuration, measured.name, None, _SHADOW_S)
        except AutoscoutError as error:
            self.say(f"  no shadow: {error}")
            return None
        return found.allocated if found.verdict == "starts" else None

    @contextlib.contextmanager
    def _faulty(self, fault: str, rank: int | None = None, reading: int = 3) -> Iterator[list[str]]:
        """A command prefix under which a rank (1, or the only one) meets a fault: in its second step, or at another
        reading of the clock."""
        folder = self.folder / "fault"
        folder.mkdir(parents=True, exist_ok=True)
        rank = min(1, self.node.count - 1) if rank is None else rank
        (folder / "sitecustomize.py").write_text(
            "import os, sys, time\nplain, seen = time.perf_counter, []\n"
            "def perf_counter():\n"
            f"    if sys._getframe(1).f_code.co_name == '_iteration' and os.environ.get('RANK') == '{rank}':\n"
            f"        seen.append(1)\n        if len(seen) == {reading}:\n            {fault}\n"
            "    return plain()\ntime.perf_counter = perf_counter\n"
        )
        self._close()  # a warm process would still have the fault before
        path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
        yield ["env", f"PYTHONPATH={path}", *self.launch.command_prefix]


def prove(job: Job | None, folder: Path, say: Said, keep: Callable[[Proof], object]) -> Proof:
    """`keep` gets the proof so far. Errors: AutoscoutError (exit 2) for a job of another target."""
    if job is not None and job.target != "megatron":
        raise AutoscoutError(f"--prove runs training with Megatron-core; {job.name} is target = '{job.target}'", 2)
    return Prover(job, folder, say).run(keep)


def _node(job: Job | None) -> Node:
    """The job's first kind of device, or this machine's: GPUs by their name, else four CPU ranks."""
    if job is not None:
        return job.cluster.nodes[0]
    seen = gpus.look()
    if not seen:
        return Node(device="cpu", count=4)
    kinds = [kind for kind in presets.devices() if devices.shortage(_of(kind, 1), [seen[0].name]) == ""]
    return Node(device=kinds[0] if kinds else "gpu", count=len(seen), memory_gib=seen[0].total_gib or 0.0)


def _of(kind: str, count: int) -> Job:
    cluster = Cluster(nodes=[Node(device=kind, count=count)])
    return Job(name="prove", target="megatron", objective=Objective(minimize="step_time_s"), cluster=cluster)


def _predicted(job: Job, configuration: Configuration) -> float | None:
    space = JobSpace.of_job(job)
    simulators = Simulators(job, space, [], bases=lambda: simulators_of(job))
    if not space.is_valid(configuration):  # the space has more active knobs than the few that are set here
        found = space.nearest(configuration.knobs, firm=configuration.knobs)
        if found is None:
            return None
        configuration = found
    value = float(simulators.ensemble.explain(simulators.columns([configuration]))[0].value[0])
    return value if 0 < value < float("inf") else None


def _error(pairs: list[tuple[float, float]]) -> float:
    """Mean of |a - b| / b."""
    return sum(abs(a - b) / b for a, b in pairs) / len(pairs)


def _least(knobs: dict[str, Any]) -> int:
    """Fewest devices that a layout needs."""
    return math.prod(int(knobs.get(name, 1)) for name in ("tp", "pp", "cp")) * (2 if "ep" in knobs else 1)


def _filled(knobs: dict[str, Any], ranks: int) -> dict[str, Any]:
    """With as many replicas as fill all ranks."""
    used = math.prod(int(knobs.get(name, 1)) for name in ("tp", "pp", "cp"))
    return {**knobs, "dp": max(1, ranks // used)}


def _dp(count: int) -> dict[str, Any]:
    return {"mbs": 2, "dp": min(2, count)}


def _named(configuration: Configuration) -> str:
    return " ".join(f"{name}={value}" for name, value in configuration.knobs.items())


def _is_rank(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"train.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
