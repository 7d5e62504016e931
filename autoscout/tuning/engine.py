"""The tuning loop as an ask/tell state machine: the caller asks which experiment to run and tells its result, until
there are no more experiments.

    ask ──► search: the user's orders, then the strategy (results that are known or predicted need no experiment);
        │           at intervals, the reference again (anchors.py)
        └─► confirm: the finalists and the default, in rounds
    tell ─► the strategy, once all results of a batch have arrived

The engine starts no process and never blocks, so that the same code serves `tune` (with one or several experiments at a
time), a Python `Study` and a resumed session. Each result resumes the generator that asked for it. Every decision is
recorded (tape.py), and the same results in the same order lead to the same decisions.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from autoscout.job.duration import seconds
from autoscout.job.objective import cost, rows_of, to_metric
from autoscout.running import equivalence
from autoscout.search.belief.prior_means import Predictor
from autoscout.search.earlier import Past
from autoscout.search.hyper import Hyper, allowing, hyper_as
from autoscout.search.stopping import Stopping
from autoscout.search.strategy import Search, Strategy, made, sampled, usable
from autoscout.simulate.learned.other_jobs import measured_by_others
from autoscout.space.graph import Space
from autoscout.targets.jobs import check_of, target_of
from autoscout.tuning import designed, rounds
from autoscout.tuning.anchors import Anchors
from autoscout.tuning.disturbances import Disturbances
from autoscout.tuning.evaluator import Evaluator, Experiment, FidelityMode, WantedExperiment, wanted
from autoscout.tuning.proposals import PROPOSING, Proposals
from autoscout.tuning.ready import Asking, Place, Ready, anywhere
from autoscout.tuning.steer import Steering
from autoscout.tuning.tape import Tape
from autoscout.tuning.wall_clock import WallClock
from kb import door, store
from kb.journal import BestFound, Confirmed, ExperimentEnded, ExperimentStarted, SearchEnded, SessionStarted, charged
from kb.orders import Order
from kb.records import AutoscoutError, Configuration, Measurement

ALONE = "profile"  # strategy name of sessions without a search: a single experiment, or one side of a gate or bisection
_SEARCH_PURPOSES = ("search", "check")
_RESERVE = 0.5  # largest share of the wall-clock limit that the search leaves to the rounds


class Engine:
    """The state of one session's search. All methods may raise AutoscoutError, which ends the session."""

    def __init__(
        self,
        started: SessionStarted,
        space: Space,
        kb: Path,
        folder: Path,
        tape: Tape,
        on_note: Callable[[str], None],
        elapsed_s: float = 0.0,
        past: list[Past] | None = None,
        simulators: Mapping[str, Predictor] = {},
        check: equivalence.Check | None = None,
    ) -> None:
        """`simulators`: the user's own simulators (functions from rows of codes to predicted metric), added to ours.
        `check`: the equivalence check, by default the target's."""
        self.started, self.job, self.space = started, started.job, space
        self.folder, self.tape, self.on_note, self.past = folder, tape, on_note, past or []
        self.kind = usable(started.strategy) if started.strategy != ALONE else None
        hyper = hyper_as((self.kind and self.kind.hyper) or Hyper, started.hyper)
        self.hyper, self.most_failures = allowing(hyper, started.job.budget)
        self.simulators = simulators
        self.reference = equivalence.Reference(check or check_of(self.job), started.default.id)
        self.best: float | None = None  # the lowest cost so far
        self.experiments = 0  # started experiments of any purpose
        self.searched = self.failures = 0  # experiments that count towards the budget, and how many of them failed
        self.stopping = Stopping(self.hyper, finite=self.kind is not None and self.kind.finite)
        self.engine_ms: list[float] = []
        self.disturbances = Disturbances(exact := designed.exact(self.job, tape))
        self.anchors = Anchors(self.job, started.default, exact)
        self.limit = self.job.budget.profiles
        self.wall_clock = WallClock(seconds(self.job.budget.wall) - elapsed_s)
        self.device_s = 0.0  # device-seconds of the search's experiments
        self.confirmed: Confirmed | None = None
        self.reason, self.paused = "", False  # why the search ended; whether the user paused it
        learns = self.kind is not None and self.kind.learns
        mark = started.kb_mark
        known = store.answering(kb, self.job.id, started.context, mark) if mark else []
        self.evaluator = Evaluator(
            self.job,
            space,
            tape,
            self.reference.rejudge,
            known,
            msgspec.convert(started.fidelity, FidelityMode),
            self.hyper,
            started.context,
            started.default,
            stand_in=self.kind is None or not self.kind.asks_simulators,
            past=measured_by_others(kb, self.job, mark) if mark and learns and started.warm_start != "off" else [],
            doubts=self.anchors.doubts,
        )
        self.proposals = Proposals(self.kind)
        self.steering = Steering(folder, tape, self.job, space, on_note, self.evaluator.favourite, self.proposals.deaf)
        self._strategy: Strategy | None = None
        self._step = 0
        self._waiting: dict[int, Asking] = {}  # number of a running experiment → the generator that needs its result
        self._ready = Ready(tape)
        self._running: dict[int, Experiment] = {}
        self._orders: Iterator[Order] | None = None  # orders not yet carried out
        self._confirming = self._over = self._cut = False  # `_cut`: the wall-clock limit ended the rounds
        self._recipes = list(started.recipes)

    # ---- what to run ----------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether there is nothing more to run, and nothing is running."""
        return self._over and not self._waiting

    def ask(self, place: Place = anywhere) -> Experiment | None:
        """The next experiment to start; None while other experiments must end first, when paused, and when over."""
        began = time.perf_counter()
        try:
            while not self._over:
                if (taken := self._ready.take(place)) is not None:
                    experiment = self._start(*taken)
                    if experiment is not None:
                        return experiment
                elif (self._ready and not self._ready.may_pass()) or not self._more():
                    return None
            return None
        finally:
            self._took(began)

    def ask_for(self, configuration: Configuration, purpose: str = "profile") -> Experiment:
        return self._started(configuration, purpose)

    def tell(self, number: int, measurement: Measurement, placement: str = "") -> Measurement:
        """Takes in an experiment's result and where it ran. Returns the measurement after the equivalence check."""
        began = time.perf_counter()
        self.wall_clock.ended()
        asking = self._waiting.pop(number, None)
        purpose = (experiment := self._running.pop(number)).purpose
        measurement = self.reference.rejudge(door.cleaned(measurement))
        measurement = self.anchors.heard(measurement) if purpose in _SEARCH_PURPOSES else measurement
        ended = ExperimentEnded(number=number, purpose=purpose, measurement=measurement, placement=placement)
        self.tape.emit(ended, sync=True)
        if asking is not None and self.disturbances.again(purpose, measurement):
            again = WantedExperiment(
                configuration=experiment.configuration, purpose="repeat", elsewhere=experiment.elsewhere
            )
            self._ready.first(asking, again)
            self._took(began)
            return measurement
        purpose, measurement = self.disturbances.settled(purpose, measurement)
        self.evaluator.measured(measurement)
        of_reference = purpose in (*_SEARCH_PURPOSES, "anchor") and experiment.configuration == self.started.default
        if of_reference and self.anchors.tell(measurement, self.searched) and self._strategy is not None:
            self._strategy = self._begun()  # the machine drifted, so some earlier measurements are less certain now
        if purpose in _SEARCH_PURPOSES:
            paid = charged(measurement)
            self.searched -= not paid
            self.failures += paid and measurement.status != "ok"
            self.stopping.stale += measurement.status != "infrastructure"
            self.device_s += measurement.device_s if paid else 0.0
            self._note_best(measurement)
        if asking is not None:
            self._ready.go_on(asking, measurement)
        self._took(began)
        return measurement

    def _more(self) -> bool:
        """Queues more experiments; False if a running experiment has to end first."""
        if self._confirming:
            if not self._waiting:
                self._over = True
            return self._over
        if self._waiting and not (self.kind and self.kind.several and self.started.default.id in self.evaluator.done):
            return False  # the reference is measured first, because all others are compared with it
        if self.reason:
            return not self._waiting and not self._ready and self._begin_confirming()
        return self._search_on()

    def _search_on(self) -> bool:
        """One step of the search: the user's orders, then the strategy."""
        self._strategy = self._strategy or self._begun()
        waited = len(self._ready)
        if not self._steered():
            return False
        if self.reason or len(self._ready) > waited:
            return True
        if self.anchors.due(self.searched) and not any(e.purpose == "anchor" for e in self._running.values()):
            if self._allowed():
                self._ready.begin(wanted(self.started.default, "anchor"))
            return True
        if self._recipes and self.started.default.id in self.evaluator.done:
            self._ready.begin(self._of_recipe(self._recipes.pop(0)))
            return True
        batch = self._searching.ask()
        self.stopping.heard([self.tape.emit(event) for event in self._searching.drain()])
        if not batch and self._waiting:
            return False
        if self.stopping.settled or not batch:
            self._end_search("settled" if batch else "exhausted")
            return True
        self._step += 1
        self._ready.begin(self._of_batch(batch, self._step))
        return True

    def _start(self, asking: Asking, wanted: WantedExperiment, placement: str) -> Experiment | None:
        """Starts an experiment; if the budget no longer allows it, closes the generator and returns None."""
        if wanted.purpose in _SEARCH_PURPOSES and not self._allowed():
            asking.close()
            return None
        experiment = self._started(wanted.configuration, wanted.purpose, wanted.elsewhere, placement)
        self._waiting[experiment.number] = asking
        return experiment

    def _started(
        self, configuration: Configuration, purpose: str, elsewhere: bool = False, placement: str = ""
    ) -> Experiment:
        self.wall_clock.started()
        self.experiments += 1
        self.searched += purpose in _SEARCH_PURPOSES
        number, name = self.experiments, self.space.name(configuration)
        folder = f"experiments/{number:04d}"
        self.tape.emit(
            ExperimentStarted(
                number=number,
                purpose=purpose,
                configuration=configuration,
                name=name,
                folder=folder,
                placement=placement,
            ),
            write=True,
        )
        self._running[number] = Experiment(number, purpose, configuration, name, folder, elsewhere)
        return self._running[number]

    # ---- the search -----------------------------------------------------------------------------------------------

    @property
    def _searching(self) -> Strategy:
        assert self._strategy is not None
        return self._strategy

    def _begun(self, space: Space | None = None) -> Strategy:
        """A new strategy for the allowed space, which learns from everything measured so far."""
        assert self.kind is not None
        s, allowed = self.started, space or self.space
        predictors = {**self.evaluator.predictors(allowed), **self.simulators} if self.kind.asks_simulators else {}
        if s.fidelity == "simulate" and predictors:  # only the simulators' best k are profiled
            self.limit = min(self.limit, 1 + self.hyper.top_k)
        default = s.default if allowed.is_valid(s.default) else None
        done = self.evaluator.today()
        inside = [m for m in done if allowed.is_valid(m.configuration)]
        outside = [m for m in done if not allowed.is_valid(m.configuration)]
        rows, broken = rows_of(self.job.objective, outside)
        here = [Past(name="this session", distance=0.0, rows=rows, broken=broken)] if outside else []
        search = Search(
            space=allowed,
            default=default,
            seed=s.seed,
            hyper=self.hyper,
            seeded=[[k for k in o if k in allowed.knob] for o in s.orderings],
            simulators=predictors,
            foreseen=self.evaluator.foreseen(allowed) if self.kind.asks_simulators else {},
            past=[*self.past, *here],
            **self.proposals.within(allowed),
            told=inside if self.kind.learns else [],
            patience=target_of(self.job).patience(self.job),
            live=target_of(self.job).live(self.job),
        )
        if note := sampled(self.kind, allowed):
            self.on_note(note)
        return made(self.kind, search)

    def _of_batch(self, batch: list[Configuration], step: int) -> Asking:
        """Evaluates a batch of the strategy, and gives it the results."""
        ordered = target_of(self.job).in_turn(self.job, batch)
        measurements, switched = yield from self.evaluator.evaluate(ordered, step)
        if switched:
            if self.started.fidelity == "simulate":  # only measured configurations may be recommended
                self.limit = min(self.limit, self.searched + self.hyper.top_k)
            self._searching.switch_to_profiling()
        measurements = [self.evaluator.as_today(m) for m in measurements]
        by_id = {c.id: m for c, m in zip(ordered, measurements, strict=True)}
        self._searching.tell([by_id[c.id] for c in batch])  # perhaps a newer strategy than the one that asked
        for measurement in measurements:
            self._note_best(measurement)

    def _of_recipe(self, recipe: Configuration) -> Asking:
        """Measures a further expert recipe before the search continues, since a gain is stated over the best recipe."""
        if not self.steering.allowed.is_valid(recipe):
            return
        measurement = yield from self.evaluator.run_now(recipe)
        self._note_best(measurement)
        if self.kind is not None and self.kind.learns:
            self._searching.tell([measurement])

    @property
    def to_beat(self) -> Configuration:
        """The recipe with the best measurement; the default if none ran."""
        recipes = [self.started.default, *self.started.recipes]
        ran = [(c, r) for r in recipes if (m := self.evaluator.done.get(r.id)) and (c := cost(self.job.objective, m))]
        return min(ran, key=lambda each: each[0])[1] if ran else self.started.default

    def _allowed(self) -> bool:
        """Whether one more search experiment may start; ends the search if not."""
        if self.reason:
            return False
        if (recorded := self.tape.recorded(SearchEnded)) is not None:
            self.reason = recorded.reason
        elif self.searched >= self.limit:
            self._end_search("budget")
        elif self.failures >= self.most_failures:
            self._end_search("failures")
        elif self.stopping.converged:
            self._end_search("converged")
        elif self.device_s >= seconds(self.job.budget.device_time) and self.evaluator.done:
            self._end_search("device_time")
        # At least the reference is measured. Time is left for the next experiment and the rounds.
        elif self._late(1 + rounds.needed(len(self.evaluator.done)), _RESERVE) and self.evaluator.done:
            self._end_search("wall")
        return not self.reason

    def _late(self, experiments: int, reserve: float = 1.0) -> bool:
        return not self.tape.replaying and self.wall_clock.late(experiments, reserve)

    def _no_more_rounds(self, experiments: int) -> bool:
        """Whether a round of so many experiments would end after the limit; on replay, whether none was recorded."""
        self._cut = self._late(experiments)
        return self._cut or self.tape.next_is(Confirmed)

    def _end_search(self, reason: str) -> None:
        recorded = self.tape.recorded(SearchEnded)
        self.reason = (recorded or self.tape.emit(SearchEnded(reason=reason))).reason

    def _note_best(self, measurement: Measurement) -> None:
        c = cost(self.job.objective, measurement)
        if not measurement.counts or c is None or (self.best is not None and c >= self.best):
            return
        self.best = c
        self.stopping.found(c)
        x, value = measurement.configuration, to_metric(self.job.objective, c)
        self.tape.emit(BestFound(configuration=x, name=measurement.name, value=value, experiments=self.searched))

    # ---- the user's orders ----------------------------------------------------------------------------------------

    def _steered(self) -> bool:
        """Carries out the user's orders since the last step; False while paused."""
        self._orders = self._orders or self.steering.orders(self._best_configuration())
        for order in self._orders:
            self.paused = order.what == "pause" or (self.paused and order.what != "go")
            if order.what == "stop":
                self._end_search("stopped")
                return True
            waited = len(self._ready)
            self._obey(order)
            if len(self._ready) > waited:  # later orders wait until the experiment of this one has ended
                return True
        self._orders = None
        return not self.paused or self.tape.replaying

    def _obey(self, order: Order) -> None:
        if order.what == "budget":
            self.limit = int(order.values["profiles"])
        elif order.what == "profile":
            if self.evaluator.profile_from_now_on(self._step, "the user asked for it"):
                self._searching.switch_to_profiling()
        elif order.what in ("try", "retry", "validate"):
            self._ready.begin(self._ordered(order))
        elif order.what in PROPOSING:
            self.proposals.obey(order, self.steering, self._best_configuration(), self._searching)
        elif order.what in ("pin", "exclude"):  # a new strategy for the remaining space, with all measurements
            self._strategy = self._begun(self.steering.narrow(order))

    def _ordered(self, order: Order) -> Asking:
        """Runs one experiment that the user asked for. A strategy that learns also gets this result, unless the default
        has not been measured yet, because strategies need the default's result first."""
        begun, before = self.started.default.id in self.evaluator.done, self.experiments
        if order.what == "validate":
            wanted = self.evaluator.favourite()
            if wanted is None:  # everything was measured in the meantime
                return
            measurement = yield from self.evaluator.validate(wanted, self._step)
        else:
            wanted = self.proposals.named(order, self.steering, self._best_configuration(), self._step)
            measurement = yield from self.evaluator.run_now(wanted, again=order.what == "retry")
        self._note_best(measurement)
        if begun and self.experiments > before and self.kind is not None and self.kind.learns:
            self.proposals.take(order, measurement.configuration, self._searching)
            self._searching.tell([measurement])

    def _best_configuration(self) -> Configuration:
        measured = [(c, m) for m in self.evaluator.today() if (c := cost(self.job.objective, m)) is not None]
        return min(measured, key=lambda cm: cm[0])[1].configuration if measured else self.started.default

    # ---- the end --------------------------------------------------------------------------------------------------

    def _begin_confirming(self) -> bool:
        self._confirming = True
        self._ready.begin(self._confirm())
        return True

    def _confirm(self) -> Asking:
        """Measures the finalists and the reference again in rounds, so that no recommendation rests on one lucky run.
        The rounds do not count towards the budget. Of the rounds that would end after the wall-clock limit, only the
        first is measured; on a deterministic cost model, there are none (designed.py)."""
        if not self.evaluator.done:
            raise AutoscoutError(f"session {self.started.session} ended before anything was measured")
        allowed, over = self.steering.allowed, self._no_more_rounds
        done = [
            self.reference.rejudge(m) for m in self.evaluator.today() if m.counts and allowed.is_valid(m.configuration)
        ]
        says = self.job.launch.current or self.job.launch.command
        on_note = (lambda text: None) if self.tape.replaying else self.on_note  # notes are not repeated on replay
        today = self.space.recipes[0] if says and self.space.recipes else None
        confirmed = yield from rounds.confirmed(
            self.job, self.space, allowed, done, self.to_beat, self.anchors, on_note, over, today
        )
        self.confirmed = self.tape.recorded(Confirmed) or self.tape.emit(confirmed, sync=True)
        if self._cut and not self.confirmed.decided:
            self.reason = "wall"

    def _took(self, began: float) -> None:
        self.engine_ms.append((time.perf_counter() - began) * 1000)
