"""Runs a session: measures the experiments that the engine asks for, one at a time. The session's folder, locks, warm
start and resuming are in session.py.
"""

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from autoscout.running import conditions, early, out_of_memory, power, symptoms
from autoscout.running.cluster import gpus, slots
from autoscout.running.cluster.devices import claimable, device_kind, gpus_of, memory_of
from autoscout.running.cluster.placement import Device, Host, Placement
from autoscout.running.interfaces import Confirming, OnHosts, Placed, Profiler
from autoscout.tuning.engine import Engine
from autoscout.tuning.evaluator import Experiment
from autoscout.tuning.quality import Quality
from kb import store, stored_secrets
from kb.journal import Confirmed, ExperimentEnded, SessionEnded, Waiting
from kb.records import AutoscoutError, Configuration, Job, Measurement

_INGEST_EVERY = 10  # experiments between two updates of the knowledge base (tens of ms each); the journal is complete
_VISIBLE = "CUDA_VISIBLE_DEVICES"
PAUSE_S = 0.2  # polling interval for orders while paused


class Interrupted(Exception):
    """The user stopped the session. All finished experiments are in its journal."""


class Stop:
    """The user's requests to stop: the first one stops after the running experiment, the second ends that one, too."""

    def __init__(self) -> None:
        self.asked = 0
        self.now: Callable[[], None] = lambda: None

    def ask(self) -> None:
        self.asked += 1
        if self.asked >= 2:
            self.now()


class Result(msgspec.Struct, frozen=True, kw_only=True):
    session: str
    reason: str
    experiments: int
    confirmed: Confirmed | None
    engine_ms_mean: float
    engine_ms_max: float


class Loop:
    def __init__(
        self,
        engine: Engine,
        profiler: Profiler,
        kb: Path,
        on_note: Callable[[str], None],
        stop: Stop,
    ) -> None:
        self.engine, self.profiler, self.job = engine, profiler, engine.job
        self.folder, self.tape = engine.folder, engine.tape
        self.kb, self.on_note, self.stop = kb, on_note, stop
        # (configuration id, evidence) of infrastructure failures since the last run that succeeded
        self.spoiled: list[tuple[str, str]] = []
        self.waited = False  # whether the next experiment had to wait for devices
        self._said_why = False
        self._told: list[Measurement] = []
        self._quality = Quality(self.job, engine.started.default, self.folder)
        self._one_check = threading.Lock()  # held while the user's quality check runs
        stop.now = profiler.interrupt

    def run(self) -> Result:
        try:
            self._run()
        except Interrupted:
            end(self.engine, self.kb, "interrupted", self.on_note)
            raise
        except AutoscoutError as error:
            early = self.engine.reason == "stopped" and not self.engine.evaluator.done
            with contextlib.suppress(AutoscoutError):
                end(self.engine, self.kb, "stopped" if early else "failed", self.on_note, error)
            raise
        mean, peak = end(self.engine, self.kb, self.engine.reason, self.on_note)
        return Result(
            session=self.engine.started.session,
            reason=self.engine.reason,
            experiments=self.engine.experiments,
            confirmed=self.engine.confirmed,
            engine_ms_mean=mean,
            engine_ms_max=peak,
        )

    def profile_alone(self, configuration: Configuration) -> Measurement:
        try:
            return self.measured(configuration, "profile")
        finally:
            end(self.engine, self.kb, "profiled", self.on_note)

    def measured(self, configuration: Configuration, purpose: str) -> Measurement:
        return self._measure(self.engine.ask_for(configuration, purpose))

    def _run(self) -> None:
        if power.KNOB in self.engine.space.knob and self.job.launch.launcher != "replay" and (why := power.refused()):
            raise AutoscoutError(why)
        self._go()

    def _go(self) -> None:
        while not self.engine.over:
            if self.stop.asked and not self.tape.replaying:
                raise Interrupted
            experiment = self.engine.ask()
            if experiment is not None:
                self._measure(experiment)
            elif self.engine.paused:
                time.sleep(PAUSE_S)

    def _measure(self, experiment: Experiment) -> Measurement:
        """Replays the experiment's measurement if the journal of a resumed session has it, else runs it."""
        if (ended := self.tape.peek(ExperimentEnded, experiment.configuration)) is not None:
            self._told.append(self.engine.tell(experiment.number, ended.measurement))
            return self._told[-1]
        if self.stop.asked:
            raise Interrupted
        return self.finish(experiment, self._run_or_adopt(experiment, self.folder / experiment.folder))

    def finish(self, experiment: Experiment, found: Measurement) -> Measurement:
        """Checks the quality of a run's result, if the job wants this, and adds the result to the session."""
        return self._tell(experiment, self._of_quality(found))

    def _tell(self, experiment: Experiment, found: Measurement, placement: str = "") -> Measurement:
        judged = self.engine.tell(experiment.number, found, placement)
        self._heed(judged)
        self._told.append(judged)
        if experiment.number % _INGEST_EVERY == 0:
            ingest(self.engine, self.kb, self.on_note)
        return judged

    def _heed(self, measurement: Measurement) -> None:
        """Records faults of the machine. Errors: AutoscoutError if they are repeated, which would waste the budget."""
        if measurement.status == "infrastructure":
            self.spoiled.append((measurement.configuration.id, measurement.evidence))
            if reason := symptoms.stop(self.spoiled):
                raise AutoscoutError(reason)
        elif measurement.status == "ok":
            self.spoiled.clear()

    def _run_or_adopt(self, experiment: Experiment, folder: Path) -> Measurement:
        """Runs an experiment, or adopts a run that finished in its folder after its session was killed."""
        adopted = self.profiler.adopt(folder)
        if adopted is not None and adopted.configuration.id == experiment.configuration.id:
            return adopted
        with self.holding():
            self.prepare(self.profiler, experiment)
            measurement = self.watched(self.profiler, experiment, folder)
        if self.stop.asked >= 2 and measurement.status == "killed":
            raise Interrupted
        return measurement

    def prepare(self, profiler: Profiler, experiment: Experiment, placement: Placement | None = None) -> None:
        if isinstance(profiler, early.Aimed):
            profiler.aim(self._bar(experiment))
        if isinstance(profiler, Confirming) and experiment.purpose != "repeat":  # a repeat keeps the setting
            profiler.confirming(experiment.purpose == "confirm")
        if isinstance(profiler, Placed):
            profiler.place(experiment.elsewhere)
        if isinstance(profiler, OnHosts) and placement is not None:
            profiler.on(placement)

    def _of_quality(self, measurement: Measurement) -> Measurement:
        """Runs the user's quality check, if the measurement needs it, while the devices are locked."""
        if not self._quality.wanted(measurement):
            return measurement
        with self._machine() as ours:
            if not ours:
                raise Interrupted
            found = self._quality.judged(measurement, lambda: self.stop.asked >= 2)
        if self.stop.asked >= 2:
            raise Interrupted
        return found

    def watched(self, profiler: Profiler, experiment: Experiment, folder: Path) -> Measurement:
        """Runs an experiment and adds the machine's conditions during it, which replayed measurements already have."""
        if self.job.launch.launcher == "replay":
            return profiler.run(experiment.configuration, experiment.name, folder)
        watch, before = conditions.MachineWatch(), gpus.health()
        try:
            with power.capped(experiment.configuration):
                measurement = profiler.run(experiment.configuration, experiment.name, folder)
        finally:
            stored_secrets.clean(folder)
        if measurement.status == "oom":
            metrics = {**measurement.metrics, **out_of_memory.of_run(folder)}
            measurement = msgspec.structs.replace(measurement, metrics=metrics)
        seen = {**watch.ended(), **measurement.conditions}
        measurement = conditions.on_ranks(measurement, watch.samples)
        if self._reserves_what_it_needs():
            measurement = conditions.with_peak(measurement, watch.samples, self.job.devices)
        if measurement.status not in ("ok", "infrastructure") and (fault := gpus.broke(before, gpus.health())):
            evidence = symptoms.sentence(symptoms.BROKEN_GPU, f"{fault}; {measurement.evidence}")
            measurement = msgspec.structs.replace(measurement, status="infrastructure", evidence=evidence)
        return msgspec.structs.replace(measurement, conditions=seen, period=measurement.period or conditions.period())

    def _reserves_what_it_needs(self) -> bool:
        """Whether the memory in use on the GPUs is what a run needs: true for PyTorch trainers on whole GPUs of this
        machine, false for servers and JAX, which allocate all that they may use."""
        job = self.job
        alone = device_kind(job) == "cuda" and not job.cluster.hosts and "MIG" not in given(job)
        return alone and job.task != "serve" and bool(job.launch.script)

    def _bar(self, experiment: Experiment) -> early.Bar | None:
        """When to end an experiment early. Only search experiments, not the reference, are given up as too slow."""
        reference, anchors = self.engine.started.default, self.engine.anchors
        gives_up = experiment.purpose == "search" and experiment.configuration != reference
        told = [*self.engine.evaluator.done.values(), *(m for m in self._told if m.configuration != reference)]
        known = {m.id: m for m in [*told, *anchors.again]}
        bar = early.bar(self.job.objective, known.values(), gives_up)
        return bar and msgspec.structs.replace(bar, cost=bar.cost * math.exp(anchors.drift))

    @contextlib.contextmanager
    def holding(self, whole: bool = False) -> Iterator[None]:
        """Waits for the job's devices, or for the `whole` machine, and locks them. Errors: Interrupted."""
        asked = time.monotonic()
        with self._machine(whole) as ours:
            if not ours:
                raise Interrupted
            self.engine.wall_clock.waited_s += time.monotonic() - asked
            if self.waited:
                self.waited = False
                self.tape.emit(Waiting(over=True), write=True)
            yield

    def _machine(self, whole: bool = False) -> contextlib.AbstractContextManager[bool]:
        if self.job.launch.launcher == "replay":
            return contextlib.nullcontext(True)
        return self._devices(whole)

    @contextlib.contextmanager
    def _devices(self, whole: bool) -> Iterator[bool]:
        """Locks the GPUs that were given to this process, else as many as the job needs; for CPU ranks, or if the space
        sets power limits (which affect all users), the whole machine. Yields whether the devices are locked."""
        environment, job = self.engine.started.environment, self.job
        indices: list[int] = []
        names = [name.strip() for name in given(job).split(",") if name.strip()]
        if whole or device_kind(job) != "cuda" or job.cluster.hosts or power.KNOB in self.engine.space.knob:
            names = []
        elif not names and isinstance(self.profiler, OnHosts):
            indices = claimable(job, gpus_of(environment), memory_of(environment))
            names = [str(index) for index in indices] if len(indices) > job.devices else []
        count = job.devices if indices else len(names)
        names = gpus.uuids(names)
        taken: list[str] = []
        some = slots.Some(names, count) if names else None
        with slots.machine(
            on_wait=self._wait_for_devices,
            give_up=lambda: self.stop.asked > 0,
            session=self.engine.started.session,
            some=some,
            taken=taken,
        ) as ours:
            if taken and indices and isinstance(self.profiler, OnHosts):
                chosen = tuple(Device(str(indices[names.index(name)])) for name in taken)
                self.profiler.on(Placement((Host(os.uname().nodename, chosen),)))
            yield ours

    def _wait_for_devices(self) -> None:
        held = slots.holder()
        self.waited = True
        self.tape.emit(Waiting(holder=held.session if held else "", pid=held.pid if held else 0), write=True)
        if not self._said_why:
            self._said_why = True
            self.on_note("another AutoScout is measuring on this machine; this session waits until its experiments end")


def given(job: Job) -> str:
    """CUDA_VISIBLE_DEVICES of the job, else of this process; "" means all GPUs."""
    return job.launch.environment.get(_VISIBLE) or os.environ.get(_VISIBLE, "")


def end(
    engine: Engine, kb: Path, reason: str, on_note: Callable[[str], None], error: AutoscoutError | None = None
) -> tuple[float, float]:
    """Journals the end of the session and ingests it into the knowledge base. Returns milliseconds that the engine
    itself took: mean per experiment, and the longest single call."""
    mean, peak = sum(engine.engine_ms) / max(1, engine.experiments), max(engine.engine_ms, default=0.0)
    if not engine.tape.replaying:
        engine.tape.emit(
            SessionEnded(
                reason=reason,
                experiments=engine.experiments,
                engine_ms_mean=mean,
                engine_ms_max=peak,
                problem=str(error or ""),
                exit_code=error.exit_code if error else 0,
            ),
            sync=True,
        )
    ingest(engine, kb, on_note)
    return mean, peak


def ingest(engine: Engine, kb: Path, on_note: Callable[[str], None]) -> None:
    try:
        store.ingest(kb, engine.folder / "journal.jsonl")
    except AutoscoutError as error:
        on_note(f"not in the knowledge base yet ({error}); the journal has it, and `autoscout kb ingest` adds it")
