"""Output of `autoscout predict`: a prediction, a ranking, or the accuracy of all simulators on measured rows."""

from __future__ import annotations

import io
import itertools
import math
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autoscout.job.objective import from_metric
from autoscout.job.words import listed, several
from autoscout.simulate.grounds import Ground
from autoscout.targets.target import reference_of
from autoscout.tuning.predict import Predicted, PredictedMemory
from kb.records import AutoscoutError, Job
from tui.text import metric, number, table

if TYPE_CHECKING:
    from rich.text import Text

    from autoscout.simulate.validation.against import MemoryScores, Report, Scores
    from autoscout.tuning.best_predicted import PredictedRanking, Ranked
    from autoscout.tuning.over_engines import EngineRanking

_SHADES = "█▓▒░▞▚▖▘"
_PLAIN = "#*+=-:o."
_MOST_GROUPS = 12
_FAR = 0.1  # probabilities to run out of memory by software version are shown if they differ by more than this
_SURE = 0.995  # the probability to meet the limits is only shown if it is lower than this
_CHANCES = 40  # width of a bar for a probability of 100 %
_SERVERS = "several servers; `autoscout export` prints them"


def predicted(job: Job, found: Predicted) -> None:
    click.echo(f"{found.name}: predicted, {metric(job, found.value)}{_unless(found)}")
    click.echo(f"  90 % interval {number(found.low)} to {number(found.high)}; {_support(found)}")
    if found.measured is not None:
        off = found.value / found.measured - 1
        why = f" ({found.missed})" if found.missed else ""
        click.echo(f"  measured: {metric(job, found.measured)}, the prediction is {off:+.1%} off{why}")
    for bound in found.bounds:
        between = f"{number(bound.value)} ({number(bound.low)} to {number(bound.high)})"
        click.echo(f"  {bound.text}: predicted {between}, {'met' if bound.kept else 'violated'}")
    click.echo("")
    rows = [
        (
            s.member,
            number(s.value),
            f"{s.weight:.0%}" if s.weight >= 0.005 else "",
            "" if s.error is None else f"±{math.expm1(1.6449 * s.error):.0%}",
            "" if s.held_out is None else f"{s.held_out:.1%}",
            s.why,
        )
        for s in found.members
        if s.value is not None
    ]
    click.echo(table(rows, ("member", found.metric, "weight", "90 %", "error", "")))
    silent: dict[str, list[str]] = {}
    for s in found.members:
        if s.value is None:
            silent.setdefault(s.why, []).append(s.member)
    for why, members in silent.items():
        click.echo(f"{', '.join(members)}: {why}")
    if found.unpriced:
        click.echo(unpriced(found.unpriced))
    if found.parts:
        # For serving, the breakdown is that of a decode step, whatever the metric.
        served = job.task == "serve" and _of_a_step(found.parts_of)
        unit, what = ("ms", "time of a mean decode step") if served else ("s", "time")
        click.echo(f"\n{what} by component ({found.parts_of}, {number(sum(found.parts.values()))} {unit})")
        click.echo(stacked(found.parts, unit))
        for line in _grounds(found.grounds):
            click.echo(line)
    if found.network:
        click.echo(found.network)
    if found.unsaid:
        click.echo(found.unsaid)
    if job.task == "serve" and job.model.latent:
        click.echo("latent attention is modelled but was never compared with a run, so the interval is wider")
    if found.memory is not None:
        click.echo(f"\nmemory of the fullest rank: {_memory(found.memory)}")
        click.echo(stacked(found.memory.parts, "GiB", found.memory.device_gib))
    if (power := found.power) is not None:
        token = "an output token" if job.task == "serve" else "a token"
        joules = f"{number(power.joules_per_token)} J {token} ({number(power.low)} to {number(power.high)})"
        click.echo(f"power of the devices: {number(power.watts)} W on average, {joules}")
    if found.shadow is not None:
        click.echo(f"shadow run (the framework's own code without a device): {found.shadow.sentence}")


_BASES = {"table": "a measured table", "fit": "a fit to measured kernels", "guess": "a guess"}


def _grounds(found: list[Ground]) -> Iterator[str]:
    """Lines on the data behind the components of the prediction, with the source of the data."""
    alike: dict[tuple[str, str], list[str]] = {}
    for one in found:
        alike.setdefault((one.basis, one.source), []).append(one.part)
    for (basis, source), parts in alike.items():
        rests = "rests" if len(parts) == 1 else "rest"
        yield f"{listed(parts)} {rests} on {_BASES[basis]}: {source}"


def _of_a_step(model: str) -> bool:
    from autoscout.simulate.serving.simulator import ServingSimulator  # imports scipy

    return model.startswith(ServingSimulator.name)


def ranked(job: Job, found: PredictedRanking) -> Ranked:
    """Prints the ranking; returns its first row. Rows that probably break a limit come last."""
    support = several(found.rows, "measured row") if found.rows else "no measured row"
    risk = "; the chance of running out of memory counts as cost" if found.best[0].oom_probability is not None else ""
    each = " of each layout" if found.layouts else ""
    of = f"the best{each}, found among {found.searched:,} configurations{risk}"
    click.echo(f"{found.job}: predicted with {support} of this job; {of}\n")
    reference, rows = found.reference, list(found.best)
    if reference is not None and all(row.name != reference.name for row in rows):
        rows.append(reference)
    base = reference or rows[0]
    if found.doubtful:
        rows.sort(key=lambda row: -(row.kept_probability or 0.0))
    else:
        rows.sort(key=lambda row: (_breaks(row), -_gain(job, row, base)))
    click.echo(_rows_table([("", job, row) for row in rows], job, base, reference))
    if found.doubtful:
        fits = f"; {found.fits}" if found.fits else ""
        click.echo(f"no configuration is expected to meet the limits; those with the highest chance are listed{fits}")
    if found.unpriced:
        click.echo(unpriced(found.unpriced))
    if reference is None:
        click.echo(
            f"{reference_of(job)} has no prediction, or is predicted to fail; `autoscout predict` shows the reason"
        )
    elif _breaks(reference) and not found.doubtful:
        chance = f"the chance that it keeps them is {reference.kept_probability or 0:.0%}"
        click.echo(f"{reference_of(job)} probably breaks the limits: {chance}")
    elif rows[0].name == reference.name and not found.doubtful:
        click.echo(f"nothing is predicted to be better than {reference_of(job)}")
    return rows[0]


def over_engines(found: list[EngineRanking]) -> None:
    """Prints the best configurations of all engines in one table, and a launch line for the best one of each."""
    own, job = found[0].ranking, found[0].job
    assert own is not None
    reference, base = own.reference, own.reference or own.best[0]
    rows = [(each.engine, each.job, row) for each in found if each.ranking is not None for row in each.ranking.best]
    if reference is not None and all(row.name != reference.name for row in own.best):
        rows.append((found[0].engine, job, reference))
    rows.sort(key=lambda each: (_breaks(each[2]), -_gain(each[1], each[2], base)))
    click.echo(_rows_table(rows, job, base, reference) + "\n")
    _front(found)
    for each in found:
        click.echo(f"{each.engine}: {each.refused or each.line or _SERVERS}")


def _front(found: list[EngineRanking]) -> None:
    """Prints the Pareto fronts of all engines as a picture, and the launch lines of the best of all."""
    from autoscout.tuning.over_engines import unbeaten  # imports scipy

    if sum(len(each.front) for each in found) < 2:
        return
    width = min(shutil.get_terminal_size((80, 24)).columns, 100) - 2
    click.echo(_drawn(found, width, not _speaks_unicode()).plain)
    click.echo("\nnone is better in both than these:\n")
    for each, point, line in unbeaten(found):
        click.echo(f"{each.engine[0].upper()} {number(point.x):>9} {number(point.y):>9}  {line or _SERVERS}")
    click.echo("")


def save_front(found: list[EngineRanking], path: Path) -> None:
    """Writes the picture of the Pareto fronts as SVG. Errors: AutoscoutError (exit 2) if there is no front or the file
    cannot be written."""
    from rich.console import Console

    if not any(each.front for each in found):
        raise AutoscoutError(f"{path}: there is no front to draw, because nothing predicts a second metric", 2)
    console = Console(record=True, width=100, file=io.StringIO())
    console.print(_drawn(found, 98, False))
    try:
        console.save_svg(str(path), title=found[0].job.name)
    except OSError as error:
        raise AutoscoutError(f"{path}: cannot write the picture ({error.strerror})", 2) from error


def _drawn(found: list[EngineRanking], width: int, ascii_only: bool) -> Text:
    """All engines' fronts; a point is the first letter of its engine."""
    from tui.draw.plot import cloud

    styles = ("bold cyan", "bold magenta", "bold yellow")
    drawn = [
        (p.x, p.y, each.engine[0].upper(), style)
        for each, style in zip(found, itertools.cycle(styles), strict=False)
        for p in each.front
    ]
    text = cloud(width, 12, drawn, found[0].job.objective.metric, found[0].second, ascii_only)
    named = listed(f"{each.engine[0].upper()}: {each.engine}" for each in found if each.front)
    return text.append(f"\n{named}")


def _rows_table(rows: list[tuple[str, Job, Ranked]], own: Job, base: Ranked, reference: Ranked | None) -> str:
    """A table of (engine, job, configuration); engines have a column if they are named. `base`: the row to which gains
    are relative; `reference`: that of the job `own`."""
    heads: list[str] = ["engine"] if rows[0][0] else []
    risk = any(row.memory_gib is not None for _, _, row in rows)
    chances = any(row.kept_probability is not None and row.kept_probability < _SURE for _, _, row in rows)
    heads += ["gain with risk" if risk else "gain", own.objective.metric, "90 %"]
    heads += [*(["keeps limits"] if chances else []), *(["GiB", "out of memory"] if risk else []), "configuration"]
    today = reference.name if reference else None
    cells = [
        (
            *([engine] if engine else []),
            "" if reference is None else f"{_gain(job, row, base) - 1:+.1%}",
            number(row.value),
            f"{number(row.low)} to {number(row.high)}",
            *([f"{row.kept_probability or 0:.0%}"] if chances else []),
            *(_room(row.memory_gib, row.oom_probability) if risk else []),
            f"{row.name} ({reference_of(job)})" if job is own and row.name == today else row.name,
        )
        for engine, job, row in rows
    ]
    return table(cells, heads)


def _breaks(row: Ranked) -> bool:
    return row.kept_probability is not None and row.kept_probability < 0.5


def _gain(job: Job, row: Ranked, base: Ranked) -> float:
    """Cost of `base` / cost of `row`, both divided by the probability to fit into memory."""
    costs = [
        from_metric(job.objective, each.value) / max(1 - (each.oom_probability or 0.0), 1e-9) for each in (base, row)
    ]
    return costs[0] / costs[1]


def unpriced(knobs: list[str]) -> str:
    return f"no simulator models these knobs, so the times ignore their effect: {', '.join(knobs)}"


def _room(gib: float | None, chance: float | None) -> list[str]:
    return ["", ""] if gib is None or chance is None else [f"{gib:.1f}", f"{chance:.0%}"]


def stacked(parts: Mapping[str, float], unit: str, whole: float | None = None) -> str:
    """A stacked bar of all parts with a legend, largest first. `whole`: the full width's value (default: the sum)."""
    ordered = sorted(((v, n) for n, v in parts.items() if v > 0), reverse=True)
    total = sum(v for v, _ in ordered)
    if not total:
        return ""
    width = min(shutil.get_terminal_size((80, 24)).columns, 100) - 4
    scale = width / max(total, whole or 0.0)
    shades, empty = (_SHADES, "·") if _speaks_unicode() else (_PLAIN, " ")
    bar, reached = "", 0.0
    for i, (value, _) in enumerate(ordered):
        reached += value * scale
        bar += shades[i % len(shades)] * max(0, round(reached) - len(bar))
    legend = [
        (f"  {shades[i % len(shades)]} {name}", number(value), unit, f"{value / total:.1%}")
        for i, (value, name) in enumerate(ordered)
        if value / total >= 0.0005
    ]
    lines = table(legend, ("", "", "", "")).splitlines()[2:]
    return "\n".join([f"  {bar.ljust(width, empty) if whole else bar}", *lines])


def scored(report: Report) -> None:
    click.echo(f"{report.table}: {report.rows} rows")
    for scores in report.metrics.values():
        left_out = f"learned simulators are fitted without {scores.held_out}"
        click.echo(f"\n{scores.metric}: {scores.rows} rows of {scores.jobs} jobs; {left_out}")
        click.echo(_members(scores))
        for group, counts in scores.group_rows.items():
            if len(counts) > 1:
                click.echo("")
                click.echo(_by_group(scores, group, counts))
        if scores.missed:
            whole = sum(scores.missed.values())
            click.echo(f"\noutside of the analytic model's 90 % interval: {whole} of {scores.rows} rows")
            click.echo(table([(n, why) for why, n in scores.missed.items()], ("rows", "why")))
    if (memory := report.memory) is not None:
        click.echo(
            f"\nout of memory or not: {memory.right:.1%} of {memory.runs} runs are predicted correctly ({memory.died} "
            f"died for lack of memory); {memory.false_fits:.1%} died although they were predicted to fit; in "
            f"{memory.favourites[1]} of {memory.favourites[0]} jobs, the run that would be tried first died\n"
        )
        click.echo(_calibration(memory))
    if report.skipped:
        click.echo("\nnot scored")
        click.echo(table([(n, why) for why, n in sorted(report.skipped.items(), key=lambda s: -s[1])], ("rows", "why")))
    if report.unknown_columns:
        click.echo(f"\ncolumns that no simulator reads: {', '.join(report.unknown_columns)}")


def _unless(found: Predicted) -> str:
    """A clause after the predicted time if the configuration will probably not run; else ""."""
    memory = found.memory
    if memory is None or not memory.oom_probability > 0.5:
        return ""
    room = f" of {number(memory.device_gib)}" if memory.device_gib is not None else ""
    return f", if it fits: it is predicted to run out of memory ({number(memory.gib)}{room} GiB)"


def _support(found: Predicted) -> str:
    others = f" ({found.other_rows} with different versions or devices are excluded)" if found.other_rows else ""
    if not found.rows:
        past = "".join(f", {several(n, 'row')} of {job}" for job, n in found.past.items())
        return (
            f"no measured row of this job{others}{past}; the simulators estimate their error as "
            f"{found.expected_error:.1%}"
        )
    rows = several(found.rows, "measured row")
    return f"error {found.expected_error:.1%} on held-out rows, fitted on {rows} of this job{others}"


def _memory(memory: PredictedMemory) -> str:
    text = f"{number(memory.gib)} GiB ({number(memory.low)} to {number(memory.high)})"
    if memory.device_gib is not None:
        text += f" of {number(memory.device_gib)}"
    if not math.isnan(memory.oom_probability):
        text += f"; {_chance(memory.oom_probability)} chance of running out of memory"
        low, high = memory.oom_range
        if high - low > _FAR:
            text += f" ({_chance(low)} to {_chance(high)}, depending on the software)"
    return text


def _chance(share: float) -> str:
    """A probability in per cent, which is only "0%" or "100%" if it is exactly 0 or 1."""
    return "less than 1%" if share < 0.005 else "more than 99%" if share > 0.995 else f"{share:.0%}"


def _members(scores: Scores) -> str:
    rows = [
        (
            name,
            accuracy.rows,
            f"{accuracy.mape:.1%}",
            "" if accuracy.rank is None else f"{accuracy.rank:.3f}",
            _share(accuracy.regret),
            f"{accuracy.coverage:.0%}",
        )
        for name, accuracy in scores.members.items()
    ]
    return table(rows, ("member", "rows", "MAPE", "rank correlation", "regret", "in 90 % interval"))


def _calibration(memory: MemoryScores) -> str:
    """For each bin of predicted out-of-memory probabilities a bar: the observed rate, marked at the mean prediction."""
    full, mark = ("█", "│") if _speaks_unicode() else ("#", "|")
    rows = []
    for bin_ in memory.calibration:
        bar = (full * round(_CHANCES * bin_.died)).ljust(_CHANCES + 1)
        at = round(_CHANCES * bin_.said)
        said = f"{bin_.least:.0%} to {bin_.most:.0%}"
        known = bin_.high - bin_.low < 0.01
        by_software = "" if known else f"{bin_.low:.0%} to {bin_.high:.0%}"
        shares = f"{bin_.said:.0%}", by_software, f"{bin_.died:.0%}"
        rows.append((said, bin_.runs, *shares, bar[:at] + mark + bar[at + 1 :]))
    return table(rows, ("predicted", "runs", "mean", "by software", "died", ""))


def _by_group(scores: Scores, group: str, counts: Mapping[str, int]) -> str:
    """A table of MAPE by group, for the simulators with the lowest MAPE over all rows."""
    best = sorted(scores.members, key=lambda name: scores.members[name].mape)[:4]
    largest = sorted(counts, key=lambda name: -counts[name])[:_MOST_GROUPS]
    errors = {name: [_share(scores.members[m].groups[group].get(name)) for m in best] for name in largest}
    rows = [(name, counts[name], *errors[name]) for name in largest]
    text = table(rows, (group, "rows", *best))
    return text if len(counts) <= _MOST_GROUPS else f"{text}\nand {len(counts) - _MOST_GROUPS} more; --json prints all"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _speaks_unicode() -> bool:
    encoding = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "")
    return encoding.startswith("utf") and os.environ.get("TERM") != "dumb"
