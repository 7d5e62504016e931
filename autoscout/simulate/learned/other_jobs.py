"""Transfer from other jobs: an ensemble fitted on other jobs' measurements serves as one more simulator that needs no
measurement of this job. The weights inside it come from holding out whole jobs. If it predicts this job badly, this
job's held-out rows reduce its weight among the other simulators to zero."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autoscout.simulate.encode import kind, length, of_configurations, of_job
from autoscout.simulate.learned.stack import Ensemble
from autoscout.simulate.member import Columns, Member, Prediction
from autoscout.space.attributes import memory_gib
from autoscout.space.graph import Space
from kb import store
from kb.records import Configuration, Job, Measurement
from kb.similar import FAR, SimilarJob, similar

_JOBS = 3  # number of most similar jobs to learn from; more jobs did not improve predictions


class PastJobs:
    name = "past jobs"

    def __init__(self, members: list[Member], columns: Columns, values: np.ndarray, jobs: np.ndarray) -> None:
        """`jobs`: (n,) the job of each row."""
        self.ensemble = Ensemble(members)
        self.ensemble.fit(columns, values, jobs)

    def applies(self, columns: Columns) -> str:
        return "" if self.ensemble.weights else "what was learned from past jobs does not apply to a different job"

    def fit(self, columns: Columns, values: np.ndarray) -> None:
        """Does nothing: Residual and Trees, which have this simulator as their base, learn corrections for this job."""

    def predict(self, columns: Columns) -> Prediction:
        return self.ensemble.predict(columns)


def stacked(parts: Sequence[Columns]) -> dict[str, Any]:
    """Concatenates the columns of several jobs; NaN or "" where a job lacks a column."""
    names = dict.fromkeys(name for columns in parts for name in columns)
    sizes = [length(columns) for columns in parts]
    found = {}
    for name in names:
        kinds = {kind(columns[name]) for columns in parts if name in columns}
        if "" in kinds:
            continue
        absent: Any = "" if "U" in kinds else float("nan")
        one_each = [np.broadcast_to(np.asarray(c.get(name, absent)), n) for c, n in zip(parts, sizes, strict=True)]
        found[name] = np.concatenate([each.astype(str) for each in one_each] if "U" in kinds else one_each)
    return found


def past_jobs(
    space: Space,
    jobs: Sequence[tuple[Job, list[Configuration], list[float]]],
    members: Callable[[], list[Member]],
) -> PastJobs | None:
    """The simulator fitted on other jobs with the same target, given as (job, configurations, measured values); None if
    they have no measurements, or if the space has no knobs, by which rows could differ."""
    known = [(job, rows, values) for job, rows, values in jobs if rows]
    if not known or not space.knobs:
        return None
    columns = stacked([{**of_job(job), **of_configurations(space, rows, job)} for job, rows, _ in known])
    of = np.repeat([job.id for job, _, _ in known], [len(rows) for _, rows, _ in known])
    return PastJobs(members(), columns, np.concatenate([values for _, _, values in known]), of)


def measured_by_others(kb: Path, job: Job, up_to: int | None = None) -> list[tuple[Job, list[Measurement]]]:
    """The most similar other jobs with the same target, and their measurements. `up_to`: ignore later rows of the
    knowledge base, so that a resumed session gets the same measurements."""
    near = [a for a in similar(kb, job, memory_gib, up_to=up_to) if a.distance < FAR]
    others = [a for a in near if a.job.target == job.target and a.job.id != job.id][:_JOBS]

    def measured(a: SimilarJob) -> list[Measurement]:
        found = store.measurements(kb, job=a.job.id, context=a.context, cluster=a.cluster, up_to=up_to, answers=True)
        return [m for _, m in found]

    return [(a.job, measured(a)) for a in others]
