"""Converts result files of other tools to measurements of a job and stores them. Each file format has a reader; a
folder with files of several tools gives one import per reader."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple, TypeVar

from msgspec import structs

from autoscout.importing import columnar, json_tables
from autoscout.importing.converting import RAISED, Bad, Converting, Done, in_words
from autoscout.importing.mapped import torn
from autoscout.importing.mapping import flag_of, uses
from autoscout.importing.spooled import changed, spooled
from autoscout.importing.tool_file import read_tool, tools_of
from autoscout.job.units import quantity
from autoscout.job.words import nearest_name
from autoscout.space.explain import parse
from autoscout.space.graph import Space
from autoscout.targets.found import Reader, RowSource
from autoscout.targets.jobs import JobSpace
from autoscout.targets.target import names, target
from kb import door
from kb.imports import Stored, store_import
from kb.records import AutoscoutError, Job, Measurement, content_hash

T = TypeVar("T")
_FIRST = 20  # rows in which cells with units are looked for


class ImportOptions(NamedTuple):
    """Options of `autoscout import`. `maps`: COLUMN=NAME, `sets`: KNOB=VALUE, `units`: COLUMN=UNIT. `reader`: NAME,
    NAME:PART or FILE.toml."""

    maps: Sequence[str] = ()
    sets: Sequence[str] = ()
    units: Sequence[str] = ()
    reader: str = ""
    dry_run: bool = False


class Brought(NamedTuple):
    """The result of an import. `left`: files of a folder that were not imported, each with the reason."""

    imports: list[Done]
    left: list[Bad]


def bring_in_all(kb: Path, path: Path, job: Job, options: ImportOptions) -> Brought:
    """Imports all files that a reader recognizes. Unreadable files of a folder are listed in the result and raise no
    error. Errors: AutoscoutError (exit 2) if there is nothing to read or no row can be used."""
    if not door.utf8(path).exists():
        raise AutoscoutError(f"{path}: there is no such file or folder", 2)
    space = JobSpace.of_job(job)
    brought, problems, left = list[Done](), list[AutoscoutError](), list[Bad]()
    for each in _sources(kb, path, job, space, options.reader, left):
        try:
            brought.append(_imported(kb, path, job, space, each(), options))
        except AutoscoutError as error:
            problems.append(error)
    if not any(done.good for done in brought):
        if not brought:
            raise problems[0] if problems else AutoscoutError(f"{path}: {_unknown(kb, path)}", 2)
        rows, bad = sum(done.rows for done in brought), [bad for done in brought for bad in done.bad]
        example = f"; {bad[0].where}: {bad[0].reason}" if bad else ""
        raise AutoscoutError(f"{path}: none of its {rows} rows can be imported{example}", 2)
    return Brought(brought, left + [Bad("", str(error).removeprefix(f"{path}: ")) for error in problems])


def _sources(
    kb: Path, path: Path, job: Job, space: Space, reader: str, left: list[Bad]
) -> Iterator[Callable[[], RowSource]]:
    """Yields one source for each reader. Files that no reader recognizes are added to `left`."""
    tools, coded = tools_of(kb), readers()
    name, _, part = reader.partition(":")
    if reader.endswith(".toml"):
        tools, coded, part = (read_tool(Path(reader)),), {}, ""
    elif reader:
        tools = tuple(tool for tool in tools if name in (tool.name, tool.name.partition("-")[0]))
        coded = {name: coded[name]} if name in coded else {}
        if not tools and not coded:
            known = sorted({*readers(), *(tool.name for tool in tools_of(kb))})
            raise AutoscoutError(f"--reader '{name}'{nearest_name(name, known)}", 2)
    spools, rest = spooled(path, tools, tools[0] if reader and len(tools) == 1 and path.is_file() else None)
    for spool in spools:
        yield lambda spool=spool: spool.source(part)
    if not rest:
        return
    for known, each in sorted(coded.items(), key=lambda item: item[1].rank):
        if each.folders:
            mine = [path] if _caught(path, known, lambda each=each: each.recognizes(path)) else []
            if mine and path.is_dir():
                rest = [file for file in rest if not each.has(file)]
        else:
            chosen = reader and path.is_file()  # the user names the reader of a file, whatever the file is called
            mine = [f for f in rest if chosen or _caught(f, known, lambda each=each, f=f: each.recognizes(f))]
            rest = [file for file in rest if file not in mine]
        for one in mine:
            yield lambda one=one, known=known, each=each: _caught(one, known, lambda: each.read(one, job, space, part))
        if mine == [path]:
            return
    if path.is_dir():
        left += [Bad(str(file.relative_to(path)), torn(file) or "no reader recognizes this file") for file in rest]


def _columns_with_units(source: RowSource) -> tuple[RowSource, set[str]]:
    """Returns (the source, the columns whose cells have units in the first rows, such as "5.3 s")."""
    first = [*islice(source.rows, _FIRST)]
    cells = [(column, cell) for row in first for column, cell in row.cells.items() if isinstance(cell, str)]
    found = {column for column, cell in cells if any(quantity(cell, unit) is not None for unit in ("s", "gib"))}
    return structs.replace(source, rows=chain(first, source.rows)), found


def _imported(kb: Path, path: Path, job: Job, space: Space, source: RowSource, options: ImportOptions) -> Done:
    flags = target(job.target).columns()
    named = {column: flags[flag] for column in source.columns if (flag := flag_of(column)) in flags}
    source, with_units = _columns_with_units(source)
    meant = uses(source.columns, space, {**named, **source.meaning}, options.maps, options.units, with_units)
    fixed = parse(space, options.sets)
    before = changed(path)
    how = [job.id, sorted(options.maps), sorted(options.sets), sorted(options.units), source.reader]
    done = Done(id=f"import-{content_hash([source.digest or _digest(path), *how])}", reader=source.reader)
    done.columns = {column: in_words(use) for column, use in meant.items()}
    converting = Converting(job, space, source, meant, fixed, done)

    def measurements() -> Iterator[Measurement]:
        yield from converting.measurements()
        if path.is_file() and changed(path) != before:
            raise AutoscoutError(
                f"{path} changed while it was being read; import it again when its writer has finished", 2
            )

    if options.dry_run:
        for _ in measurements():
            pass
        stored = Stored(done.id, 0, 0)
    else:
        about = {"reader": source.reader, "file": path.name}
        stored = store_import(kb, done.id, job, about, path.stat().st_mtime, measurements())
    done.new, done.known = stored.new, stored.known
    done.notes = converting.notes()
    return done


def _caught(path: Path, reader: str, work: Callable[[], T]) -> T:
    """Returns the result of `work()`. Converts its exceptions, which malformed fields of a foreign file can cause, to
    an AutoscoutError."""
    try:
        return work()
    except OSError as error:
        raise AutoscoutError(f"{path}: cannot be read ({error.strerror or error})", 2) from error
    except RAISED as error:
        text = " ".join(str(error).split())[:200]
        raise AutoscoutError(
            f"{path} cannot be read as a {reader} result ({type(error).__name__}: {text})", 2
        ) from error


def readers() -> dict[str, Reader]:
    """Returns the readers written in Python: the generic readers for tables, and the readers of targets. (All further
    readers are TOML files.)"""
    found = {"csv": columnar.CSV, "markdown": columnar.MARKDOWN, "parquet": columnar.PARQUET, "json": json_tables.JSON}
    for name in names():
        found |= target(name).readers()
    return found


def _unknown(kb: Path, path: Path) -> str:
    if wrong := torn(path):
        return wrong
    known = sorted({*readers(), *(tool.name for tool in tools_of(kb))})
    return (
        "no reader recognizes this; if it is a table, give --reader csv or --reader json; save a spreadsheet as CSV; "
        f"the readers are {', '.join(known)}"
    )


def _digest(path: Path) -> str:
    """Returns a hash of the names and contents of the imported files, by which a repeated import is recognized."""
    digest = hashlib.sha256()
    for file in [path] if path.is_file() else sorted(f for f in path.rglob("*") if f.is_file()):
        digest.update(str(file.relative_to(path)).encode())
        with open(file, "rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()
