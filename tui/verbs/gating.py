"""Verbs that compare two versions of a job: gate and bisect."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tui.options import PATH, NumberRange, common, kb_path, load_job, note, session_names, stop_on_signals

if TYPE_CHECKING:
    from autoscout.tuning.loop import Stop

_CODES = {"no worse": 0, "worse": 1, "undecided": 4}
_JOB = click.option("--job", "job_file", metavar="JOB.toml", type=PATH, help="The job that each side changes.")
_WHEELS = click.option("--wheels", metavar="FOLDER", default="", help="Install packages only from this folder.")


@click.command()
@click.argument("a", metavar="A|SESSION", shell_complete=session_names)
@click.argument("b", metavar="[B]", required=False)
@_JOB
@click.option(
    "--worse-than",
    "percent",
    metavar="PERCENT",
    type=NumberRange(0.0),
    help="Allowed slowdown in per cent. Default: 1, but 0 for a SESSION without B.",
)
@click.option(
    "--pairs",
    "limit",
    type=click.IntRange(4, 200),
    default=40,
    show_default=True,
    help="Largest number of pairs of runs.",
)
@click.option("--wall", metavar="TIME", default="", help="End after this time, even if undecided, such as 20m.")
@click.option("--at-once", is_flag=True, help="Run A and B at the same time, on half of the machine each.")
@click.option("--retune", is_flag=True, help="Tune each side first, and compare the two winners.")
@click.option("--junit", metavar="FILE.xml", type=PATH, help="Also write the verdict as a JUnit test.")
@click.option("--markdown", metavar="FILE.md", type=PATH, help="Also write the verdict as Markdown for a pull request.")
@_WHEELS
@common
def gate(
    a: str,
    b: str | None,
    job_file: Path | None,
    percent: float | None,
    limit: int,
    wall: str,
    at_once: bool,
    retune: bool,
    junit: Path | None,
    markdown: Path | None,
    wheels: str,
    kb: Path | None,
    as_json: bool,
) -> None:
    """Is B slower than A? Runs both in turns until that is decided, and checks that they compute the same.

    A side is a job file, a session (its winner), or, with --job, a change of that job: python=PATH, commit=REVISION,
    PACKAGE==VERSION, prefix="docker exec NAME", KNOB=VALUE …, or "" for the unchanged job. A SESSION alone: is its
    winner faster than its reference?

    Exit code 0: no worse; 1: worse, or it fails or computes something else; 4: undecided.
    """
    import math

    from autoscout.job.duration import seconds
    from autoscout.tuning import gate as gates
    from autoscout.tuning.sides import changed_files, of_session, side
    from tui.printing import gate_report

    path, base = kb_path(kb), load_job(job_file) if job_file else None
    if base and any(text.startswith("commit=") for text in (a, b or "")) and (warning := changed_files(base)):
        note(warning)
    with contextlib.ExitStack() as made, _stopped_as_130() as stop:
        if b is None:
            first, second = of_session(path, a, base)
        else:
            first, second = (made.enter_context(side(text, base, path, wheels)) for text in (a, b))
        if retune:
            first, second = (gates.retuned(each, path, note, stop) for each in (first, second))
        allowed = (0.0 if b is None else 1.0) if percent is None else percent
        late = seconds(wall) if wall else math.inf
        found = gates.gate(first, second, path, note, stop, allowed / 100, limit, late, at_once)
    if junit:
        junit.write_text(gate_report.junit(found))
    if markdown:
        markdown.write_text(gate_report.markdown(found))
    gate_report.show(found, as_json)
    raise SystemExit(_CODES[found.verdict])


@click.command()
@click.argument("good", metavar="GOOD")
@click.argument("bad", metavar="BAD")
@_JOB
@click.option("--versions", metavar="A,B,…", default="", help="Versions of PACKAGE between GOOD and BAD.")
@click.option(
    "--pairs",
    "limit",
    type=click.IntRange(1, 1000),
    default=40,
    show_default=True,
    help="Largest number of pairs of runs.",
)
@click.option(
    "--sure",
    type=NumberRange(0.5, 0.999),
    default=0.95,
    show_default=True,
    help="Stop when one change is the cause with this probability.",
)
@_WHEELS
@common
def bisect(
    good: str,
    bad: str,
    job_file: Path | None,
    versions: str,
    limit: int,
    sure: float,
    wheels: str,
    kb: Path | None,
    as_json: bool,
) -> None:
    """Which change made a job slower? Runs versions between GOOD and BAD until one change is probably the cause.

    GOOD and BAD are commits of the script's repository (launch.path of --job), two versions of a package
    (PACKAGE==VERSION), or two settings files: the lines of OLD are changed to those of NEW one after the other.

    Exit code 0: found; 4: not sure enough within --pairs.
    """
    from autoscout.tuning import bisection
    from autoscout.tuning.between import points_between
    from tui.printing import gate_report

    if job_file is None:
        raise click.UsageError("name the job that shows the slowdown: --job JOB.toml")
    path, job = kb_path(kb), load_job(job_file)
    between = points_between(good, bad, job, [v for v in versions.split(",") if v])
    with between as points, _stopped_as_130() as stop:
        found = bisection.bisect(points, job, path, note, stop, limit, sure, wheels)
    gate_report.show_bisected(found, as_json)
    raise SystemExit(0 if found.sure else 4)


@contextlib.contextmanager
def _stopped_as_130() -> "Iterator[Stop]":
    from autoscout.tuning.loop import Interrupted, Stop

    stop = Stop()
    stop_on_signals(stop)
    try:
        yield stop
    except Interrupted:
        note("interrupted; what was measured is kept, and no verdict was reached")
        raise SystemExit(130) from None
