"""Panels on the simulators' accuracy: predicted against measured values, by simulator and by region of the space."""

from rich.text import Text

from autoscout.simulate.trust import Region, TrustGuard
from tui.draw.look import fidelity_mark
from tui.draw.panels import FEW
from tui.draw.plot import bar, scatter, sparkline
from tui.session.state import State
from tui.text import fit, number


def checks(state: State, width: int, height: int, ascii_only: bool) -> Text:
    """Predicted against measured values, for every check of the simulators."""
    points = []
    for check in state.checks:
        if check.measured is not None:
            far = abs(check.predicted - check.measured) > check.epsilon * check.measured
            points.append(
                (
                    check.predicted,
                    check.measured,
                    "x" if far else fidelity_mark("measured", ascii_only),
                    "red" if far else "blue",
                )
            )
    return scatter(width, height, points, ascii_only, state.seen)


def check_list(state: State, width: int, height: int, ascii_only: bool) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(
        f"{'step':>5} {'predicted':>10} {state.seen:>10} {'error':>7} {'MAPE':>6}  configuration\n", style="dim"
    )
    for check in reversed(state.checks[-max(1, height - 1) :]):
        error = "failed" if check.measured is None else f"{(check.predicted - check.measured) / check.measured:+.1%}"
        measured = "–" if check.measured is None else number(check.measured)
        text.append(f"{check.step:>5} {number(check.predicted):>10} {measured:>10} {error:>7} {check.mape:>6.1%}")
        text.append(f"  {fit(check.name, width - 45)}\n")
    return text


def members(state: State, width: int, ascii_only: bool) -> Text:
    """For each simulator: its error in checks, its weight in the ensemble (by held-out R²), and earlier weights."""
    weights: dict[str, list[float]] = {}
    errors: dict[str, list[float]] = {}
    for check in state.checks:
        for name, weight in check.weights.items():
            weights.setdefault(name, []).append(weight)
        if check.measured:
            for name, predicted in check.members.items():
                errors.setdefault(name, []).append(abs(predicted - check.measured) / check.measured)
    names = sorted({**weights, **errors}, key=lambda n: -weights.get(n, [0.0])[-1])
    if not names:
        return Text("no check yet", style="dim")
    text = Text(no_wrap=True, overflow="ellipsis")
    column = max(14, min(26, width - 38))
    wide = width - column - 28 >= 4
    head = f"{'weight':<11}over time" if wide else "weight"
    text.append(f"{'simulator':<{column}}{'MAPE':>6} {'checks':>6}  {head}\n", style="dim")
    for name in names:
        found, history = errors.get(name, []), weights.get(name, [])
        mape = f"{sum(found) / len(found):.0%}" if found else "–"
        text.append(f"{fit(name, column):<{column}}{mape:>6} {len(found):>6}  ")
        if history:
            text.append(f"{bar(history[-1], 6, ascii_only)} {history[-1]:.2f} " if wide else f"{history[-1]:.2f}")
            text.append(f"{sparkline(history, width - column - 28, ascii_only)}" if wide else "", style="dim")
        text.append("\n")
    return text


def regions(state: State, width: int, height: int, ascii_only: bool) -> Text:
    """The regions (a knob value, such as tp = 2) where the simulators' error is larger than elsewhere."""
    found = _regions(state)
    if not found:
        return Text("too few checks to compare regions", style="dim")
    epsilon = state.checks[-1].epsilon
    top = max([r.mape for r in found] + [r.elsewhere or 0.0 for r in found]) or 1.0
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"{'where':<24}{'error':>6} {'elsewhere':>9} {'checks':>6}\n", style="dim")
    for region in found[: max(1, height - 1)]:
        value = {True: "on", False: "off"}[region.value] if isinstance(region.value, bool) else region.value
        bad = region.mape > epsilon
        text.append(f"{fit(f'{region.knob} is {value}', 24):<24}{region.mape:>6.0%} ", style="bold" if bad else "")
        text.append(f"{region.elsewhere or 0:>9.0%} {region.checks:>6}  ")
        note = "" if not bad else "not trusted here" if region.checks >= FEW else f"so far, {region.checks} checks"
        text.append(f"{bar(region.mape / top, max(4, min(20, width - 68)), ascii_only)}" if width >= 74 else "")
        text.append(f"  {note}\n", style="dim")
    return text


def _regions(state: State) -> list[Region]:
    """The regions in which the checks in the journal show a larger error than elsewhere."""
    if not state.checks:
        return []
    knobs = {run.name: run.configuration.knobs for run in state.runs}
    guard = TrustGuard(state.checks[-1].epsilon, len(state.checks))
    for check in state.checks:
        guard.check(check.predicted, check.measured, knobs.get(check.name))
    return [r for r in guard.regions() if r.elsewhere is not None and r.mape > r.elsewhere]
