"""Formats the results of paper_evaluation.py as Markdown tables, next to the paper's figures."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autoscout.studies.bench.paper_evaluation import (
    ABLATED,
    LINEAR,
    SERVING,
    TRAINING,
    Comparison,
    Results,
    comparisons,
)
from autoscout.studies.bench.run import BenchRun
from autoscout.studies.bench.summary import spread

_UNITS = {"step_time_s": "s/iter", "tpot_mean_ms": "ms/token"}
_WITH, _COLD = "simulators", "no simulators"
_THEIR_SPEEDUP = {
    ("Figure 4", "expert"): "1.4-2.7×",
    ("Figure 4", "cherrypick"): "1.10×",
    ("Figure 4", "udo"): "1.06×",
    ("Figure 5", "expert"): "1.3-2.7×",
    ("Figure 5", "cherrypick"): "1.08×",
    ("Figure 5", "udo"): "1.08×",
    ("Figure 6", "expert"): "1.3-3.0×",
    ("Figure 6", "metis"): "1.3-3.0×",
    ("Figure 6", "cherrypick"): "1.07×",
    ("Figure 6", "udo"): "1.06×",
    ("Figure 7", "expert"): "1.02×",
}
_THEIR_SAVING = {
    ("Figure 4", "cherrypick"): "87.1 %",
    ("Figure 4", "udo"): "91.7 %",
    ("Figure 5", "cherrypick"): "80.0 %",
    ("Figure 5", "udo"): "80.8 %",
    ("Figure 6", "cherrypick"): "> 92 %",
    ("Figure 6", "udo"): "> 92 %",
    ("Figure 7", "cherrypick"): "> 28.6 %",
    ("Figure 7", "udo"): "> 28.6 %",
}
_THEIR_ABLATION = {
    "Figure 8": "sparse only: a 1.46× slower configuration; no orchestrator: worse still; no simulators: the same, "
    "1.19× later",
    "Figure 9": "K = 5 is enough; K = 40 dilutes the early search",
    "Figure 10": "more knobs take a little longer, sometimes less",
    "Figure 11": "noise of 40 % and 80 % slows the search gradually; the result stays near the best",
}
_TITLES = {"Figure 8": "parts switched off", "Figure 9": "trees in the tournament", "Figure 10": "larger spaces",
           "Figure 11": "noise on the simulators"}  # fmt: skip


def markdown(results: Results, command: str) -> str:
    """The report, which begins with the `command` that creates it."""
    parts = [f"    {command}", _preamble(results)]
    for job, figure in {**TRAINING, **SERVING}.items():
        cells = [c for c in comparisons() if c.figure == figure]
        if all((c.landscape, s) in results.runs for c in cells for s in c.strategies):
            parts += [f"### {figure}: {job}", _against_rivals(results, job, figure)]
    for figure, theirs in _THEIR_ABLATION.items():
        cells = [c for c in comparisons() if c.figure == figure]
        if all((c.landscape, s) in results.runs for c in cells for s in c.strategies):
            title = f"### {figure}: {_TITLES[figure]} ({ABLATED})"
            parts += [title, f"The paper: {theirs}.", _variants(results, cells)]
    return "\n\n".join(parts) + "\n"


def _preamble(results: Results) -> str:
    s = results.settings
    return (
        f"{results.seeds} runs each of {s.budget} evaluations, medians; the costs that strategies got carried "
        f"{s.noise:.0%} noise. `paper` is Algorithm 1 as published, `autoscout` our default. Simulators are "
        f"the paper's four linear regressions, fitted on 200 random configurations of the job."
    )


def _against_rivals(results: Results, job: str, figure: str) -> str:
    cold, simulated = f"{job} full", f"{job} full {LINEAR}"
    land = results.landscapes[cold]
    unit = _UNITS.get(land.metric, land.metric)
    ours = {s: results.runs[simulated, s] for s in ("autoscout", "paper")}
    rows = [(f"{s}, {_WITH}", simulated, s) for s in ours] + [(f"{s}, {_COLD}", cold, s) for s in ours]
    rows += [(s, simulated if s == "metis" else cold, s) for s in ("udo", "cherrypick", "metis")]
    header = ["", f"best ({unit})", "to 5 %", "to 1 %", "solved"]
    header += [
        "slower than autoscout",
        "than paper",
        "they say",
        "autoscout is as good after (saves)",
        "paper after (saves)",
    ]
    lines = []
    for label, name, strategy in rows:
        runs = results.runs[name, strategy]
        rival = strategy not in ours
        line = [label, _number(_best(runs)), *_evaluations(runs, results.settings.budget)]
        line += [_ratio(_best(runs), _best(o)) for o in ours.values()] if rival else ["", ""]
        line += [_THEIR_SPEEDUP.get((figure, strategy), "") if rival else ""]
        line += (
            [_saving(o, runs, results.settings.budget, land.goal == "min") for o in ours.values()]
            if rival
            else ["", ""]
        )
        lines.append([*line, _THEIR_SAVING.get((figure, strategy), "") if rival else ""])
    for label, value in zip(("expert, all devices", "expert, A100 only"), results.experts[job], strict=True):
        if label == "expert, A100 only" and value == results.experts[job][0]:
            continue
        slower = [_ratio(value, _best(o)) for o in ours.values()]
        lines.append(
            [label, _number(value), "", "", "", *slower, _THEIR_SPEEDUP.get((figure, "expert"), ""), "", "", ""]
        )
    known = f"{len(land.truth):,} configurations, the best {_number(land.optimum)} {unit}, "
    known += f"{np.isnan(land.truth).mean():.0%} fail."
    return f"{known}\n\n{table([*header, 'they save'], lines)}"


def _variants(results: Results, cells: Sequence[Comparison]) -> str:
    header = ["", "configurations", "regret@20", "regret@50", "regret@200", "to 5 %", "to 1 %", "solved"]
    lines = []
    for cell in cells:
        land = results.landscapes[cell.landscape]
        for strategy in cell.strategies:
            runs = results.runs[cell.landscape, strategy]
            label = [strategy, cell.scope, cell.simulator or _COLD]
            regrets = [_regret(runs, n) for n in ("20", "50", "200")]
            counts = _evaluations(runs, results.settings.budget)
            lines.append([", ".join(label), f"{len(land.truth):,}", *regrets, *counts])
    return table(header, lines)


def _best(runs: Sequence[BenchRun]) -> float:
    """Median of the best values over the runs; NaN if a run found no configuration that works."""
    return float(np.median([float("nan") if r.best is None else r.best for r in runs]))


def _evaluations(runs: Sequence[BenchRun], budget: int) -> list[str]:
    to_5pct = float(np.median([r.evaluations_to_5pct or budget + 1 for r in runs]))
    to_1pct = float(np.median([r.evaluations_to_target or budget + 1 for r in runs]))
    solved = sum(r.evaluations_to_target is not None for r in runs)
    return [*(f">{budget}" if n > budget else f"{n:g}" for n in (to_5pct, to_1pct)), f"{solved}/{len(runs)}"]


def _saving(ours: Sequence[BenchRun], theirs: Sequence[BenchRun], budget: int, less_is_better: bool) -> str:
    """A text with the number of experiments that AutoScout needed to match a rival's best configuration, and the number
    that the rival needed (medians over runs with equal seeds)."""
    needed, of = [], []
    for a, b in zip(ours, theirs, strict=True):
        if b.best is None:
            continue
        good = [at for at, v in a.curve if (v <= b.best if less_is_better else v >= b.best)]
        needed.append(good[0] if good else budget + 1)
        of.append(b.curve[-1][0])
    if not of:
        return ""
    mine, rivals = float(np.median(needed)), float(np.median(of))
    if mine > budget:
        return f">{budget} of {rivals:g}"
    return f"{mine:g} of {rivals:g}" + (f" ({100 * (1 - mine / rivals):.0f} %)" if mine < rivals else "")


def _regret(runs: Sequence[BenchRun], n: str) -> str:
    found = spread([r.regret_at[n] for r in runs])
    return "–" if found is None else f"{100 * found.median:.1f} %"


def _number(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.4g}"


def _ratio(slower: float, faster: float) -> str:
    return "–" if np.isnan(slower / faster) else f"{slower / faster:.2f}×"


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
