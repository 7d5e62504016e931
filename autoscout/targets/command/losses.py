"""The equivalence check for a user's own command: it compares the losses that the runs print, if any. A log shows
losses with few digits and of only one rank or micro batch, and the data order may vary. So the check only tells whether
a run is the same training at all, within a relative tolerance that the job may tighten.
"""

import math
import statistics

from kb.records import Measurement

COMPARED = 3  # losses compared per run


class LossesIfReported:
    """Compares losses only; a run without losses passes (and `check` says so)."""

    def __init__(self, tolerance: float) -> None:
        """`tolerance`: relative to the reference's losses."""
        self._tolerance = tolerance

    def flaw(self, measured: Measurement) -> str:
        """Why a run's own numbers cannot be right, regardless of other runs; "" if they can."""
        for what, found in (("losses", measured.losses), ("gradient norms", measured.grad_norms)):
            if not all(math.isfinite(value) for value in found):
                return f"{what} are not finite: {_series(found)}"
        return ""

    def compare(self, reference: Measurement, measured: Measurement) -> str:
        """Compares iteration by iteration, as far as both report losses."""
        if problem := self.flaw(measured):
            return problem
        pairs = list(zip(reference.losses[:COMPARED], measured.losses[:COMPARED], strict=False))
        if not pairs:
            return ""
        off = statistics.fmean(abs(b - a) / max(abs(a), 1e-12) for a, b in pairs)
        if off <= self._tolerance:
            return ""
        return (
            f"losses deviate by {off:.2g} on average (allowed {self._tolerance:g}): expected "
            f"{_series([a for a, _ in pairs])}, found {_series([b for _, b in pairs])}; if your script draws other "
            f"data each time, seed it, or raise launch.loss_tolerance"
        )


def _series(values: list[float]) -> str:
    return "[" + ", ".join(f"{value:.5g}" for value in values[:COMPARED]) + "]"
