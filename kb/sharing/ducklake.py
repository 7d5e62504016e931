"""Shares measurements through DuckLake, with a catalog in Postgres and data files on shared storage, instead of a
folder (lake.py).

The catalog has the same content as such a folder: the table `part` has the rows of all files, with each file's hash,
and `forgotten` has the names of forgotten sessions. Two DuckDB extensions are needed that are not built in.
"""

import contextlib
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import duckdb
from duckdb import DuckDBPyConnection

from kb import rows, stored_secrets
from kb.connect import reader, writer
from kb.records import AutoscoutError
from kb.sharing import lake
from kb.sharing.lake import MovedRecords

_INSTALL = "pip install duckdb-extensions duckdb-extension-ducklake==1.5.5 duckdb-extension-postgres-scanner==1.5.5"


def push(kb: Path, catalog: str, data: Path | None) -> MovedRecords:
    """Adds all sessions that the catalog lacks. `data`: the folder for the data files, which is needed only the first
    time, since the catalog stores it. Errors: AutoscoutError."""
    with tempfile.TemporaryDirectory() as folder, _attached(catalog, data, write=True) as team:
        written = _give(kb, team, Path(folder))
    with writer(kb) as con:
        for each, name in written:
            lake.remember(con, name, each)
    return MovedRecords(len(written), sum(each.measurements for each, _ in written), [])


def _give(kb: Path, team: DuckDBPyConnection, folder: Path) -> list[tuple[lake.Session, str]]:
    """Adds the missing rows to the tables `team.part` and `team.forgotten`, in one transaction; returns the added
    sessions, each with the hash of its file in `folder`."""
    with reader(kb, files=True) as con:
        everything = lake.census(con)
        forgotten = [name for (name,) in con.execute("SELECT session FROM forgotten").fetchall()]
        there = _hashes(team)
        todo = [each for each in everything if not there & set(each.files)]
        stored_secrets.refuse(con, [each.session for each in todo])
        written = [(each, lake.write_session(con, each.session, folder)) for each in todo]
    team.execute("BEGIN")
    for i, (_, name) in enumerate(written):
        source = f"SELECT '{name}' AS hash, * FROM read_parquet('{folder}/{name}.parquet')"
        if i == 0:
            team.execute(f"CREATE TABLE IF NOT EXISTS team.part AS {source} LIMIT 0")
            for column in rows.LATER:  # catalogs of older versions lack these
                team.execute(f"ALTER TABLE team.part ADD COLUMN IF NOT EXISTS {column} VARCHAR")
        if name not in there:
            team.execute(f"INSERT INTO team.part BY NAME {source}")
    team.execute("CREATE TABLE IF NOT EXISTS team.forgotten (session VARCHAR)")
    for session in forgotten:
        team.execute("DELETE FROM team.forgotten WHERE session = ?", [session])
        team.execute("INSERT INTO team.forgotten VALUES (?)", [session])
        if there:
            team.execute("DELETE FROM team.part WHERE session = ?", [session])
    team.execute("COMMIT")
    return written


def pull(kb: Path, catalog: str) -> MovedRecords:
    with tempfile.TemporaryDirectory() as folder:
        arrived = Path(folder) / "arrived.parquet"
        with _attached(catalog, None, write=False) as team:
            gone = _fetch(kb, team, arrived)
        return MovedRecords(0, 0, []) if gone is None else _take_in(kb, arrived, gone)


def _fetch(kb: Path, team: DuckDBPyConnection, arrived: Path) -> set[str] | None:
    """Writes the rows that the knowledge base lacks to the file `arrived`. Returns the sessions that the team has
    forgotten, or None if the knowledge base lacks no rows."""
    with reader(kb) as con:
        known = {name for (name,) in con.execute("SELECT hash FROM lake_file").fetchall()}
    new = sorted(_hashes(team) - known)
    if not new:
        return None
    names = ", ".join(f"'{name}'" for name in new)
    team.execute(f"COPY (FROM team.part WHERE hash IN ({names})) TO '{arrived}' (FORMAT parquet)")
    return {session for (session,) in team.execute("SELECT session FROM team.forgotten").fetchall()}


def _take_in(kb: Path, arrived: Path, gone: set[str]) -> MovedRecords:
    with writer(kb) as con:
        con.execute("BEGIN")
        con.execute(f"CREATE OR REPLACE TEMP TABLE arrived AS FROM read_parquet('{arrived}')")
        moved = lake.absorb(con, gone, {})
        con.execute("COMMIT")
    return moved


def _hashes(team: DuckDBPyConnection) -> set[str]:
    tables = {name for (name,) in team.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
    if "part" not in tables:
        return set()
    return {name for (name,) in team.execute("SELECT DISTINCT hash FROM team.part").fetchall()}


@contextlib.contextmanager
def _attached(catalog: str, data: Path | None, write: bool) -> Iterator[DuckDBPyConnection]:
    """A separate in-memory DuckDB connection, with the catalog attached as `team`."""
    with contextlib.closing(duckdb.connect(":memory:", config={"autoinstall_known_extensions": False})) as con:
        for extension in ("postgres_scanner", "ducklake"):
            _load(con, extension)
        options = []
        if data is not None:
            data.mkdir(parents=True, exist_ok=True)
            options.append(f"DATA_PATH '{_escaped(data.resolve())}/'")
        if not write:
            options.append("READ_ONLY")
        attach = f"ATTACH 'ducklake:postgres:{_escaped(catalog)}' AS team"
        try:
            con.execute(f"{attach} ({', '.join(options)})" if options else attach)
            yield con
        except duckdb.Error as error:
            cause = " ".join(str(error).split()).replace(catalog, _without_password(catalog))
            if "does not exist" in cause or "DATA_PATH" in cause.upper():
                cause += "; for the first push, pass the shared folder for data files with --data"
            raise AutoscoutError(f"the catalog {_without_password(catalog)} cannot be used ({cause})") from error


def _load(con: DuckDBPyConnection, extension: str) -> None:
    try:
        con.execute(f"LOAD {extension}")
        return
    except duckdb.Error:
        pass
    try:
        from duckdb_extensions import import_extension  # type: ignore[import-not-found]

        import_extension(extension, con=con)
        con.execute(f"LOAD {extension}")
    except Exception as error:
        raise AutoscoutError(
            f"a catalog in Postgres needs DuckDB's extension {extension}, which is not installed; run `{_INSTALL}`, "
            f"or share through a folder, which needs no extension"
        ) from error


def _escaped(value: object) -> str:
    return str(value).replace("'", "''")


def _without_password(catalog: str) -> str:
    catalog = re.sub(r"password=\S+", "password=…", catalog)
    before, at, after = catalog.rpartition("@")
    if not at:
        return catalog
    scheme, _, login = before.rpartition("//")
    return f"{scheme}//{login.split(':')[0]}@{after}"
