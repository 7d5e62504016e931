"""Maintenance of the knowledge base: its contents, integrity checks, backup and restore."""

import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kb import access, door, journal_rows, lock, migrate, rows, seals, store, stored_secrets
from kb.connect import lock_path, network_filesystem, reader
from kb.records import AutoscoutError, content_hash
from kb.sharing import lake

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_HASHED = 20_000  # largest number of measurements whose hash a check recomputes


class CareFinding(msgspec.Struct, frozen=True):
    subject: str
    ok: bool
    found: str


def info(kb: Path) -> dict[str, Any]:
    with reader(kb) as con:
        counts = {
            table: _one(con, f"SELECT count(*) FROM {table}")
            for table in ("job", "session", "configuration", "measurement", "decision", "forgotten")
        }
        duckdb, schema = con.execute("SELECT version(), (SELECT max(version) FROM schema_migrations)").fetchall()[0]
        newest = _one(con, "SELECT max(unix_s) FROM measurement")
        statuses = dict(con.execute("SELECT status, count(*) FROM measurement GROUP BY 1 ORDER BY 2 DESC").fetchall())
    return {
        "path": str(kb),
        "bytes": kb.stat().st_size,
        "schema": schema,
        "duckdb": duckdb,
        **{f"{table}s": n for table, n in counts.items() if table != "forgotten"},
        "forgotten": counts["forgotten"],
        "statuses": statuses,
        "newest_unix_s": newest,
        "network_filesystem": network_filesystem(kb),
    }


def check(kb: Path) -> list[CareFinding]:
    """Checks blocks (DuckDB verifies checksums), references, hashes, precomputed results, journals and imports."""
    findings = []
    with reader(kb, results=True) as con:
        findings += _readable(con)
        findings += _orphans(con)
        findings.append(_hashes(con))
        findings.append(_kept(con))
        findings.append(_journals(con, kb))
        findings.append(_seals(con, kb))
        known = {name for (name,) in con.execute("SELECT hash FROM lake_file").fetchall()}
    damaged = [path.name for path in store.imports_folder(kb).glob("*.parquet") if lake.hash_of(path) != path.stem]
    late = [path.name for path in store.imports_folder(kb).glob("*.parquet") if path.stem not in known]
    found = f"damaged: {', '.join(damaged)}" if damaged else f"{len(late)} files are not stored yet"
    findings.append(CareFinding("imports", not damaged, found))
    return findings


def check_secrets(kb: Path) -> list[CareFinding]:
    """Looks for secrets in the files of sessions and in the texts of the tables."""
    files = [str(path) for path in stored_secrets.in_files(store.sessions_folder(kb))]
    with reader(kb) as con:
        rows = [f"{name} ({count})" for name, count in stored_secrets.in_rows(con).items()]
    remedy = "; `autoscout kb redact` removes them"
    return [
        CareFinding("secrets in files", not files, ", ".join(files) + remedy if files else "none"),
        CareFinding("secrets in rows", not rows, f"texts in {', '.join(rows)}{remedy}" if rows else "none"),
    ]


def _readable(con: "DuckDBPyConnection") -> list[CareFinding]:
    tables = [
        name
        for (name,) in con.execute("SELECT table_name FROM duckdb_tables() WHERE NOT temporary ORDER BY 1").fetchall()
    ]
    total = 0
    for table in tables:
        [(count, _)] = con.execute(f"SELECT count(*), sum(hash(t)) FROM {table} AS t").fetchall()
        total += count
    return [CareFinding("integrity", True, f"all {total} rows of {len(tables)} tables were read")]


_ORPHANS = {
    "measurements without an origin": "SELECT count(*) FROM measurement WHERE origin NOT IN (SELECT key FROM origin)",
    "measurements without a configuration": (
        "SELECT count(*) FROM measurement WHERE configuration NOT IN (SELECT key FROM configuration)"
    ),
    "duplicate measurements": ("SELECT count(*) FROM (SELECT id FROM measurement GROUP BY id HAVING count(*) > 1)"),
    "series without a measurement": "SELECT count(*) FROM series WHERE id NOT IN (SELECT id FROM measurement)",
    "further sources without a measurement or an origin": (
        "SELECT count(*) FROM further_source "
        "WHERE id NOT IN (SELECT id FROM measurement) OR origin NOT IN (SELECT key FROM origin)"
    ),
    "decisions without a session": "SELECT count(*) FROM decision WHERE session NOT IN (SELECT id FROM session)",
    "sessions without a job": "SELECT count(*) FROM session WHERE job_id NOT IN (SELECT id FROM job)",
    "duplicate keys": (
        "SELECT count(*) FROM (SELECT key FROM configuration GROUP BY key HAVING count(*) > 1 "
        "UNION ALL SELECT key FROM origin GROUP BY key HAVING count(*) > 1)"
    ),
}


def _orphans(con: "DuckDBPyConnection") -> list[CareFinding]:
    counts = {what: _one(con, sql) for what, sql in _ORPHANS.items()}
    wrong = [f"{n} {what}" for what, n in counts.items() if n]
    return [CareFinding("references", not wrong, "; ".join(wrong) or "no row refers to a missing row")]


def _hashes(con: "DuckDBPyConnection") -> CareFinding:
    """Recomputes measurement ids, which are hashes of the content, to find changed values."""
    total = _one(con, "SELECT count(*) FROM measurement")
    which = "true" if total <= _HASHED else f"m.id IN (SELECT id FROM measurement USING SAMPLE {_HASHED} ROWS)"
    found = rows.exact(con, which, {})
    wrong = [row for row in found if int(rows.measurement(row).id, 16) != row["id"]]
    named = [row["name"] for row in found if content_hash(msgspec.json.decode(row["knobs"])) != row["configuration_id"]]
    part = "all" if len(found) == total else f"{len(found)} random"
    if wrong or named:
        first = f"{wrong[0]['name']} of {wrong[0]['session']}" if wrong else named[0]
        return CareFinding(
            "hashes", False, f"{len(wrong) + len(named)} of {part} measurements have changed, such as {first}"
        )
    return CareFinding("hashes", True, f"{part} measurements are unchanged")


def _kept(con: "DuckDBPyConnection") -> CareFinding:
    """Compares the precomputed results of a few jobs (kept_up.py) with results from all their rows."""
    jobs = [job for (job,) in con.execute("SELECT job_id FROM kept ORDER BY hash(job_id) LIMIT 5").fetchall()]
    wrong = _one(
        con,
        """
        SELECT count(*) FROM (
            FROM (
                (FROM results WHERE list_contains($jobs, job_id))
                EXCEPT (FROM results_anew WHERE list_contains($jobs, job_id)))
            UNION ALL
            FROM (
                (FROM results_anew WHERE list_contains($jobs, job_id))
                EXCEPT (FROM results WHERE list_contains($jobs, job_id)))
        )
        """,
        {"jobs": jobs},
    )
    found = f"{wrong} differ from the measurements" if wrong else "all match the measurements"
    return CareFinding("results", not wrong, f"of {len(jobs)} {'job' if len(jobs) == 1 else 'jobs'}: {found}")


def _journals(con: "DuckDBPyConnection", kb: Path) -> CareFinding:
    late, problems = [], []
    for path in store.waiting(con, kb):
        if store.is_running(path.parent):
            continue
        try:
            tail = journal_rows.read_tail(con, path)
        except AutoscoutError as error:
            problems.append(str(error))
            continue
        if tail and tail.problem:
            problems.append(str(tail.problem))
        elif tail and tail.events:  # complete lines are not stored yet; an incomplete last line alone is normal
            late.append(door.plain(path.parent.name))
    if late:
        problems.append(
            f"the journals of {', '.join(late)} contain events that are not stored yet; `autoscout kb ingest` "
            f"stores them"
        )
    return CareFinding("journals", not problems, "; ".join(problems) or "all events are stored")


def _seals(con: "DuckDBPyConnection", kb: Path) -> CareFinding:
    """Checks that the journals' lines have not changed since they were written."""
    broken, unsigned, known = [], 0, store.lines_known(con, kb)
    for path in sorted(store.sessions_folder(kb).glob("*/journal.jsonl")):
        try:
            found = seals.check(path, known.get(path.parent.name, 0))
        except OSError as error:
            broken.append(f"{path}: cannot read the journal ({error.strerror})")
            continue
        unsigned += bool(found.unsigned)
        if found.broken:
            broken.append(f"{door.plain(path.parent.name)}: {found.sentence}")
    older = [f"{unsigned} journals have unsigned lines, because an older AutoScout wrote them"] if unsigned else []
    return CareFinding("seals", not broken, "; ".join([*broken, *older]) or "no line has changed since it was written")


def back_up(kb: Path, copy: Path) -> int:
    """Writes a full, compact copy, even while other processes use the knowledge base; returns its size in bytes.
    Errors: AutoscoutError if the copy cannot be written, or (exit 2) if it exists already or its folder does not
    exist."""
    if copy.exists():
        raise AutoscoutError(f"{copy} exists already; choose another name for the backup", 2)
    if not copy.parent.is_dir():
        raise AutoscoutError(f"{copy.parent} is not a folder; choose another place for the backup", 2)
    import duckdb

    with reader(kb, files=True) as con:
        try:
            migrate.back_up(con, copy)
        except (duckdb.Error, OSError) as error:
            for unfinished in (".new", ".new.wal"):
                copy.with_name(copy.name + unfinished).unlink(missing_ok=True)
            why = " ".join(str(error).split())
            raise AutoscoutError(
                f"{copy}: the backup cannot be written ({why}); choose another place for it"
            ) from error
    return copy.stat().st_size


def restore(kb: Path, copy: Path) -> tuple[int, Path | None]:
    """Replaces the knowledge base by a backup, then ingests measurements that only journals and imports have.

    Returns the number of these measurements, and the path to which the replaced file was moved. Errors: AutoscoutError
    if the backup is not a knowledge base; nothing is changed then.
    """
    if not copy.is_file():
        what = (
            "is a folder; give the file that `autoscout kb backup` wrote" if copy.is_dir() else "there is no such file"
        )
        raise AutoscoutError(f"{copy}: {what}", 2)
    with reader(copy) as con:
        _one(con, "SELECT count(*) FROM measurement")
    aside = None
    kb.parent.mkdir(parents=True, exist_ok=True)
    with lock.exclusive(lock_path(kb)):
        new = kb.with_name(kb.name + ".restored")
        shutil.copyfile(copy, new)
        if kb.exists():
            access.like(new, kb)
            aside = kb.with_name(f"{kb.name}.replaced-{time.strftime('%Y%m%d-%H%M%S')}")
            for suffix in (".wal", ""):
                old = kb.with_name(kb.name + suffix)
                if old.exists():
                    os.replace(old, aside.with_name(aside.name + suffix))
        os.replace(new, kb)
    return store.ingest_all(kb)[0], aside


def _one(con: "DuckDBPyConnection", sql: str, values: dict[str, Any] | None = None) -> Any:
    [(value,)] = con.execute(sql, values).fetchall()
    return value
