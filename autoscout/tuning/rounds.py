"""Runs the final rounds of a session: measures what trial.py asks for, then returns confirm.py's verdict."""

from collections.abc import Callable, Generator

from autoscout.job.objective import rows_of
from autoscout.search.belief.ranking import Ranking
from autoscout.space.graph import Space
from autoscout.tuning import confirm, designed
from autoscout.tuning.anchors import Anchors
from autoscout.tuning.evaluator import Wanted
from autoscout.tuning.evidence import Noise
from autoscout.tuning.trial import Trial
from kb.journal import Confirmed
from kb.records import AutoscoutError, Configuration, Job, Measurement


def confirmed(
    job: Job,
    space: Space,
    allowed: Space,
    done: list[Measurement],
    reference: Configuration,
    anchors: Anchors,
    on_note: Callable[[str], None],
    over: Callable[[], bool],
) -> Generator[Wanted, Measurement, Confirmed]:
    """`allowed`: the part of the space that may win; `done`: its measurements; `over`: no further round may begin.

    Errors: AutoscoutError (exit 3) if nothing worked, or no finalist could be measured again."""
    if anchors.exact:
        return designed.compared(job, space, done, reference)
    rows, broken = rows_of(job.objective, done + anchors.again)
    ranking = Ranking(allowed, rows, {m.configuration.id: m.conditions.get("doubt", 0.0) for m in done}, broken)
    quiet = anchors.reference == reference and Noise.of(anchors.costs).quiet
    finalists = confirm.finalists(job, ranking, reference, done, quiet)
    if not finalists:
        raise AutoscoutError(confirm.nothing_worked(job, done), 3)
    on_note(f"re-measuring {len(finalists)} configurations in rounds, two at least")
    return (yield from _rounds(job, space, ranking, finalists, reference, anchors, over))


def _rounds(
    job: Job,
    space: Space,
    ranking: Ranking,
    finalists: list[Configuration],
    reference: Configuration,
    anchors: Anchors,
    over: Callable[[], bool],
) -> Generator[Wanted, Measurement, Confirmed]:
    by_id = {c.id: c for c in finalists}
    believed = {b.configuration.id: (b.excess, b.deviation) for b in ranking.believed}
    trial = Trial(
        finalists=[name for name in by_id if name != reference.id],
        reference=reference.id,
        limit=max(2, 2 * job.launch.repeats),
        anchors=anchors.costs if anchors.reference == reference else [],
        believed={name: believed[name] for name in by_id if name in believed},
    )
    measured: list[list[Measurement]] = []
    while not (measured and over()):
        out = confirm.failed(job, measured) - {reference.id}
        costs = [[(name, c) for name, c in confirm.round_of(job, row) if name not in out] for row in measured]
        active = [name for name in trial.active(costs) if name in by_id and name not in out]
        if measured and not any(name != reference.id for name in active):
            break
        round_: list[Measurement] = []
        for name in trial.order(costs, active):
            elsewhere = len(measured) % 2 == 0  # one round uses the same devices; the first avoids the search's
            wanted = Wanted(configuration=by_id[name], purpose="confirm", elsewhere=elsewhere)
            round_.append((yield wanted))
        measured.append(round_)
    around = {c.id: found for c in finalists if (found := ranking.around(c)) is not None}
    found = confirm.verdict(job, space, trial, measured, reference, around)
    if found is None:
        again = [m for row in measured for m in row if m.configuration != reference]
        raise AutoscoutError(confirm.nothing_worked(job, again, "finalist", " when measured again"), 3)
    return found
