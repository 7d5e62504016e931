"""Reads CSV and Parquet row by row, so that a table of any size takes only the memory of a few rows."""

import csv
import gzip
import io
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from autoscout.targets.found import Reader, Row, RowSource
from kb.records import AutoscoutError
from kb.sources import parquet_rows

_DELIMITERS = ",;\t|"
# In a file with semicolons as separators, a comma is a decimal sign (as in German), unless it may separate thousands.
_DECIMAL_COMMA = re.compile(r"([-+]?0|[-+]?\d+(?=,(?!\d{3}$))),(\d+)")
_THOUSANDS = re.compile(r"[1-9]\d{0,2}(,\d{3})+(\.\d*)?")
_SURE_THOUSANDS = re.compile(r"[1-9]\d{0,2}((,\d{3})+\.\d*|(,\d{3}){2,})")
_POINT = re.compile(r"\d+\.\d+")
_RULE = re.compile(r"\|?\s*:?-{2,}:?\s*(\|\s*:?-{2,}:?\s*)*\|?")  # below a Markdown table's header
_LARGEST_HEAD = 2**18  # bytes in which a Markdown file's first table has to begin
_DASHES = ("-", "–", "—")
_LINE = 2**24  # character limit of a line and of a field
# A gzip file is refused if its content exceeds both this size in bytes and this multiple of the compressed size.
_UNPACKED_BYTES, _UNPACKED_RATIO = 2**25, 200


def read_csv(path: Path) -> RowSource:
    """Reads CSV in UTF-8 (or UTF-16 with a byte order mark), optionally gzipped. The first line names the columns;
    separators are `,` `;` tab or `|`. With semicolons, 80,5 is read as 80.5.

    Errors: AutoscoutError (exit 2) for an empty file, or for a different encoding, naming the line."""
    file = _open(path)
    try:
        first = file.readline(_LINE)
    except (UnicodeDecodeError, UnicodeError, OSError, EOFError) as error:
        raise _unreadable(path, 1, error) from error
    if len(first) == _LINE:
        raise AutoscoutError(
            f"{path}: its first line is longer than {_LINE:,} characters, so it is probably not a CSV table", 2
        )
    if not first.strip():
        raise AutoscoutError(f"{path} is empty; its first line must name the columns", 2)
    delimiter = max(_DELIMITERS, key=first.count)
    csv.field_size_limit(_LINE)
    columns = [name.strip() for name in next(csv.reader([first], delimiter=delimiter))]
    unnamed = [name or f"column {i}" for i, name in enumerate(columns, 1)]
    return RowSource(reader="csv", columns=unnamed, rows=_csv_rows(path, file, unnamed, delimiter))


def read_markdown(path: Path) -> RowSource:
    """Reads the first table of a Markdown file, without emphasis; a dash is an empty cell.

    Errors: AutoscoutError (exit 2) for a file without a table, or in a different encoding."""
    lines = _markdown_lines(path)
    above = ""
    for _, line in lines:
        if _RULE.fullmatch(line) and "|" in above:
            columns = [name or f"column {i}" for i, name in enumerate(_markdown_cells(above), 1)]
            return RowSource(reader="markdown", columns=columns, rows=_markdown_rows(columns, lines))
        above = line
    raise AutoscoutError(f"{path} has no Markdown table (a header, and below it a line such as |---|---|)", 2)


def _has_table(path: Path) -> bool:
    with open(path, "rb") as file:
        text = file.read(_LARGEST_HEAD).decode(errors="replace")
    return any("|" in line and _RULE.fullmatch(line.strip()) for line in text.splitlines())


def _markdown_lines(path: Path) -> Iterator[tuple[int, str]]:
    number = 0
    with _open(path) as file:
        try:
            for number, line in enumerate(_lines(path, file), 1):
                yield number, line.strip()
        except (UnicodeDecodeError, OSError, EOFError) as error:
            raise _unreadable(path, number + 1, error) from error


def _markdown_rows(columns: list[str], lines: Iterator[tuple[int, str]]) -> Iterator[Row]:
    inside = True
    for number, line in lines:
        if inside := inside and "|" in line:
            cells = _with_plain_numbers(_markdown_cells(line))
            short = len(cells) != len(columns)
            problem = f"the line has {len(cells)} fields, but the header has {len(columns)}" if short else ""
            yield Row(f"line {number}", {} if short else dict(zip(columns, cells, strict=True)), problem)
        elif "|" in line and _RULE.fullmatch(line):
            yield Row(f"line {number}", {}, "it is of a further table; write each table into a file of its own")


def _markdown_cells(line: str) -> list[str]:
    cells = (cell.strip() for cell in re.split(r"(?<!\\)\|", line.removeprefix("|").removesuffix("|")))
    return ["" if cell in _DASHES else cell.strip("*_`") for cell in cells]


def _with_plain_numbers(cells: list[str]) -> list[str]:
    """Returns the cells without commas between thousands: 12,345.6 and 1,234,567, and 12,345 in a row with a decimal
    point."""
    points = any(_POINT.fullmatch(cell) for cell in cells)
    sure = _SURE_THOUSANDS if not points else _THOUSANDS
    return [cell.replace(",", "") if sure.fullmatch(cell) else cell for cell in cells]


def read_parquet(path: Path) -> RowSource:
    """Reads a Parquet file. Errors: AutoscoutError (exit 2) for a file that cannot be read, or has no rows."""
    rows = parquet_rows(path)
    first = next(rows, None)
    if first is None:
        raise AutoscoutError(f"{path} has no rows", 2)
    numbered = (Row(f"row {i}", cells) for i, cells in enumerate(itertools.chain([first], rows), 1))
    return RowSource(reader="parquet", columns=list(first), rows=numbered)


def _open(path: Path) -> IO[str]:
    try:
        with open(path, "rb") as raw:
            start = raw.read(4)
        zipped = start[:2] == b"\x1f\x8b"
        if zipped:
            with gzip.open(path) as raw:
                start = raw.read(4)
    except (OSError, EOFError) as error:
        raise AutoscoutError(f"{path}: cannot be read ({error})", 2) from error
    encoding = "utf-16" if start[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    raw: Any = io.BufferedReader(_Unpacked(path)) if zipped else open(path, "rb")  # noqa: SIM115 - read row by row
    return io.TextIOWrapper(raw, encoding=encoding, newline="")


class _Unpacked(io.RawIOBase):
    """The content of a gzip file; raises an error once it grows too large."""

    def __init__(self, path: Path) -> None:
        self._file = gzip.open(path)  # noqa: SIM115 - closed with this object
        self._left = max(_UNPACKED_BYTES, _UNPACKED_RATIO * path.stat().st_size)

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        count = self._file.readinto(into)
        self._left -= count
        if self._left < 0:
            raise OSError(f"its decompressed size is more than {_UNPACKED_RATIO} times its compressed size")
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def _csv_rows(path: Path, file: IO[str], columns: list[str], delimiter: str) -> Iterator[Row]:
    line = 1
    with file:
        reader = csv.reader(_lines(path, file), delimiter=delimiter, strict=True)
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                line = 1 + reader.line_num
                yield Row(f"line {line}", {}, f"the line is not CSV ({error})")
                continue
            except (UnicodeDecodeError, UnicodeError, OSError, EOFError) as error:
                raise _unreadable(path, 2 + reader.line_num, error) from error
            line = 1 + reader.line_num
            if not any(cells):
                continue
            if len(cells) != len(columns):
                yield Row(f"line {line}", {}, f"the line has {len(cells)} fields, but the header has {len(columns)}")
                continue
            if delimiter == ";":
                cells = [f"{found[1]}.{found[2]}" if (found := _DECIMAL_COMMA.fullmatch(c)) else c for c in cells]
            elif delimiter == ",":
                cells = _with_plain_numbers(cells)
            yield Row(f"line {line}", dict(zip(columns, cells, strict=True)))


def _lines(path: Path, file: IO[str]) -> Iterator[str]:
    while line := file.readline(_LINE):
        if len(line) == _LINE:
            raise AutoscoutError(f"{path}: a line is longer than {_LINE:,} characters; nothing was stored", 2)
        yield line


def _unreadable(path: Path, line: int, error: Exception) -> AutoscoutError:
    if isinstance(error, UnicodeError):
        line = _first_undecodable(path, line)
        return AutoscoutError(
            f"{path}: line {line} is not UTF-8; convert it first, for example "
            f"iconv -f latin1 -t utf-8 {path.name} > utf8-{path.name}",
            2,
        )
    return AutoscoutError(
        f"{path}: the file is truncated or malformed near line {line} ({error}); nothing was stored", 2
    )


def _first_undecodable(path: Path, line: int) -> int:
    """Returns the number of the first undecodable line, searched from `line` on. (A decoder reads blocks, so its error
    may occur up to a block before this line.)"""
    with open(path, "rb") as raw:
        zipped = raw.read(2) == b"\x1f\x8b"
    opener: Any = gzip.open if zipped else open
    with opener(path, "rb") as raw:
        for number, text in enumerate(raw, 1):
            try:
                text.decode()
            except UnicodeDecodeError:
                return number
    return line


CSV = Reader(
    recognizes=lambda path: path.name.lower().removesuffix(".gz").endswith((".csv", ".tsv")),
    read=lambda path, job, space, part: read_csv(path),
    rank=5,
)
MARKDOWN = Reader(
    recognizes=lambda path: path.suffix.lower() in (".md", ".markdown") and _has_table(path),
    read=lambda path, job, space, part: read_markdown(path),
    rank=5,
)
PARQUET = Reader(
    recognizes=lambda path: path.suffix.lower() == ".parquet",
    read=lambda path, job, space, part: read_parquet(path),
    rank=0,
)
