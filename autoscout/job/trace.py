"""Reads request traces (arrivals and lengths) for a serving job's traffic."""

import csv
import gzip
import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from autoscout.job.sessions import longest, talks
from kb import door
from kb.records import AutoscoutError, Job, Traffic

HASHED = (".jsonl", ".jsonl.gz")  # suffixes of traces that have hashes of each prompt's blocks
BLOCK = 512  # prompt tokens per hashed block
_SAMPLE = 200  # minimum number of requests that are drawn to represent all sessions
_TRACE_COLUMNS = ("input_tokens", "output_tokens")
# Columns of the Azure LLM inference traces (AzurePublicDataset). TIMESTAMP is a time of day.
_AZURE = {"TIMESTAMP": "arrival_s", "ContextTokens": "input_tokens", "GeneratedTokens": "output_tokens"}


def read_trace(path: Path) -> tuple[np.ndarray | None, np.ndarray, np.ndarray]:
    """Reads a trace in CSV or JSON lines, optionally gzipped. Returns arrays, sorted by arrival: (seconds since the
    first arrival or None, input tokens, output tokens). Errors: AutoscoutError (exit 2) naming the line."""
    if path.name.endswith(HASHED):
        rows = _hashed(path)
        times = np.array([float(row["timestamp"]) / 1000 for row in rows])
        asked, answered = (np.array([int(row[k]) for row in rows]) for k in ("input_length", "output_length"))
        return times - times[0], asked, answered
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            reader.fieldnames = names = [_AZURE.get(name, name) for name in reader.fieldnames or []]
            missing = [name for name in _TRACE_COLUMNS if name not in names]
            if missing:
                raise AutoscoutError(
                    f"{path}: the trace has no column {missing[0]}; it has {', '.join(names)}; the first line "
                    "must name the columns arrival_s (seconds), input_tokens and output_tokens",
                    2,
                )
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


def read_blocks(path: Path) -> list[list[int]]:
    """Returns the hashes of each prompt's `BLOCK`-token blocks, sorted by arrival; [] for a trace without hashes."""
    return [list(row["hash_ids"]) for row in _hashed(path)] if path.name.endswith(HASHED) else []


def _hashed(path: Path) -> list[dict[str, Any]]:
    rows = []
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    rows.append(_hashed_row(path, number, line))
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise AutoscoutError(f"{path}: cannot read this trace ({error})", 2) from error
    if not rows:
        raise AutoscoutError(f"{path}: the trace has no requests", 2)
    return sorted(rows, key=lambda row: row["timestamp"])


def _hashed_row(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = door.parsed_json(line)
        numbers = [float(row[k]) for k in ("timestamp", "input_length", "output_length")]
        blocks = [int(h) for h in row["hash_ids"]]
    except (ValueError, KeyError, TypeError) as error:
        raise AutoscoutError(
            f"{path}, line {number}: the line cannot be read ({type(error).__name__}: {error}); a line must have "
            "timestamp (ms), input_length, output_length and hash_ids",
            2,
        ) from error
    if not (numbers[0] >= 0 and all(1 <= n < 1e9 for n in numbers[1:]) and len(blocks) <= -(-numbers[1] // BLOCK)):
        raise AutoscoutError(
            f"{path}, line {number}: input_length {numbers[1]:g}, output_length {numbers[2]:g} and {len(blocks)} "
            f"hash_ids (blocks of {BLOCK} tokens) do not fit together; lengths must be at least 1, and a prompt must "
            "not have more blocks than its tokens fill",
            2,
        )
    return {**row, "hash_ids": blocks}


def _seconds(arrival: str) -> float:
    """Parses a number, or a date and time (as seconds since 1970)."""
    if ":" not in arrival:
        return float(arrival)
    whole, _, fraction = arrival.partition(".")
    return datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp() + float(f"0.{fraction or 0}")


def _trace_row(path: Path, line: int, row: dict[str, str]) -> tuple[float, int, int]:
    try:
        arrival = _seconds(row.get("arrival_s") or "0")
        inputs, outputs = (float(row.get(k) or 0) for k in _TRACE_COLUMNS)
    except ValueError as error:
        raise AutoscoutError(f"{path}, line {line}: {error}; a trace may only contain numbers", 2) from error
    if not (np.isfinite(arrival) and arrival >= 0 and 1 <= inputs < 1e9 and 1 <= outputs < 1e9):
        raise AutoscoutError(
            f"{path}, line {line}: arrival_s {arrival:g}, input_tokens {inputs:g} and output_tokens {outputs:g} are "
            "not all valid; arrivals must not be negative, and lengths must be at least 1",
            2,
        )
    return arrival, int(inputs), int(outputs)


def with_trace_id(traffic: Traffic) -> Traffic:
    """Returns the traffic with the digest of its trace file added. The digest identifies the trace, because its path is
    private and may change."""
    if not traffic.trace:
        return msgspec.structs.replace(traffic, trace_id="")
    try:
        with open(traffic.trace, "rb") as file:
            return msgspec.structs.replace(traffic, trace_id=hashlib.file_digest(file, "sha256").hexdigest()[:16])
    except OSError:  # the error is reported when the trace is read
        return traffic


def lengths(job: Job) -> tuple[list[int], list[int]]:
    """Returns (input tokens, output tokens) of the job's requests: a sample of its sessions with the longest possible
    prompt added, or all rows of its trace or of all its segments, or the quantiles in the job file.

    Errors: AutoscoutError (exit 2) if the trace cannot be read or is empty."""
    traffic = job.traffic
    if traffic.sessions:
        sample = talks(traffic, traffic.sessions, _SAMPLE, np.random.default_rng(0))
        return [*sample.input_len.tolist(), longest(traffic, traffic.sessions)], _listed(traffic.output_len)
    traces = traffic.segments or ([traffic.trace] if traffic.trace else [])
    if not traces:
        return _listed(traffic.input_len), _listed(traffic.output_len)
    inputs, outputs = (np.concatenate(each) for each in zip(*(read_trace(Path(p))[1:] for p in traces), strict=True))
    return inputs.tolist(), outputs.tolist()


def _listed(length: int | list[int]) -> list[int]:
    return length if isinstance(length, list) else [length]
