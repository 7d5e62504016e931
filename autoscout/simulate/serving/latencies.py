"""Computes the latency and throughput metrics of a simulated run, as defined by `vllm bench serve`.

TTFT: arrival to the first token. TPOT: (end - first token) / (output tokens - 1), for requests with more than one
output token. ITL: the gap between consecutive pieces of an answer, where a piece is the tokens of one step. TPOT and
ITL are 0 if all answers have one token, as in the report of an experiment. E2EL: arrival to the end. Throughput: work
divided by the time from the first arrival to the last end. Goodput: requests within all given limits, per second."""

from collections.abc import Mapping
from itertools import pairwise
from statistics import NormalDist
from typing import Any

import numpy as np
from scipy.special import ndtr

from autoscout.simulate.serving.engine_run import EngineRun

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}  # suffix of a metric's name → quantile
_NORMAL = NormalDist()
_NARROWEST = 1e-3  # lower bound on the difference of two log quantiles, to avoid a division by 0
_LEAST_MS = 1e-9  # lower bound on a latency, to keep its logarithm finite
FEWEST = 1e-6  # lower bound on the share of good requests, because a rate of 0 means that the configuration fails


def metrics_of_run(run: EngineRun, replicas: float = 1, slo_ms: Mapping[str, float] | None = None) -> dict[str, float]:
    """Metric (of SERVING_METRICS in job/metrics.py) → value for `replicas` engines that each had a run like this one.

    `slo_ms`: limits of a good request, by "ttft", "tpot" or "e2el". The result is empty if no request was served."""
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
        tails = run.gaps_s[order[np.searchsorted(share, list(QUANTILES.values()))]].tolist()
        found.update({f"itl_{p}_ms": tail * 1e3 for p, tail in zip(QUANTILES, tails, strict=True)})
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
    """(n,) share of good requests, approximated by the share within the limit that is violated most often. Between and
    beyond the predicted quantiles, latencies are assumed to be log-normal."""
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
