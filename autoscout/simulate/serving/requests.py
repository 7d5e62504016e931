"""What a serving engine is asked: arrivals and lengths, from a trace, from quantiles, or fixed."""

import csv
import gzip
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from kb.records import AutoscoutError, Traffic

DEFAULT_REQUESTS = 1000
_TRACE_COLUMNS = ("input_tokens", "output_tokens")
# As the Azure LLM inference traces call them (AzurePublicDataset); their arrivals are times of day.
_AZURE = {"TIMESTAMP": "arrival_s", "ContextTokens": "input_tokens", "GeneratedTokens": "output_tokens"}


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


def read_trace(path: Path) -> tuple[np.ndarray | None, np.ndarray, np.ndarray]:
    """(arrivals in seconds from the first or None, input tokens, output tokens) of a CSV, gzipped or not, in the order
    of arrival. Errors: AutoscoutError (exit 2) naming the line."""
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", newline="") as file:
            reader = csv.DictReader(file)
            reader.fieldnames = names = [_AZURE.get(name, name) for name in reader.fieldnames or []]
            missing = [name for name in _TRACE_COLUMNS if name not in names]
            if missing:
                raise AutoscoutError(f"{path}: the trace has no column {missing[0]}; it has {', '.join(names)}", 2)
            rows = [_trace_row(path, i, row) for i, row in enumerate(reader, start=2)]
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise AutoscoutError(f"{path}: cannot read this trace ({error})", 2) from error
    if not rows:
        raise AutoscoutError(f"{path}: the trace has no requests", 2)
    table = np.array(rows)
    if "arrival_s" not in names:
        return None, table[:, 1].astype(int), table[:, 2].astype(int)
    table = table[np.argsort(table[:, 0], kind="stable")]
    return table[:, 0] - table[0, 0], table[:, 1].astype(int), table[:, 2].astype(int)


def _seconds(arrival: str) -> float:
    """Of a number, or of a date and time (in seconds since 1970)."""
    if ":" not in arrival:
        return float(arrival)
    whole, _, fraction = arrival.partition(".")
    return datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp() + float(f"0.{fraction or 0}")


def _trace_row(path: Path, line: int, row: dict[str, str]) -> tuple[float, int, int]:
    try:
        arrival = _seconds(row.get("arrival_s") or "0")
        inputs, outputs = (float(row.get(k) or 0) for k in _TRACE_COLUMNS)
    except ValueError as error:
        raise AutoscoutError(f"{path}, line {line}: {error}; a trace holds numbers only", 2) from error
    if not (np.isfinite(arrival) and arrival >= 0 and 1 <= inputs < 1e9 and 1 <= outputs < 1e9):
        raise AutoscoutError(
            f"{path}, line {line}: arrival {arrival:g} s, {inputs:g} in, {outputs:g} out; "
            "arrivals must not be negative and lengths at least 1",
            2,
        )
    return arrival, int(inputs), int(outputs)
