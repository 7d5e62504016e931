"""The result of every reader: rows as in the file, each with its location."""

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from autoscout.space.graph import Space
from kb.records import Job

Cell = Any  # text, number, switch, or None


def number_in(cell: Cell) -> float:
    """NaN for a cell that is not a number."""
    try:
        return float(cell)
    except (TypeError, ValueError):
        return math.nan


class Row(msgspec.Struct, frozen=True):
    """`where`: the row's place in the file: line 12, trial 3, folder z1_mbs4 …. `problem`: why the file says that it is
    no measurement. `said`: its load, its model and other circumstances (importing/circumstances.py). `part`: its
    study."""

    where: str
    cells: dict[str, Cell]
    problem: str = ""
    said: dict[str, Cell] = {}
    part: str = ""


class RowSource(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one file or folder. `meaning`: column → `name` or `name@unit`, for columns of this format
    (autoscout/importing/mapping.py)."""

    reader: str
    columns: list[str]
    rows: Iterator[Row]
    meaning: Mapping[str, str] = {}
    simulated: bool = False  # such rows are kept as predictions, not as measurements
    digest: str = ""  # identifies its rows; if "", the bytes of its files do


class Reader(msgspec.Struct, frozen=True, kw_only=True):
    """Reads one kind of result. `recognizes`: whether a path looks like this kind; kinds are tried in the order of
    `rank`, since some look like more general ones. `read(path, job, space, part)`: `part` is the text after the colon
    in `--reader NAME:PART`. `folders`: it reads a whole folder, if the folder contains these files (`has`). Errors of
    `read`: AutoscoutError (exit 2)."""

    recognizes: Callable[[Path], bool]
    read: Callable[[Path, Job, Space, str], RowSource]
    rank: int = 0
    folders: bool = False
    has: Callable[[Path], bool] = lambda path: False
