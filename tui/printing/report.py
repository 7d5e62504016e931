"""The final output of `tune`, `profile`, `best` and `sessions`, as text or as one JSON document."""

import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from autoscout.deploy.recommendation import MeasuredConfiguration, Recommendation, best_of_session
from autoscout.job.words import PLAIN, several
from autoscout.running import ranks
from autoscout.running.cluster.devices import in_words
from autoscout.targets.jobs import JobSpace
from autoscout.targets.target import reference_of, target_of
from kb.lineage import Lineage, device_hours
from kb.records import DESIGNED, Job, Measurement
from tui.options import given_kb
from tui.printing.document import document
from tui.session.headlines import proven, shown
from tui.text import knob_value, number, pastable, program, table

if TYPE_CHECKING:
    from autoscout.tuning.loop import Result


def dry_run(job: Job, as_json: bool) -> None:
    from autoscout.tuning.fitting import does_not_fit

    space = JobSpace.of_job(job)
    default, problem = space.reference, does_not_fit(space)
    command, notes = target_of(job).probe_line(job, default, Path("experiment.json")), target_of(job).notes_on_job(job)
    if as_json:
        document(
            {
                "job": job.name,
                "configurations": space.count,
                "structures": space.structure_count,
                "default": default.knobs,
                "recipes": [c.knobs for c in space.recipes],
                "launch": command,
                "profiles": job.budget.profiles,
                "problem": problem,
                "notes": notes,
            }
        )
        return
    valid, structures = several(space.count, "valid configuration"), several(space.structure_count, "structure")
    click.echo(f"{job.name}: {valid} in {structures}")
    click.echo(f"first experiment, {reference_of(job)}: {space.name(default)}")
    for recipe in space.recipes[1:]:
        click.echo(f"then an expert recipe: {space.name(recipe)}")
    if problem:
        click.echo(f"✗ {problem}")
    for note in notes:
        click.echo(f"– {note}")
    where = " on each node (HEAD is the first node's address, NODE is 0, 1, …)" if "$HEAD" in command else ""
    lines = command.splitlines()
    begun = "launched as: " if len(lines) == 1 and not where else f"launched{where} as:\n  "
    click.echo(begun + "\n  ".join(lines))
    limits = [job.budget.wall, f"{job.budget.device_time} of device time" if job.budget.device_time else ""]
    click.echo(", ".join([f"budget: {job.budget.profiles} experiments", *filter(None, limits)]))


def tuned(kb: Path, result: "Result", as_json: bool) -> None:
    found = best_of_session(kb, result.session)
    if as_json:
        document({**msgspec.to_builtins(found), "session": msgspec.to_builtins(result)})
        return
    click.echo("")
    best(found, None, False)
    designed = DESIGNED in found.environment.values()
    again = "" if designed else ", re-measurements included"
    spent, saved = device_hours(kb, result.session)
    known = f", {saved:.3g} saved by known results" if saved else ""
    click.echo(
        f"  {result.experiments} experiments{again}; {spent:.3g} device-hours{known}; the engine itself took "
        f"{result.engine_ms_mean:.1f} ms a step (at most {result.engine_ms_max:.1f})"
    )


def best_document(found: Recommendation, rests: Lineage | None) -> dict[str, Any]:
    return msgspec.to_builtins(found) | ({} if rests is None else {"lineage": msgspec.to_builtins(rests)})


def best(found: Recommendation, rests: Lineage | None, as_json: bool) -> None:
    """Prints the headline, the changed knobs, the next commands, then details. `rests`: the evidence, if requested."""
    if as_json:
        document(best_document(found, rests))
        return
    designed = DESIGNED in found.environment.values()
    click.echo(f"{found.job}: {found.headline}")
    if found.disturbed:
        click.echo(f"– {found.disturbed}")
    click.echo("")
    changes = found.changes if found.present is None else found.present.changes
    if changes:
        now = found.reference.removeprefix("your ").removeprefix("the ") if found.present is None else "present launch"
        rows = [(c.knob, knob_value(c.default), knob_value(c.best), c.meaning) for c in changes]
        click.echo(table(rows, ("knob", now, "best", "what it does")))
        click.echo("")
    session = f"{found.sessions[-1]}{given_kb()}"
    if not designed:  # a design, whose costs come from models only, cannot be launched
        click.echo(f"launch it:     {program()} export {session}")
    if found.open and found.changes:
        click.echo(f"decide it:     {program()} gate {session}")
    click.echo(f"all about it:  {program()} watch {session}")
    click.echo("")
    click.echo(f"details of the best {'design' if designed else 'measured configuration'}, {found.best.name or PLAIN}:")
    for line in _details(found, designed):
        click.echo("\n".join(f"  {each}" for each in line.splitlines()))
    if rests is not None:
        _rests_on(rests)


def _details(found: Recommendation, designed: bool) -> Iterator[str]:
    yield _standings(found, found.metric)
    if (present := found.present) is not None:
        turns = "" if present.in_turns else ", not in turns with the best"
        runs = several(present.measured.measurements, "run")
        yield f"Your present launch cost {present.ratio:.2f}× as much as the best ({runs}{turns})."
    yield found.evidence
    if found.checkpoint:
        yield found.checkpoint
    if found.worst is not None and found.worst.name != found.best.name:
        worst, value = found.worst, found.best.value
        factor = worst.value / value if worst.value > value else value / worst.value
        if factor >= 1.05:  # smaller factors would be printed as "1.0× worse"
            yield f"An unlucky choice would have been {factor:.1f}× worse: {worst.name} ({number(worst.value)})"
    yield ("" if designed else "measured on ") + in_words(found.environment)


def _rests_on(rests: Lineage) -> None:
    click.echo("")
    rows = [
        (
            m.configuration[:40],
            number(m.value) if m.value is not None else m.status,
            m.purpose,
            m.session,
            f"{m.author} ({m.word})" if m.author else "ours",
            m.host or "–",
            time.strftime("%Y-%m-%d %H:%M", time.gmtime(m.at)) if m.at else "–",
            m.measurement,
        )
        for m in rests.measurements
    ]
    click.echo(table(rows, ("configuration", "value", "for", "session", "by", "machine", "ended (UTC)", "measurement")))
    for each in rests.proposed:
        click.echo(f"{each.configuration} was {each.words} (session {each.session})")
    for session, said in rests.journals.items():
        click.echo(f"the journal of {session}: {said}")
    if not rests.simulators:
        click.echo("no simulator was compared with experiments in these sessions")
        return
    click.echo("")
    told = [(s.name, s.session, s.checks, "–" if s.mape is None else f"{100 * s.mape:.1f} %") for s in rests.simulators]
    click.echo(table(told, ("simulator", "session", "checks", "error")))


def _standings(found: Recommendation, unit: str) -> str:
    rows: list[tuple[str, ...]] = []
    for title, m in (
        ("best", found.best),
        (found.reference.removeprefix("the "), found.default),
        ("your present launch", found.present and found.present.measured),
        ("worst seen", found.worst),
    ):
        if m is not None:
            rows.append((title, number(m.value), _range(m), str(m.measurements), _memory(m)))
    return table(rows, ("", unit, "lowest–highest", "runs", "GiB/rank"))


def _range(m: MeasuredConfiguration) -> str:
    return f"{number(m.lowest)}–{number(m.highest)}"


def _memory(m: MeasuredConfiguration) -> str:
    return number(m.metrics["peak_memory_gib"]) if "peak_memory_gib" in m.metrics else ""


def measurement(job: Job, m: Measurement, as_json: bool) -> None:
    if as_json:
        document(m)
        return
    click.echo(f"{m.name}: {m.status}")
    if m.evidence:
        click.echo(f"  {m.evidence}")
    for name, value in m.metrics.items():
        click.echo(f"  {name:<18} {number(value)}")
    if (slow := ranks.slowest(m)) is not None:
        click.echo(f"  {slow.sentence}")
    if m.iterations_s:
        click.echo(f"  {'iterations':<18} {', '.join(number(t) for t in m.iterations_s)} s")
    if m.losses and job.task != "serve":  # for serving, `losses` has tokens of answers
        of_rl = job.task == "rl"  # `losses` of an RL job alternates between reward and loss
        if of_rl:
            click.echo(f"  {'first rewards':<18} {', '.join(f'{x:.4f}' for x in m.losses[::2])}")
        losses = m.losses[1::2] if of_rl else m.losses
        click.echo(f"  {'first losses':<18} {', '.join(f'{x:.4f}' for x in losses)}")
        if m.grad_norms:
            click.echo(f"  {'gradient norms':<18} {', '.join(f'{x:.4f}' for x in m.grad_norms)}")
    click.echo(f"  {'experiment took':<18} {number(m.cost_s)} s")


def sessions_document(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "proven": proven(row["gain"], row["low"])} for row in rows]


def sessions(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        document(sessions_document(rows))
    elif not rows:
        click.echo(pastable("no sessions yet; autoscout tune JOB.toml starts one"))
    else:
        header = ["session", "state", "experiments", "best", "value", "gain", "started"]
        cells = [[_cell(row[h]) if h != "gain" else shown(row["gain"], row["low"]) for h in header] for row in rows]
        click.echo(table(cells, [*header[:-1], "started (UTC)"]))
        if any(row["gain"] and row["gain"] != 1 and not proven(row["gain"], row["low"]) for row in rows):
            click.echo("? the gain is not proven: its 95 % interval reaches below 1, or it has no interval")


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return number(value)
    if isinstance(value, datetime):
        return value.isoformat(" ", "seconds")
    return "" if value is None else str(value)
