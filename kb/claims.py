"""Sources of measurements: the same measurement may come from a session, an import and a colleague's lake (a shared
folder, kb/sharing/lake.py).

Its row in `measurement` belongs to the first source in a fixed order (see `settle`), regardless of which arrived first;
the table `further_source` has the further sources. So the order of merging does not matter, and a measurement is only
removed with its last source. A session that reused the measurement of another session is not a source, but if the other
session is unknown, the measurement is stored from the journal of the session that reused it (hearsay) until a source
arrives."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_ALL = "SELECT id, origin, number, purpose FROM measurement UNION ALL FROM further_source"


def look_up(con: "DuckDBPyConnection") -> None:
    """Creates the temporary table `known` with all stored sources of the measurements in `arriving` (kb/rows.py)."""
    [(here,)] = con.execute(
        "CREATE OR REPLACE TEMP TABLE here AS SELECT id FROM measurement WHERE id IN (SELECT id FROM arriving)"
    ).fetchall()
    # `_ALL` scans many columns, so it is only queried if any of the ids are stored.
    con.execute(f"CREATE OR REPLACE TEMP TABLE known AS FROM ({_ALL}) WHERE {'id IN (FROM here)' if here else 'false'}")


def further(con: "DuckDBPyConnection") -> int:
    """Creates the temporary table `further` with sources in `arriving` that are neither in `known` nor in `fresh` (the
    rows that were just stored); returns their number."""
    [(found,)] = con.execute(
        """
        CREATE OR REPLACE TEMP TABLE further AS
        WITH source AS (
            SELECT k.id, o.session FROM known AS k INNER JOIN origin AS o ON o.key = k.origin
            WHERE k.purpose != 'answered'
            UNION ALL
            SELECT id, session FROM fresh WHERE purpose != 'answered'
        )

        SELECT place, id, session, job_id, context, environment, number, purpose FROM incoming
        WHERE place IN (
            SELECT min(a.place) FROM arriving AS a ANTI JOIN source AS s ON s.id = a.id AND s.session = a.session
            WHERE a.purpose != 'answered' GROUP BY a.id, a.session)
        """
    ).fetchall()
    return found


def add(con: "DuckDBPyConnection") -> None:
    """Adds the sources in the table `further`, whose rows of the table `origin` must be stored already."""
    con.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE claim AS
        FROM ({_ALL}) WHERE id IN (SELECT id FROM further)
        UNION ALL
        SELECT f.id, o.key, f.number, f.purpose
        FROM further AS f
        INNER JOIN (SELECT * FROM origin WHERE session IN (SELECT session FROM further)) AS o
            ON o.session = f.session AND o.job_id = f.job_id AND o.context = f.context
            AND o.environment::VARCHAR = f.environment
        """
    )
    settle(con)


def leave(con: "DuckDBPyConnection") -> tuple[int, int]:
    """Removes the sources in the temporary table `gone` (keys of origins) and measurements that have no other source.
    Returns the number of removed measurements, and of those that stay because they have other sources."""
    con.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE claim AS
        WITH every AS (FROM ({_ALL}))
        FROM every WHERE id IN (SELECT id FROM every WHERE origin IN (FROM gone)) AND origin NOT IN (FROM gone)
        """
    )
    lost = "origin IN (FROM gone) AND id NOT IN (SELECT id FROM claim)"
    con.execute(f"DELETE FROM series WHERE id IN (SELECT id FROM measurement WHERE {lost})")
    [counts] = con.execute(
        f"SELECT count(*), (SELECT count(DISTINCT id) FROM claim) FROM measurement WHERE {lost}"
    ).fetchall()
    con.execute(f"DELETE FROM measurement WHERE {lost}")
    con.execute("DELETE FROM further_source WHERE origin IN (FROM gone)")
    settle(con)
    return counts


def remove(con: "DuckDBPyConnection", sessions: list[str]) -> tuple[int, int]:
    """Removes all rows of some sessions, within the caller's transaction. Returns the number of removed measurements,
    and of those that stay because they have other sources."""
    s = {"s": sessions}
    con.execute("CREATE OR REPLACE TEMP TABLE gone AS SELECT key FROM origin WHERE session IN (FROM unnest($s))", s)
    counts = leave(con)
    con.execute("DELETE FROM origin WHERE key IN (FROM gone)")
    con.execute("DELETE FROM configuration WHERE key NOT IN (SELECT configuration FROM measurement)")
    con.execute("DELETE FROM decision WHERE session IN (FROM unnest($s))", s)
    con.execute("DELETE FROM session WHERE id IN (FROM unnest($s))", s)
    con.execute("DELETE FROM journal WHERE session IN (FROM unnest($s))", s)
    con.execute("DELETE FROM job WHERE id NOT IN (SELECT job_id FROM session UNION SELECT job_id FROM origin)")
    return counts


def settle(con: "DuckDBPyConnection") -> None:
    """Assigns the measurements in the temporary table `claim`, which lists all their sources, to their first source;
    the other sources become further sources. The order: our sources before those of other authors, sessions before
    imports, then by name. A copy from a session that only reused the measurement (hearsay) comes last, and is dropped
    if there is a source."""
    con.execute(
        """
        CREATE OR REPLACE TEMP TABLE settled AS
        SELECT *, row_number() OVER (PARTITION BY id ORDER BY hearsay, theirs, purpose = 'import', session) AS place
        FROM (
            SELECT
                c.*, o.session, c.purpose = 'answered' AS hearsay, o.session IN (SELECT session FROM author) AS theirs
            FROM claim AS c INNER JOIN origin AS o ON o.key = c.origin
            QUALIFY row_number() OVER (PARTITION BY c.id, o.session ORDER BY hearsay, c.origin) = 1
        ) AS s
        """
    )
    con.execute("DELETE FROM further_source WHERE id IN (SELECT id FROM settled)")
    con.execute(
        "INSERT INTO further_source SELECT id, origin, number, purpose FROM settled WHERE place > 1 AND NOT hearsay"
    )
    con.execute(
        """
        UPDATE measurement SET origin = s.origin, number = s.number, purpose = s.purpose
        FROM (FROM settled WHERE place = 1) AS s
        WHERE s.id = measurement.id AND (s.origin, s.purpose) != (measurement.origin, measurement.purpose)
        """
    )
