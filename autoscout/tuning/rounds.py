"""The rounds at the end of a session, run: whom trial.py wants measured, then confirm.py's verdict."""

from collections.abc import Callable, Generator

from autoscout.search.belief.ranking import Ranking
from autoscout.space.graph import Space
from autoscout.tuning import confirm
from autoscout.tuning.evaluator import Wanted
from autoscout.tuning.trial import Trial
from kb.journal import Confirmed
from kb.records import Configuration, Job, Measurement


def confirmed(
    job: Job,
    space: Space,
    ranking: Ranking,
    finalists: list[Configuration],
    default: Configuration,
    anchors: list[float],
    over: Callable[[], bool],
) -> Generator[Wanted, Measurement, Confirmed | None]:
    """`anchors`: costs of the default during the search; `over`: no further round may begin. None if nothing ran."""
    by_id = {c.id: c for c in finalists}
    trial = Trial(
        finalists=[name for name in by_id if name != default.id],
        reference=default.id,
        limit=max(2, 2 * job.launch.repeats),
        anchors=anchors,
    )
    measured: list[list[Measurement]] = []
    while not (measured and over()):
        out = confirm.failed(job, measured) - {default.id}
        costs = [[(name, c) for name, c in confirm.round_of(job, row) if name not in out] for row in measured]
        active = [name for name in trial.active(costs) if name in by_id and name not in out]
        if measured and not any(name != default.id for name in active):
            break
        round_: list[Measurement] = []
        for name in trial.order(costs, active):
            round_.append((yield Wanted(configuration=by_id[name], purpose="confirm")))
        measured.append(round_)
    around = {c.id: found for c in finalists if (found := ranking.around(c)) is not None}
    return confirm.verdict(job, space, trial, measured, default, around)
