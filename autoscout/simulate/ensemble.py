"""The simulators of one job over its space, as searches and sessions use them."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from autoscout.job.device_names import is_cpu
from autoscout.job.objective import memory_bounds
from autoscout.simulate import encode
from autoscout.simulate.learned.linear import table_2
from autoscout.simulate.learned.other_jobs import past_jobs
from autoscout.simulate.learned.stack import Ensemble, Rule
from autoscout.simulate.member import Member
from autoscout.simulate.members import analytic, members_of
from autoscout.simulate.training.memory import Memory
from autoscout.space.attributes import device_counts
from autoscout.space.graph import Space
from kb.records import Configuration, Job, Measurement

# Targets whose own knobs shard a model; the memory model reads these if a catalog gives their meaning.
_OWN_KNOBS = ("command", "deepspeed")
MIN_ROWS = 16  # twice the knobs of the widest regression: with fewer rows a fit is arbitrary

LEAST = 0.005  # smaller weights are not reported
Predictor = Callable[[np.ndarray], np.ndarray]


class Simulators:
    """An ensemble fitted on a job's measurements; predicts its objective's metric."""

    def __init__(
        self,
        job: Job,
        space: Space,
        rows: Iterable[Measurement],
        published: bool = False,
        past: Sequence[tuple[Job, Sequence[Measurement]]] = (),
        bases: Callable[[], list[Member]] | None = None,
    ) -> None:
        """`bases()`: creates simulators that need no row; by default `analytic` ones for the job's task. `published`:
        only the paper's four members with the weights of equation 2. `past`: measurements of other jobs with the same
        target."""
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
            self.ensemble.fit(self.columns(configurations), np.array(values))
        else:
            self.ensemble.begin(self.any_row)

    @property
    def weights(self) -> dict[str, float]:
        return self.ensemble.weights

    @property
    def expected_error(self) -> float:
        """Expected mean absolute error of the next prediction, as a fraction: that on held-out rows."""
        return self.ensemble.expected_error

    def doubtful(self, epsilon: float) -> bool:
        """Whether there are few rows and the expected error exceeds ε: too little to decide on."""
        return self.ensemble.rows < MIN_ROWS and self.expected_error > epsilon

    def predict(self, configuration: Configuration) -> tuple[float, dict[str, float]]:
        """The ensemble's value, and that of each member with weight there, in the metric's unit."""
        prediction, said = self.ensemble.explain(self.columns([configuration]))
        return float(prediction.value[0]), {
            s.member: s.value for s in said if s.value is not None and s.weight >= LEAST
        }

    def columns(self, configurations: Sequence[Configuration]) -> dict[str, Any]:
        return self._described(encode.of_configurations(self.space, configurations))

    def columns_of(self, codes: np.ndarray, space: Space | None = None) -> dict[str, Any]:
        """Columns of coded rows. The codes belong to our space, or to `space`, a narrower one of the same job."""
        return self._described((space or self.space).columns(codes))

    def _described(self, columns: dict[str, np.ndarray]) -> dict[str, Any]:
        """The knobs' columns together with the job's."""
        return {**self.attributes, **columns, **encode.serving_devices(self.job, columns)}

    def predictors(self, space: Space | None = None) -> dict[str, Predictor]:
        """By name: coded rows (from our space, or a narrower one of the job) → predicted values of the job's objective
        (NaN: no prediction, inf: predicted to run out of memory). "ensemble" is fitted on the rows; each analytic
        member is also listed by itself, uncorrected."""

        def over(member: Member) -> Predictor:
            def predict(codes: np.ndarray) -> np.ndarray:
                columns = self.columns_of(codes, space)
                value = member.predict(columns).value
                value = np.where(value > 0, value, np.where(value == 0, np.inf, np.nan))  # a rate of 0: out of memory
                if self.memory is None:
                    return value
                return np.where(self.memory.oom_probability(columns) > 0.5, np.inf, value)

            return predict

        bases = [] if self._published else self.bases()
        alone = {m.name: over(m) for m in bases if not m.applies(self.any_row)}
        says_more = self.ensemble.rows > 0 or self.weights.keys() != alone.keys()  # more than its only member
        return {**alone, **({"ensemble": over(self.ensemble)} if self.weights and says_more else {})}

    def fullness(self, space: Space | None = None) -> Predictor | None:
        """Coded rows → log of the predicted share of the devices' memory, or of a bound on peak_memory_gib, whichever
        is larger; None if nothing is known of their memory."""
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
        """The most complete predictor: the ensemble, or an analytic member if nothing is fitted."""
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
    # A rank on a CPU has no memory limit, and a job without a model has no shapes. Designs of whole clusters (with the
    # network as knobs) have a memory model of their own.
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
    """A measurement's peak memory, in the form that Memory.fit expects."""
    return np.inf if m.status == "oom" else m.metrics.get("peak_memory_gib", 0.0 if m.status == "ok" else np.nan)


def medians(rows: Iterable[Measurement], metric: str) -> tuple[list[Configuration], list[float]]:
    """One row per configuration, its median: if repeats fell into two folds, held-out rows would leak into the fit."""
    values: dict[Configuration, list[float]] = {}
    for m in rows:
        if m.status == "ok" and m.metrics.get(metric, 0) > 0:
            values.setdefault(m.configuration, []).append(m.metrics[metric])
    return list(values), [statistics.median(v) for v in values.values()]
