"""`autoscout doctor --prove`: tests on this machine what the documentation claims about a GPU node.

A step passes, fails, or is not run, with the reason. On a machine without GPUs the same steps run on CPU ranks over
gloo, and those that need a GPU are listed. prove_report.py writes the results.
"""

import contextlib
import math
import os
import platform
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from autoscout.machine import calibrate
from autoscout.machine.prove_runs import Runs, predicted
from autoscout.running import processes
from autoscout.running.cluster import gpus
from autoscout.running.equivalence import Losses
from kb import dates
from kb.records import AutoscoutError, Job, Measurement

_FREED_GIB = 1.0  # memory that may still be in use after a kill, because the driver frees it late
_DENSE: tuple[tuple[int, dict[str, Any]], ...] = (  # (devices, 0 for all; knobs): covers every kind of knob
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
_TRAP = {"mbs": 1, "pp": 2, "vpp": 2}  # rule P9: Megatron-core runs it without complaint and trains something else


class ProveStep(msgspec.Struct, frozen=True, kw_only=True):
    """`claim`: the documentation's claim that this step confirms by passing."""

    name: str
    came: Literal["passed", "failed", "not run"]
    found: str
    claim: str = ""
    took_s: float = 0.0


class ProveRun(msgspec.Struct, frozen=True, kw_only=True):
    """`verdict`: how it differs from one device, "" if it agrees. Seconds per step; GiB of the fullest rank:
    `peak_memory_gib` includes memory outside the allocator, `allocated_gib` counts tensors alone, and `shadow_gib` is
    the shadow's figure for tensors."""

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
    steps: list[ProveStep]
    experiments: list[ProveRun]

    @property
    def failed(self) -> list[ProveStep]:
        return [step for step in self.steps if step.came == "failed"]


class Prover:
    """One proof. The experiments are written to `folder`."""

    def __init__(self, job: Job | None, folder: Path, say: Callable[[str], None]) -> None:
        """`job`: whose interpreter and devices are used; None: ours and this machine's."""
        self.say = say
        self.runs = Runs(job, folder, say)
        self.steps: list[ProveStep] = []
        self.experiments: list[ProveRun] = []
        self._of_experiments: list[tuple[Job, Measurement]] = []

    def run(self, keep: Callable[[Proof], object]) -> Proof:
        """Calls `keep` with the proof so far after every step, because a node may be taken away midway."""
        try:
            for name, claim, step in self.to_take():
                self._take(name, claim, step)
                keep(self._proof())
                if name == "devices" and self.steps[-1].came == "failed":
                    break
        finally:
            self.runs.close()
        return self._proof()

    def to_take(self) -> list[tuple[str, str, Callable[[], ProveStep | str]]]:
        """(name, what it confirms by passing on these devices, step)."""
        devices = f"{self.runs.node.count} device{'s allow' if self.runs.node.count > 1 else ' allows'}"
        freed = " and no memory taken" if self.runs.on_gpus else ""
        return [
            ("devices", "the job's devices are recognized", self._devices),
            ("Transformer Engine", "the worker runs Megatron-LM's kernels", self._transformer_engine),
            ("calibration", "this machine can be calibrated", self._calibration),
            ("experiments", f"every kind of knob that {devices} runs, and computes the same as one device", self._all),
            ("guard", "the guard catches what trains something else", self._trap),
            ("out of memory", "a configuration that does not fit is oom", self._out_of_memory),
            ("hung collective", "a collective that hangs is a timeout that names it", self._hang),
            ("kill -9", f"a killed rank leaves nothing running{freed}", self._kill),
            ("prediction", "predictions are compared with measurements", self._prediction),
        ]

    def _proof(self) -> Proof:
        machine = {"host": platform.node(), "python": platform.python_version(), **self.runs.environment}
        return Proof(at=dates.now(), machine=machine, steps=self.steps, experiments=self.experiments)

    def _take(self, name: str, claim: str, step: Callable[[], ProveStep | str]) -> None:
        """Runs a step. One that returns a string has passed."""
        began = time.monotonic()
        try:
            came = step()
        except AutoscoutError as error:
            came = ProveStep(name=name, came="failed", found=str(error))
        if isinstance(came, str):
            came = ProveStep(name=name, came="passed", found=came)
        came = msgspec.structs.replace(came, claim=claim, took_s=time.monotonic() - began)
        self.steps.append(came)
        self.say(f"{came.name}: {came.came}, {came.found}")

    # ---- steps ----------------------------------------------------------------------------------------------------

    def _devices(self) -> str:
        self.runs.environment = self.runs.profiler(self.runs.job(self.runs.node.count)).environment()
        shown = f"{self.runs.node.count} × {self.runs.environment.get('device', '')}"
        if not self.runs.on_gpus:
            return f"{shown}; the job names no GPU, so all ranks are processes on CPUs"
        if busy := gpus.held(os.environ.get("CUDA_VISIBLE_DEVICES", "")):
            raise AutoscoutError(f"others use the GPUs: {busy}")
        memory = self.runs.environment.get("gpu_memory_gib", "unknown")
        return f"{shown}, GiB {memory}, compute capability {self.runs.environment.get('capability', 'unknown')}"

    def _transformer_engine(self) -> ProveStep | str:
        version = self.runs.environment.get("transformer-engine")
        if not self.runs.on_gpus:
            return self._not_run("Transformer Engine", "it needs a GPU")
        if version is None:
            raise AutoscoutError("Transformer Engine is not installed, so attention would not be fused")
        return f"version {version}"

    def _calibration(self) -> str:
        launch = self.runs.launch
        python = [*launch.command_prefix, launch.python] if launch.python else [sys.executable]
        found = calibrate.calibrate(python, "", True, lambda text: None)
        worst = max(found.errors.items(), key=lambda item: item[1], default=("", 0.0))
        return f"{found.device} took {found.took_s:.0f} s; the worst fit is {worst[0]} ({worst[1]:.0%})"

    def _all(self) -> str:
        left_out = 0
        for experts, layouts in ((0, _DENSE), (4, _EXPERTS)):
            reference = self.runs.measured(self.runs.job(1, experts=experts), {})
            self._note(self.runs.job(1, experts=experts), reference, "")
            for count, knobs in layouts:
                if max(count, _least(knobs)) > self.runs.node.count:
                    left_out += 1
                    continue
                job = self.runs.job(count or self.runs.node.count, experts=experts)
                measured = self.runs.measured(job, _filled(knobs, job.devices))
                check = Losses(job.model.dtype, job.model.hidden, job.model.layers)
                self._note(job, measured, check.compare(reference, measured) if measured.status == "ok" else "")
        wrong = [e for e in self.experiments if e.status != "ok" or e.verdict]
        if wrong:
            failures = "; ".join(f"{e.name} on {e.ranks}: {e.verdict or e.status}" for e in wrong)
            raise AutoscoutError(f"{len(wrong)} of {len(self.experiments)} experiments failed: {failures}")
        more = f"; {left_out} need more devices" if left_out else ""
        count = len(self.experiments)
        return f"{count} of {count} agree with one device, in {self.runs.job(1).model.dtype}{more}"

    def _trap(self) -> ProveStep | str:
        if self.runs.node.count < 2:
            return self._not_run("guard", "it needs two devices")
        job = self.runs.job(2)
        reference, trapped = self.runs.measured(self.runs.job(1), {"mbs": 1}), self.runs.measured(job, _TRAP)
        if trapped.status != "ok":
            return f"this engine refuses the configuration that others train wrongly: {trapped.evidence[:200]}"
        difference = Losses(job.model.dtype, job.model.hidden, job.model.layers).compare(reference, trapped)
        if not difference:
            raise AutoscoutError("interleaving that mixes up messages was accepted as correct")
        return difference

    def _out_of_memory(self) -> str:
        if not self.runs.on_gpus:
            measured = self.runs.measured(self.runs.job(1, vocab=2**40), {})
        else:  # not a model that is far too large: its shadow would reject it, so it would not run
            with self.runs.faulty(_HOLD, rank=0, reading=1) as prefix:
                measured = self.runs.measured(self.runs.job(1, command_prefix=prefix), {})
        if measured.status != "oom":
            raise AutoscoutError(f"it was taken for {measured.status}: {measured.evidence}")
        return measured.evidence

    def _hang(self) -> ProveStep | str:
        if self.runs.node.count < 2:
            return self._not_run("hung collective", "it needs two devices")
        with self.runs.faulty("time.sleep(600)") as prefix:
            job = self.runs.job(2, timeout_s=40.0 if not self.runs.on_gpus else 120.0, command_prefix=prefix)
            measured = self.runs.measured(job, {"tp": 2})
        if measured.status != "timeout" or "hung" not in measured.evidence:
            raise AutoscoutError(f"it was taken for {measured.status}: {measured.evidence}")
        return measured.evidence

    def _kill(self) -> str:
        """Kills a rank during a run, by process id, as a scheduler or the kernel would."""
        before = gpus.ours()
        with self.runs.faulty("os.kill(os.getpid(), 9)") as prefix:
            job = self.runs.job(min(2, self.runs.node.count), command_prefix=prefix)
            measured = self.runs.measured(job, {"mbs": 2, "dp": job.devices})
        if measured.status != "killed" or signal.Signals.SIGKILL.name not in measured.evidence:
            raise AutoscoutError(f"it was taken for {measured.status}: {measured.evidence}")
        self.runs.close()
        if left := [pid for pid in processes.family(os.getpid()) if pid != os.getpid() and _is_rank(pid)]:
            raise AutoscoutError(f"processes are left: {left}")
        more = gpus.more_than(before) if before else None
        if more is not None and more > _FREED_GIB:
            raise AutoscoutError(f"{more:.1f} GiB remain in use on a GPU")
        freed = (
            f"at most {max(more, 0.0):.2f} GiB more are in use than before" if more is not None else "there is no GPU"
        )
        return f"{measured.evidence.split(' (log')[0]}; nothing is left running; {freed}"

    def _prediction(self) -> ProveStep | str:
        pairs = [(e.predicted_s, e.measured_s) for e in self.experiments if e.predicted_s and e.measured_s]
        if not pairs:
            return self._not_run("prediction", "nothing predicts these jobs")
        errors = f"{len(pairs)} steps, mean relative error {_error(pairs):.0%}"
        self.experiments = [
            msgspec.structs.replace(experiment, shadow_gib=self.runs.traced(job, measured))
            for experiment, (job, measured) in zip(self.experiments, self._of_experiments, strict=True)
        ]
        traced = [(e.shadow_gib, e.allocated_gib) for e in self.experiments if e.shadow_gib and e.allocated_gib]
        if not traced:
            return f"{errors}; shadows are compared with memory on GPUs only"
        return f"{errors}; {len(traced)} peaks of memory, mean relative error of their shadows {_error(traced):.2%}"

    # ---- what they share ------------------------------------------------------------------------------------------

    def _not_run(self, name: str, why: str) -> ProveStep:
        return ProveStep(name=name, came="not run", found=why)

    def _note(self, job: Job, measured: Measurement, verdict: str) -> None:
        self.experiments.append(
            ProveRun(
                name=measured.name + (" (experts)" if job.model.experts else ""),
                ranks=job.devices,
                status=measured.status,
                verdict=verdict or measured.evidence,
                measured_s=measured.metrics.get("step_time_s"),
                predicted_s=predicted(job, measured.configuration),
                peak_memory_gib=measured.metrics.get("peak_memory_gib"),
                allocated_gib=max(measured.per_rank.get("allocated_memory_gib", []), default=None),
            )
        )
        self._of_experiments.append((job, measured))
        self.say(f"  {self.experiments[-1].name} on {job.devices}: {measured.status} {verdict}")


def prove(job: Job | None, folder: Path, say: Callable[[str], None], keep: Callable[[Proof], object]) -> Proof:
    """Calls `keep` with the proof so far. Errors: AutoscoutError (exit 2) for a job of another target."""
    if job is not None and job.target != "megatron":
        raise AutoscoutError(f"--prove runs training with Megatron-core; {job.name} is target = '{job.target}'", 2)
    return Prover(job, folder, say).run(keep)


def _error(pairs: list[tuple[float, float]]) -> float:
    """Mean of |a - b| / b."""
    return sum(abs(a - b) / b for a, b in pairs) / len(pairs)


def _least(knobs: dict[str, Any]) -> int:
    """Smallest number of devices for a layout."""
    return math.prod(int(knobs.get(name, 1)) for name in ("tp", "pp", "cp")) * (2 if "ep" in knobs else 1)


def _filled(knobs: dict[str, Any], ranks: int) -> dict[str, Any]:
    """The knobs with as many replicas as fill all ranks."""
    used = math.prod(int(knobs.get(name, 1)) for name in ("tp", "pp", "cp"))
    return {**knobs, "dp": max(1, ranks // used)}


def _is_rank(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"train.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
