"""Output of the knowledge base's verbs: similar, import, kb."""

import time
from typing import Any

import click
import msgspec

from autoscout.importing.bring_in import Brought
from autoscout.importing.converting import Done
from autoscout.job.words import several
from autoscout.tuning.warm_start import Warm
from kb.care import CareFinding
from kb.forget import Forgotten
from kb.records import Job
from kb.sharing.author_trust import Author
from kb.sharing.lake import MovedRecords
from kb.similar import FAR, Number, SimilarJob
from tui.text import number, table

_LEFT = 40  # largest number of listed files that could not be imported
_DECIDED = {True: "accepted", False: "rejected", None: ""}


def say(document: Any, text: str, as_json: bool) -> None:
    click.echo(msgspec.json.encode(document).decode() if as_json else text)


def authors(found: list[Author], as_json: bool) -> None:
    rows = [(a.name, a.level, a.sessions, a.measurements, a.key[-12:] or "–") for a in found]
    header = ("author", "word", "sessions", "measurements", "key ends")
    text = table(rows, header) if rows else "no measurements from other authors"
    say({"authors": found}, text, as_json)


def similar_document(job: Job, found: list[SimilarJob], carried: Warm, decided: dict[str, bool]) -> dict[str, Any]:
    """The JSON document of `similar`. `decided`: job id → whether the user accepted it for warm starts."""
    documents = [
        {
            "job": a.job.name,
            "id": a.job.id,
            "decided": _DECIDED[decided.get(a.job.id)],
            "cluster": a.cluster,
            "distance": a.distance,
            "measurements": a.measurements,
            "ok": a.ok,
            "sessions": a.sessions,
            "features": a.features,
        }
        for a in found
    ]
    favourites = [{"name": f.name, "job": f.job, "theirs": f.theirs} for f in carried.favourites]
    taken = {"sources": carried.started.sources, "favourites": favourites, "notes": carried.started.notes}
    return {"job": job.name, "similar": documents, "carried": taken}


def similar(job: Job, found: list[SimilarJob], carried: Warm, decided: dict[str, bool], as_json: bool) -> None:
    if as_json:
        say(similar_document(job, found, carried, decided), "", True)
        return
    if not found:
        click.echo("no similar job has been measured yet")
        return
    click.echo(f"past jobs like {job.name}, nearest first\n")
    rows = [
        (a.job.name, a.cluster, f"{a.distance:.2f}", a.measurements, a.measurements - a.ok, _decision(a, decided))
        for a in found
    ]
    click.echo(table(rows, ["job", "cluster", "distance", "measurements", "failed", "hands over"]))
    for a in found:
        if a.features:
            click.echo(f"\n{a.job.name} on {a.cluster} differs by")
            parts = [(f.name, _shown(f.here), _shown(f.there), f"+{f.distance:.2f}", f.why) for f in a.features]
            click.echo(table(parts, ["feature", "here", "there", "distance", "because"]))
        else:
            same = (a.job.launch.command, a.job.launch.current) == (job.launch.command, job.launch.current)
            click.echo(f"\n{a.job.name} on {a.cluster} is this job{'' if same else ' with a different command'}")
    if carried.favourites:
        click.echo("\na new session would take over\n")
        for s in carried.started.sources:
            click.echo(
                f"  {s.job} on {s.cluster}: {several(s.rows, 'measured configuration')}, "
                f"{several(s.failures, 'failure')}, {several(s.orderings, 'ordering')}"
            )
        click.echo()
        click.echo(
            table([(f.name, f.job, f.theirs) for f in carried.favourites], ["first to try here", "from", "there"])
        )
    for text in carried.started.notes:
        click.echo(f"  {text}")


def _decision(a: SimilarJob, decided: dict[str, bool]) -> str:
    chosen = decided.get(a.job.id)
    if chosen is None:
        return "yes, it is near" if a.distance < FAR else "no, it is too far away"
    return "yes, accepted" if chosen else "no, rejected"


def brought_document(found: Brought, folder: bool) -> Any:
    return {"imports": found.imports, "left": found.left} if folder else found.imports[0]


def brought(found: Brought, folder: bool, dry_run: bool, as_json: bool) -> None:
    if as_json:
        say(brought_document(found, folder), "", True)
        return
    for done in found.imports:
        _imported(done, dry_run)
    if found.left:
        click.echo(f"{several(len(found.left), 'file')} not imported:")
        for bad in found.left[:_LEFT]:
            click.echo(f"    {bad.where}: {bad.reason}" if bad.where else f"    {bad.reason}")
        if len(found.left) > _LEFT:
            click.echo(f"    … and {len(found.left) - _LEFT} more")


def _imported(done: Done, dry_run: bool) -> None:
    verb = "would be imported" if dry_run else "imported"
    click.echo(f"{done.good} of {done.rows} rows {verb} by the reader {done.reader} as {done.id}")
    if not dry_run:
        click.echo(f"  new: {done.new}, known already: {done.known}; undo: autoscout kb forget --import {done.id}")
    click.echo(f"  valid configurations of the job: {done.valid}; the other rows are only used as hints")
    for name, meaning in done.columns.items():
        click.echo(f"  {name} → {meaning}")
    for text in done.notes:
        click.echo(f"  {text}")
    for row in done.shown if dry_run else []:
        values = ", ".join(f"{name} {number(value)}" for name, value in row.metrics.items())
        ended = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.at)) if row.at else "no date"
        cost = f"{number(row.cost_s)} s" if row.cost_s else "no cost"
        said = f" ({row.evidence})" if row.evidence else ""
        click.echo(f"    {row.where}: {row.name}, {row.status}{said}, {ended}, {cost}; {values or 'no metric'}")
    if dry_run and done.good > len(done.shown):
        click.echo(f"    … and {done.good - len(done.shown)} more")
    if done.bad:
        lost = done.rows - done.good
        click.echo(f"  {several(lost, 'row')} {'was' if lost == 1 else 'were'} not imported:")
        for row in done.bad:
            click.echo(f"    {row.where}: {row.reason}")
        if done.rows - done.good > len(done.bad):
            click.echo(f"    … and {done.rows - done.good - len(done.bad)} more")


def info(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        say(found, "", True)
        return
    newest = found["newest_unix_s"]
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(newest)) if newest else "–"
    statuses = ", ".join(f"{n} {status}" for status, n in found["statuses"].items()) or "none"
    click.echo(f"{found['path']}: {found['bytes'] / 2**20:.1f} MiB, schema {found['schema']}, DuckDB {found['duckdb']}")
    of = several(found["configurations"], "configuration")
    click.echo(f"  {several(found['measurements'], 'measurement')} ({statuses}) of {of}")
    sessions, decisions = several(found["sessions"], "session"), several(found["decisions"], "decision")
    click.echo(f"  {several(found['jobs'], 'job')}, {sessions} and imports, {decisions}")
    click.echo(f"  newest measurement: {when}; forgotten sessions: {found['forgotten']}")
    if found["network_filesystem"]:
        click.echo(
            f"  warning: this file is on {found['network_filesystem']}, where file locks may not hold; keep it on a "
            f"local disk and share measurements with `autoscout kb push`"
        )


def findings(found: list[CareFinding], as_json: bool) -> None:
    if as_json:
        say(found, "", True)
        return
    for finding in found:
        click.echo(f"{'✓' if finding.ok else '✗'} {finding.subject}: {finding.found}")


def moved(done: MovedRecords, what: str, lake: str, as_json: bool) -> None:
    for text in done.passed_over:
        click.echo(f"autoscout: {text}", err=True)
    document = {"sessions": done.sessions, "measurements": done.measurements, "passed_over": done.passed_over}
    say(document, f"{done.sessions} sessions with {done.measurements} measurements {what} {lake}", as_json)


def forgotten(done: Forgotten, as_json: bool) -> None:
    if as_json:
        say(done, "", True)
        return
    click.echo(f"{', '.join(done.sessions)}: {several(done.measurements, 'measurement')} removed")
    for path in done.files:
        click.echo(f"  removed {path}")
    for text in done.left:
        click.echo(f"  note: {text}")


def _shown(value: Number) -> str:
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if float(value).is_integer() else number(value)
