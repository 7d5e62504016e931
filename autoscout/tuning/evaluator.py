"""The paper's synthesizer and fidelity controller (§3.3). For each configuration that the search asks for, it takes the
cheapest way to an answer (known measurements, the simulators, or an experiment) and journals the reason.

`evaluate` is Algorithm 1's EVALBATCHADAPTIVE. For a strategy that does not use simulators itself, they replace
experiments while fidelity is "predicted"; then one configuration is also profiled every τ-th iteration. Once the MAPE
of the last checks exceeds ε, or no better prediction has come for a while, everything is profiled. A strategy that
queries the simulators itself has done so for the whole space before it asks for an experiment, so they replace none:
every experiment is a check of them, and the switch records that they are no longer trusted.
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
    """An experiment to run. `purpose`: as in kb.journal.ExperimentStarted. `elsewhere`: whether to use devices other
    than usual, if there are any."""

    configuration: Configuration
    purpose: str
    elsewhere: bool = False


class Experiment(msgspec.Struct, frozen=True):
    """`folder` is relative to the session's; `elsewhere`: as in WantedExperiment."""

    number: int
    purpose: str
    configuration: Configuration
    name: str
    folder: str
    elsewhere: bool = False


Running = Generator[WantedExperiment, Measurement, Measurement]


def wanted(configuration: Configuration, purpose: str) -> Generator[WantedExperiment, Measurement, None]:
    """One experiment whose result no caller uses."""
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
        """`judge` runs the equivalence check on the KB's measurements against this session's reference; `remembered`:
        (session, measurement) of this job, hardware and versions from the KB, oldest first; `stand_in`: simulators
        answer instead of experiments, as in the paper; otherwise the strategy queries them itself (`predictors`), and
        `past` holds other jobs' measurements, on which they are fitted; `doubts`: configuration id → standard deviation
        that drift added to its measured log-cost. Errors: AutoscoutError if only simulators are wanted but missing."""
        self.job, self.space, self.tape, self.hyper, self.context = job, space, tape, hyper, context
        self.default, self.stand_in, self._past = default, stand_in, past
        self._judge, self._doubts = judge, doubts
        self._known = {m.configuration.id: (session, m) for session, m in _representative(job, remembered)}
        self._periods = Periods(job, remembered)
        self._answered: dict[str, str] = {}  # configuration id → the earlier session that measured it
        self._training = [m for _, m in remembered if space.is_valid(m.configuration)]
        self.done: dict[str, Measurement] = {}  # profiled or answered in this session
        self._simulated: dict[str, Measurement] = {}
        self._scored: set[str] = set()  # ids of configurations compared with their prediction
        self.mode = mode
        self._guard = TrustGuard(hyper.epsilon, hyper.window)
        self._ensemble: Simulators | None = None if mode == "profile" else self._fit()
        if mode == "simulate" and (self._ensemble is None or self._ensemble.doubtful(hyper.epsilon)):
            raise AutoscoutError(
                f"--fidelity simulate needs simulators, but the knowledge base has too few measurements of {job.name} "
                f"on this hardware to fit them ({MIN_ROWS} configurations are needed); run it without that option "
                "first"
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
            # A value from an earlier session is not enough here, because all others are compared with it.
            return (yield from self._run(configuration, "anchor"))
        if answered := self._answer(configuration):
            self.done[configuration.id] = answered
            return answered
        if simulated := self._simulate(configuration):
            return simulated
        return (yield from self._run(configuration, "search"))

    def _run(self, configuration: Configuration, purpose: str) -> Running:
        measurement = yield WantedExperiment(configuration=configuration, purpose=purpose)
        if measurement.status == "infrastructure":  # not the configuration's fault: try once more
            measurement = yield WantedExperiment(configuration=configuration, purpose=purpose)
        self.done[configuration.id] = measurement
        self._training.append(measurement)
        return measurement

    def _answer(self, configuration: Configuration) -> Measurement | None:
        """The knowledge base's answer, since nothing is measured twice for the same job, hardware and versions."""
        if recorded := self.tape.recorded(Answered, configuration):
            self._answered[configuration.id] = recorded.measured_by
            return self._judge(recorded.measurement)
        if self.tape.replaying or configuration.id not in self._known:
            return None
        session, measurement = self._known[configuration.id]
        self._answered[configuration.id] = session
        return self.tape.emit(Answered(measurement=self._judge(measurement), measured_by=session)).measurement

    def measured(self, measurement: Measurement) -> None:
        """Learns from an experiment of this session, which also calibrates values of earlier sessions to today."""
        if SETTINGS not in measurement.environment:
            self._periods.tell(measurement)
        self._answered.pop(measurement.configuration.id, None)

    def as_today(self, measurement: Measurement) -> Measurement:
        """The measurement as the search gets it: a value of an earlier session is rescaled to this one; its remaining
        uncertainty, or that of a machine that drifted, is added."""
        session = self._answered.get(measurement.configuration.id)
        if session is not None:
            return self._periods.as_today(session, measurement)
        doubt = self._doubts.get(measurement.configuration.id)
        return measurement if doubt is None else doubted(measurement, doubt)

    def today(self) -> list[Measurement]:
        """Everything known, rescaled to today."""
        return [self.as_today(m) for m in self.done.values()]

    def _simulate(self, configuration: Configuration) -> Measurement | None:
        if not self.stand_in or self.fidelity == "measured" or self._ensemble is None or configuration == self.default:
            return None  # everything is compared with the default, so it must be measured
        name = self.space.name(configuration)
        event = self.tape.recorded(Simulated, configuration)
        verdict = self._guard.verdict(configuration.knobs)
        if event is None and not verdict.simulate and self.mode == "adaptive":
            return None  # the simulators are wrong in this region, even if not overall
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
        """Predictors that the strategy may query on any rows of codes of `space`, for free.

        They stay as fitted on earlier sessions: the strategy's own posterior learns their residuals on this session's
        rows, which would look too small if the predictors had been fitted on these rows.
        """
        return self._ensemble.predictors(space) if self._ensemble else {}

    def foreseen(self, space: Space) -> dict[str, Predictor]:
        """Like `predictors`, but for how close configurations come to running out of memory and to the job's bounds."""
        return foreseen(self.job, self._ensemble, space) if self._ensemble else {}

    def _score(self, measurements: list[Measurement], step: int) -> None:
        """After the switch, predictions no longer decide anything, but their error is still recorded. Older journals
        lack these checks, and are resumed without them."""
        for m in measurements:
            old = self.tape.replaying and not self.tape.next_is(Checked)
            if self._ensemble is not None and m.configuration.id not in self._scored and not old:
                self._judge_simulators(m, self._ensemble.predict(m.configuration), step)

    def _compare(self, measurements: list[Measurement], step: int) -> bool:
        """Compares each experiment of the batch with its prediction. Returns whether fidelity switched."""
        if self._ensemble is None:
            return False
        for measurement in measurements:
            self._judge_simulators(measurement, self._ensemble.predict(measurement.configuration), step)
        if self._guard.trusted or self.mode != "adaptive" or len(self._guard.errors) < self.hyper.window:
            return False
        return self._switch(
            step, f"{self._guard.why}; the search itself weights each by how well it explains the measurements"
        )

    def _judge_simulators(self, real: Measurement, predictions: tuple[float, dict[str, float]], step: int) -> None:
        """`predictions`: the ensemble's, and each member's. Not checked are predictions that are not finite, forecasts
        of shadows, and runs that failed through no fault of their configuration. Older journals, in which these counted
        as checks, are resumed as they are."""
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
        """Profiles the most promising simulated configuration of the batch, and judges the simulators by it."""
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
        """An experiment that the strategy did not ask for; a known configuration is run only with `again`."""
        known = None if again else self.done.get(configuration.id) or self._answer(configuration)
        return known or (yield from self._run(configuration, "search"))

    def favourite(self) -> Configuration | None:
        """The best predicted configuration among those not measured yet; None if the simulators predict nothing."""
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
        """Profiles a configuration and compares it with its prediction."""
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
    """One measurement per configuration: the median of those that ran (if one computed something wrong, that one, to be
    checked again), else the latest permanent failure."""
    by_id: dict[str, list[tuple[str, Measurement]]] = {}
    for session, m in remembered:
        by_id.setdefault(m.configuration.id, []).append((session, m))
    chosen = []
    for rows in by_id.values():
        metric = job.objective.metric
        wrong = [row for row in rows if row[1].status == "wrong"]
        good = [row for row in rows if row[1].status == "ok"]
        full = [row for row in good if row[1].fidelity == "measured"]  # not ended early
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
