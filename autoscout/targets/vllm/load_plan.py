"""The load of a serving experiment and the resulting metrics. Definitions follow `vllm bench serve` (0.32.0):

* TTFT: from sending a request to its first token; E2EL: from sending a request to its last token
* TPOT: (E2EL − TTFT) / (output tokens − 1), for requests with several output tokens
* ITL: time between two chunks of an answer
* throughput: over the whole pass, from sending the first request to the end of the last one
* goodput: requests per second that meet all latency limits
"""

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from autoscout.job.metrics import DEVICES, HIGHEST_RATE, LOADS_PER_RATE, REQUESTS_PER_LOAD
from autoscout.job.objective import latency_limits, request_limits
from autoscout.job.requests import of_traffic
from autoscout.job.trace import BLOCK, read_trace
from autoscout.running.cluster.devices import used_nodes
from kb.records import Configuration, Job

_SEED = 0
_MIN_REQUESTS = 32
_PERCENTILES = {"p50": 50, "p90": 90, "p95": 95, "p99": 99}
_SATURATED = 0.9  # the server is saturated if it answers less than this fraction of the arrivals
_WITHIN, _LOADS = 0.05, 24  # search for the highest rate: relative precision, and maximum number of loads


class TimedRequest(msgspec.Struct, frozen=True):
    """The times of a request, in seconds from the start of its pass. `count`: tokens of the answer; `asked`: tokens of
    the prompt. In a shadow, `engine`: index of the engine that answered; `begun`: start of the request's first step."""

    sent: float
    chunks: list[float]
    count: int
    asked: int
    error: str = ""
    engine: int = 0
    begun: float | None = None


class Pass(msgspec.Struct, frozen=True):
    """One pass of the load. `duration_s` is measured by the clock of the requests' times, `wall_s` by the wall
    clock."""

    duration_s: float
    cpu_s: float
    requests: list[TimedRequest]
    wall_s: float = 0.0
    energy_j: float | None = None


def plan(job: Job) -> dict[str, Any]:
    """Returns the plan from which worker/prompts.py generates requests. Errors: AutoscoutError (exit 2) for an invalid
    trace."""
    requests = of_traffic(job.traffic, _SEED, _count(job))
    arrival = [] if requests.concurrency else requests.arrival_s.tolist()
    made = {
        "vocab": job.model.vocab,
        "shared_prefix": requests.shared_prefix,
        "concurrency": requests.concurrency,
        "warmup": job.launch.warmup,
        "passes": job.launch.iterations,
        "measure_s": job.launch.measure_s,
        "input_len": requests.input_len.tolist(),
        "output_len": requests.output_len.tolist(),
        "arrival_s": arrival,
    }
    if requests.talks is not None:
        found = requests.talks
        made["talks"] = {name: getattr(found, name).tolist() for name in ("session", "stage", "on", "group", "own")}
        made["talks"]["think_s"] = job.traffic.sessions.think_s if job.traffic.sessions else 0.0
    elif blocks := requests.blocks:
        made |= {"blocks": blocks, "block_tokens": BLOCK}
    if not searches_rate(job):
        return made
    search = {
        "start": job.traffic.rate or requests.mean_rate,
        "limits": [[metric, bound] for metric, bound in latency_limits(job.objective)],
        "loads": _LOADS,
        "repeats": LOADS_PER_RATE,
        "within": _WITHIN,
    }
    return made | {"arrival_s": [at * requests.mean_rate for at in arrival], "search": search}


def run_s(job: Job, metric: str, value: float) -> float:
    """Returns the duration of warm-up and passes in seconds, if `metric` is a throughput predicted to be `value`. 0 for
    other metrics, and for a rate search, whose loads last as long as launch.timeout_s allows."""
    rates = ("requests_per_s", "output_tokens_per_s", "total_tokens_per_s")
    if metric not in rates or searches_rate(job):
        return 0.0
    requests = of_traffic(job.traffic, _SEED, _count(job))
    asked, answered = float(np.mean(requests.input_len)), float(np.mean(requests.output_len))
    of_request = {"requests_per_s": 1.0, "output_tokens_per_s": answered, "total_tokens_per_s": asked + answered}
    each = len(requests.input_len) * of_request[metric] / value
    passes = max(1, min(job.launch.iterations, math.ceil(job.launch.measure_s / each)))
    return each * (job.launch.warmup + passes)


def searches_rate(job: Job) -> bool:
    """Whether experiments search for the highest rate within the limits (worker/rates.py)."""
    return job.objective.metric == HIGHEST_RATE


def _count(job: Job) -> int:
    """Returns the number of requests per pass: the job's, else a constant (rate search), four per user (closed
    loop), or the number that arrive in launch.measure_s (open loop)."""
    traffic = job.traffic
    if traffic.requests:
        return traffic.requests
    if searches_rate(job):
        return REQUESTS_PER_LOAD
    if traffic.concurrency:
        return max(_MIN_REQUESTS, 4 * traffic.concurrency)
    if traffic.rate:
        return max(_MIN_REQUESTS, math.ceil(traffic.rate * job.launch.measure_s))
    arrivals = read_trace(Path(traffic.trace))[0]
    return 0 if arrivals is None else max(_MIN_REQUESTS, int(np.sum(arrivals <= job.launch.measure_s)))


def metrics(passes: list[Pass], job: Job) -> dict[str, float]:
    """Returns the medians over passes of the metrics, computed as in `vllm bench serve`. Medians are robust to a
    disturbed pass. After a rate search, `passes` are the loads at the rate that was found. Their requests are pooled
    instead, as in the search's own test of the latency limits."""
    if searches_rate(job):
        passes = [pooled(passes)]
    each = [of_pass(p, request_limits(job.objective)) for p in passes]
    return {name: float(np.median([m[name] for m in each])) for name in each[0]}


def pooled(passes: list[Pass]) -> Pass:
    return Pass(
        sum(p.duration_s for p in passes),
        sum(p.cpu_s for p in passes) / len(passes),
        [request for p in passes for request in p.requests],
        energy_j=sum(known)
        if len(known := [p.energy_j for p in passes if p.energy_j is not None]) == len(passes)
        else None,
    )


def per_device(found: dict[str, float], job: Job, configuration: Configuration) -> dict[str, float]:
    """Returns throughput per GPU and cost of the used nodes. A node's price is per hour, for all its devices."""
    answered = found.get("output_tokens_per_s", 0.0)
    used = used_nodes(job, configuration)
    count = sum(node.count for node in used)
    metrics = {"output_tokens_per_s_per_gpu": answered / count, DEVICES: count}
    price = sum(node.price_per_hour for node in used)
    if price and answered:
        metrics["usd_per_million_output_tokens"] = price / 3600 / answered * 1e6
    return metrics


def of_pass(measured: Pass, slo: dict[str, float]) -> dict[str, float]:
    """Returns latencies in ms and rates per second, without failed requests. `slo`: see request_limits()."""
    done = [r for r in measured.requests if not r.error]
    latencies = {
        "ttft": np.array([r.chunks[0] - r.sent for r in done]),
        "tpot": np.array([(r.chunks[-1] - r.chunks[0]) / (r.count - 1) for r in done if r.count > 1]),
        "itl": np.concatenate([np.diff(r.chunks) for r in done]) if done else np.array([]),
        "e2el": np.array([r.chunks[-1] - r.sent for r in done]),
    }
    found: dict[str, float] = {}
    for name, seconds in latencies.items():
        ms = seconds * 1000 if len(seconds) else np.zeros(1)
        found[f"{name}_mean_ms"] = float(np.mean(ms))
        for label, q in _PERCENTILES.items():
            found[f"{name}_{label}_ms"] = float(np.percentile(ms, q))
    answered = sum(r.count for r in done)
    good = sum(_keeps(r, slo) for r in done)
    if measured.energy_j is not None and answered:
        found["joules_per_token"] = measured.energy_j / answered
    return found | {
        "requests_per_s": len(done) / measured.duration_s,
        "goodput_rps": good / measured.duration_s,
        "output_tokens_per_s": answered / measured.duration_s,
        "total_tokens_per_s": (answered + sum(r.asked for r in done)) / measured.duration_s,
        "cpu_s": measured.cpu_s,
    }


def _keeps(request: TimedRequest, slo: dict[str, float]) -> bool:
    first, last = request.chunks[0], request.chunks[-1]
    felt = {
        "ttft": first - request.sent,
        "tpot": (last - first) / (request.count - 1) if request.count > 1 else 0.0,
        "e2el": last - request.sent,
    }
    return all(felt[name] * 1000 <= bound for name, bound in slo.items())


def saturation(passes: list[Pass], arrival_s: list[float]) -> str:
    """Returns a warning if requests of an open loop arrive faster than they are answered; else "". The queue then
    grows, and latencies depend on the load's duration."""
    if len(arrival_s) < 2 or arrival_s[-1] <= 0:
        return ""
    offered = (len(arrival_s) - 1) / arrival_s[-1]
    served, slower = [], []
    for p in passes:
        done = [r for r in p.requests if not r.error]
        quarter = max(1, len(done) // 4)
        felt = [r.chunks[-1] - r.sent for r in done]
        served.append(len(done) / p.duration_s)
        slower.append(np.mean(felt[-quarter:]) / max(1e-9, float(np.mean(felt[:quarter]))) if done else 1.0)
    rate = float(np.median(served))
    if rate >= _SATURATED * offered or float(np.median(slower)) < 1.5:
        return ""
    return (
        f"saturated: {offered:.3g} requests per second arrive, but {rate:.3g} are answered; latencies grow as long as "
        "the load lasts"
    )


def kv_needed_tokens(passes: list[Pass]) -> float:
    """Returns the smallest KV cache size in tokens with which no request waits for space: the maximum number of prompt
    and answer tokens in flight (median over passes). Prompts with shared prefixes need less."""
    return float(np.median([_most_in_flight(p) for p in passes]))


def _most_in_flight(measured: Pass) -> int:
    steps: list[tuple[float, int]] = []
    for r in measured.requests:
        if not r.error:
            steps += [(r.sent, r.asked + r.count), (r.chunks[-1], -r.asked - r.count)]
    now = most = 0
    for _, tokens in sorted(steps):
        now += tokens
        most = max(most, now)
    return most


def of_search(measured: dict[str, Any], found: dict[str, float]) -> str:
    """Returns notes on a rate search: effects of the time limit, and, if no rate met the limits, the latencies at the
    lowest rate. "" if there are none."""
    parts = [measured["note"]] if measured.get("note") else []
    if not measured["max_rate"]:
        lowest = f"at the lowest rate that was tried, {min(step['rate'] for step in measured['tried']):.3g} per second"
        where = "of requests that were alone on the server" if measured.get("alone") else lowest
        felt = ", ".join(f"{name} {found[name]:.4g}" for name in ("ttft_p99_ms", "tpot_p99_ms", "e2el_p99_ms"))
        none = "no request rate meets the latency limits"
        if measured.get("early"):
            none = (
                "the time limit ended the search before a request rate met the latency limits (raise launch.timeout_s)"
            )
        parts.insert(0, f"{none}: {where}: {felt}")
    return "; ".join(parts)


def failed(passes: list[Pass]) -> str:
    """Returns a text with the number of failed requests and the error of the first one; "" if none failed."""
    errors = [r.error for p in passes for r in p.requests if r.error]
    total = sum(len(p.requests) for p in passes)
    return f"{len(errors)} of {total} requests failed: {errors[0]}" if errors else ""
