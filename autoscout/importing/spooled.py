"""Stores the rows of many files on disk until the columns of all files are known, so that memory use does not grow."""

import hashlib
import tempfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from autoscout.importing.mapped import keys_by_kind, recognized, rows
from autoscout.importing.tool_file import ToolFile
from autoscout.targets.found import Row, RowSource
from kb.records import AutoscoutError

_encode, _decoder = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(Row)


class SpooledFile(NamedTuple):
    """A file and the range of its rows in the spool."""

    path: Path
    start: int
    end: int


class Spool:
    """The rows of one tool's files."""

    def __init__(self, tool: ToolFile, root: Path) -> None:
        self.tool, self.root, self.files = tool, root, list[SpooledFile]()
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - deleted together with this object

    def add(self, path: Path, found: Iterator[Row], before: tuple[int, int]) -> None:
        """Adds a file's rows. If the file changed while it was read, adds a single row with an error instead. `before`:
        the result of `changed` before the file was read."""
        start = self._file.seek(0, 2)
        for row in found:
            self._keep(row)
        if changed(path) != before:
            self._file.truncate(start)
            self._file.seek(start)
            self._keep(
                Row(
                    place(path, self.root),
                    {},
                    "the file changed while it was being read; import it again when its writer has finished",
                )
            )
        self.files.append(SpooledFile(path, start, self._file.tell()))

    def source(self, part: str = "") -> RowSource:
        """Returns the stored rows, only those of the study `part` if given. Errors: AutoscoutError (exit 2) if the
        files have several studies and `part` names none of them."""
        columns: dict[str, None] = {}
        parts: dict[str, None] = {}
        digest = hashlib.sha256()
        for row in self._rows():
            columns |= dict.fromkeys(row.cells)
            parts |= dict.fromkeys([row.part] if row.part else [])
            digest.update(_encode([row.cells, row.problem, row.said, row.part]))
        if (part and part not in parts) or (not part and len(parts) > 1):
            short, names = self.tool.name.partition("-")[0], ", ".join(parts) or "none"
            raise AutoscoutError(f"{self.root}: choose a study with --reader {short}:NAME; the studies are {names}", 2)
        return RowSource(
            reader=self.tool.name,
            columns=list(columns),
            rows=(row for row in self._rows() if not part or row.part == part),
            meaning=self.tool.columns,
            simulated=self.tool.predicted,
            digest=digest.hexdigest(),
        )

    def _keep(self, row: Row) -> None:
        try:
            text = _encode(row)
        except (OverflowError, TypeError) as error:
            text = _encode(Row(row.where, {}, f"the file has an impossible number ({error})"))
        self._file.write(len(text).to_bytes(4, "little") + text)

    def _rows(self) -> Iterator[Row]:
        for read in self.files:
            at = read.start
            while at < read.end:
                self._file.seek(at)
                size = int.from_bytes(self._file.read(4), "little")
                yield _decoder.decode(self._file.read(size))
                at += 4 + size


def changed(path: Path) -> tuple[int, int]:
    """Returns the file's modification time (ns) and size, by which a change is detected."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


def place(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path != root else path.name


def spooled(root: Path, tools: tuple[ToolFile, ...], known: ToolFile | None = None) -> tuple[list[Spool], list[Path]]:
    """Returns (a spool for each tool, files that no tool recognizes). `known`: the tool to use for files that no tool
    recognizes."""
    found: dict[str, Spool] = {}
    keys, rest = keys_by_kind(tools), []
    for path in [root] if root.is_file() else sorted(path for path in root.rglob("*") if path.is_file()):
        before, first = changed(path), recognized(path, tools, keys)
        tool, tree = first or (known, None)
        if tool is None:
            rest.append(path)
            continue
        spool = found.setdefault(tool.name, Spool(tool, root))
        spool.add(path, rows(path, tool, place(path, root), tree), before)
    if root.is_dir():
        for tool in tools:
            if tool.name in found and tool.file.others:
                rest = _without_others(tool, found, rest)
    return [spool for spool in found.values() if spool.files], rest


def _without_others(tool: ToolFile, found: dict[str, Spool], rest: list[Path]) -> list[Path]:
    """Returns `rest` without the tool's secondary files (`others`) near its main files, since secondary files add no
    information."""

    def other(path: Path) -> bool:
        return any(fnmatch(path.name, pattern) for pattern in tool.file.others)

    own = {read.path.parent for read in found[tool.name].files if not other(read.path)}
    near = own | {parent for path in own for parent in path.parents}

    def more(path: Path) -> bool:
        if any(fnmatch(path.as_posix(), pattern) for pattern in tool.file.others if "/" in pattern):
            return False
        return not other(path) or (path.parent not in near and path.parent.parent not in own)

    if not own:
        return rest
    for spool in found.values():
        spool.files = [read for read in spool.files if more(read.path)]
    return list(filter(more, rest))
