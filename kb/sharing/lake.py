"""A lake: a folder (on NFS or a USB disk) through which knowledge bases share measurements. Files are only added, so
merging needs no coordination.

    LAKE/family=pretrain-megatron-dense/<sha256 of its bytes>.parquet    all rows of one session or import
    LAKE/forgotten/<name>                                                a session that must not be stored any more

Files never change. They are written under another name and then renamed, and accepted only if their content has the
hash in their name, so incomplete files are ignored. Pushing or pulling twice changes nothing. The column `kind` names
the table to which a row belongs.
"""

import contextlib
import hashlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kb import rows, stored_secrets
from kb.connect import reader, writer
from kb.records import AutoscoutError
from kb.sharing import arrivals, author_trust, signatures

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_FILES_AT_ONCE = 200
GROUP = 20_480  # number of rows that are in memory at the same time while a file is written
_JOB = ("id", "name", "task", "target", "family", "model", "traffic")
SESSION = (
    *("source", "job_id", "job_name", "context", "host", "cluster", "devices", "goal", "metric", "constraints"),
    *("strategy", "seed", "fidelity", "warm_start", "kb_mark", "unix_s", "job", "hyper", "environment"),
)
_JSON = ("job", "hyper", "environment", "other_metrics", "conditions")


class MovedRecords(NamedTuple):
    sessions: int
    measurements: int
    passed_over: list[str]  # one sentence for each refused file


def push(kb: Path, lake: Path, key: Path | None = None) -> MovedRecords:
    """Adds to the lake all sessions and imports that it lacks, and signs our own with `key`. Errors: AutoscoutError if
    a file cannot be written or signed."""
    _make(lake)
    with reader(kb, files=True) as con:
        everything = census(con)
        theirs = {name for (name,) in con.execute("SELECT session FROM author").fetchall()}
        todo = [
            each
            for each in everything
            if not any((lake / f"family={each.family}" / f"{h}.parquet").exists() for h in each.files)
        ]
        stored_secrets.refuse(con, [each.session for each in todo])
        gone = [name for (name,) in con.execute("SELECT session FROM forgotten ORDER BY session").fetchall()]
        # Files are written while only a read lock is held, so that other processes can read.
        written = [(each, write_session(con, each.session, lake / f"family={each.family}")) for each in todo]
        for each, name in written:
            folder = lake / f"family={each.family}"
            _share(lake, folder / f"{name}.parquet", folder)
        files = con.execute(
            "SELECT session, list(hash) FROM lake_file WHERE session IN (SELECT session FROM forgotten) GROUP BY ALL"
        ).fetchall()
    if written:
        with writer(kb) as con:
            for each, name in written:
                remember(con, name, each)
    if key is not None:
        new = {each.session: name for each, name in written}
        ours = [each for each in everything if each.session not in theirs]
        names = [(each, name) for each in ours for name in (*each.files, new.get(each.session, "")) if name]
        paths = [lake / f"family={each.family}" / f"{name}.parquet" for each, name in names]
        _sign(lake, [path for path in paths if path.exists()], key)
    _mark_forgotten(lake, gone, dict(files))
    return MovedRecords(len(written), sum(each.measurements for each, _ in written), [])


def pull(kb: Path, lake: Path) -> MovedRecords:
    """Stores what the knowledge base lacks from the lake. Errors: AutoscoutError if there is no such folder."""
    if not lake.is_dir():
        raise AutoscoutError(f"{lake} is not a folder; pass the folder that was passed to `autoscout kb push`", 2)
    files = sorted(lake.glob("family=*/*.parquet"))
    with reader(kb) as con:
        known = _known(con)
        keys = author_trust.keys(con)
        unsigned = "SELECT hash FROM lake_file INNER JOIN author USING (session) WHERE author = 'unsigned'"
        doubtful = {name for (name,) in con.execute(unsigned).fetchall()}
    new = [f for f in files if f.stem not in known or (f.stem in doubtful and signatures.signature_of(f).exists())]
    signed = signatures.signers(new, keys)
    late = [file for file in new if file.stem in known and signed[file] not in ("", signatures.UNSIGNED)]
    if late:  # stored as unsigned, but their signer's key is known now, so they are stored again
        with writer(kb) as con:
            con.execute("DELETE FROM lake_file WHERE hash IN (FROM unnest($h))", {"h": [file.stem for file in late]})
    return take(kb, files, _forgotten(lake), {file.stem: author for file, author in signed.items()})


def _known(con: "DuckDBPyConnection") -> set[str]:
    return {name for (name,) in con.execute("SELECT hash FROM lake_file").fetchall()}


def take(
    kb: Path, files: list[Path], gone: set[str] | None = None, signed: dict[str, str] | None = None
) -> MovedRecords:
    """Stores files of a lake that are not stored yet. `gone`: sessions to ignore; `signed`: file hash → author
    (author_trust.py), None for our own files."""
    with reader(kb) as con:
        known = _known(con)
    new = [path for path in files if path.stem not in known]
    whole = [path for path in new if hash_of(path) == path.stem]
    passed_over = [
        f"{path} is incomplete or was changed after it was written, so it is ignored"
        for path in new
        if path not in whole
    ]
    sessions = measurements = 0
    for i in range(0, len(whole), _FILES_AT_ONCE):
        with writer(kb) as con:
            some, many, outside = _take_in(con, whole[i : i + _FILES_AT_ONCE], gone or set(), signed)
        sessions, measurements, passed_over = sessions + some, measurements + many, passed_over + outside
    return MovedRecords(sessions, measurements, passed_over)


def _take_in(
    con: "DuckDBPyConnection", paths: list[Path], gone: set[str], signed: dict[str, str] | None
) -> MovedRecords:
    """Stores files in one transaction; if DuckDB cannot read one of them, in one transaction each."""
    import duckdb

    names = ", ".join(quoted(path) for path in paths)
    con.execute("BEGIN")
    try:
        con.execute(
            f"CREATE OR REPLACE TEMP TABLE arrived AS SELECT * EXCLUDE (filename), parse_filename(filename, true) "
            f"AS hash FROM read_parquet([{names}], union_by_name = true, filename = true)"
        )
        moved = absorb(con, gone, signed)
        con.execute("COMMIT")
        return moved
    except (duckdb.DataError, duckdb.ProgrammingError, duckdb.IntegrityError, duckdb.NotSupportedError) as error:
        con.execute("ROLLBACK")
        if len(paths) == 1:
            reason = " ".join(str(error).split())
            return MovedRecords(0, 0, [f"{paths[0]} was not written by AutoScout ({reason}), so it is ignored"])
    each = [_take_in(con, [path], gone, signed) for path in paths]
    return MovedRecords(sum(m[0] for m in each), sum(m[1] for m in each), [text for m in each for text in m[2]])


class Session(NamedTuple):
    session: str
    family: str
    measurements: int
    decisions: int
    files: list[str]  # hashes of files that contain as many of the session's rows as the knowledge base


def census(con: "DuckDBPyConnection") -> list[Session]:
    """All sessions and imports of a knowledge base."""
    found = con.execute(
        """
        WITH measured AS (
            SELECT o.session, any_value(o.job_id) AS job_id, sum(m.n)::BIGINT AS n
            FROM (
                SELECT origin, count(*) AS n FROM measurement GROUP BY origin
                UNION ALL
                SELECT origin, count(*) AS n FROM further_source GROUP BY origin
            ) AS m
            INNER JOIN origin AS o ON o.key = m.origin GROUP BY o.session
        ),

        decided AS (SELECT session, count(*) AS n FROM decision GROUP BY session),

        name AS (SELECT id AS session, job_id FROM session UNION SELECT session, job_id FROM measured)

        SELECT n.session, j.family, coalesce(m.n, 0), coalesce(d.n, 0), coalesce(f.files, [])
        FROM name AS n
        INNER JOIN job AS j ON j.id = n.job_id
        LEFT JOIN measured AS m ON m.session = n.session
        LEFT JOIN decided AS d ON d.session = n.session
        LEFT JOIN (
            SELECT session, measurements, decisions, list(hash) AS files FROM lake_file GROUP BY ALL
        ) AS f ON f.session = n.session AND f.measurements = coalesce(m.n, 0) AND f.decisions = coalesce(d.n, 0)
        ORDER BY n.session
        """
    ).fetchall()
    return [Session(*row) for row in found]


def write_session(con: "DuckDBPyConnection", session: str, folder: Path, further: str = "") -> str:
    """Writes all rows of a session to a file in `folder`; returns its hash. `further`: a query for additional rows."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".{os.getpid()}.unfinished"
    whole = f"FROM ({_whole_session()}) UNION ALL BY NAME {further}" if further else _whole_session()
    con.execute(
        f"COPY ({whole}) TO {quoted(unfinished)} (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {GROUP})",
        {"session": session},
    )
    name = hash_of(unfinished)
    with open(unfinished, "rb") as file:
        os.fsync(file.fileno())
    os.replace(unfinished, folder / f"{name}.parquet")
    return name


def _share(lake: Path, *made: Path) -> None:
    """Gives files the permissions of the lake's folder; by default, files that AutoScout writes are private."""
    with contextlib.suppress(OSError):  # only the owner of a file or folder can change its permissions
        mode = stat.S_IMODE(lake.stat().st_mode)
        for path in made:
            path.chmod(mode if path.is_dir() else mode & 0o666)


def _whole_session() -> str:
    job = ", ".join(f"j.{name}::VARCHAR AS job_{name}" for name in _JOB)
    session = ", ".join(f"s.{name}::VARCHAR AS {name}" if name in _JSON else f"s.{name}" for name in SESSION)
    copied = ", ".join(f"m.{name}::VARCHAR AS {name}" if name in _JSON else f"m.{name}" for name in rows.COPIED)
    series = ", ".join(f"x.{name}::VARCHAR AS {name}" for name in (*rows.SERIES, *rows.PER_RANK))
    origins = "(SELECT key FROM origin WHERE session = $session)"
    return f"""
        SELECT 'job' AS kind, 0::BIGINT AS place, $session AS session, {job}
        FROM job AS j
        WHERE j.id IN (
            SELECT job_id FROM session WHERE id = $session UNION SELECT job_id FROM origin WHERE session = $session)
        UNION ALL BY NAME
        SELECT 'session' AS kind, 0::BIGINT AS place, s.id AS session, {session}
        FROM session AS s WHERE s.id = $session
        UNION ALL BY NAME
        SELECT
            'measurement' AS kind, row_number() OVER (ORDER BY m.added) AS place,
            o.session, o.job_id, o.context, o.environment::VARCHAR AS environment, c.id AS configuration_id, c.name,
            c.knobs::VARCHAR AS knobs, m.id, {copied}, {series}
        FROM (
            FROM measurement WHERE origin IN {origins}
            UNION ALL
            SELECT m.* REPLACE (f.origin AS origin, f.number AS number, f.purpose AS purpose)
            FROM further_source AS f INNER JOIN measurement AS m ON m.id = f.id WHERE f.origin IN {origins}
        ) AS m
        INNER JOIN origin AS o ON o.key = m.origin
        INNER JOIN configuration AS c ON c.key = m.configuration
        LEFT JOIN series AS x ON x.id = m.id
        UNION ALL BY NAME
        SELECT 'decision' AS kind, seq AS place, session, type, unix_s, body::VARCHAR AS body
        FROM decision WHERE session = $session
        ORDER BY kind, place
    """


def remember(con: "DuckDBPyConnection", name: str, each: Session) -> None:
    con.execute(
        "INSERT INTO lake_file VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
        [name, each.session, each.measurements, each.decisions],
    )


def absorb(con: "DuckDBPyConnection", gone: set[str], signed: dict[str, str] | None) -> MovedRecords:
    """Stores the rows of the temporary table `arrived`, each with the `hash` of its file, within the caller's
    transaction. Returns the numbers of new sessions and measurements, and refused files (arrivals.py)."""
    arrivals.as_today(con)
    refused = arrivals.refused(con)
    con.execute("DELETE FROM arrived WHERE hash IN (FROM unnest($files))", {"files": list(refused)})
    con.execute(
        "CREATE OR REPLACE TEMP TABLE seen AS SELECT hash, any_value(session) AS session FROM arrived GROUP BY hash"
    )
    if signed is not None:
        refused |= author_trust.admit(con, signed)
        for table in ("arrived", "seen"):
            con.execute(f"DELETE FROM {table} WHERE hash IN (FROM unnest($files))", {"files": list(refused)})
    con.execute("CREATE OR REPLACE TEMP TABLE unwanted (session VARCHAR)")
    con.execute("INSERT INTO unwanted SELECT session FROM forgotten")
    for name in sorted(gone):
        con.execute("INSERT INTO unwanted VALUES (?)", [name])
    wanted = "session NOT IN (FROM unwanted)"
    con.execute(
        f"INSERT INTO job BY NAME SELECT DISTINCT ON (job_id) {', '.join(f'job_{name} AS {name}' for name in _JOB)} "
        f"FROM arrived WHERE kind = 'job' AND {wanted} ON CONFLICT DO NOTHING"
    )
    before = _count(con, "session")
    con.execute(
        f"INSERT INTO session BY NAME SELECT DISTINCT ON (session) session AS id, {', '.join(SESSION)} "
        f"FROM arrived WHERE kind = 'session' AND {wanted} ON CONFLICT DO NOTHING"
    )
    con.execute(
        f"INSERT INTO decision BY NAME SELECT DISTINCT ON (session, place) session, place AS seq, type, unix_s, body "
        f"FROM arrived WHERE kind = 'decision' AND {wanted} ON CONFLICT DO NOTHING"
    )
    shape = ", ".join(f"{name}::{kind} AS {name}" for name, kind in rows.INCOMING.items())
    con.execute(
        f"CREATE OR REPLACE TEMP TABLE incoming AS "
        f"SELECT row_number() OVER (ORDER BY session, place) AS place, {shape} "
        f"FROM arrived WHERE kind = 'measurement' AND {wanted}"
    )
    new = rows.store_incoming(con)
    con.execute(
        """
        INSERT INTO lake_file
        SELECT
            s.hash, any_value(s.session), count(DISTINCT a.id) FILTER (WHERE a.kind = 'measurement'),
            count(DISTINCT a.place) FILTER (WHERE a.kind = 'decision')
        FROM seen AS s LEFT JOIN arrived AS a ON a.hash = s.hash GROUP BY s.hash ON CONFLICT DO NOTHING
        """
    )
    notes = [f"{file}.parquet is ignored: {error}" for file, error in sorted(refused.items())]
    return MovedRecords(_count(con, "session") - before, new, notes)


def _count(con: "DuckDBPyConnection", table: str) -> int:
    [(count,)] = con.execute(f"SELECT count(*) FROM {table}").fetchall()
    return count


def _sign(lake: Path, files: list[Path], key: Path) -> None:
    signatures.sign(files, key)
    _share(lake, *(signatures.signature_of(file) for file in files))


def _mark_forgotten(lake: Path, gone: list[str], files: dict[str, list[str]]) -> None:
    """Marks sessions as forgotten in the lake, and removes their files whose hashes are known."""
    for session in gone:
        folder = lake / "forgotten"
        folder.mkdir(exist_ok=True)
        (folder / session).touch()
        _share(lake, folder / session, folder)
        for name in files.get(session, []):
            for path in lake.glob(f"family=*/{name}.parquet"):
                path.unlink()


def _forgotten(lake: Path) -> set[str]:
    folder = lake / "forgotten"
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def _make(lake: Path) -> None:
    try:
        lake.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AutoscoutError(
            f"{lake}: cannot share through this folder ({error.strerror}); choose another folder", 2
        ) from error


def hash_of(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:32]
    except OSError:
        return ""


def quoted(value: object) -> str:
    return "'" + str(value).replace("'", "''") + "'"
