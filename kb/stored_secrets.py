"""Finds secrets in stored files and rows: those that a program printed, and those that an older version of AutoScout
did not recognise. (kb/redact.py removes them.)

Searches the journals, the configurations and logs of experiments in sessions' folders, and the texts in the tables. A
lake (kb/sharing/lake.py) is not changed: a key that was pushed there has to be replaced.
"""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kb import access, seals, secrets
from kb.records import AutoscoutError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_TEXT = (".jsonl", ".json", ".log", ".txt", ".toml", ".yaml", ".yml", ".sh", ".env", ".cfg", ".ini", ".out", ".err")
_BLOCK = 2**20  # number of characters that are read at once
_ROWS = """
    SELECT id AS session, concat_ws(' ', job::VARCHAR, hyper::VARCHAR) AS text FROM session
    UNION ALL SELECT session, body::VARCHAR FROM decision
    UNION ALL
    SELECT o.session, m.evidence FROM measurement AS m INNER JOIN origin AS o ON o.key = m.origin WHERE m.evidence != ''
"""


def in_files(folder: Path) -> list[Path]:
    """The text files below a folder that contain a secret."""
    files = (path for path in sorted(folder.rglob("*")) if path.suffix in _TEXT and path.is_file())
    return [path for path in files if not path.is_symlink() and any(kept != text for text, kept in _blocks(path))]


def in_rows(con: "DuckDBPyConnection", sessions: list[str] | None = None) -> dict[str, int]:
    """Session → number of its texts in the tables that contain a secret. `sessions`: only these are searched."""
    cursor = con.execute(
        f"FROM ({_ROWS}) WHERE $s IS NULL OR list_contains($s::VARCHAR[], session) ORDER BY session", {"s": sessions}
    )
    found: Counter[str] = Counter()
    while rows := cursor.fetchmany(1000):
        found.update(session for session, text in rows if _redacted(text) != text)
    return dict(found)


def clean(folder: Path) -> list[Path]:
    """Removes secrets from the text files below a folder, and returns the changed files. Each file is replaced
    atomically, and a journal gets new seals (seals.py)."""
    found = in_files(folder)
    for path in found:
        new = path.with_name(f".{path.name}.redacted")
        with open(new, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.writelines(kept for _, kept in _blocks(path))
        if path.name == "journal.jsonl" and not seals.check(path).broken:  # new seals would hide earlier tampering
            new.write_bytes(seals.anew(new.read_bytes().splitlines()))
        with open(new, "rb") as file:
            os.fsync(file.fileno())
        access.put(new, path)
    return found


def refuse(con: "DuckDBPyConnection", sessions: list[str]) -> None:
    """Errors: AutoscoutError if rows of the sessions contain secrets, so that they must not be shared."""
    if found := in_rows(con, sessions):
        raise AutoscoutError(
            f"{sum(found.values())} texts of {', '.join(found)} look like secrets, so nothing was shared; "
            f"`autoscout kb redact` removes them"
        )


def _blocks(path: Path) -> Iterator[tuple[str, str]]:
    """Reads a file in pieces of whole lines; yields (text, text without secrets)."""
    with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
        lines = path.suffix in (".jsonl", ".json")
        while block := file.read(_BLOCK):
            block += file.readline()
            if lines:
                yield block, "".join(map(_redacted, block.splitlines(keepends=True)))
            else:
                yield block, secrets.redacted(block)


def _redacted(text: str) -> str:
    """A text or JSON document without secrets; returned unchanged if it contains none."""
    if not text.lstrip().startswith(("{", "[")):
        return secrets.redacted(text)
    try:
        found = msgspec.json.decode(text.encode())
    except (ValueError, RecursionError):
        return secrets.redacted(text)
    kept = secrets.without(found)
    return text if kept == found else msgspec.json.encode(kept).decode() + text[len(text.rstrip()) :]
