"""Measures the load of a running vLLM server from two readings of `/metrics` (checked with 0.20.2 to 0.33.0)."""

import math
from collections.abc import Mapping

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from kb.records import AutoscoutError, Traffic

_PREFIX = "vllm:"
_REQUESTS = "request_prompt_tokens"  # a histogram with one observation for each finished request
_QUANTILES = 21  # number of lengths that represent a distribution
FEWEST = 20  # minimum number of finished requests for an estimate of the length distribution

Buckets = dict[float, float]  # upper bound → number of observations up to it


class MetricsReading(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics of a server at one time, summed over its engines. `histograms`: name without vLLM's prefix → buckets.
    `numbers`: name → value of a counter or gauge."""

    numbers: dict[str, float]
    histograms: dict[str, Buckets]
    sums: dict[str, float]


class ServedLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The load between two readings. `rate`: finished requests per second. Lengths are in tokens, at evenly spaced
    quantiles from the smallest to the largest. `shared`: fraction of prompt tokens found in the prefix cache. Latencies
    are in ms, None if not observed. `running`, `waiting` and `kv_usage` (0 to 1) are values at the second reading."""

    seconds: float
    requests: int
    rate: float
    input_len: list[int]
    output_len: list[int]
    shared: float
    ttft_ms: tuple[float, float] | None  # median and 99th percentile
    tpot_ms: tuple[float, float] | None
    running: float
    waiting: float
    kv_usage: float
    preemptions: float


def reading(text: str, where: str) -> MetricsReading:
    """Parses the text of `/metrics`. Errors: AutoscoutError (exit 2) if the text is not from a vLLM server."""
    numbers: dict[str, float] = {}
    histograms: dict[str, Buckets] = {}
    sums: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families(text):
            if not family.name.startswith(_PREFIX):
                continue
            name = family.name.removeprefix(_PREFIX)
            for sample in family.samples:
                kind = sample.name.removeprefix(family.name)
                if kind == "_bucket":
                    buckets = histograms.setdefault(name, {})
                    end = float(sample.labels["le"])
                    buckets[end] = buckets.get(end, 0.0) + sample.value
                elif kind == "_sum":
                    sums[name] = sums.get(name, 0.0) + sample.value
                elif kind in ("", "_total"):
                    numbers[name] = numbers.get(name, 0.0) + sample.value
    except (ValueError, KeyError) as error:
        page = "give the address of vLLM's /metrics page"
        raise AutoscoutError(f"{where}: the text is not in Prometheus' format ({error}); {page}", 2) from error
    if _REQUESTS not in histograms:
        raise AutoscoutError(f"{where}: the text has no {_PREFIX}{_REQUESTS}, so it is not vLLM's /metrics page", 2)
    return MetricsReading(numbers=numbers, histograms=histograms, sums=sums)


def restarted(first: MetricsReading, last: MetricsReading) -> bool:
    """Whether the server restarted between the readings: the start time changed, or a counter decreased."""
    began, begun = (each.numbers.get(f"{_REQUESTS}_created") for each in (first, last))
    return began != begun or any(
        count < first.histograms.get(name, {}).get(end, 0.0)
        for name, buckets in last.histograms.items()
        for end, count in buckets.items()
    )


def answered(first: MetricsReading, last: MetricsReading) -> int:
    """Returns the number of requests finished between two readings without a restart."""
    return round(_between(first, last, _REQUESTS).get(math.inf, 0.0))


def load_between(first: MetricsReading, last: MetricsReading, seconds: float) -> ServedLoad:
    """Computes the load between two readings `seconds` apart. Errors: AutoscoutError (exit 1) if the server restarted
    in between or answered too few requests."""
    if restarted(first, last):
        raise AutoscoutError("the server restarted while it was watched, so its counters started from zero; try again")
    requests = answered(first, last)
    if requests < FEWEST:
        raise AutoscoutError(
            f"{requests} requests were answered in {seconds:.0f} s, but at least {FEWEST} are needed to estimate "
            "their lengths; measure longer with --for"
        )
    queries = _more(first, last, "prefix_cache_queries")
    return ServedLoad(
        seconds=seconds,
        requests=requests,
        rate=requests / seconds,
        input_len=_lengths(first, last, _REQUESTS),
        output_len=_lengths(first, last, "request_generation_tokens"),
        shared=_more(first, last, "prefix_cache_hits") / queries if queries else 0.0,
        ttft_ms=_latency(_between(first, last, "time_to_first_token_seconds")),
        tpot_ms=_latency(_after_the_first(first, last)),
        running=last.numbers.get("num_requests_running", 0.0),
        waiting=last.numbers.get("num_requests_waiting", 0.0),
        kv_usage=last.numbers.get("kv_cache_usage_perc", 0.0),
        preemptions=_more(first, last, "num_preemptions"),
    )


def traffic_of(load: ServedLoad) -> Traffic:
    """Converts the load to a job's traffic, with arrivals at this rate (an open loop)."""
    prefix = round(load.shared * sum(load.input_len) / len(load.input_len))
    # vLLM's smallest cache blocks have 16 tokens.
    prefix = min(prefix, load.input_len[0] - 1) if prefix >= 16 else 0
    return Traffic(
        rate=float(f"{load.rate:.4g}"),
        input_len=load.input_len,
        output_len=load.output_len,
        shared_prefix=max(0, prefix),
    )


def _more(first: MetricsReading, last: MetricsReading, name: str) -> float:
    return last.numbers.get(name, 0.0) - first.numbers.get(name, 0.0)


def _between(first: MetricsReading, last: MetricsReading, name: str) -> Buckets:
    before = first.histograms.get(name, {})
    found = {end: count - before.get(end, 0.0) for end, count in last.histograms.get(name, {}).items()}
    return dict(sorted(found.items()))


def _after_the_first(first: MetricsReading, last: MetricsReading) -> Buckets:
    """Returns the histogram of times per output token, without the observations of 0 s that vLLM records for one-token
    answers."""
    alone = _between(first, last, "request_generation_tokens").get(1.0, 0.0)
    found = _between(first, last, "request_time_per_output_token_seconds")
    return {end: max(0.0, count - alone) for end, count in found.items()}


def _quantile(buckets: Mapping[float, float], share: float) -> float:
    """Returns a quantile, interpolated in a bucket like Prometheus' histogram_quantile. The last bucket has no upper
    bound."""
    wanted, below, low = share * buckets[math.inf], 0.0, 0.0
    for end, count in buckets.items():
        if count >= wanted and count > below:
            return low if math.isinf(end) else low + (end - low) * (wanted - below) / (count - below)
        below, low = count, end if math.isfinite(end) else low
    return low


def _lengths(first: MetricsReading, last: MetricsReading, name: str) -> list[int]:
    """Returns length quantiles, interpolated within buckets and then scaled to the exact mean (sum / count)."""
    buckets = _between(first, last, name)
    if not buckets.get(math.inf):
        return [1]
    found = [_quantile(buckets, i / (_QUANTILES - 1)) for i in range(_QUANTILES)]
    mean = (last.sums.get(name, 0.0) - first.sums.get(name, 0.0)) / buckets[math.inf]
    scale = mean * len(found) / sum(found) if sum(found) > 0 else 1.0
    return [max(1, round(scale * length)) for length in found]


def _latency(buckets: Buckets) -> tuple[float, float] | None:
    if not buckets.get(math.inf):
        return None
    return 1000 * _quantile(buckets, 0.5), 1000 * _quantile(buckets, 0.99)
