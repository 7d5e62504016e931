"""Latencies and throughput of a simulated run, with the definitions of `vllm bench serve`.

TTFT: arrival to the first token. TPOT: (end - first token) / (output tokens - 1), for requests with more than one
output token. ITL: every gap between two pieces of an answer; a piece has as many tokens as one step yields. TPOT and
ITL are 0 if all answers have one token, as in an experiment's report. E2EL: arrival to the end. Throughput: over the
time from the first arrival to the last end. Goodput: requests within all given limits, per second.
"""

from collections.abc import Mapping
from itertools import pairwise
from statistics import NormalDist
from typing import Any

import numpy as np
from scipy.special import ndtr

from autoscout.simulate.serving.engine_run import EngineRun

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}  # quantiles by their suffixes in the metrics' names
_NORMAL = NormalDist()
_NARROWEST = 1e-3  # smallest difference between the logarithms of two quantiles
_LEAST_MS = 1e-9  # lower bound of a latency, to keep its logarithm finite
FEWEST = 1e-6  # lower bound of the predicted share of good requests: a rate of 0 means "does not run"


def metrics_of_run(run: EngineRun, replicas: float = 1, slo_ms: Mapping[str, float] | None = None) -> dict[str, float]:
    """Our metric names (SERVING_METRICS of job/metrics.py) → values, of `replicas` engines with one such run each.

    `slo_ms`: "ttft", "tpot", "e2el" → the limit of a good request; none: every request is good. Empty when no request
    could be served.
    """
    served = ~np.isnan(run.end_s)
    if not served.any():
        return {}
    arrival, first, end = run.arrival_s[served], run.first_s[served], run.end_s[served]
    outputs, inputs = run.output_len[served], run.input_len[served]
    latencies = {"ttft": (first - arrival) * 1e3, "e2el": (end - arrival) * 1e3}
    many = outputs > 1
    tpot = np.where(many, (end - first) * 1e3 / np.maximum(outputs - 1, 1), 0.0)
    found: dict[str, float] = {}
    for name, values in {**latencies, "tpot": tpot[many]}.items():
        known = values if len(values) else np.zeros(1)
        found[f"{name}_mean_ms"] = float(known.mean())
        tails = np.quantile(known, list(QUANTILES.values())).tolist()
        found.update({f"{name}_{p}_ms": tail for p, tail in zip(QUANTILES, tails, strict=True)})
    found |= {f"itl_{p}_ms": 0.0 for p in ("mean", *QUANTILES)}
    if run.gap_counts.sum():
        found["itl_mean_ms"] = float(np.average(run.gaps_s, weights=run.gap_counts)) * 1e3
        order = np.argsort(run.gaps_s)
        share = np.cumsum(run.gap_counts[order]) / run.gap_counts.sum()
        for p, q in QUANTILES.items():
            found[f"itl_{p}_ms"] = float(run.gaps_s[order][np.searchsorted(share, q)]) * 1e3
    seconds = end.max() - arrival.min()
    good = np.ones(len(end), dtype=bool)
    for name, limit in (slo_ms or {}).items():
        good &= {**latencies, "tpot": tpot}[name] <= limit
    per_s = replicas / seconds
    return {
        **found,
        "requests_per_s": len(end) * per_s,
        "output_tokens_per_s": float(outputs.sum()) * per_s,
        "total_tokens_per_s": float((outputs + inputs).sum()) * per_s,
        "goodput_rps": float(good.sum()) * per_s,
        "preemptions": run.preemptions * replicas,
    }


def share_within(found: Mapping[str, np.ndarray], slo_ms: Mapping[str, float]) -> np.ndarray:
    """Share of requests within the limit that is violated most often, from the quantiles of each latency. Latencies are
    assumed to be log-normal between and beyond these quantiles."""
    share: Any = np.float64(1.0)
    for name, limit_ms in slo_ms.items():
        limit = np.log(max(limit_ms, _LEAST_MS))
        at = [np.log(np.maximum(found[f"{name}_{p}_ms"], _LEAST_MS)) for p in QUANTILES]
        z = np.full(np.shape(at[0]), -np.inf)
        for (low, high), (q, r) in zip(pairwise(at), pairwise(map(_NORMAL.inv_cdf, QUANTILES.values())), strict=True):
            between = q + (r - q) * (limit - low) / np.maximum(high - low, _NARROWEST)
            z = np.where((limit >= low) | (z == -np.inf), between, z)
        share = np.minimum(share, ndtr(z))
    return np.maximum(share, FEWEST)
