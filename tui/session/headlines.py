"""A session's verdict in one sentence, as far as its journal goes."""

import statistics

from kb.end_events import Gated
from kb.records import Configuration
from tui.session.state import State


def verdict(state: State) -> str:
    """The sentence that `best` prints; "" before anything ran correctly."""
    if state.job is None or state.best_value is None:
        return ""
    # Imported here, so that the first frame is drawn without numpy.
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


def proven(gain: float | None, low: float | None) -> bool:
    """Whether a gain over the reference is more than a guess: its whole 95 % interval lies above 1."""
    return gain is not None and low is not None and low > 1


def shown(gain: float | None, low: float | None) -> str:
    """A gain for a narrow column, with a question mark if it is not proven."""
    if not gain:
        return ""
    return f"{gain:.2f}×" if proven(gain, low) or gain == 1 else f"{gain:.2f}×?"


def _round_s(state: State, best: Configuration | None) -> float | None:
    """Seconds that one more round of the best and the reference takes, as `best` counts them."""
    costs: dict[str, list[float]] = {}
    for run in state.runs:
        if run.measurement is not None and run.measurement.counts:
            costs.setdefault(run.configuration.id, []).append(run.measurement.cost_s)
    both = {c.id for c in (best, state.default) if c is not None} & costs.keys()
    return sum(statistics.median(costs[each]) for each in both) or None


def slower(ratio: float) -> str:
    """How much slower a gate's B is than its A, as text."""
    return f"{100 * (ratio - 1):+.1f} %"


def gate_words(found: Gated) -> str:
    """The verdict, with how much slower B is."""
    return f"{found.verdict}, {slower(found.ratio)}" if found.ratio else found.verdict
