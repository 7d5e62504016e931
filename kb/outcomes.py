"""Summaries of a job's measurements, one per configuration, for warm starts."""

from pathlib import Path
from typing import Any

import msgspec

from kb import rows
from kb.connect import reader
from kb.records import Status, Value


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of all measurements of one configuration, except infrastructure failures. `status`: "wrong" if any run
    was wrong, else "ok" if any run was ok, else the status of the last failure; `metrics`: medians over the ok runs."""

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
    most: int = 2000,
    maximize: bool = False,
    hints: bool = False,
) -> list[Outcome]:
    """The outcomes of a job, in order of their first measurement. None means no filter; `up_to`: only rows up to this
    mark (store.mark); `hints`: only measurements of authors with the trust level "hint", instead of our own and those
    of authors with the level "answer" (sharing/author_trust.py).

    If there are more than `most` configurations, half of the result are those best in the first of `metrics`, and half
    are chosen by hash, so that repeated calls return the same ones.
    """
    columns = [name if name in rows.METRICS else _other_metric(name) for name in metrics]
    medians = "".join(f", median({column}) FILTER (WHERE m.status = 'ok') AS m{i}" for i, column in enumerate(columns))
    rank = ("-m0" if maximize else "m0") if metrics else "first"
    with reader(kb) as con:
        found = con.execute(
            f"""
            WITH chosen AS (
                SELECT key, context FROM origin
                WHERE (session IN (SELECT session FROM authors WHERE level = 'hint')) = $hints
                AND session NOT IN (SELECT session FROM authors WHERE level = 'ignore')
                AND job_id = $job AND ($contexts IS NULL OR list_contains($contexts::VARCHAR[], context))
                AND ($sessions IS NULL OR list_contains($sessions::VARCHAR[], session))
            ),

            -- Origins that may own rows which a chosen origin has, too: they share the measurement's context.
            other AS (
                SELECT key FROM origin
                WHERE context IN (SELECT context FROM chosen) AND key NOT IN (SELECT key FROM chosen)
            ),

            row AS (
                FROM measurement WHERE origin IN (SELECT key FROM chosen)
                UNION ALL
                FROM measurement
                WHERE
                    origin IN (FROM other)
                    AND id IN (SELECT id FROM further_source WHERE origin IN (SELECT key FROM chosen))
            ),

            done AS (
                SELECT
                    m.configuration, bool_or(m.status = 'wrong') AS wrong, bool_or(m.status = 'ok') AS ok,
                    arg_max(m.status, m.added) AS last, arg_max(m.evidence, m.added) AS evidence,
                    count(*) AS runs, min(m.added) AS first {medians}
                FROM row AS m
                WHERE
                    m.fidelity = 'measured' AND m.status != 'infrastructure'
                    AND ($up_to IS NULL OR m.added <= $up_to)
                GROUP BY m.configuration
            )

            SELECT
                c.name, c.knobs, if(d.wrong, 'wrong', if(d.ok, 'ok', d.last)), d.evidence, d.runs,
                {", ".join(f"d.m{i}" for i in range(len(metrics))) or "NULL"}
            FROM (
                FROM done
                QUALIFY
                    row_number() OVER (ORDER BY {rank} NULLS LAST, first) <= $most // 2
                    OR row_number() OVER (ORDER BY hash(configuration)) <= $most // 2
                    OR count(*) OVER () <= $most
            ) AS d
            INNER JOIN configuration AS c ON c.key = d.configuration
            ORDER BY d.first
            """,
            {"job": job_id, "contexts": contexts, "sessions": sessions, "up_to": up_to, "most": most, "hints": hints},
        ).fetchall()
    return [_outcome(metrics, row) for row in found]


def _outcome(metrics: list[str], row: tuple[Any, ...]) -> Outcome:
    name, knobs, status, evidence, runs, *values = row
    known = {metric: x for metric, x in zip(metrics, values, strict=False) if x is not None} if status == "ok" else {}
    return Outcome(
        name=name, knobs=msgspec.json.decode(knobs), status=status, metrics=known, evidence=evidence, runs=runs
    )


def _other_metric(metric: str) -> str:
    name = metric.replace("'", "''")
    return f"try_cast(m.other_metrics ->> '{name}' AS DOUBLE)"
