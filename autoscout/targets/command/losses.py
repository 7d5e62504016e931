"""The equivalence check for a user's own command, based on the losses that its runs print. Logs have few digits, often
of a single rank or micro batch, and the data order may vary. Therefore the check only detects gross differences, with a
relative tolerance that the job can change."""

import math
import statistics

from kb.records import Measurement

COMPARED = 3  # number of losses that are compared, the first ones of each run


class LossesIfReported:
    """Compares losses. A run without losses passes, and the check's text states this."""

    def __init__(self, tolerance: float) -> None:
        """`tolerance`: allowed difference, relative to the losses of the reference."""
        self._tolerance = tolerance

    def flaw(self, measured: Measurement) -> str:
        """Returns why a run's metrics are implausible on their own, without a comparison; "" if they are plausible."""
        for what, found in (("losses", measured.losses), ("gradient norms", measured.grad_norms)):
            if not all(math.isfinite(value) for value in found):
                return f"{what} are not finite: {_series(found)}"
        return ""

    def compare(self, reference: Measurement, measured: Measurement) -> str:
        """Returns how the losses of the iterations that both runs report differ; "" if they agree."""
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
            f"{_series([a for a, _ in pairs])}, found {_series([b for _, b in pairs])}; if your script draws "
            "different data in each run, set its seed, or raise launch.loss_tolerance"
        )


def _series(values: list[float]) -> str:
    return "[" + ", ".join(f"{value:.5g}" for value in values[:COMPARED]) + "]"
