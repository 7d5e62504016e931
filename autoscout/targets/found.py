"""What every reader yields: rows as in the file, each with its location."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from autoscout.space.graph import Space
from kb.records import Job

Cell = Any  # text, number, switch, or None


class Row(msgspec.Struct, frozen=True):
    """`where`: line 12, trial 3, folder z1_mbs4 …; `problem`: why, by the file itself, it is not a measurement; `said`:
    its load, its model and its other circumstances (autoscout/importing/circumstances.py)."""

    where: str
    cells: dict[str, Cell]
    problem: str = ""
    said: dict[str, Cell] = {}


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """`meaning`: column → `name` or `name@unit` for columns of this format (autoscout/importing/mapping.py)."""

    reader: str
    columns: list[str]
    rows: Iterator[Row]
    meaning: Mapping[str, str] = {}
    simulated: bool = False  # predictions: kept, but not as measurements


class Reader(msgspec.Struct, frozen=True, kw_only=True):
    """Reads one kind of result. `recognizes`: whether a path looks like this kind; tried in the order of `rank`, since
    some kinds look like more general ones. `read(path, job, space, part)`: `part` is the text after the colon in
    `--reader NAME:PART`. Errors of `read`: AutoscoutError (exit 2)."""

    recognizes: Callable[[Path], bool]
    read: Callable[[Path, Job, Space, str], Source]
    rank: int = 0
