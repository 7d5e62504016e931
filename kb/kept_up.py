"""Precomputes the views `results`, `best` and `knob_effects`, which most queries use, so that queries need not scan
all rows (migrations/0007_kept_up.sql).

Most changes of the knowledge base refresh them at once. A session's ingest, which happens every few seconds, only marks
them as stale, and the next query refreshes them (in temporary tables if it may not write the file). A job is only
recomputed if its state has changed: the number of rows per origin, the newest row, or the objectives of its
sessions."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_STALE = ""  # a row of the table `kept` with this value as job_id means that measurements may have changed
_UNMARK = f"DELETE FROM kept WHERE job_id = '{_STALE}'"
_TABLES = ("kept", "aim", "kept_result", "kept_effect")
_VIEWS = ("results", "best", "knob_effects")
_JOBS_PER_TRANSACTION = 20  # because recomputing ten million rows in one transaction needs 2 GiB of memory
_CHANGED = """
WITH part AS (
    SELECT origin, count(*) AS n, max(added) AS newest FROM measurement GROUP BY origin
),

rows AS (
    SELECT o.job_id, bit_xor(hash(o.key, o.context, s.cluster, p.n, p.newest)) AS state
    FROM part AS p
    INNER JOIN origin AS o ON o.key = p.origin
    INNER JOIN session AS s ON s.id = o.session
    WHERE o.session NOT IN (SELECT session FROM authors WHERE level != 'answer')
    GROUP BY o.job_id
),

judged AS (
    SELECT job_id, bit_xor(hash(job, cluster, goal, metric, constraints, limits)) AS state
    FROM objectives GROUP BY job_id
),

now AS (
    SELECT r.job_id, hash(r.state, j.state) AS state
    FROM rows AS r
    INNER JOIN judged AS j ON j.job_id = r.job_id
)

SELECT coalesce(n.job_id, k.job_id), n.state
FROM now AS n
FULL JOIN kept AS k ON k.job_id = n.job_id
WHERE n.state IS DISTINCT FROM k.state
"""
_SAME = " AND ".join(
    f"a.{name} IS NOT DISTINCT FROM f.{name}"
    for name in ("job", "job_id", "context", "cluster", "goal", "metric", "constraints", "limits")
)
_RECOMPUTE = (
    "DELETE FROM kept WHERE list_contains($jobs, job_id)",
    "DELETE FROM kept_result WHERE aim IN (SELECT key FROM aim WHERE list_contains($jobs, job_id))",
    "DELETE FROM kept_effect WHERE aim IN (SELECT key FROM aim WHERE list_contains($jobs, job_id))",
    "DELETE FROM aim WHERE list_contains($jobs, job_id)",
    "CREATE TEMP TABLE results_now AS FROM results_anew WHERE list_contains($jobs, job_id)",
    """
    INSERT INTO aim BY NAME
    SELECT (SELECT coalesce(max(key), 0) FROM aim) + row_number() OVER () AS key, *
    FROM (SELECT DISTINCT job, job_id, context, cluster, goal, metric, constraints, limits FROM results_now)
    """,
    f"""
    INSERT INTO kept_result
    SELECT a.key, c.key, f.value, f.lowest, f.highest, f.measurements, f.failed, f.wrong
    FROM results_now AS f
    INNER JOIN aim AS a ON {_SAME}
    INNER JOIN configuration AS c ON c.id = f.configuration_id AND c.name = f.name
    ORDER BY a.key
    """,
    f"""
    UPDATE aim SET best = b.key
    FROM (
        SELECT a.key AS aim, arg_min(c.key, (if(f.goal = 'minimize', f.value, -f.value), c.id)) AS key
        FROM results_now AS f
        INNER JOIN aim AS a ON {_SAME}
        INNER JOIN configuration AS c ON c.id = f.configuration_id AND c.name = f.name
        WHERE f.value IS NOT NULL
        GROUP BY a.key
    ) AS b
    WHERE b.aim = aim.key
    """,
    f"""
    INSERT INTO kept_effect
    WITH entry AS (
        SELECT
            a.key AS aim, f.goal, f.value AS measured, f.failed,
            unnest(map_entries(f.configuration::MAP(VARCHAR, VARCHAR))) AS knob
        FROM results_now AS f
        INNER JOIN aim AS a ON {_SAME}
    )
    SELECT
        aim, knob.key, knob.value, count(*), count(*) FILTER (WHERE measured IS NULL AND failed > 0),
        if(goal = 'minimize', min(measured), max(measured)), median(measured)
    FROM entry
    GROUP BY aim, goal, knob.key, knob.value
    """,
    "DROP TABLE results_now",
)


def refresh(con: "DuckDBPyConnection") -> list[str]:
    """Recomputes the results of all jobs whose rows have changed, and returns their ids. `con`: open for writing."""
    changed = dict(con.execute(_CHANGED).fetchall())
    if not set(changed) - {_STALE}:  # no row has changed
        con.execute(_UNMARK)
        return []
    jobs = list(changed)
    for part in (jobs[i : i + _JOBS_PER_TRANSACTION] for i in range(0, len(jobs), _JOBS_PER_TRANSACTION)):
        con.execute("BEGIN")
        try:
            for sql in _RECOMPUTE:
                con.execute(sql, {"jobs": part} if "$jobs" in sql else None)
            now = [(job, changed[job]) for job in part if changed[job] is not None]
            if now:
                con.executemany("INSERT INTO kept VALUES (?, ?)", now)
            con.execute("COMMIT")
        except BaseException:
            con.execute("ROLLBACK")
            raise
    return jobs


def refresh_temporary(con: "DuckDBPyConnection") -> None:
    """Like `refresh`, but in temporary tables of this connection, which hide the file's tables of the same names, for a
    file that cannot be written."""
    for table in _TABLES:
        con.execute(f"CREATE TEMP TABLE {table} AS FROM main.{table}")
    refresh(con)
    views = con.execute("SELECT sql FROM duckdb_views() WHERE list_contains($1, view_name)", [_VIEWS]).fetchall()
    for (sql,) in views:
        con.execute(sql.replace("CREATE VIEW", "CREATE TEMP VIEW", 1))


def begun(con: "DuckDBPyConnection") -> None:
    """Marks the precomputed results as stale, until `refresh` has run."""
    con.execute("INSERT INTO kept SELECT $1, 0 WHERE NOT EXISTS (FROM kept WHERE job_id = $1)", [_STALE])


def behind(con: "DuckDBPyConnection") -> bool:
    return con.execute("SELECT 1 FROM kept WHERE job_id = $1", [_STALE]).fetchone() is not None
