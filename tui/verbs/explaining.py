"""The verb why, which shows where a gain comes from."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tui.options import common, kb_path, session_names

if TYPE_CHECKING:
    from kb.journal import Confirmed, SessionStarted
    from kb.records import Measurement


@click.command()
@click.argument("session", metavar="SESSION|JOURNAL.jsonl", shell_complete=session_names)
@common
def why(session: str, kb: Path | None, as_json: bool) -> None:
    """Show which knob the gain comes from: from the reference to the best configuration one knob at a time, and
    which knobs matter in the whole space. Measured and predicted values are distinguished."""
    import msgspec

    from autoscout.targets.jobs import JobSpace
    from autoscout.tuning.importance import importance
    from kb import journal as journals
    from kb.journal import Answered, Confirmed, ExperimentEnded, SessionStarted
    from kb.records import DESIGNED, AutoscoutError
    from tui.session.follow import journal_of

    path = journal_of(kb_path(kb), session)
    events = journals.events(path, plain=True)
    if not events or not isinstance(events[0], SessionStarted):
        raise AutoscoutError(f"{path}: the file contains no session; name a journal.jsonl that AutoScout wrote", 2)
    started = events[0]
    rows = [e.measurement for e in events if isinstance(e, Answered | ExperimentEnded)]
    confirmed = [e for e in events if isinstance(e, Confirmed) and e.name != e.default_name]
    last = confirmed[-1] if confirmed else None
    found = importance(started.job, JobSpace.of_job(started.job), rows, started.default, last)
    phases = _phases(started, rows, last)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found) | ({"phases": phases} if phases else {})))
        return
    from rich.console import Console

    from tui.draw.comparing import ablation, effects_of
    from tui.draw.iteration_bars import of_iteration
    from tui.session.headlines import verdict
    from tui.session.state import fold

    out = Console(highlight=False, width=100)
    out.print(verdict(fold(events)) or "Nothing ran correctly", soft_wrap=True)
    out.print("\nfrom the reference to the best, one knob at a time", style="bold")
    seen = "designed" if DESIGNED in started.environment.values() else "measured"
    out.print(ablation(msgspec.to_builtins(found), 100, False, seen))
    if phases:
        out.print("\nphases of an iteration", style="bold")
        out.print(of_iteration(phases, False))
    out.print("\nshare of the predicted variance that each knob explains alone", style="bold")
    out.print(effects_of(msgspec.to_builtins(found), 100, 20, False))


def _phases(
    started: "SessionStarted", rows: "list[Measurement]", last: "Confirmed | None"
) -> dict[str, dict[str, float]]:
    """The metrics of an RL job's reference and best configuration, each from its median run; {} for other jobs."""
    from autoscout.job.objective import cost
    from tui.draw.iteration_bars import has_phases

    ran = [m for m in rows if m.counts and m.status == "ok" and has_phases(m.metrics)]
    costs = [(c, m) for m in ran if (c := cost(started.job.objective, m)) is not None]
    costs.sort(key=lambda each: each[0])
    won = last.name if last is not None else next((m.name for _, m in costs), "")
    named = [("reference", started.default.id), ("best", next((m.configuration.id for m in ran if m.name == won), ""))]
    found: dict[str, dict[str, float]] = {}
    for called, of in named:
        of_one = [m.metrics for _, m in costs if m.configuration.id == of]
        if of_one and (called == "reference" or of != started.default.id):
            found[called] = of_one[len(of_one) // 2]
    return found
