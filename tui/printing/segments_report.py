"""Output of `autoscout predict` for a job with traffic.segments: one configuration, or a ranking, under each load."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from autoscout.targets.target import reference_of
from tui.printing.predictions import unpriced
from tui.text import metric, number, table

if TYPE_CHECKING:
    from autoscout.tuning.over_segments import LeftOut, OneOverSegments, SegmentsRanking
    from autoscout.tuning.predict import Bound
    from kb.records import Job


def one(job: Job, found: OneOverSegments) -> None:
    click.echo(f"{found.name}: predicted under each segment, without a device\n")
    limits = dict.fromkeys(bound.text for each in found.segments.values() for bound in each.bounds)
    rows = [
        (
            segment,
            number(each.value),
            f"{number(each.low)} to {number(each.high)}",
            *(next((_bound(bound) for bound in each.bounds if bound.text == text), "") for text in limits),
        )
        for segment, each in found.segments.items()
    ]
    click.echo(table(rows, ("segment", found.metric, "90 %", *limits)))
    click.echo(f"mean {metric(job, found.mean)}; worst {metric(job, found.worst)}, in {found.worst_in}")


def ranked(job: Job, found: SegmentsRanking) -> None:
    click.echo(
        f"{found.job}: {found.metric} predicted under each segment, found among {found.searched:,} configurations; "
        "mean and worst are relative to the best for each segment\n"
    )
    rows, reference = list(found.rows), found.reference
    if reference is not None and reference not in rows:
        rows.append(reference)
    cells = [
        (
            _off(row.mean),
            f"{_off(row.worst)} {row.worst_in}",
            *(number(value) for value in row.values.values()),
            f"{row.name} ({reference_of(job)})" if row == reference else row.name,
        )
        for row in rows
    ]
    click.echo(table(cells, ("mean", "worst", *found.best, "configuration")))
    if found.unpriced:
        click.echo(unpriced(found.unpriced))
    if reference is None:
        click.echo(f"{reference_of(job)} is predicted not to run or to break a limit in at least one segment")
    click.echo("\nchosen without one of the segments, and what it would do there\n")
    click.echo(table([_without(each) for each in found.left_out], ("without", "there", "", "configuration")) + "\n")


def _bound(bound: Bound) -> str:
    return number(bound.value) if bound.kept else f"{number(bound.value)}, violated"


def _without(each: LeftOut) -> tuple[str, str, str, str]:
    if each.value is None or each.relative is None:
        return each.segment, "fails or breaks a limit", "", each.name
    return each.segment, number(each.value), _off(each.relative), each.name


def _off(quotient: float) -> str:
    return f"{round(quotient - 1, 3) + 0.0:+.1%}"  # adding 0.0 makes 0.0 of -0.0
