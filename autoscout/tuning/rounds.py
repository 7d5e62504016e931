"""Runs the final rounds of a session: measures the configurations that trial.py selects, and returns the verdict of
confirm.py. If all finalists fail when measured again, as may happen close to a bound, the next best configurations
become finalists."""

import math
from collections.abc import Callable, Generator

from autoscout.job.objective import cost, rows_of
from autoscout.job.words import several
from autoscout.search.belief.limits import beyond
from autoscout.search.belief.ranking import Ranking
from autoscout.space.graph import Space
from autoscout.tuning import confirm, designed
from autoscout.tuning.anchors import Anchors
from autoscout.tuning.evaluator import WantedExperiment
from autoscout.tuning.repeats import Noise, most_rounds
from autoscout.tuning.trial import Trial
from kb.journal import Confirmed
from kb.records import AutoscoutError, Configuration, Job, Measurement

_TURNS = 3  # how many sets of finalists are tried


def confirmed(
    job: Job,
    space: Space,
    allowed: Space,
    done: list[Measurement],
    reference: Configuration,
    anchors: Anchors,
    on_note: Callable[[str], None],
    over: Callable[[int], bool],
    today: Configuration | None = None,
) -> Generator[WantedExperiment, Measurement, Confirmed]:
    """Measures the final rounds and returns the verdict. `allowed`: the space that the user's orders left; `done`: its
    measurements; `over`: whether no further round of so many experiments may begin; `today`: the user's present launch,
    which is measured with the finalists if it ran.

    Errors: AutoscoutError (exit 3) if nothing worked, or no finalist could be measured again."""
    if anchors.exact:
        return designed.compared(job, space, done, reference)
    tried: list[Measurement] = []  # all measurements of finalists in the rounds
    out: set[str] = set()  # ids of finalists that failed or broke a bound in the rounds
    limit = most_rounds(job.launch.repeats, len({m.configuration.id for m in done}))
    found = None
    for _ in range(_TURNS):
        broke = [m for m in tried if m.configuration.id in out and cost(job.objective, m) is None]
        known = [*(m for m in done if m.configuration.id not in out), *broke]
        worse = _worse(job, done, tried)
        left = [m for m in known if m.configuration == reference or _keeps(job, m, worse)]
        rows, broken = rows_of(job.objective, known + anchors.again)
        ranking = Ranking(allowed, rows, {m.configuration.id: m.conditions.get("doubt", 0.0) for m in known}, broken)
        quiet = anchors.reference == reference and Noise.of(anchors.costs).quiet
        finalists = confirm.finalists(job, ranking, reference, left, quiet)
        if tried and all(c == reference for c in finalists):
            break
        if not finalists:
            raise AutoscoutError(confirm.nothing_worked(job, done), 3)
        ran = any(m.configuration == today and cost(job.objective, m) is not None for m in left)
        present = today if ran else None
        by_id = {c.id: c for c in [*finalists, *([present] if present else [])]}
        on_note(f"measuring {several(len(by_id), 'configuration')} again in rounds, at least two")
        trial = _trial(ranking, list(by_id), reference, anchors, limit)
        measured = yield from _rounds(job, trial, by_id, {c.id for c in finalists} - {reference.id}, over)
        around = {c.id: near for c in finalists if (near := ranking.around(c)) is not None}
        found = confirm.verdict(job, space, trial, measured, reference, around, present)
        tried += [m for row in measured for m in row if m.configuration != reference]
        fresh = confirm.failed(job, measured) - {reference.id}
        out |= fresh
        if not fresh or any(c.id not in out and c != reference for c in finalists) or over(2):
            break
    if found is None:
        raise AutoscoutError(confirm.nothing_worked(job, tried, "finalist", " when measured again"), 3)
    return found


def needed(measured: int) -> int:
    """The number of experiments in two rounds, after so many measured configurations. The reference runs twice."""
    return 2 * (confirm.most_finalists(measured) + 2)


def _worse(job: Job, done: list[Measurement], again: list[Measurement]) -> dict[str, float]:
    """Constraint that was broken in a round → the largest increase of its excess since the search."""
    before = {m.configuration.id: beyond(job.objective, m) for m in done}
    found: dict[str, float] = {}
    for m in again:
        for text, y in beyond(job.objective, m).items():
            if y > 0:
                found[text] = max(found.get(text, 0.0), y - before.get(m.configuration.id, {}).get(text, 0.0))
    return found


def _keeps(job: Job, measurement: Measurement, worse: dict[str, float]) -> bool:
    """Whether a run would still meet all constraints after the increases that finalists showed in rounds (`worse`)."""
    y = beyond(job.objective, measurement)
    return all(y.get(text, -math.inf) + shift <= 0 for text, shift in worse.items())


def _trial(ranking: Ranking, names: list[str], reference: Configuration, anchors: Anchors, limit: int) -> Trial:
    believed = {b.configuration.id: (b.excess, b.deviation) for b in ranking.believed}
    return Trial(
        finalists=[name for name in names if name != reference.id],
        reference=reference.id,
        limit=limit,
        anchors=anchors.costs if anchors.reference == reference else [],
        believed={name: believed[name] for name in names if name in believed},
    )


def _rounds(
    job: Job, trial: Trial, by_id: dict[str, Configuration], deciding: set[str], over: Callable[[int], bool]
) -> Generator[WantedExperiment, Measurement, list[list[Measurement]]]:
    """Measures rounds until none of the `deciding` configurations needs to be measured again."""
    measured: list[list[Measurement]] = []
    while True:
        out = confirm.failed(job, measured) - {trial.reference}
        costs = [[(name, c) for name, c in confirm.round_of(job, row) if name not in out] for row in measured]
        active = [name for name in trial.active(costs) if name in by_id and name not in out]
        round_: list[Measurement] = []
        order = trial.order(costs, active)
        if measured and (deciding.isdisjoint(active) or over(len(order))):
            return measured
        for name in order:
            elsewhere = len(measured) % 2 == 0  # rounds alternate between the usual and other devices
            round_.append((yield WantedExperiment(configuration=by_id[name], purpose="confirm", elsewhere=elsewhere)))
        measured.append(round_)
