"""Removes a session, an import, or all sessions of a host: rows, journals, experiment folders and import files.

The database file is rewritten afterwards, since DuckDB only marks rows as deleted. The names of forgotten sessions are
kept, so that they are not stored again from a journal or a shared folder (a lake). Everything that was removed is moved
to the trash, from which `undelete` restores it:

    <kb folder>/trash/<session>/rows/<hash>.parquet    the session's rows, as in a lake (kb/sharing/lake.py)
    <kb folder>/trash/<session>/session/               the session's folder, if it ran on this machine
"""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kb import claims, dates, door, store
from kb.connect import own_folder, reader, rewrite, writer
from kb.records import AutoscoutError
from kb.sharing import lake
from kb.sharing.hosts import hashed_host

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


class Forgotten(msgspec.Struct, frozen=True):
    sessions: list[str]
    measurements: int  # number of measurements removed because no other source has them
    files: list[str]  # files moved to the trash
    left: list[str]  # one sentence for each place where data of the sessions remains


class Undeleted(msgspec.Struct, frozen=True):
    sessions: list[str]
    measurements: int


def forget(kb: Path, sessions: list[str]) -> Forgotten:
    """Forgets sessions. Their folders are only removed if they are in the sessions folder and contain a journal.
    Errors: AutoscoutError if a session is running, or (exit 2) if it is unknown or its name is invalid."""
    folders = {name: store.session_folder(kb, name) for name in sessions}
    with reader(kb, files=True) as con:
        for name, folder in folders.items():
            # A session in the trash can be forgotten again, since an earlier call may have been killed midway.
            if not _is_session(folder) and not _known(con, name) and name not in deleted(kb):
                lists = "`autoscout sessions` and `autoscout sql 'FROM imports'` list them"
                raise AutoscoutError(f"there is no session or import {name}; {lists}", 2)
            if store.is_running(folder):
                raise AutoscoutError(f"session {name} is running; stop it first (`autoscout stop {name}`)")
        imports = _import_files(con, kb, sessions)
        answered = [
            f"the journal of {session} still contains copies of {n} of these measurements"
            for session, n in con.execute(
                "SELECT session, count(*) FROM decision WHERE type = 'answered' AND session NOT IN (FROM unnest($s)) "
                "AND (body ->> 'measured_by') IN (FROM unnest($s)) GROUP BY 1 ORDER BY 1",
                {"s": sessions},
            ).fetchall()
        ]
        for name in sessions:
            trash = _trash(kb) / name / "rows"
            if own := _import_files(con, kb, [name]):
                trash.mkdir(parents=True, exist_ok=True)
                for file in own:
                    shutil.copy2(file, trash)
            elif _known(con, name):
                lake.write_session(con, name, trash)
    files = [*(str(folder) for folder in folders.values() if _is_session(folder)), *map(str, imports)]
    # Folders are moved before rows are deleted, so that after a kill in between, the same command removes the rows.
    for name, folder in folders.items():
        if _is_session(folder):
            _move(folder, _trash(kb) / name / "session")
    with writer(kb) as con:
        removed, kept = _delete(con, sessions)
    rewrite(kb)
    for path in imports:
        path.unlink(missing_ok=True)
    backups = sorted(kb.parent.glob(f"{kb.name}.bak-*")) + sorted(kb.parent.glob(f"{kb.name}.replaced-*"))
    stay = [f"{kept} measurements stay, because other sessions or imports contain them too"] if kept else []
    older = "is an older copy of the knowledge base; delete it if it must not contain the data either"
    left = [*stay, *answered, *(f"{path} {older}" for path in backups)]
    left += [
        f"`autoscout kb undelete {name}` restores {name} from {_trash(kb) / name}; delete that folder to remove it "
        f"for good"
        for name in sessions
        if (_trash(kb) / name).is_dir()
    ]
    return Forgotten(sessions, removed, files, left)


def undelete(kb: Path, sessions: list[str]) -> Undeleted:
    """Restores sessions from the trash. Errors: AutoscoutError (exit 2) if one of them is not in the trash."""
    folders = {name: _trash(kb) / door.name(name, "session") for name in sessions}
    for name, folder in folders.items():
        if not folder.is_dir():
            there = ", ".join(deleted(kb)) or "nothing"
            raise AutoscoutError(f"{name} is not in the trash, which holds {there}", 2)
    with writer(kb) as con:
        con.execute("DELETE FROM forgotten WHERE session IN (FROM unnest($s))", {"s": sessions})
        con.execute("DELETE FROM lake_file WHERE session IN (FROM unnest($s))", {"s": sessions})
    back = 0
    for name, folder in folders.items():
        if _is_session(folder / "session"):
            _move(folder / "session", store.session_folder(kb, name))
            back += store.ingest(kb, store.session_folder(kb, name) / "journal.jsonl")
        back += lake.take(kb, sorted((folder / "rows").glob("*.parquet"))).measurements
        if name.startswith("import-"):
            for path in (folder / "rows").glob("*.parquet"):
                _move(path, store.imports_folder(kb) / path.name)
        shutil.rmtree(folder)
    return Undeleted(sessions, back)


def deleted(kb: Path) -> list[str]:
    return sorted(path.name for path in _trash(kb).glob("*") if path.is_dir())


def _trash(kb: Path) -> Path:
    return own_folder(kb, "trash")


def _is_session(folder: Path) -> bool:
    return not folder.is_symlink() and (folder / "journal.jsonl").is_file()


def _move(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_dir():  # an older copy with the same name
        shutil.rmtree(target)
    source.replace(target)


def sessions_of_host(kb: Path, host: str) -> list[str]:
    """Sessions that ran on a host of this name (or its hash). Errors: AutoscoutError (exit 2) if none did."""
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


def _delete(con: "DuckDBPyConnection", sessions: list[str]) -> tuple[int, int]:
    """Deletes the rows of the sessions and marks the sessions as forgotten. Returns the number of removed measurements,
    and of those that stay because they have other sources."""
    s = {"s": sessions}
    con.execute("BEGIN")
    counts = claims.remove(con, sessions)
    con.execute("INSERT INTO forgotten SELECT unnest($s), $at ON CONFLICT DO NOTHING", {**s, "at": dates.now()})
    con.execute("COMMIT")
    return counts
