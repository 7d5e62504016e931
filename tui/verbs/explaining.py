"""The verb why, which shows where a gain comes from."""

import json
from pathlib import Path

import click

from tui.options import common, kb_path, session_names


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
    from tui.draw.iteration_bars import of_iteration, reference_and_best
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
    phases = reference_and_best(started.job.objective, rows, started.default, last.winner if last else None)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found) | ({"phases": phases} if phases else {})))
        return
    from rich.console import Console

    from tui.draw.comparing import ablation, effects_of
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
