"""Verbs about a job's space: space, explain."""

from pathlib import Path

import click

from tui.options import PATH, common, load_job, note


@click.command()
@click.argument("job_file", metavar="JOB.toml", type=PATH)
@click.option("--count", is_flag=True, help="Show only the number of valid configurations.")
@click.option("--list", "listed", metavar="N", type=click.IntRange(0, 10**9), help="List the first N configurations.")
@click.option("--graph", metavar="FILE.svg", type=PATH, help="Draw the knobs as a picture.")
@common
def space(job_file: Path, count: bool, listed: int | None, graph: Path | None, kb: Path | None, as_json: bool) -> None:
    """Show the knobs of a job, how they depend on each other, and how many configurations are valid."""
    from autoscout.targets.jobs import JobSpace, notes
    from tui.printing import space_report

    if graph is not None and graph.suffix not in ("", ".svg"):
        raise click.UsageError(f"--graph {graph}: the file name must end in .svg, such as {graph.stem}.svg")
    job = load_job(job_file, segmented=True)
    for sentence in notes(job):
        note(sentence)
    found = JobSpace.of_job(job)
    if graph is not None:
        from autoscout.space.picture import svg

        graph.write_text(svg(found, f"{job.name}: the space of {job.target}"), encoding="utf-8")
    space_report.space(job, found, count, listed, graph, as_json)


@click.command()
@click.argument("job_file", metavar="JOB.toml", type=PATH)
@click.argument("assignments", metavar="[KNOB=VALUE]...", nargs=-1)
@common
def explain(job_file: Path, assignments: tuple[str, ...], kb: Path | None, as_json: bool) -> int:
    """Show whether a configuration is valid; if not, by which rule, and the nearest valid one.

    Exit code 3: it is not valid.
    """
    from autoscout.space import explain as explaining
    from autoscout.targets.jobs import JobSpace
    from tui.printing import space_report

    space = JobSpace.of_job(load_job(job_file, segmented=True))
    explanation = explaining.explain(space, explaining.parse(space, assignments), space.reference)
    space_report.explanation(explanation, as_json)
    return 3 if explanation.nearest is not None or explanation.violations else 0
