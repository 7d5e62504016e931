"""The panels of the screens: pure functions from a state and a size to text."""

from rich.text import Text

from tui.draw.look import fidelity_mark, glyph, style
from tui.draw.plot import Marks, bar, plot, scatter, sparkline
from tui.state import SEARCH_PURPOSES, State, best_so_far, remaining_s
from tui.text import clock, metric, number

SILENT_S = 30.0  # without an event or a running experiment: worth saying
_PHASES = {
    "starting": "starting",
    "default": "measuring the default",
    "tournament": "tournament",
    "search": "searching",
    "confirm": "re-measuring the finalists",
    "ended": "ended",
}
REASONS = {
    "budget": "the budget of experiments is spent",
    "wall": "the wall-clock budget is spent",
    "converged": "no improvement for a long time",
    "exhausted": "every configuration of the space was tried",
    "interrupted": "interrupted; resume it with: autoscout tune --resume",
    "failed": "failed",
    "profiled": "one experiment, profiled",
    "stopped": "a person stopped it",
}


def headline(state: State, width: int, alive: bool | None, ascii_only: bool) -> Text:
    """Two lines: which session and how it stands; the best and what it is worth. `alive`: whether its process runs;
    None for a recording."""
    text = Text(no_wrap=True, overflow="ellipsis")
    if state.job is None:
        return text.append("waiting for the session to begin …", style="dim")
    text.append(f" {state.job.name}", style="bold")
    elapsed = clock(max(0.0, state.now - state.began))
    text.append(f"  {elapsed}  {fidelity_mark(state.fidelity, ascii_only)} {_doing(state, alive)}")
    text.append(f"  {state.session}\n", style="dim")
    if state.best_value is None:
        return text.append(" best –  nothing measured yet", style="dim")
    name = state.confirmed.name if state.confirmed else state.best.name if state.best else ""
    text.append(f" best {metric(state.job, state.best_value)}", style="bold")
    text.append(f"  {gain(state)}")
    text.append(f"  {name}", style="dim")
    return text


def gain(state: State) -> str:
    """The gain over the expert default and what it rests on."""
    if state.gain is None:
        return "default not measured"
    if state.confirmed is None:
        return f"{state.gain:.3f}× default (single runs)"
    c = state.confirmed
    interval = f" [{c.low:.3f}, {c.high:.3f}]" if c.low is not None and c.high is not None else ""
    return f"{state.gain:.3f}× default{interval} re-measured in {c.pairs} pairs"


def _doing(state: State, alive: bool | None) -> str:
    if state.ended is not None:
        return f"ended: {REASONS.get(state.ended.reason, state.ended.reason)}"
    if alive is False:
        return "its process is gone; resume with: autoscout tune --resume"
    if state.paused:
        return "paused; p goes on"
    silent = state.now - state.last
    if silent > SILENT_S and not state.running:
        return f"{_PHASES.get(state.phase, state.phase)}, silent for {clock(silent)}"
    return _PHASES.get(state.phase, state.phase)


def curve(state: State, width: int, height: int, ascii_only: bool) -> Text:
    marks = [
        Marks(
            [(p.at, p.value) for p in state.curve if p.kind == "simulated"],
            fidelity_mark("simulated", ascii_only),
            "dim",
        ),
        Marks([(p.at, p.value) for p in state.curve if p.kind == "known"], fidelity_mark("known", ascii_only), "cyan"),
        Marks(
            [(p.at, p.value) for p in state.curve if p.kind == "profiled" and p.value is not None],
            fidelity_mark("profiled", ascii_only),
            "blue",
        ),
        Marks([(p.at, None) for p in state.curve if p.value is None], glyph("error", ascii_only), "red"),
    ]
    last = float(len(state.curve) or 1)
    text = plot(width, max(2, height - 1), best_so_far(state), marks, state.default_value, "default", last, ascii_only)
    mark = {kind: fidelity_mark(kind, ascii_only) for kind in ("profiled", "simulated", "known")}  # type: ignore[arg-type]
    legend = f"\n{mark['profiled']} profiled {state.searched}  {mark['simulated']} simulated {state.simulated}"
    if state.known:
        legend += f"  {mark['known']} known {state.known}"
    text.append(legend, style="dim")
    return text


def budget(state: State, width: int, ascii_only: bool) -> Text:
    if state.job is None:
        return Text("")
    limit = state.job.budget
    size = max(6, min(20, width - 30))
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(
        f"experiments {state.searched}/{limit.profiles} {bar(state.searched / limit.profiles, size, ascii_only)}\n"
    )
    text.append(f"device time {number(state.device_s / 60)} min")
    if limit.wall:
        text.append(f"  wall {clock(max(0, state.now - state.began))} of {limit.wall}")
    text.append("\n")
    if state.orders:
        last = state.orders[-1]
        asked = " ".join([last.what, *(f"{n}={v}" for n, v in last.values.items())])
        text.append(f"asked: {asked}{', refused: ' + last.refused if last.refused else ''}\n")
    left = remaining_s(state)
    if left is not None:
        text.append(f"about {clock(left)} left, then the finalists are re-measured")
    elif state.phase == "confirm":
        text.append("the finalists and the default are measured in turns")
    return text


def trust(state: State, width: int, height: int, ascii_only: bool) -> Text:
    """MAPE against ε, and the fidelity with its reason."""
    text = Text()
    if state.checks:
        last = state.checks[-1]
        fine = last.mape <= last.epsilon
        sign = ("<=" if fine else ">") if ascii_only else ("≤" if fine else ">")
        text.append(f"MAPE {last.mape:.1%} {sign} {last.epsilon:.0%} {'trusted' if fine else 'too much'}\n")
        spark = sparkline([c.mape for c in state.checks], max(4, width - 12), ascii_only)
        text.append(f"{spark} {len(state.checks)} checks\n")
    else:
        text.append("no check of the simulators yet\n", style="dim")
    text.append(f"{fidelity_mark(state.fidelity, ascii_only)} {state.fidelity}")
    if state.fidelity_why:
        text.append(f": {state.fidelity_why}")
    return text


def arms(state: State, width: int, ascii_only: bool) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(
        f"{'  arm':<10}{'pulls':>6} {'mean reward':>12} {'UCB':>7}  {'UCB over time':<14}{'last':>8}\n", style="dim"
    )
    if not state.arms:
        return text.append("  no arm was rewarded yet", style="dim")
    spark = max(6, min(30, width - 52))
    for name, arm in state.arms.items():
        chosen = name == state.arm and state.phase == "search"
        pointer = (">" if ascii_only else "▸") if chosen else " "
        ucb = f"{arm.ucb[-1]:.3f}" if arm.ucb else "–"
        last = "–" if arm.last is None else f"{arm.last:+.1%}"
        text.append(
            f"{pointer} {name:<8}{arm.pulls:>6.0f} {arm.mean:>12.2%} {ucb:>7}  ", style="bold" if chosen else ""
        )
        text.append(f"{sparkline(arm.ucb, spark, ascii_only):<14}{last:>8}\n")
    text.right_crop(1)
    return text


def grid(state: State, width: int, ascii_only: bool) -> Text:
    """The last 2×2 grid in the objective's cost, and its difference of differences."""
    g = state.grid
    if g is None or len(g.costs) != 4:
        return Text("no 2×2 grid yet", style="dim")
    cell = ["failed" if c is None else number(c) for c in g.costs]
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"{'':<10}{'point base':>12}{'candidate':>12}\n", style="dim")
    text.append(f"{'s base':<10}{cell[0]:>12}{cell[1]:>12}\n")
    text.append(f"{'s cand.':<10}{cell[2]:>12}{cell[3]:>12}\n")
    text.append(f"Δ structure {g.delta_sparse:+.1%}  Δ point {g.delta_dense:+.1%}")
    if g.interaction is not None:
        text.append(f"  interaction {g.interaction:+.3g}")
    return text


def running(state: State, width: int, height: int, tail: list[str], ascii_only: bool) -> Text:
    """What runs now, with the end of its log; else the last one that ended."""
    text = Text(no_wrap=True, overflow="ellipsis")
    for run in state.running.values():
        text.append(f"{glyph('running', ascii_only)} #{run.number} ", style="cyan")
        text.append(f"{run.name}", style="bold")
        text.append(f"  {run.purpose}  {clock(max(0.0, state.now - run.began))}\n")
        text.append(f"  {run.why}\n", style="dim")
    if not state.running and state.runs:
        run = state.runs[-1]
        text.append(
            f"{glyph(run.status, ascii_only)} #{run.number or '–'} {run.name}  {run.status}\n", style(run.status)
        )
        text.append(f"  {run.note or run.why}\n", style="dim")
    room = height - len(text.plain.splitlines())
    for line in tail[-room:] if room > 0 else []:
        text.append(f"  {line[: width - 2]}\n", style="dim")
    return text


def failures(state: State, width: int, height: int, ascii_only: bool) -> Text:
    if not state.failures:
        return Text("no failure", style="dim")
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append("  ".join(f"{glyph(s, ascii_only)} {s} {n}" for s, n in sorted(state.failures.items())) + "\n")
    failed = [run for run in reversed(state.runs) if run.status not in ("ok", "running")]
    for run in failed[: max(0, height - 1)]:
        text.append(f"{run.name}: {run.note}\n", style="dim")
    return text


def changes(state: State, width: int, ascii_only: bool) -> Text:
    """Best against default: only the knobs that differ."""
    if state.default is None or (state.best is None and state.confirmed is None):
        return Text("nothing measured yet", style="dim")
    winner = state.confirmed.winner if state.confirmed else state.best.configuration if state.best else state.default
    text = Text(no_wrap=True, overflow="ellipsis")
    names = [n for n in {**state.default.knobs, **winner.knobs} if state.default.knobs.get(n) != winner.knobs.get(n)]
    if not names:
        return Text("the expert default itself")
    arrow = "->" if ascii_only else "→"
    for name in names:
        before, after = (_shown(c.knobs.get(name)) for c in (state.default, winner))
        text.append(f"{name:<18}{before:>10} {arrow} ")
        text.append(f"{after}\n", style="bold")
    return text


def standings(state: State, width: int, ascii_only: bool) -> Text:
    """The tournament of tree orderings, round by round."""
    if not state.rounds:
        return Text("no tournament yet", style="dim")
    text = Text(no_wrap=True, overflow="ellipsis")
    arrow = " > " if ascii_only else " → "
    for r in state.rounds:
        text.append(f"round {r.round + 1}\n", style="dim")
        order = sorted(range(len(r.orderings)), key=lambda i: -r.rewards[i])
        for i in order:
            kept = i in r.kept
            text.append(
                f"{glyph('ok', ascii_only) if kept else ' '} {r.rewards[i]:.4f}  ", style="bold" if kept else ""
            )
            text.append(f"{arrow.join(r.orderings[i])}\n", style="bold" if kept else "dim")
    return text


def checks(state: State, width: int, height: int, ascii_only: bool) -> Text:
    """Predicted against measured, every check of the guard."""
    points = []
    for check in state.checks:
        if check.measured is not None:
            far = abs(check.predicted - check.measured) > check.epsilon * check.measured
            points.append(
                (
                    check.predicted,
                    check.measured,
                    "x" if far else fidelity_mark("profiled", ascii_only),
                    "red" if far else "blue",
                )
            )
    return scatter(width, height, points, ascii_only)


def check_list(state: State, width: int, height: int, ascii_only: bool) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(
        f"{'step':>5} {'predicted':>10} {'measured':>10} {'error':>7} {'MAPE':>6}  configuration\n", style="dim"
    )
    for check in reversed(state.checks[-max(1, height - 1) :]):
        error = "failed" if check.measured is None else f"{(check.predicted - check.measured) / check.measured:+.1%}"
        measured = "–" if check.measured is None else number(check.measured)
        text.append(f"{check.step:>5} {number(check.predicted):>10} {measured:>10} {error:>7} {check.mape:>6.1%}")
        text.append(f"  {check.name}\n")
    return text


def weights(state: State, width: int, ascii_only: bool) -> Text:
    """Each simulator's weight in the ensemble, now and over time."""
    history: dict[str, list[float]] = {}
    for check in state.checks:
        for name, weight in check.weights.items():
            history.setdefault(name, []).append(weight)
    if not history:
        return Text("no weights yet", style="dim")
    text = Text(no_wrap=True, overflow="ellipsis")
    for name, values in history.items():
        text.append(f"{name:<22.22}{bar(values[-1], 10, ascii_only)} {values[-1]:>5.2f}  ")
        text.append(f"{sparkline(values, max(4, width - 42), ascii_only)}\n", style="dim")
    return text


def _shown(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def experiment_row(state: State, index: int, ascii_only: bool) -> list[str]:
    """One line of the table of experiments."""
    run = state.runs[index]
    value = number(run.value) if run.value is not None else ""
    memory = run.measurement.metrics.get("peak_memory_gib") if run.measurement else None
    cost = number(run.ended - run.began) if run.ended and run.began else ""
    kind = run.purpose if run.purpose not in SEARCH_PURPOSES else run.arm or run.purpose
    return [
        str(run.number or ""),
        f"{glyph(run.status, ascii_only)} {run.status}",
        value,
        "" if memory is None else number(memory),
        cost,
        kind,
        run.name,
    ]
