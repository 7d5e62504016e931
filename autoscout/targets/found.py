"""The common result of all readers of other tools' result files: the rows of a file, each with its location."""

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from autoscout.space.graph import Space
from kb.records import Job

Cell = Any  # str, int, float, bool, or None


def number_in(cell: Cell) -> float:
    """Converts a cell to a number; NaN if the cell is not a number."""
    try:
        return float(cell)
    except (TypeError, ValueError):
        return math.nan


class Row(msgspec.Struct, frozen=True):
    """A row of a result file. `where`: its location, such as line 12, trial 3 or folder z1_mbs4. `problem`: why the row
    is not a measurement, according to the file. `said`: load, model and other measurement conditions (see
    importing/circumstances.py). `part`: the study in the file to which the row belongs."""

    where: str
    cells: dict[str, Cell]
    problem: str = ""
    said: dict[str, Cell] = {}
    part: str = ""


class RowSource(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a file or folder. `meaning`: column → AutoScout's name for it, or `name@unit`, for the columns that
    this file format defines (see autoscout/importing/mapping.py)."""

    reader: str
    columns: list[str]
    rows: Iterator[Row]
    meaning: Mapping[str, str] = {}
    simulated: bool = False  # whether the rows are stored as predictions rather than measurements
    digest: str = ""  # identifies the rows; if "", the files are hashed instead


class Reader(msgspec.Struct, frozen=True, kw_only=True):
    """A reader for one file format. `recognizes`: whether a path seems to have the format. Readers are tried in the
    order of `rank`, since some formats are special cases of others. `read(path, job, space, part)`: `part` is the text
    after the colon in `--reader NAME:PART`. `folders`: whether the reader reads whole folders, namely those for which
    `has` returns True. Errors of `read`: AutoscoutError (exit 2)."""

    recognizes: Callable[[Path], bool]
    read: Callable[[Path, Job, Space, str], RowSource]
    rank: int = 0
    folders: bool = False
    has: Callable[[Path], bool] = lambda path: False
