"""The evidence of a recommendation: measurements (by whom, on which machine, when), and simulators that contributed."""

from pathlib import Path

import msgspec

from kb import journal as journals
from kb import rows, seals, store
from kb.connect import reader
from kb.journal import PROPOSED, Decided


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement, from a session or an import, of the recommended configuration or of one that it was compared
    with."""

    configuration: str
    measurement: str  # id of the measurement
    value: float | None  # of the objective's metric
    status: str
    purpose: str
    session: str
    author: str  # who signed it in a lake (kb/sharing/author_trust.py); "" for our own measurements
    word: str  # trust in the author: answer, hint or ignore; "" for our own measurements
    host: str
    devices: str
    at: float


class Simulator(msgspec.Struct, frozen=True, kw_only=True):
    """A simulator that was used in a session behind the recommendation, and its error in that session."""

    name: str
    session: str
    checks: int
    mape: float | None


class ProposedBy(msgspec.Struct, frozen=True, kw_only=True):
    """A measured configuration that a user or an agent proposed, with the proposer's reason."""

    configuration: str
    session: str
    words: str


class Lineage(msgspec.Struct, frozen=True, kw_only=True):
    measurements: list[Source]
    simulators: list[Simulator]
    proposed: list[ProposedBy] = []
    journals: dict[str, str] = {}  # session → why its journal may have been changed


def lineage(kb: Path, job_id: str, context: str, metric: str, configurations: list[str]) -> Lineage:
    """The evidence for `configurations` (ids), sorted by name and time, without authors whom the user ignores."""
    value = f"m.{metric}" if metric in rows.METRICS else "try_cast(m.other_metrics ->> $metric AS DOUBLE)"
    parameters = {"job": job_id, "context": context, "configurations": configurations}
    with reader(kb) as con:
        found = con.execute(
            f"""
            WITH held AS (
                SELECT id, origin, purpose FROM measurement
                UNION ALL
                SELECT id, origin, purpose FROM further_source
            )

            SELECT
                c.name, format('{{:016x}}', m.id), {value}, m.status, h.purpose, o.session, coalesce(a.author, ''),
                coalesce(a.level, ''), coalesce(s.host, ''), coalesce(s.cluster, ''), m.unix_s
            FROM measurement AS m
            INNER JOIN configuration AS c ON c.key = m.configuration
            INNER JOIN held AS h ON h.id = m.id
            INNER JOIN origin AS o ON o.key = h.origin
            LEFT JOIN session AS s ON s.id = o.session
            LEFT JOIN authors AS a ON a.session = o.session
            WHERE
                o.job_id = $job AND o.context = $context AND c.id IN (FROM unnest($configurations))
                AND m.fidelity = 'measured' AND m.status != 'infrastructure' AND coalesce(a.level, '') != 'ignore'
            ORDER BY c.name, m.unix_s, o.session
            """,
            parameters if metric in rows.METRICS else {**parameters, "metric": metric},
        ).fetchall()
        names = tuple(field.name for field in msgspec.structs.fields(Source))
        measurements = [Source(**dict(zip(names, row, strict=True))) for row in found]
        simulators = con.execute(
            "SELECT simulator, session, checks, mape FROM simulator_accuracy "
            "WHERE session IN (FROM unnest($s)) ORDER BY session, simulator",
            {"s": sorted({m.session for m in measurements})},
        ).fetchall()
        known = store.lines_known(con, kb)
    sessions = sorted({m.session for m in measurements})
    return Lineage(
        journals=_journals(kb, sessions, known),
        proposed=_proposed(kb, sessions, configurations),
        measurements=measurements,
        simulators=[Simulator(name=n, session=s, checks=c, mape=e) for n, s, c, e in simulators],
    )


def _journals(kb: Path, sessions: list[str], known: dict[str, int]) -> dict[str, str]:
    paths = {name: store.session_folder(kb, name) / "journal.jsonl" for name in sessions}
    found = {name: seals.check(path, known.get(name, 0)).sentence for name, path in paths.items() if path.is_file()}
    return {name: value for name, value in found.items() if value}


def _proposed(kb: Path, sessions: list[str], configurations: list[str]) -> list[ProposedBy]:
    """Those of the `configurations` (ids) that users proposed, and their reasons."""
    found = []
    for session in sessions:
        path = store.session_folder(kb, session) / "journal.jsonl"
        for event in journals.events(path, plain=True) if path.is_file() else []:
            if isinstance(event, Decided) and event.arm == PROPOSED:
                asked = zip(event.configurations, event.names, strict=True)
                found += [
                    ProposedBy(configuration=name, session=session, words=event.why)
                    for configuration, name in asked
                    if configuration.id in configurations
                ]
    return found


def device_hours(kb: Path, session: str) -> tuple[float, float]:
    """Device-hours that a session spent, and that it saved because the knowledge base replaced experiments."""
    with reader(kb) as con:
        row = con.execute("SELECT spent, saved FROM device_hours WHERE session = ?", [session]).fetchone()
    return row or (0.0, 0.0)
