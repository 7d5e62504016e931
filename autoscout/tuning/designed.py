"""The end of a session whose costs come from a deterministic model. Evaluating a configuration again gives the same
value, so there are no anchors, repeats or final rounds, and the result has no interval."""

from collections.abc import Sequence

from autoscout.job.objective import cost, to_metric
from autoscout.space.graph import Space
from autoscout.space.nearness import differing
from autoscout.targets.target import reference_of, target_of
from autoscout.tuning.confirm import nothing_worked
from autoscout.tuning.tape import Tape
from kb.journal import Confirmed
from kb.records import DESIGNED, AutoscoutError, Configuration, Job, Measurement

_SAME = 1e-6  # relative cost difference treated as a tie; ties go to the configuration nearest the reference


def exact(job: Job, tape: Tape) -> bool:
    """Whether repeated measurements are pointless; false for the journal of an older session that contains repeats."""
    return target_of(job).designs and not tape.measured_again


def compared(job: Job, space: Space, done: Sequence[Measurement], reference: Configuration) -> Confirmed:
    """The verdict after one measurement per configuration. Errors: AutoscoutError (exit 3) if nothing worked."""
    found = [(c, m) for m in done if (c := cost(job.objective, m)) is not None]
    if not found:
        raise AutoscoutError(nothing_worked(job, done), 3)
    least = min(c for c, _ in found)
    alike = [(differing(m.configuration, reference), c, m) for c, m in found if c <= least * (1 + _SAME)]
    _, best, winner = min(alike, key=lambda each: each[:2])
    others = [(c, m) for c, m in found if m.configuration.id != winner.configuration.id]
    rival = min(others, key=lambda each: each[0], default=None)
    held = next((c for c, m in found if m.configuration.id == reference.id), None)
    return Confirmed(
        winner=winner.configuration,
        name=space.name(winner.configuration),
        value=to_metric(job.objective, best),
        default_name=space.name(reference),
        default_value=None if held is None else to_metric(job.objective, held),
        gain=None if held is None else held / best,
        low=None,
        high=None,
        pairs=0,
        rival_name="" if rival is None else space.name(rival[1].configuration),
        behind=None if rival is None else rival[0] / best,
        verdict="designed",
        sentence=f"{DESIGNED}: of {len(found)} designs {_words(job, winner.configuration == reference, held, best)}",
    )


def _words(job: Job, kept: bool, held: float | None, best: float) -> str:
    called = reference_of(job)
    if kept:
        return f"none is predicted to be better than {called}"
    return "the best, with nothing to compare it with" if held is None else f"the best, {held / best:.3f}× {called}"
