"""Which simulators there are for a job: analytic ones that need no rows, and learned ones beside and on top of them."""

from autoscout.simulate.linear import table_2
from autoscout.simulate.member import Member
from autoscout.simulate.residual import Residual
from autoscout.simulate.trees import Trees
from kb.records import Job


def members_of(job: Job) -> list[Member]:
    """All members for the job's objective, analytic ones first."""
    return with_learned(analytic(job))


def analytic(job: Job) -> list[Member]:
    """Those that predict the job's objective from its description alone."""
    return []


def with_learned(bases: list[Member]) -> list[Member]:
    """`bases`, what is learned on top of each, and what is learned without them."""
    on_top = [learned for base in bases for learned in (Residual(base), Trees(base))]
    return [*bases, *on_top, *table_2(), *table_2(log=True), Trees()]
