"""Predicts one configuration of a job by each simulator and by their ensemble, with memory and a breakdown of time."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from autoscout.job.metrics import HIGHEST_RATE
from autoscout.job.objective import latency_limits
from autoscout.job.words import listed, several
from autoscout.simulate.ensemble import Simulators, medians
from autoscout.simulate.grounds import Ground, grounds
from autoscout.simulate.hardware.capacity import capacity
from autoscout.simulate.joules import TrainingEnergy
from autoscout.simulate.learned.other_jobs import measured_by_others
from autoscout.simulate.learned.stack import MemberPrediction, Rule
from autoscout.simulate.learned.weighing import SPAN
from autoscout.simulate.member import Member, Prediction
from autoscout.simulate.shadow.served import ServingShadow
from autoscout.simulate.shadow.traced import Shadow
from autoscout.simulate.training import memory as memory_model
from autoscout.simulate.training.crossing import network_matters
from autoscout.simulate.training.step import Training
from autoscout.space.explain import completed
from autoscout.targets.jobs import JobSpace, simulators_of
from autoscout.targets.target import target_of
from autoscout.targets.tracing import ShadowAsked
from autoscout.tuning.bounds import bounded
from autoscout.tuning.fitting import beside_engine
from kb import store, traces
from kb.journal_rows import cluster_name
from kb.records import AutoscoutError, Configuration, Job, Measurement, Objective, Value


class PredictedMemory(msgspec.Struct, frozen=True):
    """GiB of the fullest rank, with a 90 % interval; `device_gib`: the device's memory, None for several kinds."""

    gib: float
    low: float
    high: float
    device_gib: float | None
    oom_probability: float
    oom_range: tuple[float, float]  # its range over possible software versions; the ends are equal if these are known
    parts: dict[str, float]


class Bound(msgspec.Struct, frozen=True):
    """A constraint of the job, with a simulator's prediction of its metric and a 90 % interval. `kept`: whether the
    predicted value meets it."""

    text: str
    value: float
    low: float
    high: float
    kept: bool


class Power(msgspec.Struct, frozen=True):
    """Watts of all devices together, and joules per token (for serving, per output token) with a 90 % interval."""

    watts: float
    joules_per_token: float
    low: float
    high: float


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """The prediction for one configuration. `low`, `high`: the 90 % interval; `expected_error`: MAPE on held-out
    measurements of the job, or the simulators' own estimate if there are none; `parts`: breakdown by the analytic
    simulator `parts_of`, in the metric's unit (if that is a rate, of one step in seconds); `measured`: the median of
    this configuration's measurements, if any; `unpriced`: knobs with a non-default value, and other settings of the
    job, whose effect no analytic simulator models; `network`: a sentence on whether the bandwidth between nodes
    matters."""

    job: str
    name: str
    configuration: dict[str, Value]
    metric: str
    value: float
    low: float
    high: float
    expected_error: float
    rule: Rule
    rows: int
    context: str
    environment: dict[str, str]
    other_rows: int  # number of measurements with other versions or devices, which are not used
    past: dict[str, int]  # similar job → number of its measurements that are used
    measured: float | None
    missed: str  # the probable reason if `measured` is outside the interval; "" if it is inside
    members: list[MemberPrediction]
    parts_of: str
    parts: dict[str, float]
    memory: PredictedMemory | None
    bounds: list[Bound] = []  # constraints whose metric a simulator predicts
    power: Power | None = None  # for training jobs on devices whose watts are known
    unpriced: list[str] = []
    grounds: list[Ground] = []  # the data on which each part of the prediction rests
    network: str = ""
    unsaid: str = ""  # the unknown fact about the software that widens the interval most, and how to specify it
    shadow: Shadow | ServingShadow | None = None  # forecast from an earlier trace of the configuration, if there is one


def predict(space: JobSpace, given: Mapping[str, Value], kb: Path | None, load: Job | None = None) -> Predicted:
    """Predicts a configuration. `given`: values of some knobs; the others are as in the reference. `kb`: None, or a
    missing file, means no measurements. `load`: the space's job under another load, to be predicted instead. Errors:
    AutoscoutError (exit 2) for an invalid configuration, (exit 1) if no simulator can predict it, (exit 3) if it does
    not fit into memory or meets its limits at no request rate."""
    job = load or space.job
    configuration = completed(space, given, space.reference)
    if crowded := beside_engine(space, configuration):
        raise AutoscoutError(f"{space.name(configuration)} does not fit: {crowded}", 3)
    rows, others = newest_context(job, kb)
    past = _past(job, kb)
    bases = partial(simulators_of, job)
    simulators = Simulators(job, space, rows, past=past, bases=bases)
    columns = simulators.columns([configuration])
    prediction, each = simulators.ensemble.explain(columns)
    value, error = float(prediction.value[0]), float(prediction.error[0])
    measured = _measured(rows, configuration, job.objective.metric)
    if math.isinf(value):
        raise AutoscoutError(f"{space.name(configuration)} is predicted {_fails(job, columns)}", 3)
    if math.isnan(value):
        raise AutoscoutError(_nothing(job, [m.name for m in bases()], each, len(rows)))
    # An iteration's phases are each corrected by what was measured; other models state theirs without a correction.
    parts_of, parts = _parts(simulators.ensemble.members if job.task == "rl" else bases(), columns)
    memory = _memory(job, simulators.memory, columns)
    return Predicted(
        job=job.name,
        name=space.name(configuration),
        configuration=configuration.knobs,
        metric=job.objective.metric,
        value=value,
        low=value * math.exp(-SPAN * error),
        high=value * math.exp(SPAN * error),
        expected_error=simulators.expected_error if simulators.ensemble.rows else error * math.sqrt(2 / math.pi),
        rule=simulators.ensemble.rule,
        rows=simulators.ensemble.rows,
        context=rows[-1].context if rows else "",
        environment=rows[-1].environment if rows else {},
        other_rows=others,
        past={other.name: len(measured) for other, measured in past},
        measured=measured,
        missed=_missed(job, columns, measured, prediction),
        members=each,
        parts_of=parts_of,
        parts=parts,
        memory=memory,
        bounds=list(_bounds(job, simulators.memory, columns)),
        power=_power(job, columns) if parts and job.task != "rl" else None,
        unpriced=unpriced(space, [configuration]),
        grounds=grounds(job, parts),
        network=network_matters(job, columns) if parts and job.task != "rl" else "",
        unsaid=_unsaid(job, columns) if parts and job.task != "rl" else "",
        shadow=_shadow(job, configuration, space.name(configuration), kb),
    )


def unpriced(space: JobSpace, configurations: Sequence[Configuration]) -> list[str]:
    """Settings of these configurations, or of their job, whose effect on time no simulator knows."""
    knobs = [k for k in space.knobs if not k.priced]
    moved = [k.name for k in knobs if any(c.knobs.get(k.name, k.off) != k.off for c in configurations)]
    return [*moved, *target_of(space.job).not_modelled(space.job)]


def _shadow(job: Job, configuration: Configuration, name: str, kb: Path | None) -> Shadow | ServingShadow | None:
    if kb is None or not traces.folder(kb).is_dir():
        return None
    try:
        found = target_of(job).shadow(ShadowAsked(job, configuration, name, kb, 0.0))
    except AutoscoutError:
        return None
    if isinstance(found, ServingShadow):
        return found
    slim = [msgspec.structs.replace(r, timeline=[], kernels=[], collectives=[], order=[]) for r in found.ranks]
    return msgspec.structs.replace(found, ranks=slim)


def _nothing(job: Job, bases: list[str], members: list[MemberPrediction], rows: int) -> str:
    reasons = [f"{s.member}: {s.why}" for s in members if s.member in bases and s.why]
    reasons += [why] if (why := target_of(job).untold(job)) else []
    known = (
        f"{several(rows, 'measured row')} of this job {'is' if rows == 1 else 'are'} too few"
        if rows
        else "nothing of this job has been measured"
    )
    return (
        f"nothing can predict {job.objective.metric} of {job.name} yet: {'; '.join([*reasons, known])}; "
        f"measure some configurations first, with `autoscout tune` or `autoscout profile`"
    )


def _fails(job: Job, columns: Mapping[str, np.ndarray]) -> str:
    """The end of a sentence on why the predicted cost is infinite."""
    if job.objective.metric == HIGHEST_RATE:
        cache = msgspec.structs.replace(job, objective=Objective(maximize="kv_cache_tokens"))
        if any(float(member.predict(columns).value[0]) > 0 for member in simulators_of(cache)):
            limits = [f"{metric} <= {bound:g}" for metric, bound in latency_limits(job.objective)]
            return f"not to meet {listed(limits)} at any request rate"
    return "not to run: it does not fit into memory"


def newest_context(job: Job, kb: Path | None) -> tuple[list[Measurement], int]:
    """(measurements on this cluster with the versions and devices that were measured last, number of other ones)"""
    if kb is None or not kb.exists():
        return [], 0
    rows, cluster_of = store.measurements(kb, job=job.id, short=True, answers=True), store.clusters(kb, job.id)
    here = [m for session, m in rows if cluster_of.get(session) == cluster_name(job)]
    newest = [m for m in here if m.context == here[-1].context]
    return newest, len(rows) - len(newest)


def fitted_simulators(job: Job, kb: Path | None) -> Callable[[JobSpace], Simulators]:
    """Simulators for any space of the job, fitted to its newest measurements and to those of similar jobs."""
    rows, past, bases = newest_context(job, kb)[0], _past(job, kb), partial(simulators_of, job)
    return lambda space: Simulators(job, space, rows, past=past, bases=bases)


def _past(job: Job, kb: Path | None) -> list[tuple[Job, list[Measurement]]]:
    """The most similar other jobs, and their measurements; [] without a knowledge base."""
    return measured_by_others(kb, job) if kb is not None and kb.exists() else []


def _measured(rows: list[Measurement], configuration: Configuration, metric: str) -> float | None:
    found = medians([m for m in rows if m.configuration == configuration], metric)[1]
    return found[0] if found else None


def _missed(job: Job, columns: Mapping[str, Any], measured: float | None, predicted: Prediction) -> str:
    if measured is None:
        return ""
    from autoscout.simulate.validation.diagnosis import reasons  # imports scipy

    row, one = np.array([measured]), Prediction(value=predicted.value[:1], error=predicted.error[:1])
    return str(reasons(job.task, job.objective.metric, columns, row, one, np.zeros(1))[0])


def _parts(members: list[Member], columns: Mapping[str, np.ndarray]) -> tuple[str, dict[str, float]]:
    """(name, breakdown) of the first of some simulators that has a breakdown."""
    for member in members:
        if not member.applies(columns):
            parts = {name: float(np.broadcast_to(v, 1)[0]) for name, v in member.predict(columns).parts.items()}
            if parts:
                return member.name, parts
    return "", {}


# Descriptions of software features (columns of the simulators) whose names do not explain themselves.
_SOFTWARE = {
    "te": "whether its layers come from Transformer Engine",
    "fused_norm": "whether each norm is a single kernel",
    "attention": "the attention kernel",
    "grad_bytes": "how many bytes a gradient takes",
    "graphs": "whether layers run as CUDA graphs",
}


def _unsaid(job: Job, columns: Mapping[str, np.ndarray]) -> str:
    if job.task == "serve" or (found := Training.of_job(job).widest(columns)) is None:
        return ""
    wide = math.expm1(SPAN * found.between)
    each = ", ".join(f"{value or 'by its layers'}: {seconds:.3g} s" for value, seconds in found.values.items())
    return (
        f"the job does not state {_SOFTWARE.get(found.column, found.column)}, which widens the interval by "
        f"±{wide:.0%}, more than any other unknown ({found.column} {each}); set {found.column} under [simulated] "
        "in the job's own catalog, or measure a configuration"
    )


def _bounds(job: Job, memory: memory_model.Memory | None, columns: Mapping[str, np.ndarray]) -> Iterator[Bound]:
    for found in bounded(job, memory, columns):
        value, error = float(found.predicted.value[0]), float(found.predicted.error[0])
        if math.isfinite(value):
            span = math.exp(SPAN * error)
            yield Bound(found.text, value, value / span, value * span, bool(found.kept[0]))


def _power(job: Job, columns: Mapping[str, np.ndarray]) -> Power | None:
    if job.task == "serve":
        from autoscout.simulate.serving.serving_joules import ServingEnergy  # imports scipy

        model = ServingEnergy()
    else:
        model = TrainingEnergy()
    if model.applies(columns):
        return None
    watts, joules = model.watts_and_joules(columns)
    value, error = float(joules.value[0]), float(joules.error[0])
    if not math.isfinite(value):
        return None
    return Power(float(watts[0]), value, value * math.exp(-SPAN * error), value * math.exp(SPAN * error))


def _memory(job: Job, model: memory_model.Memory | None, columns: Mapping[str, np.ndarray]) -> PredictedMemory | None:
    if model is None or model.applies(columns):
        return None
    predicted = model.predict(columns)
    gib, error = float(predicted.value[0]), float(predicted.error[0])
    used = [n for n in job.cluster.nodes if np.all(columns.get(n.device.replace("-", "_"), np.array(1)) != 0)]
    sizes = [size for n in used if (size := capacity(n))]
    return PredictedMemory(
        gib=gib,
        low=gib * math.exp(-SPAN * error),
        high=gib * math.exp(SPAN * error),
        device_gib=min(sizes, default=None) if len({node.device for node in used}) == 1 else None,
        oom_probability=float(model.oom_probability(columns)[0]),
        oom_range=(float((chances := model.oom_range(columns))[0][0]), float(chances[1][0])),
        parts={name: float(np.broadcast_to(v, 1)[0]) for name, v in predicted.parts.items()},
    )
