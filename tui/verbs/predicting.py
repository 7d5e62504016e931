"""The verb predict: the simulators' predictions for a configuration, and their accuracy on measured rows."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tui.options import PATH, NumberRange, common, kb_if_any, load_job, note
from tui.printing.document import document
from tui.text import program

if TYPE_CHECKING:
    from autoscout.targets.jobs import JobSpace
    from kb.records import Value

_MORE_THAN_NOTHING = NumberRange(min=0, min_open=True)


@click.command()
@click.argument("job_file", metavar="[JOB.toml]", required=False, type=PATH)
@click.argument("assignments", metavar="[KNOB=VALUE]...", nargs=-1)
@click.option("--against", metavar="TABLE", type=PATH, help="Score every simulator on measured rows.")
@click.option(
    "--best", "count", metavar="N", type=click.IntRange(1), help="Rank the space: print the N best, one of each layout."
)
@click.option(
    "--engines", is_flag=True, help="With --best: of each engine that can serve the job's model, in one table."
)
@click.option("--svg", metavar="FILE", type=PATH, help="With --engines: also write the Pareto fronts as a picture.")
@click.option(
    "--usd",
    metavar="DOLLARS",
    type=_MORE_THAN_NOTHING,
    help='With target = "stack": find the fastest cluster for this money.',
)
@click.option(
    "--watts",
    metavar="W",
    type=_MORE_THAN_NOTHING,
    help='With target = "stack": find the fastest cluster within this power.',
)
@click.option(
    "--today", metavar="JOB.toml", type=PATH, help="With --usd or --watts: a measured job that corrects predictions."
)
@common
def predict(
    job_file: Path | None,
    assignments: tuple[str, ...],
    against: Path | None,
    count: int | None,
    engines: bool,
    svg: Path | None,
    usd: float | None,
    watts: float | None,
    today: Path | None,
    kb: Path | None,
    as_json: bool,
) -> None:
    """Predict a configuration: each simulator, their ensemble with its error, memory and time by component.

    Omitted knobs keep the reference's values. --best N ranks the whole space instead (or its part with the given
    knobs), without a device; with --engines also that of other engines, for the same model, load, limits and devices.
    --against TABLE (CSV, JSON, .csv.gz or Parquet) scores the simulators. --usd or --watts: which cluster to buy for a
    job of target = "stack", and what remains uncertain.
    """
    if against is not None:
        if job_file is not None:
            raise click.UsageError("--against scores rows of a table, which already state what ran; give no job file")
        _against(against, as_json)
        return
    if job_file is None:
        raise click.UsageError("give a job file, or --against TABLE")
    if engines:
        if count is None or assignments:
            raise click.UsageError("--engines needs --best N, and knobs are those of one engine: leave out KNOB=VALUE")
        _over_engines(job_file, count, svg, kb, as_json)
        return
    if svg is not None:
        raise click.UsageError("--svg needs --best N --engines")
    if count is not None:
        _rank(job_file, assignments, count, kb, as_json)
        return
    if usd is not None or watts is not None:
        if assignments:
            raise click.UsageError(
                "KNOB=VALUE does not work with --usd or --watts, which choose the cluster; limit knobs in the job's "
                "[space] instead"
            )
        _buy(job_file, usd, watts, today, kb, as_json)
        return
    if today is not None:
        raise click.UsageError("--today needs --usd or --watts")
    from autoscout.space.explain import parse
    from autoscout.targets.jobs import JobSpace
    from autoscout.tuning import predict as predicting
    from tui.printing import predictions

    job = load_job(job_file, segmented=True)
    space = JobSpace.of_job(job)
    if job.traffic.segments:
        _one_over_segments(space, parse(space, assignments), kb, as_json)
        return
    found = predicting.predict(space, parse(space, assignments), kb_if_any(kb))
    if as_json:
        document(found)
    else:
        predictions.predicted(job, found)


def _rank(job_file: Path, assignments: tuple[str, ...], count: int, kb: Path | None, as_json: bool) -> None:
    from autoscout.space.explain import parse
    from autoscout.targets.jobs import JobSpace
    from autoscout.tuning.best_predicted import ranking
    from tui.printing import predictions

    job = load_job(job_file, segmented=True)
    whole = JobSpace.of_job(job)
    if job.traffic.segments:
        _rank_over_segments(job_file, whole, parse(whole, assignments), count, kb, as_json)
        return
    found = ranking(whole, job, kb_if_any(kb), count, parse(whole, assignments))
    if as_json:
        document(found)
    else:
        first = predictions.ranked(job, found)
        _launch_of_first(job_file, whole, first.name, first.configuration)


def _launch_of_first(job_file: Path, space: JobSpace, name: str, knobs: dict[str, Value]) -> None:
    """Prints how to launch the first row of a ranking, if it is not the reference."""
    from autoscout.deploy.export import flags_against
    from autoscout.targets.target import reference_of
    from kb.records import Configuration

    if knobs == space.reference.knobs:
        return
    if flags := flags_against(space.job, Configuration(knobs), space.reference):
        click.echo(f"flags of the first row that {reference_of(space.job)} lacks:  {flags}")
    click.echo(f"the first row's launch line:  {program()} export {shlex.quote(str(job_file))} --config {name}")


def _one_over_segments(space: JobSpace, given: dict[str, Value], kb: Path | None, as_json: bool) -> None:
    from autoscout.tuning.over_segments import one_over_segments
    from tui.printing import segments_report

    found = one_over_segments(space, given, kb_if_any(kb))
    if as_json:
        document(found)
    else:
        segments_report.one(space.job, found)


def _rank_over_segments(
    job_file: Path, space: JobSpace, given: dict[str, Value], count: int, kb: Path | None, as_json: bool
) -> None:
    from autoscout.tuning.over_segments import over_segments
    from tui.printing import segments_report

    found = over_segments(space, kb_if_any(kb), count, given)
    if as_json:
        document(found)
    else:
        segments_report.ranked(space.job, found)
        _launch_of_first(job_file, space, found.rows[0].name, found.rows[0].configuration)


def _over_engines(job_file: Path, count: int, svg: Path | None, kb: Path | None, as_json: bool) -> None:
    from autoscout.targets.jobs import JobSpace
    from autoscout.tuning.over_engines import over_engines
    from tui.printing import predictions

    job = load_job(job_file)
    found = over_engines(JobSpace.of_job(job), job, kb_if_any(kb), count)
    if svg is not None:
        predictions.save_front(found, svg)
    if as_json:
        document(found)
    else:
        predictions.over_engines(found)


def _buy(
    job_file: Path, usd: float | None, watts: float | None, today: Path | None, kb: Path | None, as_json: bool
) -> None:
    from autoscout.targets.target import target_of

    measured = load_job(today) if today is not None else None
    job = load_job(job_file)
    found, words = target_of(job).purchase(job, usd or math.inf, watts or math.inf, kb_if_any(kb), measured)
    if as_json:
        document(found)
    else:
        click.echo(words)


def _against(table: Path, as_json: bool) -> None:
    import msgspec

    from autoscout.simulate.validation.against import score
    from tui.printing import predictions

    report = score(table, note)
    if as_json:
        main = next(iter(report.metrics.values()), None)
        mape = {name: {"all": a.mape, **a.groups} for name, a in main.members.items()} if main else {}
        document({"table": report.table, "metric": main and main.metric, "mape": mape, **msgspec.to_builtins(report)})
    else:
        predictions.scored(report)
