"""Keeps the answers to what most questions are about up to date: `results`, `best` and `knob_effects` are looked up,
not computed from all rows (migrations/0007_kept_up.sql).

Imports, lakes, forgetting and trust bring them up to date in the same breath. A session's ingest, which comes every few
seconds, only says that something changed; who asks next pays for its few rows. Whatever it was, the jobs concerned are
found by what their results rest on: how many rows of whom, the newest of them, and what their sessions judge by.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_AT_ONCE = 20  # jobs; all of ten million rows together need 2 GiB
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
_ANEW = (
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
    """Brings what is kept to what the rows of the knowledge base, open for writing as `con`, say; the jobs (their ids)
    that had changed."""
    changed = dict(con.execute(_CHANGED).fetchall())
    if not changed:
        return []
    jobs = list(changed)
    for part in (jobs[i : i + _AT_ONCE] for i in range(0, len(jobs), _AT_ONCE)):
        con.execute("BEGIN")
        try:
            for sql in _ANEW:
                con.execute(sql, {"jobs": part} if "$jobs" in sql else None)
            now = [(job, changed[job]) for job in part if changed[job] is not None]
            if now:
                con.executemany("INSERT INTO kept VALUES (?, ?)", now)
            con.execute("COMMIT")
        except BaseException:
            con.execute("ROLLBACK")
            raise
    return jobs


def begun(con: "DuckDBPyConnection") -> None:
    """Says in the file that rows may change from now on, until `refresh` has been there."""
    con.execute("INSERT INTO kept SELECT '', 0 WHERE NOT EXISTS (FROM kept WHERE job_id = '')")


def behind(con: "DuckDBPyConnection") -> bool:
    """Whether rows may have changed since what is kept was brought up to date."""
    return con.execute("SELECT 1 FROM kept WHERE job_id = ''").fetchone() is not None
