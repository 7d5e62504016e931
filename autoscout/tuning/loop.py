"""Runs a session: what the engine wants is measured on this machine, one experiment at a time, into the journal.

What lies around it (folders, locks, warm start, resuming) is session.py's.
"""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from autoscout.cluster import gpus, slots
from autoscout.running import conditions, early, power, symptoms
from autoscout.running.interfaces import Confirming, Placed, Profiler
from autoscout.tuning.engine import Engine, Experiment
from autoscout.tuning.quality import Quality
from kb import store
from kb.journal import Confirmed, ExperimentEnded, SessionEnded, Waiting
from kb.records import AutoscoutError, Configuration, Measurement

_INGEST_EVERY = 10  # experiments: a transaction costs tens of milliseconds, the journal is safe without it
_PAUSE_S = 0.2  # between two looks at the orders while paused


class Interrupted(Exception):
    """The person asked to stop; everything that finished is kept."""


class Stop:
    """How often the person asked to stop: once ends after the running experiment, twice ends it too."""

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
    """One running session."""

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
        self.spoiled: list[tuple[str, str]] = []  # (configuration's id, evidence) of the machine's faults since a run
        self.waited = False  # for the devices, with the experiment that comes
        self._told: list[Measurement] = []
        self._quality = Quality(self.job, engine.started.default, self.folder)
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
            return self._measure(self.engine.ask_for(configuration))
        finally:
            end(self.engine, self.kb, "profiled", self.on_note)

    def _run(self) -> None:
        if power.KNOB in self.engine.space.knob and self.job.launch.launcher != "replay" and (why := power.refused()):
            raise AutoscoutError(why)
        while not self.engine.over:
            if self.stop.asked and not self.tape.replaying:
                raise Interrupted
            experiment = self.engine.ask()
            if experiment is not None:
                self._measure(experiment)
            elif self.engine.paused:
                time.sleep(_PAUSE_S)

    def _measure(self, experiment: Experiment) -> Measurement:
        """What the tape recorded of it, else what this machine says."""
        if (ended := self.tape.peek(ExperimentEnded, experiment.configuration)) is not None:
            self._told.append(self.engine.tell(experiment.number, ended.measurement))
            return self._told[-1]
        if self.stop.asked:
            raise Interrupted
        found = self._of_quality(self._run_or_adopt(experiment, self.folder / experiment.folder))
        told = self.engine.tell(experiment.number, found)
        self._heed(told)
        self._told.append(told)
        if experiment.number % _INGEST_EVERY == 0:
            ingest(self.engine, self.kb, self.on_note)
        return told

    def _heed(self, measurement: Measurement) -> None:
        """Errors: AutoscoutError when the machine is broken: the budget is not spent on finding that out again."""
        if measurement.status == "infrastructure":
            self.spoiled.append((measurement.configuration.id, measurement.evidence))
            if said := symptoms.stop(self.spoiled):
                raise AutoscoutError(said)
        elif measurement.status == "ok":
            self.spoiled.clear()

    def _run_or_adopt(self, experiment: Experiment, folder: Path) -> Measurement:
        """A run that finished while nobody was left to write it down is taken as it lies in its folder."""
        adopted = self.profiler.adopt(folder)
        if adopted is not None and adopted.configuration.id == experiment.configuration.id:
            return adopted
        asked = time.monotonic()
        with self._machine() as ours:
            if not ours:
                raise Interrupted
            self.engine.waited_s += time.monotonic() - asked
            if self.waited:
                self.waited = False
                self.tape.emit(Waiting(over=True), write=True)
            if isinstance(self.profiler, early.Aimed):
                self.profiler.aim(self._bar(experiment))
            if isinstance(self.profiler, Confirming) and experiment.purpose != "repeat":  # of the one before
                self.profiler.confirming(experiment.purpose == "confirm")
            if isinstance(self.profiler, Placed):
                self.profiler.place(experiment.elsewhere)
            measurement = self._watched(experiment, folder)
        if self.stop.asked >= 2 and measurement.status == "killed":
            raise Interrupted
        return measurement

    def _of_quality(self, measurement: Measurement) -> Measurement:
        """The person's own check may need the devices too."""
        if not self._quality.wanted(measurement):
            return measurement
        with self._machine() as ours:
            if not ours:
                raise Interrupted
            found = self._quality.judged(measurement, lambda: self.stop.asked >= 2)
        if self.stop.asked >= 2:
            raise Interrupted
        return found

    def _watched(self, experiment: Experiment, folder: Path) -> Measurement:
        """Runs it, and says what the machine did meanwhile. A recording says so itself."""
        if self.job.launch.launcher == "replay":
            return self.profiler.run(experiment.configuration, experiment.name, folder)
        watch, before = conditions.Watch(), gpus.health()
        with power.capped(experiment.configuration):
            measurement = self.profiler.run(experiment.configuration, experiment.name, folder)
        seen = {**watch.ended(), **measurement.conditions}
        measurement = conditions.on_ranks(measurement, watch.samples)
        if measurement.status not in ("ok", "infrastructure") and (said := gpus.broke(before, gpus.health())):
            evidence = symptoms.sentence(symptoms.BROKEN_GPU, f"{said}; {measurement.evidence}")
            measurement = msgspec.structs.replace(measurement, status="infrastructure", evidence=evidence)
        return msgspec.structs.replace(measurement, conditions=seen, period=measurement.period or conditions.period())

    def _bar(self, experiment: Experiment) -> early.Bar | None:
        """What an experiment has to beat; in the rounds at the end, and of the reference, none is given up."""
        gives_up = experiment.purpose == "search" and experiment.configuration != self.engine.started.default
        known = {m.id: m for m in [*self.engine.evaluator.done.values(), *self._told]}
        return early.bar(self.job.objective, known.values(), gives_up)

    def _machine(self) -> contextlib.AbstractContextManager[bool]:
        if self.job.launch.launcher == "replay":
            return contextlib.nullcontext(True)
        return slots.machine(
            on_wait=self._wait_for_devices,
            give_up=lambda: self.stop.asked > 0,
            session=self.engine.started.session,
        )

    def _wait_for_devices(self) -> None:
        held = slots.holder()
        self.waited = True
        self.tape.emit(Waiting(holder=held.session if held else "", pid=held.pid if held else 0), write=True)
        self.on_note("another AutoScout measures on this machine; waiting for its experiment to end")


def end(
    engine: Engine, kb: Path, reason: str, on_note: Callable[[str], None], error: AutoscoutError | None = None
) -> tuple[float, float]:
    """Writes that the session is over, and brings it into the knowledge base. Milliseconds that the engine took: the
    mean of an experiment, and the longest pause."""
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
        on_note(f"not in the knowledge base yet, the journal keeps it: {error}")
