"""Is a winner still right? Today's load, or today's step times, against those that it was tuned on. Changes nothing."""

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

MOVED = 0.2  # relative change of a load's rate or mean lengths below which its winner is not asked for again
_BETTER = 0.03  # predicted gain below which a rival is not named
SLOWER = 0.05  # share by which steps take longer, whatever their interval, from which a winner is doubted
STEP = "step_time_s"
FEWEST = 20  # steps of a log that are compared

Kind = Literal["still right", "probably not", "not known"]


class Winner(msgspec.Struct, frozen=True, kw_only=True):
    """Of a session. `measured`: its runs that were ok; `spent_s`: wall seconds of the session."""

    job: Job
    name: str
    configuration: Configuration
    measured: list[Measurement]
    spent_s: float


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """A number then and now."""

    name: str
    then: float
    now: float


class StillRight(msgspec.Struct, frozen=True, kw_only=True):
    """`rival`: what is predicted to be better today, by `gain` (a ratio of costs above 1); "" where none is named.
    `pays_back_s`: after how long tuning again, at the session's own cost, is paid by that gain."""

    kind: Kind
    sentence: str
    changes: list[Changed]
    rival: str = ""
    gain: float | None = None
    pays_back_s: float | None = None


def winner_of(kb: Path, session: str) -> Winner:
    """Errors: AutoscoutError (exit 2) without such a session, or without its winner."""
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
    """A serving job's winner under a load that was just seen."""
    today = _today(winner.job, load)
    changes = moves(winner.job, load)
    moved = [c for c in changes if abs(c.now - c.then) > MOVED * c.then]
    if not moved:
        return StillRight(
            kind="still right", sentence=f"{winner.name} is still right: the load is as tuned", changes=changes
        )
    words = ", ".join(f"{c.name} {c.now:.4g} instead of {c.then:.4g}" for c in moved)
    space = JobSpace.of_job(today)
    try:
        ours = predict(space, _as_ruled(space, winner.configuration).knobs, kb)
        best = ranking(space, today, kb, 1).best[0]
    except AutoscoutError as error:
        sentence = f"the load has changed ({words}), and nothing predicts what is best under it: {error}"
        return StillRight(kind="not known", sentence=sentence, changes=changes)
    up = bool(today.objective.maximize)
    gain = best.value / ours.value if up else ours.value / best.value
    if gain < 1 + _BETTER:
        sentence = (
            f"{winner.name} is still right: the load has changed ({words}), and nothing is predicted to be better"
        )
        return StillRight(kind="still right", sentence=sentence, changes=changes)
    pays = winner.spent_s / (1 - 1 / gain)
    sentence = (
        f"{winner.name} is probably not right any more: the load has changed ({words}), and {best.name} is predicted "
        f"to be {100 * (gain - 1):.0f} % better; tuning took {_minutes(winner.spent_s)}, which that pays back in "
        f"{_minutes(pays)}"
    )
    return StillRight(
        kind="probably not", sentence=sentence, changes=changes, rival=best.name, gain=gain, pays_back_s=pays
    )


def _as_ruled(space: JobSpace, winner: Configuration) -> Configuration:
    """What acts as the winner does under today's load: a cache that this load never fills is one of the size it fills,
    and only that is in the space."""
    found = explain(space, winner.knobs, space.reference)
    return found.configuration or found.nearest or winner


def _today(job: Job, load: ServedLoad) -> Job:
    """The job under that load: as many users as it was tuned for, where it has users, else requests at their rate."""
    now = traffic_of(load)
    if job.traffic.concurrency:
        now = msgspec.structs.replace(now, rate=0.0, concurrency=job.traffic.concurrency)
    return msgspec.structs.replace(job, traffic=now)


def moves(then: Job, load: ServedLoad) -> list[Changed]:
    """Mean lengths and the rate, where the winner was tuned for one."""
    now = _today(then, load)
    lengths_of = zip(("input tokens", "output tokens"), lengths(then), lengths(now), strict=True)
    found = [Changed(name=name, then=mean(ours), now=mean(theirs)) for name, ours, theirs in lengths_of]
    if then.traffic.rate and then.objective.maximize != HIGHEST_RATE:
        found.append(Changed(name="requests/s", then=then.traffic.rate, now=now.traffic.rate))
    return found


def of_log(winner: Winner, log: Path) -> StillRight:
    """A training job's winner by the step times of a running job's log. Errors: AutoscoutError (exit 2)."""
    steps = logged(winner.job, log).iterations_s
    if len(steps) < FEWEST:
        raise AutoscoutError(f"{log}: has {len(steps)} step times, and {FEWEST} are compared; wait for more", 2)
    return of_steps(winner, steps)


def tuned_step(winner: Winner) -> float:
    """Seconds. Errors: AutoscoutError (exit 2) where no run of the winner has step times."""
    then = [m.metrics[STEP] for m in winner.measured if STEP in m.metrics]
    if not then:
        raise AutoscoutError(f"no run of {winner.name} was measured by {STEP}, so no log can be held against it", 2)
    return statistics.median(then)


def of_steps(winner: Winner, steps: list[float]) -> StillRight:
    """By some steps, in seconds. Errors: AutoscoutError (exit 2)."""
    change = Changed(name=STEP, then=tuned_step(winner), now=statistics.median(steps))
    half = evidence.half_width(steps) / statistics.fmean(steps)
    slower = change.now / change.then - 1
    interval = f"({100 * (slower - half):+.0f} to {100 * (slower + half):+.0f} %)"
    if slower - half <= SLOWER:
        sentence = (
            f"{winner.name} is still right: its steps are at {100 * slower:+.0f} % {interval} against when it was tuned"
        )
        return StillRight(kind="still right", sentence=sentence, changes=[change])
    sentence = (
        f"steps of {winner.name} take {100 * slower:.0f} % longer than when it was tuned {interval}: the machine, the "
        f"data or the software is another; `autoscout gate` says which, and tuning took {_minutes(winner.spent_s)}"
    )
    return StillRight(kind="probably not", sentence=sentence, changes=[change])


def _minutes(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours" if seconds >= 7200 else f"{max(1, round(seconds / 60))} minutes"
