"""The one loop: ask → evaluate → tell → … → confirm, every step into the journal.

What the session does around it (folders, locks, warm start, resuming) is session.py's.
"""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from autoscout.cluster import slots
from autoscout.job.load import seconds
from autoscout.job.objective import broken, cost, nearest_miss, to_metric
from autoscout.running import equivalence, results
from autoscout.search.earlier import Past
from autoscout.search.hyper import Hyper
from autoscout.search.strategy import Strategy, strategy
from autoscout.simulate.learned.other_jobs import measured_by_others
from autoscout.space.graph import Space
from autoscout.targets.megatron.profiler import Profiler
from autoscout.targets.vllm.reuse import in_turn
from autoscout.tuning import confirm
from autoscout.tuning.evaluator import Evaluator, FidelityMode
from autoscout.tuning.steer import Steering
from autoscout.tuning.tape import Tape
from kb import door, store
from kb.journal import (
    BestFound,
    Confirmed,
    ExperimentEnded,
    ExperimentStarted,
    SearchEnded,
    SessionEnded,
    SessionStarted,
    Waiting,
)
from kb.orders import Order
from kb.records import AutoscoutError, Configuration, Measurement

_INGEST_EVERY = 10  # experiments: a transaction costs tens of milliseconds, the journal is safe without it
_PAUSE_S = 0.2  # between two looks at the orders while paused
_SEARCH_PURPOSES = ("search", "check")


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
    """The state of one running session."""

    def __init__(
        self,
        started: SessionStarted,
        space: Space,
        profiler: Profiler,
        kb: Path,
        folder: Path,
        tape: Tape,
        on_note: Callable[[str], None],
        stop: Stop,
        elapsed_s: float,
        past: list[Past] | None = None,
    ) -> None:
        self.started, self.job, self.space, self.profiler = started, started.job, space, profiler
        self.kb, self.folder, self.tape, self.on_note, self.stop = kb, folder, tape, on_note, stop
        self.past = past or []
        self.hyper = msgspec.convert(started.hyper, Hyper)
        self.reference = equivalence.Reference(equivalence.kind_of(self.job), started.default.id)
        self.best: float | None = None  # cost
        self.milestone: float | None = None  # the best when `stale` was last set back
        self.experiments = 0  # all that were run
        self.searched = 0  # those that count towards the budget
        self.stale = 0  # of those, since the best improved by 1 %
        self.experiment_s = 0.0  # wall time inside experiments, not the engine's
        self.engine_ms: list[float] = []
        self.waited = False  # for the devices, with the experiment that comes
        self.limit = self.job.budget.profiles
        self.deadline = time.monotonic() + seconds(self.job.budget.wall) - elapsed_s
        remembered = []
        if started.kb_mark:
            remembered = store.measurements(kb, job=self.job.id, context=started.context, up_to=started.kb_mark)
        others = started.kb_mark and started.strategy == "autoscout" and started.warm_start != "off"
        self.evaluator = Evaluator(
            self.job,
            space,
            tape,
            self.profile,
            self.reference.rejudge,
            remembered,
            msgspec.convert(started.fidelity, FidelityMode),
            self.hyper,
            started.context,
            started.default,
            stand_in=started.strategy != "autoscout",
            past=measured_by_others(kb, self.job, started.kb_mark) if others else [],
        )
        self.steering = Steering(folder, tape, self.job, space, on_note, self.evaluator.favourite)
        stop.now = profiler.interrupt

    def run(self) -> Result:
        reason = "failed"
        try:
            reason = self._search()
            confirmed = self._confirm()
        except Interrupted:
            self._end("interrupted")
            raise
        except AutoscoutError as error:
            early = reason == "stopped" and not self.evaluator.done
            with contextlib.suppress(AutoscoutError):
                self._end("stopped" if early else "failed", error)
            raise
        mean, peak = self._end(reason)
        return Result(
            session=self.started.session,
            reason=reason,
            experiments=self.experiments,
            confirmed=confirmed,
            engine_ms_mean=mean,
            engine_ms_max=peak,
        )

    def profile_alone(self, configuration: Configuration) -> Measurement:
        try:
            return self.profile(configuration, "profile")
        finally:
            self._end("profiled")

    def _search(self) -> str:
        s = self.started
        predictors = self.evaluator.predictors() if s.strategy == "autoscout" else None
        chosen: Strategy = strategy(
            s.strategy, self.space, s.seed, s.default, s.orderings, self.hyper, predictors, self.past
        )
        if s.fidelity == "simulate" and predictors:  # the simulators decide: only their favourites are profiled
            self.limit = min(self.limit, 1 + self.hyper.top_k)
        try:
            return self._steps(chosen)
        except _BudgetSpent as spent:
            return spent.reason

    def _steps(self, chosen: Strategy) -> str:
        """Asks, evaluates and tells until there is nothing left to ask. Raises _BudgetSpent."""
        simulating, step = self.started.fidelity == "simulate", 0
        while True:
            chosen, stopped = self._steered(chosen, step)
            if stopped:
                return self._search_ended("stopped")
            began, inside = time.perf_counter(), self.experiment_s
            batch = chosen.ask()
            for event in chosen.drain():
                self.tape.emit(event)
            if not batch:
                return self._search_ended("exhausted")
            step += 1
            ordered = in_turn(self.job, batch)
            measurements, switched = self.evaluator.evaluate(ordered, step)
            if switched:
                if simulating:  # nothing is recommended that was not profiled
                    self.limit = min(self.limit, self.searched + self.hyper.top_k)
                chosen.switch_to_profiling()
            by_id = {c.id: m for c, m in zip(ordered, measurements, strict=True)}
            chosen.tell([by_id[c.id] for c in batch])
            for measurement in measurements:
                self._note_best(measurement)
            self.engine_ms.append((time.perf_counter() - began - (self.experiment_s - inside)) * 1000)

    def _steered(self, chosen: Strategy, step: int) -> tuple[Strategy, bool]:
        """Takes in what a person ordered since the last step: the strategy to go on with, and whether to stop."""
        paused = False
        while True:
            for order in self.steering.orders(self._best_configuration()):
                paused = order.what == "pause" or (paused and order.what != "go")
                if order.what == "stop":
                    return chosen, True
                chosen = self._obeyed(chosen, order, step)
            if not paused or self.tape.replaying:
                return chosen, False
            if self.stop.asked:
                raise Interrupted
            time.sleep(_PAUSE_S)

    def _obeyed(self, chosen: Strategy, order: Order, step: int) -> Strategy:
        if order.what == "budget":
            self.limit = int(order.values["profiles"])
        elif order.what == "profile":
            if self.evaluator.profile_from_now_on(step, "a person asked for it"):
                chosen.switch_to_profiling()
        elif order.what in ("try", "retry", "validate"):
            self._run_ordered(chosen, order, step)
        elif order.what in ("pin", "exclude"):
            # A new search of what is left: what it asks for again is known, and costs nothing.
            left = self.steering.narrow(order)
            default = self.started.default if left.is_valid(self.started.default) else None
            chosen = strategy(self.started.strategy, left, self.started.seed, default, hyper=self.hyper, past=self.past)
        return chosen

    def _run_ordered(self, chosen: Strategy, order: Order, step: int) -> None:
        """One experiment that a person asked for. Our own strategy learns from it like from any other; before the
        default was measured it does not, since it begins with that."""
        done = self.evaluator.done
        begun, before = self.started.default.id in done, self.experiments
        if order.what == "validate":
            wanted = self.evaluator.favourite()
            if wanted is None:  # everything has been measured since
                return
            measurement = self.evaluator.validate(wanted, step)
        else:
            wanted = self.steering.wanted(order, self._best_configuration())
            measurement = self.evaluator.run_now(wanted, again=order.what == "retry")
        self._note_best(measurement)
        if begun and self.experiments > before and self.started.strategy == "autoscout":
            chosen.tell([measurement])

    def _best_configuration(self) -> Configuration:
        measured = [(c, m) for m in self.evaluator.done.values() if (c := cost(self.job.objective, m)) is not None]
        return min(measured, key=lambda cm: cm[0])[1].configuration if measured else self.started.default

    def _search_ended(self, reason: str) -> str:
        recorded = self.tape.recorded(SearchEnded)
        return (recorded or self.tape.emit(SearchEnded(reason=reason))).reason

    def profile(self, configuration: Configuration, purpose: str) -> Measurement:
        """One experiment, or what the tape recorded of it. Raises _BudgetSpent before one that may not start."""
        searching = purpose in _SEARCH_PURPOSES
        if searching:
            self._check_budget()
        if self.stop.asked:
            raise Interrupted
        self.experiments += 1
        number, name = self.experiments, self.space.name(configuration)
        folder = f"experiments/{number:04d}"
        self.tape.emit(
            ExperimentStarted(number=number, purpose=purpose, configuration=configuration, name=name, folder=folder),
            write=True,
        )
        ended = self.tape.recorded(ExperimentEnded, configuration)
        if ended is not None:
            measurement = self.reference.rejudge(ended.measurement)
        else:
            measurement = self.reference.rejudge(self._run_or_adopt(configuration, name, self.folder / folder))
            self.tape.emit(ExperimentEnded(number=number, purpose=purpose, measurement=measurement), sync=True)
            if self.experiments % _INGEST_EVERY == 0:
                self._ingest()
        if searching:
            self.searched += 1
            self.stale += 1
            self._note_best(measurement)
        return measurement

    def _run_or_adopt(self, configuration: Configuration, name: str, folder: Path) -> Measurement:
        """A run that finished while nobody was left to write it down is taken as it lies in its folder."""
        adopted = results.collect(folder)
        if adopted is not None and adopted.configuration.id == configuration.id:
            return adopted
        began = time.perf_counter()
        with self._machine() as ours:
            if not ours:
                raise Interrupted
            if self.waited:
                self.waited = False
                self.tape.emit(Waiting(over=True), write=True)
            measurement = door.cleaned(self.profiler.run(configuration, name, folder))
        self.experiment_s += time.perf_counter() - began
        if self.stop.asked >= 2 and measurement.status == "killed":
            raise Interrupted
        return measurement

    def _machine(self) -> contextlib.AbstractContextManager[bool]:
        if self.job.launch.launcher == "replay":
            return contextlib.nullcontext(True)
        return slots.machine(
            on_wait=self._wait_for_devices, give_up=lambda: self.stop.asked > 0, session=self.started.session
        )

    def _wait_for_devices(self) -> None:
        held = slots.holder()
        self.waited = True
        self.tape.emit(Waiting(holder=held.session if held else "", pid=held.pid if held else 0), write=True)
        self.on_note("another AutoScout measures on this machine; waiting for its experiment to end")

    def _check_budget(self) -> None:
        recorded = self.tape.recorded(SearchEnded)
        if recorded is not None:
            raise _BudgetSpent(recorded.reason)
        reason = ""
        if self.searched >= self.limit:
            reason = "budget"
        elif self.stale >= self.hyper.patience:
            reason = "converged"
        elif time.monotonic() > self.deadline and not self.tape.replaying:
            reason = "wall"
        if reason:
            self.tape.emit(SearchEnded(reason=reason))
            raise _BudgetSpent(reason)

    def _note_best(self, measurement: Measurement) -> None:
        c = cost(self.job.objective, measurement)
        if measurement.fidelity != "measured" or c is None or (self.best is not None and c >= self.best):
            return
        if self.milestone is None or c < 0.99 * self.milestone:
            self.stale, self.milestone = 0, c
        self.best = c
        self.tape.emit(
            BestFound(
                configuration=measurement.configuration,
                name=measurement.name,
                value=to_metric(self.job.objective, c),
                experiments=self.searched,
            )
        )

    def _confirm(self) -> Confirmed:
        """Finalists and default re-measured in turns; nothing is recommended on the strength of one lucky run.

        Beside the budget: `repeats` rounds, and up to as many again while they may still decide something; when the
        wall-clock limit is over, one round only.
        """
        allowed = self.steering.allowed
        done = [self.reference.rejudge(m) for m in self.evaluator.done.values() if allowed.is_valid(m.configuration)]
        finalists = confirm.finalists(self.job, done, self.started.default)
        if not self.evaluator.done:
            raise AutoscoutError(f"{self.started.session} ended before anything was measured")
        if not finalists:
            raise AutoscoutError(self._nothing_worked(), 3)
        repeats, default = self.job.launch.repeats, self.started.default
        if not self.tape.replaying:
            self.on_note(f"re-measuring {len(finalists)} configurations at least {repeats} times in turns")
        measured: list[list[Measurement]] = []
        while len(measured) < repeats or (
            len(measured) < 2 * repeats and confirm.undecided(self.job, measured, default)
        ):
            late = time.monotonic() > self.deadline and not self.tape.replaying
            if measured and (late or self.tape.next_is(Confirmed)):
                break
            measured.append([self.profile(c, "confirm") for c in confirm.round_of(finalists, len(measured))])
        confirmed = confirm.verdict(self.job, self.space, measured, self.started.default)
        if confirmed is None:
            raise AutoscoutError("no finalist could be measured again; `autoscout sql 'FROM failures'` says why", 3)
        return self.tape.recorded(Confirmed) or self.tape.emit(confirmed, sync=True)

    def _nothing_worked(self) -> str:
        failures: dict[str, int] = {}
        for m in self.evaluator.done.values():
            failures[m.status] = failures.get(m.status, 0) + 1
        told = ", ".join(f"{n} {status}" for status, n in sorted(failures.items())) or "nothing was measured"
        reasons = (m.evidence or broken(self.job.objective, m) for m in self.evaluator.done.values())
        example = nearest_miss(self.job.objective, self.evaluator.done.values()) or next(
            (f"For example: {reason}" for reason in reasons if reason), ""
        )
        return f"no configuration of {self.job.name} ran correctly within its constraints ({told}). {example}".strip()

    def _end(self, reason: str, error: AutoscoutError | None = None) -> tuple[float, float]:
        mean = sum(self.engine_ms) / len(self.engine_ms) if self.engine_ms else 0.0
        peak = max(self.engine_ms, default=0.0)
        if not self.tape.replaying:
            self.tape.emit(
                SessionEnded(
                    reason=reason,
                    experiments=self.experiments,
                    engine_ms_mean=mean,
                    engine_ms_max=peak,
                    problem=str(error or ""),
                    exit_code=error.exit_code if error else 0,
                ),
                sync=True,
            )
        self._ingest()
        return mean, peak

    def _ingest(self) -> None:
        try:
            store.ingest(self.kb, self.folder / "journal.jsonl")
        except AutoscoutError as error:
            self.on_note(f"not in the knowledge base yet, the journal keeps it: {error}")


class _BudgetSpent(Exception):
    def __init__(self, reason: str) -> None:
        self.reason = reason
