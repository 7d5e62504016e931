"""The panels of the main screen, as functions from a session's state and a size to text."""

from rich.cells import cell_len
from rich.text import Text

from autoscout.targets.target import reference_of
from kb.journal import Outlook
from kb.records import DESIGNED
from tui.draw.gates import verdict_of
from tui.draw.look import fidelity_mark, glyph
from tui.draw.plot import Marks, bar, plot, sparkline
from tui.session.eta import remaining
from tui.session.headlines import verdict
from tui.session.standing import MARKS, Standing
from tui.session.state import State, best_so_far
from tui.text import clock, fit, fit_lines, knob_value, label, label_width, metric

_CHANGE = 38  # width in characters of each column of changed knobs
FEW = 3  # smallest number of checks for a verdict on the simulators
_UNSCORED = 4  # a note is shown after more experiments than this without a check; a batch is only checked at its end
_KINDS = dict.fromkeys(("crashed", "infeasible", "failed", "silent"), "bold red") | {"waiting": "yellow"}


def headline(state: State, standing: Standing, width: int, ascii_only: bool) -> Text:
    """Two lines: the session and its status; the best value with its gain, and the configuration's name if it fits."""
    text = Text(no_wrap=True, overflow="ellipsis")
    if state.job is None:
        text.append(f" {standing.words}", style="dim")
        return text.append("\n")
    fancy, plain = MARKS.get(standing.kind, ("", ""))
    mark = (plain if ascii_only else fancy) or fidelity_mark(state.fidelity, ascii_only)
    text.append(f" {state.job.name}", style="bold")
    text.append(f"  {clock(state.elapsed_s)}  ")
    text.append(f"{mark} {standing.words}", style=_KINDS.get(standing.kind, ""))
    fits = len(text.plain) + len(state.session) + 2 <= width
    text.append(f"  {state.session}\n" if fits else "\n", style="dim")
    if state.gated is not None:
        return text.append(" ").append(verdict_of(state.gated, ascii_only))
    if state.best_value is None:
        return text.append(f" best –  nothing {state.seen} yet", style="dim")
    name = state.confirmed.name if state.confirmed else state.best.name if state.best else ""
    parts = [(f"best {metric(state.job, state.best_value)}", "bold"), (gain(state), "")]
    if state.confirmed:  # the verdict comes first, because lines are truncated at the right
        parts = [(gain(state), "bold"), (parts[0][0], "")]
    for i, (part, style) in enumerate(parts):
        if not i or not state.confirmed or len(text.plain.splitlines()[-1]) + len(part) + 2 <= width:
            text.append(f"{'  ' if i else ' '}{part}", style=style)
    if len(text.plain.splitlines()[-1]) + len(name) + 2 <= width:
        text.append(f"  {name}", style="dim")
    return Text("\n", no_wrap=True, overflow="ellipsis").join(_at_a_word(line, width) for line in text.split("\n"))


def _at_a_word(line: Text, width: int) -> Text:
    if cell_len(line.plain) > width:
        kept = fit(line.plain, width)
        line.right_crop(len(line) - len(kept) + 1)
        line.append("…")
    return line


def gain(state: State) -> str:
    """The gain over the reference; after the final rounds, the verdict."""
    if state.gain is None:
        return f"default not {state.seen}"
    if state.seen == "measured" and state.confirmed is None:
        return f"{state.gain:.3f}× default (single runs)"
    return verdict(state) if state.confirmed else f"{state.gain:.3f}× default, {DESIGNED}"


def curve(state: State, width: int, height: int, ascii_only: bool) -> Text:
    marks = [
        Marks(
            [(p.at, p.value) for p in state.curve if p.kind == "predicted"],
            fidelity_mark("predicted", ascii_only),
            "dim",
        ),
        Marks([(p.at, p.value) for p in state.curve if p.kind == "known"], fidelity_mark("known", ascii_only), "cyan"),
        Marks(
            [(p.at, p.value) for p in state.curve if p.kind == "measured" and p.value is not None],
            fidelity_mark("measured", ascii_only),
            "blue",
        ),
        Marks([(p.at, None) for p in state.curve if p.value is None], glyph("error", ascii_only), "red"),
    ]
    last = float(len(state.curve) or 1)
    text = plot(width, max(2, height - 1), best_so_far(state), marks, state.default_value, "default", last, ascii_only)
    mark = {kind: fidelity_mark(kind, ascii_only) for kind in ("measured", "predicted", "known")}  # type: ignore[arg-type]
    counts = [
        (mark["measured"], (state.seen, f"{state.seen[:4]}."), state.searched),
        (mark["predicted"], ("predicted", "pred."), state.predicted),
        (mark["known"], ("known", "known"), state.known),
        (glyph("error", ascii_only), ("failed", "failed"), sum(state.failures.values())),
        (glyph("infrastructure", ascii_only), ("infrastructure", "infra."), state.incidents),
    ]
    legends = ["  ".join(f"{m} {words[short]} {n}" for m, words, n in counts if n) for short in (0, 1)]
    text.append(f"\n{legends[len(legends[0]) > width]}", style="dim")
    return text


def failures(state: State, width: int, height: int, ascii_only: bool) -> Text:
    spoiled = {"infrastructure": state.incidents} if state.incidents else {}
    if not state.failures and not spoiled:
        return Text("no failure", style="dim")
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(
        "  ".join(f"{glyph(s, ascii_only)} {s} {n}" for s, n in [*sorted(state.failures.items()), *spoiled.items()])
        + "\n"
    )
    failed = [run for run in reversed(state.runs) if run.status not in ("ok", "running")]
    for run in failed[: max(0, height - 1)]:
        text.append(f"{fit(f'{run.name}: {run.note}', width)}\n", style="dim")
    return text


def changes(state: State, width: int, height: int, ascii_only: bool) -> Text:
    """The knobs of the best configuration that differ from the default's, in several columns if there are many. Knobs
    that are inactive in it, or off in it and inactive in the default, are left out."""
    winner = state.winner
    if state.default is None or winner is None:
        return Text(f"nothing {state.seen} yet", style="dim")
    text = Text(no_wrap=True, overflow="ellipsis")
    names = [name for name, value in winner.knobs.items() if state.default.knobs.get(name, False) != value]
    if not names:
        return Text(f"{reference_of(state.job)} itself")
    arrow, wide = "->" if ascii_only else "→", label_width(names)
    rows = max(1, height, -(-len(names) // max(1, width // _CHANGE)))
    for row in range(min(rows, len(names))):
        for name in names[row::rows]:
            before, after = (knob_value(c.knobs.get(name)) for c in (state.default, winner))
            text.append(f"{label(name, wide)}{before:>8} {arrow} ")
            text.append(fit(after, 8).ljust(9 if rows < len(names) else 0), style="bold")
        text.append("\n")
    return text


def standings(state: State, width: int, ascii_only: bool) -> Text:
    """The rounds of the tournament between orders in which the search tree branches on knobs."""
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
            text.append(f"{_ordering(r.orderings[i], arrow, width - 10)}\n", style="bold" if kept else "dim")
    return text


def _ordering(knobs: list[str], arrow: str, width: int) -> str:
    """An ordering of knobs as text: as many names as fit, from the tree's root on, and the number of further knobs."""
    for shown in range(len(knobs), 0, -1):
        left = len(knobs) - shown
        line = arrow.join(knobs[:shown]) + (f"{arrow}{left} more" if left else "")
        if len(line) <= width:
            return line
    return f"{fit(knobs[0], width - 8)}, {len(knobs) - 1} more"


def budget(state: State, width: int, height: int, ascii_only: bool) -> Text:
    if state.job is None:
        return Text("")
    limit = state.job.budget
    size = max(4, min(20, width - 19))
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(
        f"experiments {state.searched}/{limit.profiles} {bar(state.searched / limit.profiles, size, ascii_only)}\n"
    )
    elapsed = clock(state.elapsed_s)
    text.append(f"time {elapsed} of {limit.wall}\n" if limit.wall else f"time {elapsed}\n")
    text.append(f"{_left(state, width)}\n")
    if state.outlook is not None:
        text.append(f"{outlook(state.outlook, width)}\n")
    of = f" ({limit.device_time} for the search)" if limit.device_time else ""
    text.append(f"{state.device_s:,.0f} device seconds used{of}\n", style="dim")
    if state.orders and height > 4:
        last = state.orders[-1]
        asked = " ".join([last.what, *(f"{n}={v}" for n, v in last.values.items())])
        text.append(f"asked: {asked}{', refused: ' + last.refused if last.refused else ''}\n")
    return text


def outlook(latest: Outlook, width: int) -> str:
    """The probability that a better configuration exists, and the expected gain of more experiments, as text."""
    if width < 44:
        return f"1 % better left {latest.chance:.0%}, +{latest.ahead}: {latest.gain:.1%}"
    return f"P(1 % better exists) {latest.chance:.0%}, {latest.ahead} more runs gain {latest.gain:.1%}"


def _left(state: State, width: int) -> str:
    left = remaining(state)
    if left is None:
        return "" if state.phase == "ended" else "time left: after the first experiment"
    low, high = clock(left.low), clock(left.high)
    span = f"({low}–{high})" if low != high else ""
    short = f"left {clock(left.total)} {span}".rstrip()
    if state.phase == "confirm":
        return f"{short} to re-measure" if width > 40 else short
    return f"{short}, re-measuring {clock(left.confirm_s)} of it" if width > 50 else short


def trust(state: State, width: int, height: int, ascii_only: bool) -> Text:
    """The simulators' MAPE, its limit ε and the number of checks; the present fidelity and the reason for it."""
    text = Text()
    if state.checks:
        last, count = state.checks[-1], len(state.checks)
        fine = last.mape <= last.epsilon
        sign = ("<=" if fine else ">") if ascii_only else ("≤" if fine else ">")
        text.append(f"MAPE {last.mape:.1%} {sign} {last.epsilon:.0%} {_verdict(fine, count)}\n")
        height -= 1
        if state.unscored > _UNSCORED:
            text.append(f"{state.unscored} runs since that check\n", style="bold")
            height -= 1
        elif height > 3:
            spark = sparkline([c.mape for c in state.checks], max(4, width - 12), ascii_only)
            text.append(f"{spark} {count} check{'s' if count > 1 else ''}\n")
            height -= 1
    else:
        text.append("no check of the simulators yet\n", style="dim")
        height -= 1
    why, fidelity = state.fidelity_why, state.fidelity
    if state.seen == "designed" and fidelity == "measured":
        fidelity, why = "predicted", f"{DESIGNED}; an experiment uses the more exact one"
    if not why and state.job is not None and fidelity == "measured":
        why = "every experiment is real"
    said = f"{fidelity_mark(fidelity, ascii_only)} {fidelity}{': ' if why else ''}{why}"
    return text.append("\n".join(fit_lines(said, width, max(1, height))))


def _verdict(fine: bool, count: int) -> str:
    """The verdict on the simulators, for which one or two checks are too few."""
    if count < FEW:
        return f"so far, {count} check{'s' if count > 1 else ''}"
    return "trusted" if fine else "too much"
