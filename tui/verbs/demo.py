"""The verb demo, which shows what AutoScout does."""

from pathlib import Path

import click

from tui.options import common, kb_path

_RECORDED = "tiny-moe-session"
_JOB = "smallest-cpu-replay"


@click.command()
@common
@click.pass_context
def demo(context: click.Context, kb: Path | None, as_json: bool) -> None:
    """Look at a recorded session, then tune a job whose experiments were recorded: a minute, without torch or a GPU."""
    from kb import journal as journals
    from tui.session.follow import journal_of
    from tui.session.headlines import verdict_lines
    from tui.session.state import fold
    from tui.text import pastable
    from tui.verbs import watching
    from tui.verbs.tuning import tune

    journal = journal_of(kb_path(kb), _RECORDED)
    if not as_json:
        if watching.on_screen():
            click.echo(
                "A session of a small mixture of experts, recorded on two CPU cores. ? explains a screen, q closes."
            )
            click.pause()
            watching.show(journal, kb_path(kb))
        watch = pastable(f"autoscout watch {_RECORDED}")
        click.echo(f"1. The recorded session ended with this verdict; `{watch}` opens its screens:\n")
        for line in verdict_lines(fold(journals.events(journal, plain=True))):
            click.echo(f"   {line}")
        tuned = pastable(f"autoscout tune {_JOB} --no-tui")
        click.echo(f"\n2. Now a session of your own, on recorded experiments: {tuned}\n")
    context.invoke(tune, job_file=Path(_JOB), no_tui=True, kb=kb, as_json=as_json)
    if not as_json:
        init = pastable("autoscout init")
        click.echo(f"\n3. Your own job: {init} -- THE LINE THAT YOU LAUNCH TODAY, or {init} alone")
