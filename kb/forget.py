"""Removing a session, an import, or all of a host: rows, journals, experiment folders and import files.

The file is written anew afterwards, since DuckDB only marks deleted rows. The names of forgotten sessions stay, so that
no journal and no lake brings them back.
"""

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kb import store
from kb.connect import reader, rewrite, writer
from kb.hosts import hashed_host
from kb.records import AutoscoutError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


class Forgotten(msgspec.Struct, frozen=True):
    sessions: list[str]
    measurements: int
    files: list[str]  # that were removed
    left: list[str]  # where traces remain, in a sentence each


def forget(kb: Path, sessions: list[str]) -> Forgotten:
    """Errors: AutoscoutError when nobody knows such a session, or when one of them is running."""
    folders = {name: store.sessions_folder(kb) / name for name in sessions}
    with reader(kb) as con:
        for name, folder in folders.items():
            if not folder.is_dir() and not _known(con, name):
                raise AutoscoutError(f"nothing is known of {name}; `autoscout sessions` and `FROM imports` list all", 2)
            if store.is_running(folder):
                raise AutoscoutError(f"session {name} is running; end it first")
        imports = _import_files(con, kb, sessions)
        answered = [
            f"the journal of {session} repeats {n} measurements that it took from there"
            for session, n in con.execute(
                "SELECT session, count(*) FROM decision WHERE type = 'answered' AND session NOT IN (FROM unnest($s)) "
                "AND (body ->> 'measured_by') IN (FROM unnest($s)) GROUP BY 1 ORDER BY 1",
                {"s": sessions},
            ).fetchall()
        ]
    with writer(kb) as con:
        removed = _delete(con, sessions)
    rewrite(kb)
    files = [*(str(folder) for folder in folders.values() if folder.is_dir()), *map(str, imports)]
    for folder in folders.values():
        shutil.rmtree(folder, ignore_errors=True)
    for path in imports:
        path.unlink(missing_ok=True)
    backups = sorted(kb.parent.glob(f"{kb.name}.bak-*")) + sorted(kb.parent.glob(f"{kb.name}.replaced-*"))
    left = answered + [f"{path} is an older copy: remove it if it holds them" for path in backups]
    return Forgotten(sessions, removed, files, left)


def sessions_of_host(kb: Path, host: str) -> list[str]:
    """Sessions that ran on a host, by its name, also where only the hash of it was stored."""
    with reader(kb) as con:
        found = con.execute(
            "SELECT id FROM session WHERE host IN (?, ?) ORDER BY unix_s", [host, hashed_host(host)]
        ).fetchall()
    if not found:
        raise AutoscoutError(f"no session ran on {host}; SELECT DISTINCT host FROM sessions lists the hosts", 2)
    return [name for (name,) in found]


def _known(con: "DuckDBPyConnection", name: str) -> bool:
    return bool(
        con.execute(
            "SELECT 1 FROM session WHERE id = $n UNION SELECT 1 FROM origin WHERE session = $n", {"n": name}
        ).fetchall()
    )


def _import_files(con: "DuckDBPyConnection", kb: Path, sessions: list[str]) -> list[Path]:
    found = con.execute("SELECT hash FROM lake_file WHERE session IN (FROM unnest($s))", {"s": sessions}).fetchall()
    files = (store.imports_folder(kb) / f"{name}.parquet" for (name,) in found)
    return [path for path in files if path.exists()]


def _delete(con: "DuckDBPyConnection", sessions: list[str]) -> int:
    s = {"s": sessions}
    con.execute("BEGIN")
    con.execute("CREATE OR REPLACE TEMP TABLE gone AS SELECT key FROM origin WHERE session IN (FROM unnest($s))", s)
    row = con.execute("SELECT count(*) FROM measurement WHERE origin IN (FROM gone)").fetchone()
    con.execute("DELETE FROM series WHERE id IN (SELECT id FROM measurement WHERE origin IN (FROM gone))")
    con.execute("DELETE FROM measurement WHERE origin IN (FROM gone)")
    con.execute("DELETE FROM origin WHERE key IN (FROM gone)")
    con.execute("DELETE FROM configuration WHERE key NOT IN (SELECT configuration FROM measurement)")
    con.execute("DELETE FROM decision WHERE session IN (FROM unnest($s))", s)
    con.execute("DELETE FROM session WHERE id IN (FROM unnest($s))", s)
    con.execute("DELETE FROM journal WHERE session IN (FROM unnest($s))", s)
    con.execute("DELETE FROM job WHERE id NOT IN (SELECT job_id FROM session UNION SELECT job_id FROM origin)")
    con.execute("INSERT INTO forgotten SELECT unnest($s), $at ON CONFLICT DO NOTHING", {**s, "at": time.time()})
    con.execute("COMMIT")
    assert row
    return row[0]
