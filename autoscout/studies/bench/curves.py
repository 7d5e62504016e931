"""Text plots of anytime curves: each strategy's median regret (relative distance from the optimum) as a function of the
number of evaluations."""

from collections.abc import Sequence

import numpy as np

from autoscout.studies.bench.run import BenchRun
from autoscout.studies.bench.summary import ALL

_FLOOR, _CEILING = 1e-3, 10.0  # regrets are clipped to this range
_LABELS = {1e-3: "≤0.1 %", 1e-2: "1 %", 0.1: "10 %", 1.0: "100 %", 10.0: "≥1000 %"}
_MOST_PANELS = 9
_TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)  # numbers of evaluations on the axis
_WIDTH, _HEIGHT = 64, 12  # of a text plot, in characters

# strategy → quartiles of the regret after each evaluation, (3, budget); NaN while no configuration has run
Curves = dict[str, np.ndarray]


def curves(runs: Sequence[BenchRun], budget: int) -> Curves:
    result = {}
    for strategy in dict.fromkeys(r.strategy for r in runs):
        table = np.array([_regrets(r, budget) for r in runs if r.strategy == strategy])
        quartiles = np.percentile(table, [25, 50, 75], axis=0, method="nearest")
        result[strategy] = np.where(np.isinf(quartiles), np.nan, quartiles)
    return result


def _regrets(run: BenchRun, budget: int) -> np.ndarray:
    """Returns the regret after each evaluation, (budget,); infinity while no configuration has run."""
    regrets = np.full(budget, np.inf)
    for at, value in run.curve:
        regrets[int(at) - 1 :] = abs(value - run.optimum) / run.optimum
    return regrets


def panels(runs: Sequence[BenchRun], budget: int) -> dict[str, Curves]:
    """Curves by landscape. If there are many landscapes, there is a single entry with curves over all runs."""
    landscapes = list(dict.fromkeys(r.landscape for r in runs))
    if len(landscapes) > _MOST_PANELS:
        return {f"{ALL} {len(landscapes)} landscapes": curves(runs, budget)}
    return {name: curves([r for r in runs if r.landscape == name], budget) for name in landscapes}


def _depth(regret: float) -> float:
    """Returns how far below the top of the plot a regret is drawn, as a share of the plot's height."""
    return 1 - np.log(min(max(regret, _FLOOR), _CEILING) / _FLOOR) / np.log(_CEILING / _FLOOR)


def text(drawn: Curves, budget: int) -> str:
    """Returns the curves as a text plot with one letter per strategy. Where curves overlap, the letter of the first
    strategy is shown."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    places = np.unique(np.geomspace(1, budget, _WIDTH).round().astype(int))
    grid = [[" "] * len(places) for _ in range(_HEIGHT)]
    for i, (_, (_, median, _)) in reversed(list(enumerate(drawn.items()))):
        for column, n in enumerate(places):
            if np.isfinite(median[n - 1]):
                row = round((_HEIGHT - 1) * _depth(median[n - 1]))
                grid[row][column] = letters[i % len(letters)]
    labels = {round((_HEIGHT - 1) * _depth(regret)): label for regret, label in _LABELS.items()}
    lines = [f"{labels.get(i, ''):>8} │{''.join(row).rstrip()}" for i, row in enumerate(grid)]
    axis = [" "] * (len(places) + 4)
    for n in (n for n in _TICKS if n <= budget):
        column = int(np.searchsorted(places, n))
        if axis[max(column - 1, 0)] == " ":
            axis[column : column + len(str(n))] = str(n)
    legend = "  ".join(f"{letters[i % len(letters)]} {name}" for i, name in enumerate(drawn))
    return "\n".join(
        [*lines, f"{'':>8} └{'─' * len(places)}", f"{'':>10}{''.join(axis).rstrip()}", f"{'':>10}{legend}"]
    )
