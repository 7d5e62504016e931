"""A session's verdict so far in one sentence."""

import statistics

from kb.end_events import Gated
from kb.records import Configuration
from tui.session.state import State
from tui.text import changes


def verdict(state: State) -> str:
    """The sentence that `autoscout best` prints; "" before anything ran correctly."""
    if state.job is None or state.best_value is None:
        return ""
    # Imported here, because the first frame must not wait for the import of numpy.
    from autoscout.deploy.headline import Verdict, headline
    from autoscout.targets.target import reference_of

    confirmed = state.confirmed
    best = state.winner
    return headline(
        Verdict(
            objective=state.job.objective,
            reference=reference_of(state.job),
            tried=len({run.configuration.id for run in state.runs if run.ended}),
            gain=state.gain,
            confirmed=confirmed,
            kept=best == state.default,
            designed=state.seen == "designed",
            left=state.outlook.chance if state.outlook else None,
            round_s=_round_s(state, best),
        )
    )


def verdict_lines(state: State) -> list[str]:
    """The verdict of the final rounds, and what the winner changes; none before it."""
    if state.job is None or state.default is None or state.confirmed is None:
        return []
    lines = [f"{state.job.name}: {verdict(state)}"]
    winner = state.confirmed.winner
    return lines if winner == state.default else [*lines, f"changed: {changes(state.default.knobs, winner.knobs)}"]


def proven(gain: float | None, low: float | None) -> bool:
    """Whether a gain over the reference is proven, that is, its whole 95 % interval lies above 1."""
    return gain is not None and low is not None and low > 1


def shown(gain: float | None, low: float | None) -> str:
    """A gain as short text, with a question mark if it is not proven."""
    if not gain:
        return ""
    return f"{gain:.2f}×" if proven(gain, low) or gain == 1 else f"{gain:.2f}×?"


def _round_s(state: State, best: Configuration | None) -> float | None:
    """Seconds to measure the best configuration and the reference once more; None if neither was measured."""
    costs: dict[str, list[float]] = {}
    for run in state.runs:
        if run.measurement is not None and run.measurement.counts:
            costs.setdefault(run.configuration.id, []).append(run.measurement.cost_s)
    both = {c.id for c in (best, state.default) if c is not None} & costs.keys()
    return sum(statistics.median(costs[each]) for each in both) or None


def slower(ratio: float) -> str:
    """How much slower version B of a gate is than version A, as text."""
    return f"{100 * (ratio - 1):+.1f} %"


def gate_words(found: Gated) -> str:
    """A gate's verdict as text, and how much slower version B is."""
    return f"{found.verdict}, {slower(found.ratio)}" if found.ratio else found.verdict
