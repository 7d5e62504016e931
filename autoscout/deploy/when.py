"""Checks whether a session's winner is still right, by comparing the present load or step times with those for which it
was tuned. Changes nothing."""

import statistics
from pathlib import Path
from typing import Literal

import msgspec

from autoscout.importing.served_load import ServedLoad, traffic_of
from autoscout.job.lengths import mean
from autoscout.job.metrics import HIGHEST_RATE
from autoscout.job.trace import lengths
from autoscout.space.explain import explain
from autoscout.targets.command.watched_run import logged
from autoscout.targets.jobs import JobSpace
from autoscout.tuning import evidence
from autoscout.tuning.best_predicted import ranking
from autoscout.tuning.predict import predict
from autoscout.tuning.sides import ended_with
from kb import journal as journals
from kb import store
from kb.records import AutoscoutError, Configuration, Job, Measurement

MOVED = 0.2  # if the load's rate or mean lengths change by more than this share, the best configuration is predicted
_BETTER = 0.03  # smallest predicted gain with which another configuration is recommended
SLOWER = 0.05  # a winner is probably not right if the interval of its relative slowdown lies entirely above this
STEP = "step_time_s"
FEWEST = 20  # smallest number of steps for a comparison

Kind = Literal["still right", "probably not", "not known"]


class Winner(msgspec.Struct, frozen=True, kw_only=True):
    """A session's best configuration. `measured`: its successful runs; `spent_s`: wall time of the session's
    experiments."""

    job: Job
    name: str
    configuration: Configuration
    measured: list[Measurement]
    spent_s: float


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """A property of the load, or the step time: when the winner was tuned (`then`), and `now`."""

    name: str
    then: float
    now: float


class StillRight(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a winner is still right. `rival`: the configuration that is predicted to be better now, "" if there is
    none; `gain`: cost of the winner / cost of the rival; `pays_back_s`: seconds after which that gain has saved as much
    time as the session took."""

    kind: Kind
    sentence: str
    changes: list[Changed]
    rival: str = ""
    gain: float | None = None
    pays_back_s: float | None = None


def winner_of(kb: Path, session: str) -> Winner:
    """The winner of a session. Errors: AutoscoutError (exit 2) if there is no such session, or it has no winner."""
    events = journals.events(store.journalled(kb, session) / "journal.jsonl")
    started, confirmed = ended_with(events, session)
    ended = [e.measurement for e in events if isinstance(e, journals.ExperimentEnded)]
    return Winner(
        job=started.job,
        name=confirmed.name,
        configuration=confirmed.winner,
        measured=[m for m in ended if m.configuration == confirmed.winner and m.status == "ok"],
        spent_s=sum(m.cost_s for m in ended),
    )


def of_load(winner: Winner, load: ServedLoad, kb: Path) -> StillRight:
    """Checks a serving job's winner for the load that was observed on a server."""
    today = _today(winner.job, load)
    changes = moves(winner.job, load)
    moved = [c for c in changes if abs(c.now - c.then) > MOVED * c.then]
    if not moved:
        return StillRight(
            kind="still right",
            sentence=f"{winner.name} is still right: the load has not changed since it was tuned",
            changes=changes,
        )
    words = ", ".join(f"{c.name} {c.now:.4g} instead of {c.then:.4g}" for c in moved)
    space = JobSpace.of_job(today)
    try:
        ours = predict(space, _as_ruled(space, winner.configuration).knobs, kb)
        best = ranking(space, today, kb, 1).best[0]
    except AutoscoutError as error:
        sentence = f"the load has changed ({words}), and the best configuration for it cannot be predicted: {error}"
        return StillRight(kind="not known", sentence=sentence, changes=changes)
    up = bool(today.objective.maximize)
    gain = best.value / ours.value if up else ours.value / best.value
    if gain < 1 + _BETTER:
        sentence = (
            f"{winner.name} is still right: the load has changed ({words}), but no configuration is predicted "
            "to be better"
        )
        return StillRight(kind="still right", sentence=sentence, changes=changes)
    pays = winner.spent_s / (1 - 1 / gain)
    sentence = (
        f"{winner.name} is probably no longer right: the load has changed ({words}), and {best.name} is predicted to "
        f"be {100 * (gain - 1):.0f} % better; tuning took {_minutes(winner.spent_s)}, and the gain pays this back in "
        f"{_minutes(pays)}"
    )
    return StillRight(
        kind="probably not", sentence=sentence, changes=changes, rival=best.name, gain=gain, pays_back_s=pays
    )


def _as_ruled(space: JobSpace, winner: Configuration) -> Configuration:
    """The configuration that behaves like the winner, in the search space for today's load. For example, a cache larger
    than this load can fill behaves like the largest one that it fills, and the space contains only that one."""
    found = explain(space, winner.knobs, space.reference)
    return found.configuration or found.nearest or winner


def _today(job: Job, load: ServedLoad) -> Job:
    """The job with the observed load: a job with `concurrency` keeps its concurrency; any other job gets the measured
    request rate."""
    now = traffic_of(load)
    if job.traffic.concurrency:
        now = msgspec.structs.replace(now, rate=0.0, concurrency=job.traffic.concurrency)
    return msgspec.structs.replace(job, traffic=now)


def moves(then: Job, load: ServedLoad) -> list[Changed]:
    """The changes of the mean input and output lengths, and of the request rate if the winner was tuned for a rate."""
    now = _today(then, load)
    lengths_of = zip(("input tokens", "output tokens"), lengths(then), lengths(now), strict=True)
    found = [Changed(name=name, then=mean(ours), now=mean(theirs)) for name, ours, theirs in lengths_of]
    if then.traffic.rate and then.objective.maximize != HIGHEST_RATE:
        found.append(Changed(name="requests/s", then=then.traffic.rate, now=now.traffic.rate))
    return found


def of_log(winner: Winner, log: Path) -> StillRight:
    """Checks a training job's winner by a running job's log. Errors: AutoscoutError (exit 2) for too few step times."""
    steps = logged(winner.job, log).iterations_s
    if len(steps) < FEWEST:
        raise AutoscoutError(f"{log} has {len(steps)} step times, but {FEWEST} are needed; wait for more", 2)
    return of_steps(winner, steps)


def tuned_step(winner: Winner) -> float:
    """The winner's step time in seconds. Errors: AutoscoutError (exit 2) if none of its runs has step times."""
    then = [m.metrics[STEP] for m in winner.measured if STEP in m.metrics]
    if not then:
        raise AutoscoutError(
            f"no run of {winner.name} has a {STEP}, so a log's step times cannot be compared with it", 2
        )
    return statistics.median(then)


def of_steps(winner: Winner, steps: list[float]) -> StillRight:
    """Checks a training job's winner by step times in seconds. Errors: those of `tuned_step`."""
    change = Changed(name=STEP, then=tuned_step(winner), now=statistics.median(steps))
    half = evidence.half_width(steps) / statistics.fmean(steps)
    slower = change.now / change.then - 1
    interval = f"({100 * (slower - half):+.0f} to {100 * (slower + half):+.0f} %)"
    if slower - half <= SLOWER:
        sentence = (
            f"{winner.name} is still right: its step time changed by {100 * slower:+.0f} % {interval} since "
            "it was tuned"
        )
        return StillRight(kind="still right", sentence=sentence, changes=[change])
    sentence = (
        f"steps of {winner.name} take {100 * slower:.0f} % longer than when it was tuned {interval}: the machine, "
        "the data or the software has changed; `autoscout gate` finds out which; tuning again would take about "
        f"{_minutes(winner.spent_s)}"
    )
    return StillRight(kind="probably not", sentence=sentence, changes=[change])


def _minutes(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours" if seconds >= 7200 else f"{max(1, round(seconds / 60))} minutes"
