"""Estimates the remaining time of a session in seconds from the durations of its experiments."""

import itertools
import math
import statistics

import msgspec

from autoscout.job.duration import seconds
from autoscout.job.objective import cost
from autoscout.tuning.repeats import Noise, most_rounds
from tui.session.state import Run, State

_RECENT = 20  # number of recent experiments from whose durations the next ones are estimated
_FINALISTS, _WITHIN = 3, 1.15  # expected finalists besides the default: at most three, within this factor of the best
_ROUNDS = 2  # number of final rounds on a quiet machine, where no further rounds are needed
_NEEDED = 0.25  # share of the possible measurements after these two rounds: half of the rounds × half of the finalists
_SIGMAS = 1.96


class Left(msgspec.Struct, frozen=True):
    """Remaining time of the search and of the final rounds in seconds. `low`, `high`: a 95 % interval of their sum."""

    search_s: float
    confirm_s: float
    low: float
    high: float

    @property
    def total(self) -> float:
        return self.search_s + self.confirm_s


def expected_s(state: State, run: Run) -> float | None:
    """Expected duration of an experiment: the median of its configuration's recent runs, else of all recent runs."""
    same = [r.ended - r.began for r in state.runs[-200:] if r.ended and r.configuration == run.configuration]
    durations = same or _durations(state)
    return statistics.median(durations) if durations else None


def remaining(state: State) -> Left | None:
    """The remaining time; None before the first experiment has ended, and after the session has ended."""
    durations = _durations(state)
    if state.job is None or state.phase == "ended" or not durations:
        return None
    mean, spread = statistics.mean(durations), statistics.stdev(durations) if len(durations) > 1 else durations[0] / 2
    cycle = mean + _gap(state)
    begun = sum(min(state.now - run.began, mean) for run in state.running.values())
    confirming = state.phase == "confirm"
    searches = 0 if confirming else _to_search(state)
    search = max(0.0, searches * cycle - (0.0 if confirming else begun))
    if state.job.budget.device_time and not confirming:
        search = min(search, max(0.0, seconds(state.job.budget.device_time) - state.device_s) / state.job.devices)
    done = len(state.confirms) if confirming else 0
    finalists = _to_confirm(state)
    repeats = to_confirm(state) - done
    most = _after_two(state, finalists) + min(0, repeats)
    if confirming and repeats <= 0:  # two rounds did not decide, so this estimates the rest of a further round
        repeats = finalists - -repeats % max(1, finalists)
        most = max(0, most - repeats)
    confirm = max(0.0, (repeats + _NEEDED * most) * cycle - (begun if confirming else 0.0))
    n = searches + repeats + _NEEDED * most
    error = _SIGMAS * spread * math.sqrt(n + n * n / len(durations))
    total, more = search + confirm, most * cycle
    low, high = total - error - _NEEDED * more, total + error + (1 - _NEEDED) * more
    if state.job.budget.wall:  # the search leaves the rounds half of the limit at most
        limit = seconds(state.job.budget.wall)
        left = max(0.0, limit - state.elapsed_s)
        search = min(search, max(0.0, left - min(confirm, limit / 2)))
        confirm, low, high = min(confirm, left - search), min(low, left), min(high, left + mean)
    return Left(search, confirm, max(0.0, low), high)


def _after_two(state: State, finalists: int) -> int:
    """Largest number of measurements in the final rounds after the first two; 0 on a quiet machine."""
    assert state.job is not None
    job, runs = state.job, (r for r in state.runs if r.configuration == state.default and r.purpose != "confirm")
    costs = [c for r in runs if r.measurement and (c := cost(job.objective, r.measurement)) is not None]
    return 0 if Noise.of(costs).quiet else (most_rounds(job.launch.repeats, state.searched) - _ROUNDS) * finalists


def to_confirm(state: State) -> int:
    """Number of measurements in the first two final rounds; each round measures the reference twice."""
    finalists = _to_confirm(state)
    return _ROUNDS * (finalists + (finalists > 0))


def _to_search(state: State) -> int:
    """Number of experiments until the budget is spent, or the search ends for lack of progress."""
    assert state.job is not None
    left = state.job.budget.profiles - state.searched
    if state.patience and state.milestone is not None:
        left = min(left, state.patience - (state.searched - state.milestone.experiments))
    return max(0, left)


def _durations(state: State) -> list[float]:
    measured = (r for r in reversed(state.runs) if r.ended and r.began and r.purpose != "answered")
    return [r.ended - r.began for r, _ in zip(measured, range(_RECENT), strict=False)]


def _gap(state: State) -> float:
    """Median time between two experiments in seconds."""
    runs = [r for r in state.runs[-_RECENT:] if r.began and r.ended]
    gaps = [after.began - before.ended for before, after in itertools.pairwise(runs)]
    return max(0.0, statistics.median(gaps)) if gaps else 0.0


def _to_confirm(state: State) -> int:
    """Number of configurations in the final rounds: exact after the first round, before it an estimate."""
    again = state.confirms
    seen = len(set(again))
    if state.seen == "designed":  # costs come from a deterministic model, without final rounds
        return seen
    if len(again) > seen + 1:  # the first round is over (in it, only the reference is measured twice)
        return seen
    best = state.best.value if state.best else None
    minimized = state.job is None or bool(state.job.objective.minimize)
    near = {
        key for key, value in state.leaders.items()
        if best and (value / best if minimized else best / value) <= _WITHIN
    }  # fmt: skip
    default = state.default.id if state.default else ""
    return max(seen, min(_FINALISTS, len(near - {default})) + (state.default_value is not None))
