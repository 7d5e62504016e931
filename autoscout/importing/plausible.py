"""Finds numbers in a row that contradict each other, for example because a number has a wrong unit."""

import math
from collections.abc import Mapping
from itertools import combinations

from autoscout.job.device_names import is_cpu, memory_gib_of
from autoscout.job.lengths import tokens_of_step
from autoscout.targets.found import Cell, number_in
from kb.records import Job

# largest accepted ratio of two numbers that should be equal: less than the 1000 of a wrong unit prefix, but more than
# sampling and different definitions cause
_FAR = 30.0
_MORE = 1.02  # tolerated ratio of used to available memory, since tools count memory differently
_PARTS = tuple(combinations(("p50", "p90", "p95", "p99"), 2))


def implausible(metrics: Mapping[str, float], stated: Mapping[str, Cell], job: Job) -> str:
    """Returns a sentence on the values that contradict each other; "" if none do."""
    return _memory(metrics, job) or (_serving(metrics, stated) if job.task == "serve" else _training(metrics, job))


def _training(metrics: Mapping[str, float], job: Job) -> str:
    step, rate, tokens = metrics.get("step_time_s"), metrics.get("tokens_per_s"), tokens_of_step(job.traffic)
    if step and rate and tokens and not 1 / _FAR <= step * rate / tokens <= _FAR:
        return (
            f"step_time_s {step:g} and tokens_per_s {rate:g} give {step * rate:,.0f} tokens a step, but the job "
            f"has {tokens:,.0f}; check the units of both (--unit COLUMN=UNIT)"
        )
    return ""


def _serving(metrics: Mapping[str, float], stated: Mapping[str, Cell]) -> str:
    for what in ("ttft", "tpot", "itl", "e2el"):
        for low, high in _PARTS:
            least, most = metrics.get(f"{what}_{low}_ms"), metrics.get(f"{what}_{high}_ms")
            if least is not None and most is not None and least > most * (1 + 1e-9):
                return f"{what}_{low}_ms {least:g} is more than {what}_{high}_ms {most:g}; check both columns"
    first, last = metrics.get("ttft_mean_ms"), metrics.get("e2el_mean_ms")
    if first is not None and last is not None and first > last * (1 + 1e-9):
        return (
            f"ttft_mean_ms {first:g} is more than e2el_mean_ms {last:g}; check the units of both (--unit COLUMN=UNIT)"
        )
    # Little's law: requests in flight = requests per second × seconds per request.
    rate, limit = metrics.get("requests_per_s"), _at_once(stated)
    each, answer = metrics.get("tpot_mean_ms"), number_in(stated.get("output_tokens"))
    name, longest = "e2el_mean_ms", last
    if last is None and first is not None and each is not None and math.isfinite(answer):
        name, longest = "the time of a request", first + each * max(answer - 1, 0.0)
    whole = longest is not None
    if longest is None:
        name, longest = "ttft_mean_ms", first
    if rate and longest and math.isfinite(limit):
        under_way = rate * longest / 1000
        if under_way > _FAR * limit or (whole and under_way < limit / _FAR / _FAR):
            return (
                f"requests_per_s {rate:g} and {name} {longest:g} ms imply {under_way:,.3g} concurrent requests, "
                f"but the load has at most {limit:g}; check the units of both (--unit COLUMN=UNIT)"
            )
    out, total = metrics.get("output_tokens_per_s"), metrics.get("total_tokens_per_s")
    if out is not None and total is not None and out > total * (1 + 1e-6):
        return f"output_tokens_per_s {out:g} is more than total_tokens_per_s {total:g}; check both columns"
    return ""


def _at_once(stated: Mapping[str, Cell]) -> float:
    """Returns the limit on requests in flight; infinity if none is stated."""
    limits = [number_in(stated.get(name)) for name in ("concurrency", "requests")]
    return min((limit for limit in limits if limit > 0), default=math.inf) if limits[0] > 0 else math.inf


def _memory(metrics: Mapping[str, float], job: Job) -> str:
    peak = metrics.get("peak_memory_gib", 0.0)
    known = [n.memory_gib or memory_gib_of(n.device) or 0.0 for n in job.cluster.nodes if not is_cpu(n.device)]
    most = max(known, default=0.0)
    if most and min(known) and peak > _MORE * most:
        return f"peak_memory_gib is {peak:g}, but a device has {most:g} GiB; check its unit (--unit COLUMN=UNIT)"
    return ""
