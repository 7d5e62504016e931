"""What a serving engine is asked: arrivals and lengths, from a trace, from quantiles, or fixed."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autoscout.job.trace import read_trace
from kb.records import AutoscoutError, Traffic

DEFAULT_REQUESTS = 1000


@dataclass(frozen=True)
class Requests:
    """(n,) each. `concurrency` > 0: a closed loop of so many users; the next request is sent when one has ended, and
    `arrival_s` is not used. All arrivals at 0: a fixed batch."""

    arrival_s: np.ndarray
    input_len: np.ndarray
    output_len: np.ndarray
    shared_prefix: int = 0
    concurrency: int = 0

    def __len__(self) -> int:
        return len(self.input_len)


def fixed_batch(batch: int, input_len: int, output_len: int) -> Requests:
    """All at once, as an offline benchmark submits them."""
    full = np.ones(batch, dtype=int)
    return Requests(np.zeros(batch), full * int(input_len), full * int(output_len))


def of_traffic(traffic: Traffic, seed: int = 0, requests: int = 0) -> Requests:
    """The requests of a job, the same for the same seed. `requests`: how many, else the job's, else 1,000 (or all of a
    trace that brings its own arrivals)."""
    rng = np.random.default_rng(seed)
    count = requests or traffic.requests
    arrival = None
    if traffic.trace:
        arrival, inputs, outputs = read_trace(Path(traffic.trace))
        own_arrivals = not (traffic.rate or traffic.concurrency)
        if own_arrivals and arrival is None:
            raise AutoscoutError(
                f"{traffic.trace} has no column arrival_s; give traffic.rate or traffic.concurrency", 2
            )
        count = min(count or (len(inputs) if own_arrivals else DEFAULT_REQUESTS), len(inputs))
        if own_arrivals and arrival is not None:
            return Requests(arrival[:count], inputs[:count], outputs[:count], traffic.shared_prefix)
        some = rng.permutation(len(inputs))[:count]
        inputs, outputs = inputs[some], outputs[some]
    else:
        count = count or DEFAULT_REQUESTS
        inputs, outputs = lengths(traffic.input_len, count, rng), lengths(traffic.output_len, count, rng)
    if traffic.concurrency:
        return Requests(np.zeros(count), inputs, outputs, traffic.shared_prefix, traffic.concurrency)
    return Requests(poisson(traffic.rate, count, rng), inputs, outputs, traffic.shared_prefix)


def poisson(rate: float, count: int, rng: np.random.Generator) -> np.ndarray:
    """(count,) arrival times in seconds, the first at 0; stretched so that the rate is met exactly, as vLLM's bench
    does."""
    arrivals = np.concatenate([[0.0], np.cumsum(rng.exponential(1.0, count - 1))])
    return arrivals * ((count - 1) / max(rate, 1e-9) / arrivals[-1] if count > 1 else 1.0)


def lengths(given: int | list[int], count: int, rng: np.random.Generator) -> np.ndarray:
    """Fixed, or drawn from values at evenly spaced quantiles, straight between them; at least 1 token."""
    if not isinstance(given, list):
        return np.full(count, int(given))
    at = np.linspace(0.0, 1.0, len(given))
    return np.maximum(1, np.rint(np.interp(rng.random(count), at, given))).astype(int)
