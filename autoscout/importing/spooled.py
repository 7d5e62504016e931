"""Rows of many files of one tool, on disk until all their columns are known: they take the memory of a few."""

import hashlib
import tempfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import IO

import msgspec

from autoscout.importing.mapped import rows, tool_of
from autoscout.importing.tool_file import ToolFile
from autoscout.targets.found import Row, Source
from kb.records import AutoscoutError

_encode, _decoder = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(Row)


def spooled(tool: ToolFile, files: list[Path], root: Path, part: str = "") -> Source:
    """A file that changes while it is read gives one row that says so. Errors: AutoscoutError (exit 2) where the files
    have several studies and `part` names none of them."""
    kept = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the source's last row
    columns: dict[str, None] = {}
    parts: dict[str, None] = {}
    digest = hashlib.sha256()
    for path in files:
        where = str(path.relative_to(root)) if root.is_dir() else path.name
        start, before, names = kept.tell(), changed(path), dict[str, None]()
        for row in rows(path, tool, where):
            names |= dict.fromkeys(row.cells)
            parts |= dict.fromkeys([row.part] if row.part else [])
            _keep(kept, row)
        if changed(path) != before:
            kept.truncate(start)
            kept.seek(start)
            _keep(kept, Row(where, {}, "changed while it was read; import it again once it is written"))
        columns |= names
    if (part and part not in parts) or (not part and len(parts) > 1):
        kept.close()
        short = tool.name.partition("-")[0]
        raise AutoscoutError(
            f"{root}: say which study with --reader {short}:NAME; it has {', '.join(parts) or 'none'}", 2
        )
    for row in _kept(kept):
        digest.update(_encode([row.cells, row.problem, row.said, row.part]))
    found = (row for row in _kept(kept, close=True) if not part or row.part == part)
    return Source(
        reader=tool.name,
        columns=list(columns),
        rows=found,
        meaning={**tool.columns},
        simulated=tool.predicted,
        digest=digest.hexdigest(),
    )


def changed(path: Path) -> tuple[int, int]:
    """Differs once the file was written to."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


def files_of(folder: Path, tools: tuple[ToolFile, ...]) -> tuple[dict[str, list[Path]], list[Path]]:
    """(files by the name of the tool that reads them, what no tool reads)."""
    found: dict[str, list[Path]] = {tool.name: [] for tool in tools}
    rest = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        tool = tool_of(path, tools)
        (found[tool.name] if tool else rest).append(path)
    for tool in tools:
        own = {path.parent for path in found[tool.name] if not _is_other(path, tool)}
        above = {parent for path in own for parent in path.parents}

        def says_more(path: Path, tool: ToolFile = tool, own: set[Path] = own, above: set[Path] = above) -> bool:
            near = path.parent in own | above or path.parent.parent in own
            return not (near and _is_other(path, tool))

        if own and tool.file.others:
            found = {name: list(filter(says_more, files)) for name, files in found.items()}
            rest = list(filter(says_more, rest))
    return {name: files for name, files in found.items() if files}, rest


def _is_other(path: Path, tool: ToolFile) -> bool:
    return any(fnmatch(path.name, pattern) for pattern in tool.file.others)


def _keep(into: IO[bytes], row: Row) -> None:
    try:
        text = _encode(row)
    except (OverflowError, TypeError) as error:
        text = _encode(Row(row.where, {}, f"has a number that cannot be ({error})"))
    into.write(len(text).to_bytes(4, "little") + text)


def _kept(file: IO[bytes], close: bool = False) -> Iterator[Row]:
    file.seek(0)
    while head := file.read(4):
        yield _decoder.decode(file.read(int.from_bytes(head, "little")))
    if close:
        file.close()
