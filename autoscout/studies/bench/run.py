"""Executes one run: a strategy with a seed on a landscape.

An evaluation is an experiment on a configuration that this run has not measured yet; a repeated request is answered
from the record at no cost. Strategies are the same objects as in sessions, and the recommendation is decided as in
sessions (closing.py), by experiments outside of the budget. The costs that a strategy gets may have noise; the score
uses noise-free values."""

import time
from collections.abc import Sequence

import msgspec
import numpy as np

from autoscout.job.objective import cost
from autoscout.search.earlier import Past
from autoscout.search.hyper import Hyper
from autoscout.search.stopping import Stopping
from autoscout.search.strategy import Strategy, kind_of, strategy
from autoscout.studies.bench.closing import Closing
from autoscout.studies.bench.fidelity import SimulatedFirst
from autoscout.studies.bench.hints import hinted, hints
from autoscout.studies.bench.landscape import Landscape
from autoscout.studies.bench.variants import variant
from kb.records import AutoscoutError, Configuration, Measurement, Value

MARKS = (10, 20, 50, 100, 200)
_STUCK = 200  # a run ends after this many successive asks without a new configuration
_NEAR = 0.05
_FAST = 0.1  # configurations with a regret below this count as fast


class BenchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a run. `budget`: number of evaluations. `target`: regret at which a run counts as solved; 0.01:
    within 1 % of the optimum. `noise`: standard deviation of the noise on the log of measured costs."""

    budget: int = 200
    target: float = 0.01
    noise: float = 0.0
    transfer: bool = False
    whole: bool = True  # False: end a run when it reaches the target, without a recommendation
    as_sessions: bool = False  # end runs as sessions end, if settled or converged (search/stopping.py)


class Recommended(msgspec.Struct, frozen=True):
    name: str
    knobs: dict[str, Value]
    value: float | None  # noise-free; None: the experiment fails
    regret: float | None


class BenchRun(msgspec.Struct, frozen=True, kw_only=True):
    """The scored result of a run. `curve`: [evaluations, best noise-free value so far] at each improvement."""

    landscape: str
    strategy: str
    seed: int
    optimum: float
    evaluations: int
    evaluations_to_target: int | None
    evaluations_to_5pct: int | None
    best_at: dict[str, float | None]
    regret_at: dict[str, float | None]
    best: float | None
    recommended: Recommended | None
    failures: int  # including experiments that broke a constraint
    closing: int  # experiments outside of the budget: repeats of the reference, and the final rounds
    cost_total: float | None
    cost_to_target: float | None
    cost_to_5pct: float | None
    fast: float  # share of the cost (or of experiments, if costs are unknown) that was spent on fast configurations
    engine_ms_per_step: float
    engine_ms_first: float  # milliseconds until the first proposal, including creation
    curve: list[list[float]]


def run(
    landscape: Landscape, name: str, seed: int, settings: BenchSettings, past: Sequence[Past] = ()
) -> tuple[BenchRun, list[tuple[Configuration, float | None]]]:
    """Returns first the scored run; second the (configuration, cost) pairs that the strategy got, with cost
    None for a failure. A later run may get these pairs as results of a past job."""
    landscape.prepare()  # so that the strategy's measured time does not include this
    begun = time.process_time()
    chosen = _strategy(landscape, name, seed, settings, past)
    batch = chosen.ask()
    first = time.process_time() - begun
    record = _Record(landscape, settings, seed)
    plain, hyper = variant(name)
    simulated = SimulatedFirst(landscape, hyper or Hyper()) if plain == "paper" and landscape.simulators else None
    stopping = Stopping(hyper or Hyper(), kind_of(plain).finite)
    engine, steps, idle = 0.0, 1, 0
    while batch and record.count < settings.budget and idle < _STUCK:
        stopping.heard(chosen.drain())
        if settings.as_sessions and (stopping.settled or stopping.converged):
            break
        before = record.count
        if simulated is not None and simulated.on:
            measurements, switched = simulated.answer(batch, record.measure)
            if switched:
                chosen.switch_to_profiling()
        else:
            measurements = record.measure(batch)
            idle = 0 if record.count > before else idle + 1
        for found in record.costs_since(before):
            stopping.measured(found)
        if len(measurements) < len(batch):
            break  # the budget ended within the batch
        begun = time.process_time()
        chosen.tell(measurements)
        more = record.count < settings.budget and not (record.reached and not settings.whole)
        batch = chosen.ask() if more else []
        engine += time.process_time() - begun
        steps += more
    return record.score(name, 1000 * engine / max(steps - 1, 1), 1000 * first), record.reported()


def _strategy(landscape: Landscape, name: str, seed: int, settings: BenchSettings, past: Sequence[Past]) -> Strategy:
    plain, hyper = variant(name)
    return strategy(
        plain,
        landscape.space,
        seed=seed,
        default=landscape.default,
        hyper=hyper,
        simulators={s: landscape.predictor(s) for s in landscape.simulators},
        foreseen=landscape.foretold(),
        past=past,
        proposed=hints(landscape, hinted(name), seed),
    )


class _Record:
    def __init__(self, landscape: Landscape, settings: BenchSettings, seed: int) -> None:
        self.landscape = landscape
        self.settings = settings
        self.seed = seed
        self.known: dict[int, Measurement] = {}
        self.times: dict[int, int] = {}  # row → number of its repeats
        self.order: list[int] = []  # rows in the order of evaluation
        self.costs: list[float] = []
        self.closing = Closing(landscape, self.again)
        self._reached = False

    @property
    def count(self) -> int:
        return len(self.order)

    @property
    def reached(self) -> bool:
        values = self.landscape.truth[self.order[-1:]]
        self._reached |= bool(
            (abs(values - self.landscape.optimum) <= self.settings.target * self.landscape.optimum).any()
        )
        return self._reached

    def measure(self, batch: list[Configuration]) -> list[Measurement]:
        """Measurements of the configurations; fewer if the budget ends."""
        measurements = []
        for configuration in batch:
            row = self.landscape.space.feasible.index(configuration)
            if row is None:
                raise AutoscoutError(f"a strategy proposed {configuration.knobs}, which is not in the landscape")
            if row not in self.known:
                if self.count == self.settings.budget:
                    break
                measured = self.landscape.measure(row, configuration, self.settings.noise, self.seed)
                self.known[row] = measured
                self.order.append(row)
                self.costs.append(measured.cost_s)
                if self.settings.whole:
                    self.closing.measured(measured, self.count)
            measurements.append(self.known[row])
        return measurements

    def again(self, configuration: Configuration) -> Measurement:
        """Returns a repeated measurement with fresh noise."""
        row = self.landscape.space.feasible.index(configuration)
        assert row is not None
        self.times[row] = self.times.get(row, 0) + 1
        return self.landscape.measure(row, configuration, self.settings.noise, self.seed, self.times[row])

    def costs_since(self, count: int) -> list[float | None]:
        objective = self.landscape.space.objective
        return [cost(objective, self.known[row]) for row in self.order[count:]]

    def reported(self) -> list[tuple[Configuration, float | None]]:
        objective = self.landscape.space.objective
        return [(m.configuration, cost(objective, m)) for m in self.known.values()]

    def score(self, name: str, ms_per_step: float, ms_first: float) -> BenchRun:
        land, settings = self.landscape, self.settings
        curve = self._curve()
        to_target = self._first_within(curve, settings.target)
        to_5pct = self._first_within(curve, _NEAR)
        best_at = {str(n): self._best_at(curve, n) for n in MARKS}
        recommended = self._recommended() if settings.whole else None
        return BenchRun(
            landscape=land.name,
            strategy=name,
            seed=self.seed,
            optimum=land.optimum,
            evaluations=self.count,
            evaluations_to_target=to_target,
            evaluations_to_5pct=to_5pct,
            best_at=best_at,
            regret_at={n: None if v is None else land.regret(v) for n, v in best_at.items()},
            best=curve[-1][1] if curve else None,
            recommended=recommended,
            failures=sum(cost(land.space.objective, m) is None for m in self.known.values()),
            closing=sum(self.times.values()),
            cost_total=self._cost(self.count),
            cost_to_target=self._cost(to_target),
            cost_to_5pct=self._cost(to_5pct),
            fast=self._fast(),
            engine_ms_per_step=ms_per_step,
            engine_ms_first=ms_first,
            curve=curve,
        )

    def _cost(self, evaluations: int | None) -> float | None:
        """The total cost of the first `evaluations` evaluations; None if unknown."""
        return sum(self.costs[:evaluations]) if self.landscape.cost is not None and evaluations else None

    def _fast(self) -> float:
        spent = np.array(self.costs if self.landscape.cost is not None else [1.0] * self.count)
        near = abs(self.landscape.truth[self.order] - self.landscape.optimum) <= _FAST * self.landscape.optimum
        return float(spent[near].sum() / spent.sum()) if spent.sum() else 0.0

    def _curve(self) -> list[list[float]]:
        curve: list[list[float]] = []
        for n, row in enumerate(self.order, start=1):
            value = float(self.landscape.truth[row])
            if not np.isnan(value) and (not curve or self.landscape.better(value, curve[-1][1])):
                curve.append([n, value])
        return curve

    def _first_within(self, curve: list[list[float]], share: float) -> int | None:
        return next((int(n) for n, value in curve if self.landscape.regret(value) <= share), None)

    def _best_at(self, curve: list[list[float]], n: int) -> float | None:
        """The best value after n evaluations (or at the end of a run that ended earlier); None if n exceeds the
        budget."""
        if n > self.settings.budget:
            return None
        return next((value for at, value in reversed(curve) if at <= n), None)

    def _recommended(self) -> Recommended | None:
        winner = self.closing.verdict(list(self.known.values()))
        row = None if winner is None else self.landscape.space.feasible.index(winner)
        if row is None:
            return None
        value = float(self.landscape.truth[row])
        configuration = self.landscape.space.feasible.configuration(row)
        failed = bool(np.isnan(value))
        return Recommended(
            self.landscape.space.name(configuration),
            configuration.knobs,
            None if failed else value,
            None if failed else self.landscape.regret(value),
        )
