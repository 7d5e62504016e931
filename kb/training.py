"""What is known of a job's configurations, one row each: what simulators learn from and a new job starts with."""

from pathlib import Path
from typing import Any

import msgspec

from kb import rows
from kb.connect import reader
from kb.records import Status, Value


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """All measurements of one configuration. `status`: wrong if one run was, else ok if one run was, else that of the
    last failure. `metrics`: medians over the runs that were ok."""

    name: str
    knobs: dict[str, Value]
    status: Status
    metrics: dict[str, float]
    evidence: str
    runs: int


def outcomes(
    kb: Path,
    job_id: str,
    metrics: list[str],
    *,
    contexts: list[str] | None = None,
    sessions: list[str] | None = None,
    up_to: int | None = None,
) -> list[Outcome]:
    """In the order in which they were first measured; None does not filter. `up_to`: a mark (store.mark)."""
    columns = [name if name in rows.METRICS else _other(name) for name in metrics]
    medians = "".join(f", median({column}) FILTER (WHERE m.status = 'ok') AS m{i}" for i, column in enumerate(columns))
    with reader(kb) as con:
        found = con.execute(
            f"""
            WITH done AS (
                SELECT
                    m.configuration, bool_or(m.status = 'wrong') AS wrong, bool_or(m.status = 'ok') AS ok,
                    arg_max(m.status, m.added) AS last, arg_max(m.evidence, m.added) AS evidence,
                    count(*) AS runs, min(m.added) AS first {medians}
                FROM measurement AS m
                WHERE
                    m.origin IN (
                        SELECT key FROM origin
                        WHERE job_id = $job AND ($contexts IS NULL OR context IN (FROM unnest($contexts)))
                        AND ($sessions IS NULL OR session IN (FROM unnest($sessions)))
                    )
                    AND m.fidelity = 'profiled' AND ($up_to IS NULL OR m.added <= $up_to)
                GROUP BY m.configuration
            )

            SELECT
                c.name, c.knobs, if(d.wrong, 'wrong', if(d.ok, 'ok', d.last)), d.evidence, d.runs,
                {", ".join(f"d.m{i}" for i in range(len(metrics))) or "NULL"}
            FROM done AS d INNER JOIN configuration AS c ON c.key = d.configuration
            ORDER BY d.first
            """,
            {"job": job_id, "contexts": contexts, "sessions": sessions, "up_to": up_to},
        ).fetchall()
    return [_outcome(metrics, row) for row in found]


def _outcome(metrics: list[str], row: tuple[Any, ...]) -> Outcome:
    name, knobs, status, evidence, runs, *values = row
    known = {metric: x for metric, x in zip(metrics, values, strict=False) if x is not None} if status == "ok" else {}
    return Outcome(
        name=name, knobs=msgspec.json.decode(knobs), status=status, metrics=known, evidence=evidence, runs=runs
    )


def _other(metric: str) -> str:
    name = metric.replace("'", "''")
    return f"try_cast(m.other_metrics ->> '{name}' AS DOUBLE)"
