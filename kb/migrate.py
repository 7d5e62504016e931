"""Updates a knowledge base to this version's schema with numbered SQL files, each of which is applied once, in order.

There are no downgrades. Before an older knowledge base is changed, a full copy is written next to it.
"""

import contextlib
import hashlib
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kb import access
from kb.records import AutoscoutError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# The version of DuckDB's file format, so that newer releases of DuckDB write files that DuckDB 1.5 can read.
STORAGE = "v1.5.0"

_TABLE = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    version INTEGER PRIMARY KEY,
    name VARCHAR NOT NULL,
    sha256 VARCHAR NOT NULL,
    duckdb_version VARCHAR NOT NULL,
    applied_at TIMESTAMP NOT NULL
)
"""


class Migration(NamedTuple):
    version: int
    name: str  # the file's name
    sql: str
    sha256: str


@cache
def known() -> tuple[Migration, ...]:
    here = Path(__file__).parent
    installed = here / "migrations"
    return load(installed if installed.is_dir() else here.parent / "migrations")


def load(folder: Path) -> tuple[Migration, ...]:
    """Reads NNNN_name.sql files. Errors: AutoscoutError unless they are numbered 1, 2, 3 …"""
    found: list[Migration] = []
    for path in sorted(folder.glob("[0-9][0-9][0-9][0-9]_*.sql")):
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        found.append(Migration(int(path.name[:4]), path.name, content.decode(), digest))
    if [each.version for each in found] != list(range(1, len(found) + 1)) or not found:
        names = ", ".join(each.name for each in found) or "none"
        raise AutoscoutError(
            f"{folder}: migrations must be numbered 0001, 0002, … without gaps, found {names}; reinstall AutoScout"
        )
    return tuple(found)


def pending(con: "DuckDBPyConnection", kb: Path, migrations: tuple[Migration, ...]) -> tuple[Migration, ...]:
    """The `migrations` that have not been applied to `kb`, which is open as `con`. Errors: AutoscoutError if the file
    is newer than `migrations`, was made with different ones, or is not a knowledge base.
    """
    import duckdb

    try:
        applied = con.execute("SELECT version, name, sha256 FROM schema_migrations ORDER BY version").fetchall()
    except duckdb.CatalogException as error:
        tables = {name for (name,) in con.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
        if tables:
            raise AutoscoutError(
                f"{kb} is a DuckDB file but not a knowledge base (it has the table {min(tables)}); "
                f"choose another file with --kb",
                2,
            ) from error
        return migrations
    newest = applied[-1][0] if applied else 0
    if newest > len(migrations):
        raise AutoscoutError(
            f"the knowledge base {kb} has schema {newest}, but this AutoScout only knows schemas up to "
            f"{len(migrations)}; upgrade AutoScout, or choose another file with --kb"
        )
    for ours, (version, name, sha256) in zip(migrations, applied, strict=False):
        if ours.version != version or ours.sha256 != sha256:
            raise AutoscoutError(
                f"the knowledge base {kb} was created with the migration {name}, which differs from this AutoScout's "
                f"{ours.name}; use the AutoScout that created it, or choose another file with --kb"
            )
    return migrations[len(applied) :]


def apply(con: "DuckDBPyConnection", kb: Path, migrations: tuple[Migration, ...]) -> None:
    """Applies pending migrations to `kb`, which is open for writing as `con`, each in its own transaction. Errors:
    those of `pending`; duckdb.Error if a migration fails, which is then rolled back.
    """
    import duckdb

    todo = pending(con, kb, migrations)
    if not todo:
        return
    if todo[0].version > 1:
        back_up(con, kb.with_name(f"{kb.name}.bak-{todo[0].version - 1}"))
    for migration in todo:
        con.execute("BEGIN")
        try:
            con.execute(_TABLE)
            con.execute(migration.sql)
            con.execute(
                "INSERT INTO schema_migrations "
                "VALUES (?, ?, ?, version(), make_timestamp(epoch_us(current_timestamp)))",
                [migration.version, migration.name, migration.sha256],
            )
            con.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(duckdb.Error):  # after a failed commit there is no transaction to roll back
                con.execute("ROLLBACK")
            raise


def back_up(con: "DuckDBPyConnection", copy: Path) -> None:
    """Writes a compact copy of the knowledge base that is open as `con` to the file `copy`, replacing it."""
    unfinished = copy.with_name(copy.name + ".new")
    unfinished.unlink(missing_ok=True)
    [(here,)] = con.execute("SELECT current_database()").fetchall()
    # The file is not copied directly, because closing it after reading would release DuckDB's own lock on it.
    con.execute(f"ATTACH {_text(str(unfinished))} AS backup (STORAGE_VERSION '{STORAGE}', READ_WRITE)")
    try:
        con.execute(f"COPY FROM DATABASE {_name(here)} TO backup")
    finally:
        con.execute("DETACH backup")
    [(path,)] = con.execute("SELECT path FROM duckdb_databases() WHERE database_name = ?", [here]).fetchall()
    access.like(unfinished, Path(path))
    os.replace(unfinished, copy)


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _name(value: str) -> str:
    return '"' + value.replace('"', '""') + '"'
