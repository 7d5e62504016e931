"""Generates requests to a serving engine, with arrivals and lengths from a trace, from quantiles, or fixed."""

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np

from autoscout.job.sessions import Talks, drawn, talks
from autoscout.job.trace import read_blocks, read_trace
from kb.records import AutoscoutError, Traffic

DEFAULT_REQUESTS = 1000  # the default of `vllm bench serve`


@dataclass(frozen=True)
class Requests:
    """Requests, as arrays of shape (n,).

    `concurrency` > 0: a closed loop, in which this many users each send the next request when the previous one has
    ended; `arrival_s` is then unused. If all arrivals are 0, the requests are a fixed batch. `front_end_s`: in a closed
    loop, first the mean seconds from sending a request until the engine gets it; second how many of these seconds the
    front end serves only this request. `received`: whether a different engine has prefilled all but the last token of
    each prompt."""

    arrival_s: np.ndarray
    input_len: np.ndarray
    output_len: np.ndarray
    shared_prefix: int = 0
    concurrency: int = 0
    talks: Talks | None = None  # how requests of a session continue each other
    blocks: list[list[int]] | None = None  # hashes of each prompt's blocks; None if the trace has none
    received: bool = False
    front_end_s: tuple[float, float] = (0.0, 0.0)

    def __len__(self) -> int:
        return len(self.input_len)

    @property
    def mean_rate(self) -> float:
        """Returns requests per second between the first and the last arrival; 1 if all arrive at once."""
        last = float(self.arrival_s[-1])
        return (len(self) - 1) / last if last > 0 else 1.0


def fixed_batch(batch: int, input_len: int, output_len: int) -> Requests:
    """Returns requests that all arrive at once, as in an offline benchmark."""
    full = np.ones(batch, dtype=int)
    return Requests(np.zeros(batch), full * int(input_len), full * int(output_len))


def of_traffic(traffic: Traffic, seed: int = 0, requests: int = 0) -> Requests:
    """Returns a job's requests, which depend only on the arguments and the trace. Their arrays are read-only, because
    calls share them. `requests`: number of requests; if 0, `traffic.requests`; if that is also 0, all requests of a
    trace that gives the arrivals, else 1,000."""
    written = os.stat(traffic.trace).st_mtime_ns if os.path.exists(traffic.trace) else 0
    return _of_traffic(msgspec.msgpack.encode(traffic), seed, requests or traffic.requests, written)


@lru_cache(maxsize=256)
def _of_traffic(encoded: bytes, seed: int, count: int, written: int) -> Requests:
    """`written`: when the trace was changed last."""
    found = _drawn(msgspec.msgpack.decode(encoded, type=Traffic), count, np.random.default_rng(seed))
    for shared in (found.arrival_s, found.input_len, found.output_len):
        shared.setflags(write=False)
    return found


def _drawn(traffic: Traffic, count: int, rng: np.random.Generator) -> Requests:
    arrival = None
    if traffic.sessions:
        return _of_sessions(traffic, talks(traffic, traffic.sessions, count or DEFAULT_REQUESTS, rng), rng)
    if traffic.trace:
        arrival, inputs, outputs = read_trace(Path(traffic.trace))
        own_arrivals = not (traffic.rate or traffic.concurrency)
        if own_arrivals and arrival is None:
            raise AutoscoutError(
                f"{traffic.trace} has no column arrival_s; give traffic.rate or traffic.concurrency", 2
            )
        count = min(count or (len(inputs) if own_arrivals else DEFAULT_REQUESTS), len(inputs))
        blocks = read_blocks(Path(traffic.trace))
        if own_arrivals and arrival is not None:
            first = blocks[:count] or None
            return Requests(arrival[:count], inputs[:count], outputs[:count], traffic.shared_prefix, blocks=first)
        # A random sample would separate requests that share cached blocks, so the first requests are taken, in order.
        some = np.arange(count) if blocks else rng.permutation(len(inputs))[:count]
        inputs, outputs = inputs[some], outputs[some]
        hashed = [blocks[i] for i in some] if blocks else None
    else:
        hashed = None
        count = count or DEFAULT_REQUESTS
        inputs, outputs = drawn(traffic.input_len, count, rng), drawn(traffic.output_len, count, rng)
    if traffic.concurrency:
        return Requests(np.zeros(count), inputs, outputs, traffic.shared_prefix, traffic.concurrency, blocks=hashed)
    return Requests(poisson(traffic.rate, count, rng), inputs, outputs, traffic.shared_prefix, blocks=hashed)


def _of_sessions(traffic: Traffic, found: Talks, rng: np.random.Generator) -> Requests:
    """Returns the requests of sessions. `arrival_s` has the arrival times of sessions; their rate results in the
    traffic's mean request rate."""
    begun = np.zeros(int(found.session[-1]) + 1)
    if traffic.rate:
        begun = poisson(traffic.rate * len(begun) / len(found), len(begun), rng)
    lengths = found.input_len, found.output_len
    return Requests(begun[found.session], *lengths, traffic.shared_prefix, traffic.concurrency, found)


def poisson(rate: float, count: int, rng: np.random.Generator) -> np.ndarray:
    """Returns Poisson arrival times in seconds, (count,), from 0, scaled to the exact rate as in vLLM's benchmark."""
    arrivals = np.concatenate([[0.0], np.cumsum(rng.exponential(1.0, count - 1))])
    return arrivals * ((count - 1) / max(rate, 1e-9) / arrivals[-1] if count > 1 else 1.0)
