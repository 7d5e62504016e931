"""Lengths of fine-tuning samples and their effect on batches. `traffic.lengths` is a file, or a list of quantiles.

Without packing, each sample is padded to the sequence length, or to the longest sample of its micro batch. With
packing, several samples share a sequence, and each attends only to itself."""

import csv
import functools
import gzip
import random
from collections.abc import Sequence
from pathlib import Path

from kb.records import AutoscoutError, Traffic

QUANTILES = 101  # number of quantiles that represent a file
_DRAWN = 4096  # number of samples drawn to estimate packing


def of_file(path: Path) -> list[int]:
    """Reads the number of tokens of each sample: one number per line, or the column `tokens`, `length` or `lengths` of
    a CSV file, optionally gzipped. If there are many samples, returns quantiles. Errors: AutoscoutError (exit 2) naming
    the line."""
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, EOFError, csv.Error) as error:
        raise AutoscoutError(f"traffic.lengths: cannot read {path} ({error})", 2) from error
    column, first = 0, 0
    if rows and not _number(rows[0][0]):
        first = 1
        named = [i for i, name in enumerate(rows[0]) if name.strip() in ("tokens", "length", "lengths")]
        if len(rows[0]) > 1 and not named:
            raise AutoscoutError(
                f"{path} needs a column named tokens or length; its columns are {', '.join(rows[0])}", 2
            )
        column = named[0] if named else 0
    if len(rows) == first:
        raise AutoscoutError(f"{path} contains no lengths; write one number of tokens per line", 2)
    found = []
    for line, row in enumerate(rows[first:], start=first + 1):
        text = row[column] if column < len(row) else ""
        number = _number(text)
        if not number:
            raise AutoscoutError(f"{path}, line {line}: '{text}' must be a whole number of tokens, at least 1", 2)
        found.append(number)
    return quantiles(found)


def quantiles(lengths: Sequence[int]) -> list[int]:
    """Returns evenly spaced quantiles from the smallest to the largest length, or all lengths if there are few."""
    ordered = sorted(lengths)
    if len(ordered) <= QUANTILES:
        return ordered
    return [ordered[round(i * (len(ordered) - 1) / (QUANTILES - 1))] for i in range(QUANTILES)]


def mean(lengths: Sequence[int]) -> float:
    return sum(lengths) / len(lengths)


def tokens_of_step(traffic: Traffic) -> float:
    """Returns the tokens of an optimizer step without padding; 0 if the job does not define them."""
    known = traffic.lengths if isinstance(traffic.lengths, list) else []
    return traffic.global_batch * (mean(known) if known else traffic.seq_len)


@functools.lru_cache(maxsize=64)
def packed_share(lengths: tuple[int, ...], seq_len: int) -> float:
    """Returns the number of packed sequences divided by the number of samples (see `packed`)."""
    drawn = random.Random(0).choices(lengths, k=_DRAWN)
    return len(packed(drawn, seq_len)) / _DRAWN


def packed(lengths: Sequence[int], seq_len: int) -> list[list[int]]:
    """Packs samples into sequences by best-fit decreasing: longest sample first, each into the fullest sequence that
    has room for it. Returns, for each sequence, the indices of its samples in `lengths`."""
    rows: list[list[int]] = []
    by_room: list[list[int]] = [[] for _ in range(seq_len + 1)]
    for place in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        need = min(lengths[place], seq_len)
        room = next((room for room in range(need, seq_len + 1) if by_room[room]), None)
        row = by_room[room].pop() if room is not None else len(rows)
        if room is None:
            rows.append([])
            room = seq_len
        rows[row].append(place)
        by_room[room - need].append(row)
    return rows


def _number(text: str) -> int:
    """Parses an integer of at least 1; 0 for any other text."""
    try:
        value = float(text)
    except ValueError:
        return 0
    return int(value) if 1 <= value < 1e9 and value == int(value) else 0
