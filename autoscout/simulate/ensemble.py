"""The simulators of one job: the interface through which searches and sessions predict configurations of its space."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from autoscout.job.device_names import is_cpu
from autoscout.job.objective import memory_bounds
from autoscout.simulate import encode
from autoscout.simulate.iteration.measured_phases import COLUMN, measured_phases
from autoscout.simulate.learned.linear import table_2
from autoscout.simulate.learned.other_jobs import past_jobs
from autoscout.simulate.learned.stack import Ensemble, Rule
from autoscout.simulate.member import Member
from autoscout.simulate.members import analytic, members_of
from autoscout.simulate.training.memory import Memory
from autoscout.space.attributes import device_counts
from autoscout.space.graph import Space
from kb.records import Configuration, Job, Measurement

# Targets whose knobs for sharding are not columns of the memory model. The model applies only if the target's catalog
# derives its columns from these knobs (`Space.simulated`).
_OWN_KNOBS = ("command", "deepspeed")
MIN_ROWS = 16  # fewest configurations for a fit: twice the regressors of the AutoScout paper's largest regression

LEAST = 0.005  # ensemble weights below this share are not reported
Predictor = Callable[[np.ndarray], np.ndarray]


class Simulators:
    """An ensemble of simulators that predicts the metric of a job's objective, fitted on the job's measurements."""

    def __init__(
        self,
        job: Job,
        space: Space,
        rows: Iterable[Measurement],
        published: bool = False,
        past: Sequence[tuple[Job, Sequence[Measurement]]] = (),
        bases: Callable[[], list[Member]] | None = None,
    ) -> None:
        """`bases()`: creates the simulators that need no measured rows; by default the `analytic` ones for the job's
        task. `published`: use only the four regressions of the AutoScout paper, weighted by its equation 2. `past`:
        measurements of other jobs with the same target."""
        self.job, self.space = job, space
        self.attributes = encode.of_job(job)
        rule: Rule = "published" if published else "best"
        rows = list(rows)
        self._published, self.memory = published, memory_of(job, space, rows)
        metric = job.objective.metric
        self.bases = bases or (lambda: analytic(metric, job.task))
        earlier = [(other, *medians(measured, metric)) for other, measured in past if other.id != job.id]
        learned = past_jobs(space, earlier, lambda: members_of(metric, job.task, bases=self.bases))
        members = table_2() if published else members_of(metric, job.task, [learned] if learned else [], self.bases)
        self.ensemble = Ensemble(members, rule)
        self.any_row = self.columns([space.any()])
        configurations, values = medians(rows, metric)
        if configurations:
            timed = {COLUMN: measured_phases(rows, configurations)} if job.task == "rl" else {}
            self.ensemble.fit({**self.columns(configurations), **timed}, np.array(values))
        else:
            self.ensemble.begin(self.any_row)

    @property
    def weights(self) -> dict[str, float]:
        return self.ensemble.weights

    @property
    def expected_error(self) -> float:
        """Expected mean absolute error of the next prediction, as a fraction, estimated on held-out rows."""
        return self.ensemble.expected_error

    def doubtful(self, epsilon: float) -> bool:
        """Whether the ensemble has fewer than MIN_ROWS measurements and an expected error above ε: decisions should not
        rely on it."""
        return self.ensemble.rows < MIN_ROWS and self.expected_error > epsilon

    def predict(self, configuration: Configuration) -> tuple[float, dict[str, float]]:
        """(the ensemble's prediction; predictions by name of the members with a weight of at least LEAST), in the
        metric's unit."""
        prediction, said = self.ensemble.explain(self.columns([configuration]))
        return float(prediction.value[0]), {
            s.member: s.value for s in said if s.value is not None and s.weight >= LEAST
        }

    def columns(self, configurations: Sequence[Configuration]) -> dict[str, Any]:
        return self._described(encode.of_configurations(self.space, configurations))

    def columns_of(self, codes: np.ndarray, space: Space | None = None) -> dict[str, Any]:
        """Columns of configurations given as rows of codes, which refer to `self.space`, or to its subspace `space`."""
        return self._described((space or self.space).columns(codes))

    def _described(self, columns: dict[str, np.ndarray]) -> dict[str, Any]:
        return {**self.attributes, **columns, **encode.serving_devices(self.job, columns)}

    def predictors(self, space: Space | None = None) -> dict[str, Predictor]:
        """Predictors by name. Each maps rows of codes (see `columns_of`) to predicted values of the job's objective
        (NaN: no prediction, inf: predicted to run out of memory). "ensemble" is the fitted ensemble; all other names
        are analytic simulators, without correction by measurements."""

        def over(member: Member) -> Predictor:
            def predict(codes: np.ndarray) -> np.ndarray:
                columns = self.columns_of(codes, space)
                value = member.predict(columns).value
                value = np.where(value > 0, value, np.where(value == 0, np.inf, np.nan))  # rate 0: out of memory
                if self.memory is None:
                    return value
                return np.where(self.memory.oom_probability(columns) > 0.5, np.inf, value)

            return predict

        bases = [] if self._published else self.bases()
        alone = {m.name: over(m) for m in bases if not m.applies(self.any_row)}
        # An ensemble of one unfitted member would only repeat that member.
        says_more = self.ensemble.rows > 0 or self.weights.keys() != alone.keys()
        return {**alone, **({"ensemble": over(self.ensemble)} if self.weights and says_more else {})}

    def fullness(self, space: Space | None = None) -> Predictor | None:
        """A function from rows of codes to log(predicted peak memory / limit), where the limit is the device's memory
        or the job's bound on peak_memory_gib, whichever is hit first. None if the memory model does not apply."""
        memory = self.memory
        if memory is None:
            return None
        bounds = memory_bounds(self.job.objective)

        def predict(codes: np.ndarray) -> np.ndarray:
            columns = self.columns_of(codes, space)
            shares = [memory.filled(columns), *(memory.predict(columns).value / bound for bound in bounds)]
            return np.log(np.max(shares, axis=0))

        return predict

    def predictor(self) -> Predictor | None:
        """The fitted ensemble, or without one the first analytic simulator; None if no simulator can predict."""
        known = self.predictors()
        return known.get("ensemble") or next(iter(known.values()), None)


def fit(job: Job, space: Space, rows: Iterable[Measurement], published: bool = False) -> Simulators | None:
    """The fitted simulators; None if there are too few rows, or no member predicts held-out rows."""
    rows = list(rows)
    if len(medians(rows, job.objective.metric)[0]) < MIN_ROWS:
        return None
    simulators = Simulators(job, space, rows, published)
    return simulators if simulators.weights else None


def memory_of(job: Job, space: Space, rows: Iterable[Measurement]) -> Memory | None:
    """The memory model, corrected by the job's measurements; None if it does not apply."""
    # The memory model needs a limit on the device's memory, which CPU ranks lack, and the sizes of the job's model.
    # Jobs that design whole clusters (with network knobs such as `npus_1`) have a memory model of their own.
    unlike = (job.target in _OWN_KNOBS and not space.simulated) or "npus_1" in space.knob
    shapeless = not job.model.layers or not job.traffic.seq_len
    if job.task == "serve" or any(map(is_cpu, device_counts(job))) or shapeless or unlike:
        return None
    memory, attributes = Memory(), encode.of_job(job)
    peaks = {m.configuration: _peak(m) for m in rows}
    known = {c: peak for c, peak in peaks.items() if not np.isnan(peak)}
    if known:
        columns = {**attributes, **encode.of_configurations(space, list(known))}
        memory.fit(columns, np.array(list(known.values())))
    return memory


def _peak(m: Measurement) -> float:
    """Peak GiB for Memory.fit: inf if out of memory, 0 if a successful run reports none, NaN for other failures."""
    return np.inf if m.status == "oom" else m.metrics.get("peak_memory_gib", 0.0 if m.status == "ok" else np.nan)


def medians(rows: Iterable[Measurement], metric: str) -> tuple[list[Configuration], list[float]]:
    """(configurations, median value of each). Repeats are merged, so that cross-validation never fits a repeat of a
    held-out configuration."""
    values: dict[Configuration, list[float]] = {}
    for m in rows:
        if m.status == "ok" and m.metrics.get(metric, 0) > 0:
            values.setdefault(m.configuration, []).append(m.metrics[metric])
    return list(values), [statistics.median(v) for v in values.values()]
