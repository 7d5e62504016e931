"""What every reader yields: rows as they are in the file, each with the place where it stands."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from autoscout.space.graph import Space
from kb.records import Job

Cell = Any  # text, number, switch, or None


class Row(msgspec.Struct, frozen=True):
    """`where`: line 12, trial 3, folder z1_mbs4 …; `problem`: why the file itself says that it is no measurement."""

    where: str
    cells: dict[str, Cell]
    problem: str = ""


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """`meaning`: what columns of this format are, as `name` or `name@unit` (autoscout/importing/mapping.py)."""

    reader: str
    columns: list[str]
    rows: Iterator[Row]
    meaning: Mapping[str, str] = {}
    simulated: bool = False  # predictions: kept, but they count as no measurement


class Reader(msgspec.Struct, frozen=True, kw_only=True):
    """How one kind of result is read. `recognizes`: whether a path looks like one; asked in the order of `rank`, since
    some kinds look like more general ones. `read(path, job, space, part)`: `part` is what stands behind the colon of
    `--reader NAME:PART`. Errors of `read`: AutoscoutError (exit 2)."""

    recognizes: Callable[[Path], bool]
    read: Callable[[Path, Job, Space, str], Source]
    rank: int = 0
