"""Formats the output of `bench`: tables for people, or one JSON document for scripts."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from autoscout.job.words import several
from autoscout.studies.bench.curves import panels
from autoscout.studies.bench.curves import text as curves_text
from autoscout.studies.bench.landscape import Landscape
from autoscout.studies.bench.paper_evaluation import Results
from autoscout.studies.bench.paper_report import table as as_markdown
from autoscout.studies.bench.run import BenchRun, BenchSettings
from autoscout.studies.bench.summary import ALL, Spread, Summary, SummaryRow, pools, summarize

Laid = Callable[[Sequence[Sequence[Any]], Sequence[str]], str]  # formats rows under a header as text
_MOST_TABLES = 6  # if there are more landscapes, only their summary is shown


def document(
    landscapes: Sequence[Landscape],
    runs: Sequence[BenchRun],
    summary: Summary,
    settings: BenchSettings,
    seeds: int,
    notes: list[str],
    left_out: dict[str, str],
) -> str:
    described = [
        {
            "name": land.name,
            "metric": land.metric,
            "goal": land.goal,
            "configurations": len(land.truth),
            "failures": int((land.status != "ok").sum()),
            "optimum": land.optimum,
            "within_target": land.within(settings.target),
            "sparse": [knob.name for knob in land.space.sparse],
            "dense": [knob.name for knob in land.space.dense],
            "simulators": list(land.simulators),
            "group": land.group,
        }
        for land in landscapes
    ]
    return msgspec.json.encode(
        {
            "settings": {**msgspec.structs.asdict(settings), "seeds": seeds},
            "landscapes": described,
            "runs": runs,
            "summary": summary,
            "left_out": left_out,
            "notes": notes,
        }
    ).decode()


def paper_document(results: Results, report: str) -> str:
    """The output of `bench --paper` as JSON: runs, summary, the expert's values by job, and the report as Markdown."""
    runs = [run for some in results.runs.values() for run in some]
    return msgspec.json.encode(
        {
            "settings": {**msgspec.structs.asdict(results.settings), "seeds": results.seeds},
            "runs": runs,
            "summary": summarize(runs, results.settings.budget, results.settings.target),
            "experts": results.experts,
            "markdown": report,
        }
    ).decode()


def tables(
    landscapes: Sequence[Landscape],
    runs: Sequence[BenchRun],
    summary: Summary,
    settings: BenchSettings,
    table: Laid,
    markdown: bool = False,
) -> str:
    by_name = {land.name: land for land in landscapes}
    pooled = pools(list(by_name))
    shown = list(pooled) if len(landscapes) > _MOST_TABLES else [*by_name, *pooled]
    curves = panels(runs, settings.budget)
    parts = []
    for name in shown:
        parts.append(_title(name, by_name, settings))
        rows = [row for row in summary.strategies if row.landscape == name]
        header, cells = _strategies(rows, settings)
        parts.append(as_markdown(header, cells) if markdown else table(cells, header))
        if (ratios := _ratios(summary, name)) and not markdown:
            parts.append(ratios)
        if not markdown and (name in curves or (name == ALL and len(curves) == 1)):
            parts.append(
                "median regret after n evaluations\n"
                + curves_text(curves.get(name) or next(iter(curves.values())), settings.budget)
            )
    return "\n\n".join(parts)


def _title(name: str, landscapes: dict[str, Landscape], settings: BenchSettings) -> str:
    if (pooled := pools(list(landscapes)).get(name)) is not None:
        return f"all {len(pooled)} {'shuffled ' if name != ALL else ''}landscapes together"
    land = landscapes[name]
    within = land.within(settings.target)
    failures = int((land.status != "ok").sum())
    size = several(len(land.truth), "configuration")
    return (
        f"{name}: {size}, {within:,} within {_percent(settings.target)} of the best "
        f"({land.metric} {land.optimum:,.6g}){f', {failures:,} fail' if failures else ''}"
    )


def _strategies(rows: list[SummaryRow], settings: BenchSettings) -> tuple[list[str], list[list[Any]]]:
    target = _percent(settings.target)
    marks = [n for n in ("10", "50", "200") if int(n) <= settings.budget]
    costs = any(row.cost_to_target for row in rows)
    header = ["strategy", f"to {target}", "[quartiles]", "solved", "to 5 %"]
    header += [f"regret@{n}" for n in marks] + ["recommended", f"within {target}"]
    header += ["ended after"] if settings.as_sessions else []
    header += ["+ closing"]
    header += ["fast", *([f"cost to {target}", "cost to 5 %"] if costs else []), "ms/step"]
    cells = []
    for row in rows:
        at = [_regret(row.regret_at[n]) for n in marks]
        recommended = [_regret(row.recommended_regret), f"{row.recommended_within_target}/{row.seeds}"]
        reached = (
            (row.cost_to_target, row.evaluations_to_target),
            (row.cost_to_5pct, row.evaluations_to_5pct),
        )
        cost = [_cost(spent, count, settings.budget) for spent, count in reached] if costs else []
        cells.append(
            [
                row.strategy,
                _count(row.evaluations_to_target.median, settings.budget),
                _quartiles(row.evaluations_to_target, settings.budget),
                f"{row.solved}/{row.seeds}",
                _count(row.evaluations_to_5pct.median, settings.budget),
                *at,
                *recommended,
                *([f"{row.evaluations:g}"] if settings.as_sessions else []),
                f"{row.closing:g}",
                f"{row.fast:.0%}",
                *cost,
                f"{row.engine_ms_per_step:.1f}",
            ]
        )
    return header, cells


def _ratios(summary: Summary, name: str) -> str:
    first = summary.strategies[0].strategy
    pairs = [p for p in summary.pairs if p.landscape == name and p.a == first]
    if not pairs:
        return ""
    ratios = ", ".join(f"{p.ratio:.2f} of {p.b} [{p.low:.2f}–{p.high:.2f}]" for p in pairs)
    than = "relative to those of each strategy"
    return f"evaluations of {first}, {than} (unsolved = {summary.unsolved_as}; 95 % bootstrap): {ratios}"


def _quartiles(spread: Spread, budget: int) -> str:
    return f"[{_count(spread.q1, budget)}–{_count(spread.q3, budget)}]"


def _count(evaluations: float, budget: int) -> str:
    return f">{budget}" if evaluations > budget else f"{evaluations:.4g}"


def _cost(spent: Spread | None, evaluations: Spread, budget: int) -> str:
    """The median cost as text. If over half of the runs missed the target, the text is a lower bound: the amount that
    these runs spent."""
    if spent is None:
        return "–"
    return f"{'>' if evaluations.median > budget else ''}{spent.median:,.0f}"


def _regret(spread: Spread | None) -> str:
    return "–" if spread is None else _percent(spread.median)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
