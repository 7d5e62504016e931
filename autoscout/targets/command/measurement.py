"""Converts a run's reported numbers to metrics: excludes warm-up, and converts units and related metrics.

A metric's name includes its unit (step_time_ms, peak_memory_mib); the objective may use a different unit of the same
kind. If a run reports a metric repeatedly, the result is the median after warm-up, or for memory the maximum. The
warm-up is `launch.warmup` iterations and longer while times still decrease (running/worker/ending.py)."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

import msgspec

from autoscout.job.lengths import tokens_of_step
from autoscout.job.metrics import DEVICES
from autoscout.job.objective import constraint, from_metric, measurable, others
from autoscout.job.units import factor, unit_of
from autoscout.running.worker import ending
from autoscout.targets.command.preset import metrics_of
from kb.records import Job, MetricSource

Values = Mapping[str, list[float]]
OF_EVERY_RUN = ("start_output_s", "start_s", "peak_rss_gib", "cpu_s")  # metrics available for any command
_LOSSES, _NORMS = ("loss", "lm_loss", "train_loss"), ("grad_norm",)
_TIMES, _SIZES = ("us", "ms", "s", "min", "h"), ("bytes", "kb", "mb", "gb", "kib", "mib", "gib")
_RATES = {"iterations_per_s": "step_time_s", "steps_per_s": "step_time_s"}
_STEP = "step_time_s"
_SOME = 6  # minimum number of steps to judge whether their times are uneven


class Readings(msgspec.Struct, frozen=True, kw_only=True):
    """What a run reported. `iterations_s`: seconds of each iteration after warm-up; empty if the run reports no
    times."""

    metrics: dict[str, float]
    iterations_s: list[float] = []
    losses: list[float] = []
    grad_norms: list[float] = []


def readings(job: Job, values: Values) -> Readings:
    """Returns a run's metrics, including derived ones, and the data for the equivalence check."""
    warm = warm_up(job, values)
    metrics = {n: _statistic(job, n, v, warm) for n, v in values.items() if v and n not in (*_LOSSES, *_NORMS)}
    sources = metrics_of(job)
    metrics = {
        n: v for n, v in metrics.items() if math.isfinite(v) and (measurable(v) or not _positive(job, n, sources))
    }
    for name in wanted(job):
        if name not in metrics and (value := _derived(job, name, metrics, sources)) is not None:
            metrics[name] = value
    if _STEP not in metrics and (step := _derived(job, _STEP, metrics, sources)) is not None:
        metrics[_STEP] = step
    if "tokens_per_s" not in metrics and (rate := _derived(job, "tokens_per_s", metrics, sources)) is not None:
        metrics["tokens_per_s"] = rate
    if "step_time_ms" in metrics and _STEP in metrics:
        del metrics["step_time_ms"]
    return Readings(
        metrics=metrics,
        iterations_s=_after(_series(job, values, _STEP), warm),
        losses=_of_updates(values) if job.task == "rl" else _first(values, _LOSSES),
        grad_norms=_first(values, _NORMS),
    )


def uneven(job: Job, iterations_s: Sequence[float]) -> str:
    """Returns a warning if the log lines by which steps are timed arrive in bursts, like redraws of a progress bar;
    else ""."""
    source = metrics_of(job).get(_STEP)
    if not isinstance(source, MetricSource) or not source.between or len(iterations_s) < _SOME:
        return ""
    mean = math.fsum(iterations_s) / len(iterations_s)
    short = sum(each < mean / 10 for each in iterations_s)
    if short < len(iterations_s) / 3:
        return ""
    return (
        f"{short} of {len(iterations_s)} steps took less than a tenth of the mean: launch.metrics.{_STEP} may "
        "match several times per step; compare with the script's own log"
    )


def costs(job: Job, values: Values) -> list[float]:
    """Returns the objective as a cost for each iteration after warm-up; [] if it is not reported per iteration."""
    return _after(_costs(job, values), warm_up(job, values))


def warm_up(job: Job, values: Values) -> int:
    """Returns the number of warm-up iterations, based on their times if reported, else on the objective."""
    return ending.warm_up(_series(job, values, _STEP) or _costs(job, values), job.launch.warmup)


def _costs(job: Job, values: Values) -> list[float]:
    series = _series(job, values, job.objective.metric)
    return [from_metric(job.objective, v) for v in series]


def wanted(job: Job) -> list[str]:
    """Returns the metrics in the objective and constraints."""
    limited = [constraint(text)[0] for text in job.objective.constraints]
    return list(dict.fromkeys([job.objective.metric, *(o.metric for o in others(job.objective)), *limited]))


def known_metrics(job: Job) -> tuple[str, ...]:
    """Returns the metrics that the job's runs report. Metrics in a unit that the job uses come first. () if the job
    declares no metrics, because its runs may then report any metric."""
    declared = metrics_of(job)
    if not declared:
        return ()
    own = (*declared, *OF_EVERY_RUN, *((DEVICES,) if job.task == "rl" else ()))
    found = set(own)
    for name in declared:
        base, unit = _unit(name, declared)
        found |= {f"{base}_{other}" for kind in (_TIMES, _SIZES) if unit in kind for other in kind}
        if name in _RATES:
            found.add(_RATES[name])
    for rate, amount in (("tokens_per_s", _tokens(job)), ("samples_per_s", job.traffic.global_batch)):
        if rate in found and amount:
            found.add(_STEP)
    if _STEP in found and _tokens(job):
        found.add("tokens_per_s")
    return (*own, *sorted(found - set(own)))


def _positive(job: Job, name: str, sources: Mapping[str, str | MetricSource]) -> bool:
    """Whether 0 is an invalid value of this metric. Trainers on CPUs report 0 as the peak memory of missing GPUs, and
    coarse clocks report steps of 0 s."""
    return "memory" in name or _conversion(job, name, _STEP, sources) is not None


def _derived(
    job: Job, name: str, metrics: Mapping[str, float], sources: Mapping[str, str | MetricSource]
) -> float | None:
    for have, value in metrics.items():
        convert = _conversion(job, have, name, sources)
        if convert is not None and measurable(value) and measurable(found := convert(value)):
            return found
    return None


def _series(job: Job, values: Values, name: str) -> list[float]:
    """Returns the metric's value in each iteration; [] if it is not reported per iteration."""
    sources = metrics_of(job)
    # the metric itself takes precedence over metrics from which it can be converted
    series_of = {name: values[name], **values} if name in values else values
    for have, series in series_of.items():
        convert = _conversion(job, have, name, sources)
        if convert is not None and len(series) > 1:
            return [found for v in series if measurable(v) and measurable(found := convert(v))]
    return []


def _conversion(
    job: Job, have: str, name: str, sources: Mapping[str, str | MetricSource]
) -> Callable[[float], float] | None:
    """Returns the function that converts one metric to another (identity, change of unit, inverse of a rate, or tokens
    per step); None if there is no conversion."""
    if have == name:
        return lambda v: v
    base, unit = _unit(have, sources)
    wanted_base, wanted_unit = _unit(name, {})
    if unit and wanted_unit and base == wanted_base and any({unit, wanted_unit} <= {*k} for k in (_TIMES, _SIZES)):
        by = factor(have, unit, wanted_unit)
        return lambda v: v * by
    if _RATES.get(have) == name:
        return lambda v: 1 / v
    tokens, samples = _tokens(job), float(job.traffic.global_batch)
    for rate, amount in (("tokens_per_s", tokens), ("samples_per_s", samples)):
        if amount and {have, name} == {rate, _STEP}:
            return lambda v, amount=amount: amount / v
    if tokens and name == "tokens_per_s" and base == "step_time" and unit in _TIMES:
        by = factor(have, unit, "s")
        return lambda v: tokens / v / by
    return None


def _unit(name: str, sources: Mapping[str, str | MetricSource]) -> tuple[str, str]:
    """Splits a metric's name into (name without unit, unit)."""
    source = sources.get(name)
    if isinstance(source, MetricSource) and source.unit:
        return name, source.unit
    unit = unit_of(name)
    return (name[: -len(unit) - 1], unit) if unit and name.endswith(f"_{unit}") else (name, "")


def _tokens(job: Job) -> float:
    return tokens_of_step(job.traffic)


def _statistic(job: Job, name: str, values: list[float], warm: int) -> float:
    if "memory" in name or _unit(name, metrics_of(job))[1] in _SIZES:
        return max(values)
    return statistics.median(_after(values, warm))


def _after(values: list[float], warm: int) -> list[float]:
    return values[warm:] if len(values) > warm else values[-1:]


def _of_updates(values: Values) -> list[float]:
    """Returns [reward, loss, reward, loss, …] of the first updates; [] if reward or loss was not reported."""
    pairs = zip(values.get("reward", []), _first(values, _LOSSES), strict=False)
    return [number for pair in pairs for number in pair]


def _first(values: Values, names: tuple[str, ...]) -> list[float]:
    return next((list(values[name][:8]) for name in names if values.get(name)), [])
