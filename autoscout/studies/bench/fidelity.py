"""The paper's fidelity control (§3.3) in benchmarks, for strategies that do not use simulators themselves, as in a
session (tuning/evaluator.py).

At first, requested configurations are answered by the mean of the landscape's simulators at no cost; only the default
and, in every τ-th step, the most promising configuration of the batch are real experiments. When the MAPE of the last
checks exceeds ε, or nothing better has been predicted for some steps, all configurations become real experiments."""

from collections.abc import Callable

import numpy as np

from autoscout.search.hyper import Hyper
from autoscout.simulate.trust import TrustGuard
from autoscout.studies.bench.landscape import Landscape
from kb.records import Configuration, Measurement

Real = Callable[[list[Configuration]], list[Measurement]]  # runs experiments; fewer than requested if the budget ends


class SimulatedFirst:
    def __init__(self, landscape: Landscape, hyper: Hyper) -> None:
        self.landscape, self.hyper = landscape, hyper
        with np.errstate(invalid="ignore"):  # inf − inf gives NaN, which means no prediction
            # NaN if any simulator has no prediction
            self.predicted = np.mean(list(landscape.simulators.values()), axis=0)
        self.on = bool(landscape.simulators)
        self._guard = TrustGuard(hyper.epsilon, hyper.window)
        self._real: dict[str, Measurement] = {}
        self._best, self._stale, self._step = float("inf"), 0, 0

    def answer(self, batch: list[Configuration], measure: Real) -> tuple[list[Measurement], bool]:
        """Returns (measurements in the requested order, whether all later configurations will be real experiments)."""
        self._step += 1
        answers = {c.id: self._simulate(c) for c in batch if c.id not in self._real}
        unanswered = [c for c in batch if answers.get(c.id) is None and c.id not in self._real]
        for m in measure(unanswered):
            self._real[m.configuration.id] = m
        simulated = [m for m in answers.values() if m is not None and m.status == "ok"]
        if simulated and self._step % self.hyper.tau == 0:
            best = min(simulated, key=self._cost)
            for real in measure([best.configuration]):
                self._real[best.configuration.id] = real
                value = real.metrics.get(self.landscape.metric) if real.status == "ok" else None
                self._guard.check(best.metrics[self.landscape.metric], value)
        least = min(map(self._cost, simulated), default=float("inf"))
        self._stale = 0 if least < self._best else self._stale + 1
        self._best = min(self._best, least)
        self.on = self._guard.trusted and self._stale < self.hyper.simulated_patience
        known = [self._real.get(c.id) or answers.get(c.id) for c in batch]
        return [m for m in known if m is not None], not self.on

    def _cost(self, measurement: Measurement) -> float:
        value = measurement.metrics[self.landscape.metric]
        return value if self.landscape.goal == "min" else 1 / value

    def _simulate(self, configuration: Configuration) -> Measurement | None:
        """Returns the prediction as a measurement; None if a real experiment is needed: for the first configuration,
        with which all others are compared, and for configurations that a simulator cannot predict."""
        row = self.landscape.space.feasible.index(configuration)
        if row is None or not self._real or np.isnan(self.predicted[row]):
            return None
        value = float(self.predicted[row])
        fails = not 0 < value < np.inf
        return Measurement(
            configuration=configuration,
            name=self.landscape.space.name(configuration),
            context=self.landscape.name,
            status="oom" if fails else "ok",
            fidelity="predicted",
            metrics={} if fails else {self.landscape.metric: value},
        )
