"""A landscape of whole-cluster designs. The outcome of a design is the prediction of the detailed model (chunk by
chunk). The simulator `closed` is the closed form of this model.

If there are too many designs to enumerate, the landscape has 20,000 uniformly random valid designs and the reference.
Strategies get a single metric: a design that breaks a constraint fails, and further objectives are ignored."""

from collections.abc import Sequence

import msgspec
import numpy as np

from autoscout.job.objective import within_limits
from autoscout.job.words import nearest_name
from autoscout.search.strategy import SAMPLE
from autoscout.space.graph import Space
from autoscout.studies.bench.landscape import Landscape
from autoscout.targets.jobs import JobSpace
from autoscout.targets.target import target_of
from kb.records import AutoscoutError, Job

CLOSED = "closed"


def design_landscape(job: Job, simulators: Sequence[str] = (), name: str = "") -> Landscape:
    """The landscape of the job's designs. Errors: AutoscoutError (exit 2) for an unknown simulator."""
    for simulator in simulators:
        if simulator != CLOSED:
            raise AutoscoutError(f"--simulator '{simulator}'{nearest_name(simulator, [CLOSED])}", 2)
    alone = msgspec.structs.replace(job.objective, also=[], constraints=[])
    whole = JobSpace.of_job(msgspec.structs.replace(job, objective=alone))
    default = whole.reference
    space: Space = whole
    if not whole.enumerable:
        space = whole.sampled(SAMPLE, np.random.default_rng(0), including=[default])
    columns, metric = space.feasible.columns(), job.objective.metric
    found = target_of(job).outcomes(job, columns)
    kept = np.broadcast_to(within_limits(job.objective, found), found[metric].shape)
    [member] = target_of(job).simulators(job)
    return Landscape(
        name=name or job.name,
        space=space,
        metric=metric,
        goal="min" if job.objective.minimize else "max",
        truth=np.where(kept, found[metric], np.nan),
        status=np.where(kept, "ok", "invalid").astype(object),
        default=default,
        simulators={s: member.predict(columns).value for s in simulators},
    )
