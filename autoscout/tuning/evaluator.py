"""The paper's synthesizer and fidelity controller (§3.3). Answers each configuration of the search in the cheapest way
that is good enough (from an earlier measurement, by the simulators, or with an experiment) and journals the reason.

`evaluate` is Algorithm 1's EVALBATCHADAPTIVE. If the strategy does not query simulators itself, they replace
experiments while fidelity is "predicted", and every τ-th iteration one configuration is also profiled. Once the MAPE of
the last checks exceeds ε, or there has been no better prediction for a while, everything is profiled. If the strategy
queries the simulators itself (for the whole space, before it asks for an experiment), they replace no experiment: every
experiment is a check of the simulators, and the switch of fidelity only records that they are no longer trusted.
"""

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Literal

import msgspec
import numpy as np

from autoscout.job.objective import cost, from_metric
from autoscout.running.equivalence import SETTINGS
from autoscout.search.belief.prior_means import Predictor
from autoscout.search.candidates import as_costs, favourites
from autoscout.search.hyper import Hyper
from autoscout.simulate.ensemble import MIN_ROWS, Simulators, fit
from autoscout.simulate.trust import TrustGuard
from autoscout.space.graph import Space
from autoscout.targets.jobs import simulators_of
from autoscout.tuning.bounds import foreseen
from autoscout.tuning.periods import Periods, doubted
from autoscout.tuning.tape import Tape
from kb.journal import Answered, Checked, FidelitySwitched, Simulated
from kb.records import AutoscoutError, Configuration, Fidelity, Job, Measurement

FidelityMode = Literal["adaptive", "profile", "simulate"]
Judge = Callable[[Measurement], Measurement]


class WantedExperiment(msgspec.Struct, frozen=True, kw_only=True):
    """An experiment that should be run. `purpose`: as in kb.journal.ExperimentStarted. `elsewhere`: whether to use
    other devices than usual, if there are any."""

    configuration: Configuration
    purpose: str
    elsewhere: bool = False


class Experiment(msgspec.Struct, frozen=True):
    """A started experiment. `folder`: relative to the session's folder; `elsewhere`: as in WantedExperiment."""

    number: int
    purpose: str
    configuration: Configuration
    name: str
    folder: str
    elsewhere: bool = False


Running = Generator[WantedExperiment, Measurement, Measurement]


def wanted(configuration: Configuration, purpose: str) -> Generator[WantedExperiment, Measurement, None]:
    """Asks for one experiment and ignores its result."""
    yield WantedExperiment(configuration=configuration, purpose=purpose)


class Evaluator:
    def __init__(
        self,
        job: Job,
        space: Space,
        tape: Tape,
        judge: Judge,
        remembered: list[tuple[str, Measurement]],
        mode: FidelityMode,
        hyper: Hyper,
        context: str,
        default: Configuration,
        stand_in: bool = True,
        past: Sequence[tuple[Job, Sequence[Measurement]]] = (),
        doubts: Mapping[str, float] = {},
    ) -> None:
        """`judge`: runs the equivalence check of this session on a measurement from the KB; `remembered`: (session,
        measurement) of this job, hardware and versions in the KB, oldest first; `stand_in`: whether simulators replace
        experiments, as in the paper (otherwise the strategy queries them itself); `past`: other jobs' measurements, on
        which simulators are fitted, too; `doubts`: configuration id → standard deviation that drift adds to its
        measured log-cost. Errors: AutoscoutError if `mode` is "simulate" and there are no simulators."""
        self.job, self.space, self.tape, self.hyper, self.context = job, space, tape, hyper, context
        self.default, self.stand_in, self._past = default, stand_in, past
        self._judge, self._doubts = judge, doubts
        self._known = {m.configuration.id: (session, m) for session, m in _representative(job, remembered)}
        self._periods = Periods(job, remembered)
        self._answered: dict[str, str] = {}  # configuration id → the earlier session that measured it
        self._training = [m for _, m in remembered if space.is_valid(m.configuration)]
        self.done: dict[str, Measurement] = {}  # configuration id → result of this session or an earlier one
        self._simulated: dict[str, Measurement] = {}
        self._scored: set[str] = set()  # ids of configurations compared with their prediction
        self.mode = mode
        self._guard = TrustGuard(hyper.epsilon, hyper.window)
        self._ensemble: Simulators | None = None if mode == "profile" else self._fit()
        if mode == "simulate" and (self._ensemble is None or self._ensemble.doubtful(hyper.epsilon)):
            raise AutoscoutError(
                "--fidelity simulate needs simulators, but the knowledge base has too few measurements of "
                f"{job.name} on this hardware to fit them ({MIN_ROWS} configurations are needed); run the job "
                "without --fidelity simulate first"
            )
        self.fidelity: Fidelity = "predicted" if self._ensemble else "measured"
        self._best_predicted = float("inf")
        self._stale_iterations = 0

    def evaluate(
        self, configurations: list[Configuration], step: int
    ) -> Generator[WantedExperiment, Measurement, tuple[list[Measurement], bool]]:
        """Measurements in the order of `configurations`, and whether fidelity switched to profiling afterwards."""
        measurements = []
        for configuration in configurations:
            measurements.append((yield from self._one(configuration)))
        if self.fidelity == "measured":
            self._score(measurements, step)
            return measurements, False
        if not self.stand_in:
            return measurements, self._compare(measurements, step)
        switched = self._simulated_long_enough(measurements, step)
        if not switched and step % self.hyper.tau == 0:
            measurements, switched = yield from self._check(measurements, step)
        return measurements, switched

    def _one(self, configuration: Configuration) -> Running:
        if known := self.done.get(configuration.id):
            return known
        if configuration.id == self.default.id and configuration.id in self._known and not self.tape.next_is(Answered):
            # The default is measured again in each session, because all others are compared with it.
            return (yield from self._run(configuration, "anchor"))
        if answered := self._answer(configuration):
            self.done[configuration.id] = answered
            return answered
        if simulated := self._simulate(configuration):
            return simulated
        return (yield from self._run(configuration, "search"))

    def _run(self, configuration: Configuration, purpose: str) -> Running:
        measurement = yield WantedExperiment(configuration=configuration, purpose=purpose)
        if measurement.status == "infrastructure":  # a fault of the machine, so it is tried once more
            measurement = yield WantedExperiment(configuration=configuration, purpose=purpose)
        self.done[configuration.id] = measurement
        self._training.append(measurement)
        return measurement

    def _answer(self, configuration: Configuration) -> Measurement | None:
        """An earlier session's measurement with the same job, hardware and versions, which replaces an experiment."""
        if recorded := self.tape.recorded(Answered, configuration):
            self._answered[configuration.id] = recorded.measured_by
            return self._judge(recorded.measurement)
        if self.tape.replaying or configuration.id not in self._known:
            return None
        session, measurement = self._known[configuration.id]
        self._answered[configuration.id] = session
        return self.tape.emit(Answered(measurement=self._judge(measurement), measured_by=session)).measurement

    def measured(self, measurement: Measurement) -> None:
        """Takes in an experiment of this session, which also serves to rescale measurements of earlier sessions."""
        if SETTINGS not in measurement.environment:
            self._periods.tell(measurement)
        self._answered.pop(measurement.configuration.id, None)

    def as_today(self, measurement: Measurement) -> Measurement:
        """The measurement as the search gets it: rescaled to this session if it is from an earlier one, with the
        remaining uncertainty of the rescaling, or of the machine's drift, among its conditions."""
        session = self._answered.get(measurement.configuration.id)
        if session is not None:
            return self._periods.as_today(session, measurement)
        doubt = self._doubts.get(measurement.configuration.id)
        return measurement if doubt is None else doubted(measurement, doubt)

    def today(self) -> list[Measurement]:
        """All measurements that this session knows, as the search gets them."""
        return [self.as_today(m) for m in self.done.values()]

    def _simulate(self, configuration: Configuration) -> Measurement | None:
        if not self.stand_in or self.fidelity == "measured" or self._ensemble is None or configuration == self.default:
            return None  # everything is compared with the default, so it must be measured
        name = self.space.name(configuration)
        event = self.tape.recorded(Simulated, configuration)
        verdict = self._guard.verdict(configuration.knobs)
        if event is None and not verdict.simulate and self.mode == "adaptive":
            return None  # the simulators are too inaccurate in this region of the space
        if event is None:
            predicted, members = self._ensemble.predict(configuration)
            if not math.isfinite(predicted):
                return None  # the ensemble cannot predict it
            event = Simulated(
                configuration=configuration, name=name, predicted=predicted, members=members, why=verdict.why
            )
            self.tape.emit(event)
        simulated = self._simulated[configuration.id] = Measurement(
            configuration=configuration,
            name=name,
            context=self.context,
            status="ok",
            fidelity="predicted",
            metrics={self.job.objective.metric: event.predicted},
        )
        return simulated

    def predictors(self, space: Space) -> dict[str, Predictor]:
        """Predictors that the strategy may query for any configurations of `space` (rows of codes), at no cost.

        They are fitted on earlier sessions only: the strategy's posterior estimates their error from this session's
        measurements, and would underestimate it if they had been fitted on the same measurements.
        """
        return self._ensemble.predictors(space) if self._ensemble else {}

    def foreseen(self, space: Space) -> dict[str, Predictor]:
        """Like `predictors`, but for how close configurations come to running out of memory and to the job's bounds."""
        return foreseen(self.job, self._ensemble, space) if self._ensemble else {}

    def _score(self, measurements: list[Measurement], step: int) -> None:
        """Records the predictions' error after the switch to profiling, for reports only. Older journals lack these
        checks, so a replay adds none."""
        for m in measurements:
            old = self.tape.replaying and not self.tape.next_is(Checked)
            if self._ensemble is not None and m.configuration.id not in self._scored and not old:
                self._judge_simulators(m, self._ensemble.predict(m.configuration), step)

    def _compare(self, measurements: list[Measurement], step: int) -> bool:
        """Checks the simulators with each experiment of the batch. Returns whether fidelity switched to profiling."""
        if self._ensemble is None:
            return False
        for measurement in measurements:
            self._judge_simulators(measurement, self._ensemble.predict(measurement.configuration), step)
        if self._guard.trusted or self.mode != "adaptive" or len(self._guard.errors) < self.hyper.window:
            return False
        return self._switch(
            step, f"{self._guard.why}; the search weights each simulator by how well it explains the measurements"
        )

    def _judge_simulators(self, real: Measurement, predictions: tuple[float, dict[str, float]], step: int) -> None:
        """Records a check of the simulators by a measurement. `predictions`: the ensemble's, and each member's.
        Predictions that are not finite, forecasts of shadow runs, and failures that the configuration did not cause are
        not checks. Older journals contain checks by the last two kinds, which are repeated on replay."""
        assert self._ensemble is not None
        nothing = real.fidelity == "shadow" or real.status in ("infrastructure", "killed")
        if nothing and not (self.tape.replaying and self.tape.next_is(Checked)):
            return
        predicted, members = predictions
        self._scored.add(real.configuration.id)
        if not math.isfinite(predicted):
            return
        metric = self.job.objective.metric
        measured = real.metrics.get(metric) if real.status == "ok" else None
        mape = self._guard.check(predicted, measured, real.configuration.knobs)
        self.tape.emit(
            Checked(
                step=step,
                name=real.name,
                predicted=predicted,
                measured=measured,
                mape=mape,
                epsilon=self.hyper.epsilon,
                weights=self._ensemble.weights,
                members=members,
            )
        )

    def _check(
        self, measurements: list[Measurement], step: int
    ) -> Generator[WantedExperiment, Measurement, tuple[list[Measurement], bool]]:
        """Profiles the configuration of the batch with the best prediction, to check the simulators."""
        simulated = [m for m in measurements if m.fidelity == "predicted"]
        if not simulated or self._ensemble is None:
            return measurements, False
        chosen = min(simulated, key=lambda m: cost(self.job.objective, m) or float("inf"))
        members = self._ensemble.predict(chosen.configuration)[1]
        real = yield from self._run(chosen.configuration, "check")
        self._judge_simulators(real, (chosen.metrics[self.job.objective.metric], members), step)
        measurements = [real if m is chosen else m for m in measurements]
        if not self._guard.trusted and self.mode == "adaptive":
            return measurements, self._switch(step, self._guard.why)
        self._ensemble = self._fit() or self._ensemble
        return measurements, False

    def _simulated_long_enough(self, measurements: list[Measurement], step: int) -> bool:
        """Switches to profiling after `simulated_patience` iterations without a better prediction."""
        costs = [cost(self.job.objective, m) for m in measurements]
        least = min((c for c in costs if c is not None), default=float("inf"))
        self._stale_iterations = 0 if least < self._best_predicted else self._stale_iterations + 1
        self._best_predicted = min(self._best_predicted, least)
        if self._stale_iterations < self.hyper.simulated_patience:
            return False
        return self._switch(step, "the simulators no longer predict anything better")

    def profile_from_now_on(self, step: int, why: str) -> bool:
        """Switches to profiling; returns whether that is a change."""
        return self.fidelity == "predicted" and self._switch(step, why)

    def run_now(self, configuration: Configuration, again: bool = False) -> Running:
        """Runs a configuration that the strategy did not ask for, or returns its known result unless `again` is set."""
        known = None if again else self.done.get(configuration.id) or self._answer(configuration)
        return known or (yield from self._run(configuration, "search"))

    def favourite(self) -> Configuration | None:
        """The configuration with the best prediction that has not been measured yet; None if there is none."""
        if self._ensemble is None:
            return None
        metric, objective = self.job.objective.metric, self.job.objective
        if self.stand_in:
            open_ones = [m for m in self._simulated.values() if m.configuration.id not in self.done]
            best = min(open_ones, key=lambda m: from_metric(objective, m.metrics[metric]), default=None)
            return best.configuration if best else None
        predict = self._ensemble.predictor()
        if predict is None:
            return None
        codes, costs = favourites(self.space, as_costs(objective, predict), np.random.default_rng(0))
        rows = (self.space.of_codes(row) for row in codes[np.isfinite(costs)].tolist())
        return next((c for c in rows if c.id not in self.done), None)

    def validate(self, configuration: Configuration, step: int) -> Running:
        assert self._ensemble is not None
        predicted = self._ensemble.predict(configuration)
        real = yield from self.run_now(configuration)
        self._judge_simulators(real, predicted, step)
        return real

    def _switch(self, step: int, why: str) -> bool:
        self.fidelity = "measured"
        self.tape.emit(FidelitySwitched(step=step, to="measured", why=why))
        return True

    def _fit(self) -> Simulators | None:
        """The paper's ensemble if simulators replace experiments; all our simulators if the strategy queries them."""
        if self.stand_in:
            return fit(self.job, self.space, self._training, published=True)
        bases = partial(simulators_of, self.job)
        simulators = Simulators(self.job, self.space, self._training, past=self._past, bases=bases)
        return simulators if simulators.weights else None


def _representative(job: Job, remembered: list[tuple[str, Measurement]]) -> list[tuple[str, Measurement]]:
    """One measurement per configuration: a "wrong" one if there is any (to be checked against this session's
    reference), else the median of the successful ones, else the latest permanent failure."""
    by_id: dict[str, list[tuple[str, Measurement]]] = {}
    for session, m in remembered:
        by_id.setdefault(m.configuration.id, []).append((session, m))
    chosen = []
    for rows in by_id.values():
        metric = job.objective.metric
        wrong = [row for row in rows if row[1].status == "wrong"]
        good = [row for row in rows if row[1].status == "ok"]
        full = [row for row in good if row[1].fidelity == "measured"]  # without runs that were ended early
        ran = sorted(full or good, key=lambda r: r[1].metrics.get(metric, float("inf")))
        final = [row for row in rows if _final(job, row[1])]
        if wrong:
            chosen.append(wrong[-1])
        elif ran:
            chosen.append(ran[len(ran) // 2])
        elif final:
            chosen.append(final[-1])
    return chosen


def _final(job: Job, measurement: Measurement) -> bool:
    """Whether a failure is permanent: neither transient, nor a timeout under a shorter limit than today's."""
    if measurement.status == "timeout":
        return measurement.cost_s >= 0.9 * job.launch.timeout_s
    return measurement.status in ("oom", "invalid")
