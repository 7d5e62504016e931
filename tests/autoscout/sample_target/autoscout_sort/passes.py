"""A simulator that a package adds to a target."""

import numpy as np

from autoscout.simulate.member import Columns, Member, Prediction
from kb.records import Job


def simulators(job: Job) -> list[Member]:
    """What the package has to say of a job."""
    return [Passes()] if job.target == "sort" else []


class Passes:
    """Every round costs the same."""

    name = "passes"

    def applies(self, columns: Columns) -> str:
        return ""

    def fit(self, columns: Columns, values: np.ndarray) -> None:
        pass

    def predict(self, columns: Columns) -> Prediction:
        rounds = np.asarray(columns["rounds"], dtype=float)
        return Prediction(value=0.004 * rounds, error=np.full(rounds.shape, 0.7))
