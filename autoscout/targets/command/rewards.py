"""The equivalence check of an RL job: compares rewards and losses of the first updates, sampled with the same seed.

The first iteration samples its answers before any training, so its reward must equal the reference's. In later
iterations, rounding may change a sampled token, so rewards only agree within the standard error of an iteration's mean
reward. If a knob or a different number of ranks changes even the first answers, all iterations are compared within the
standard error; the result then states this and never counts as equal."""

import math
from collections.abc import Iterable

from autoscout.job.objective import constraint
from autoscout.running.equivalence import deviates
from kb.records import Configuration, Job, Measurement

_COMPARED = 3  # number of updates compared per run
_SCALE = 0.1  # the tolerance is relative to the loss, but at least to this value, because losses in RL are near 0
_SPREADS = 4.0  # tolerance for a reward, in standard errors of the difference between two mean rewards
# name of a metric: maximum number of updates between sampling an answer and training on it
LAG = "lag_updates"


class FirstUpdates:
    """Compares metrics that both runs report. A run without rewards passes, and the check's text states this. A run
    that trains on answers of an older policy than the reference's does not pass, because this changes the training,
    unless a constraint limits the age of answers."""

    def __init__(self, job: Job, redraws: Iterable[str]) -> None:
        """`redraws`: knobs that change the sampled answers."""
        self._tolerance, self._redraws = job.launch.loss_tolerance, tuple(redraws)
        self._lag_stated = any(constraint(text)[0] == LAG for text in job.objective.constraints)

    def flaw(self, measured: Measurement) -> str:
        """Returns why a run's metrics are implausible on their own, without a comparison; "" if they are plausible."""
        if all(map(math.isfinite, measured.losses + measured.grad_norms)):
            return ""
        return f"rewards or losses are not finite: {_series(measured)}"

    def compare(self, reference: Measurement, measured: Measurement) -> str:
        """Returns how the updates that both runs report differ; "" if they agree."""
        if problem := self.flaw(measured):
            return problem
        lag, usual = (m.metrics.get(LAG, 0.0) for m in (measured, reference))
        if lag > usual and not self._lag_stated:
            return (
                f"training uses answers generated up to {lag:g} updates earlier, but the reference only up to "
                f"{usual:g}, so the training differs; to allow it, set the largest age of answers: constraints = "
                f"['{LAG} <= {lag:g}']"
            )
        redrawn = lag != usual or drawn_anew(reference.configuration, measured.configuration, self._redraws)
        spread = _SPREADS * math.hypot(*(_of_average(m) for m in (reference, measured)))
        pairs = zip(_updates(reference), _updates(measured), strict=False)
        for update, ((reward, loss), (theirs, other)) in enumerate(pairs, 1):
            exact = update == 1 and not redrawn
            allowed = self._tolerance * abs(reward) + (0.0 if exact else spread)
            if abs(theirs - reward) > allowed:
                return (
                    f"the reward of update {update} is {theirs:.5g}, but the reference's is {reward:.5g} (allowed ± "
                    f"{allowed:.2g}): expected {_series(reference)}, found {_series(measured)}; if your script "
                    "draws different prompts in each run, set its seed, or raise launch.loss_tolerance"
                )
            if exact and abs(other - loss) > self._tolerance * max(abs(loss), _SCALE):
                usual = f"the reference's is {loss:.5g}"
                return f"the first update's loss is {other:.5g}, but {usual} for the same answers"
        for norm, other in zip(reference.grad_norms[: not redrawn], measured.grad_norms[:1], strict=False):
            if deviates(norm, other) > self._tolerance:
                usual = f"the reference's is {norm:.5g}"
                return f"the first gradient norm is {other:.5g}, but {usual} for the same answers"
        return ""


def drawn_anew(reference: Configuration, configuration: Configuration, redraws: Iterable[str]) -> list[str]:
    """Returns the names in `redraws` whose values differ between two configurations."""
    return [name for name in redraws if reference.knobs.get(name) != configuration.knobs.get(name)]


def _of_average(m: Measurement) -> float:
    """Returns the standard error of an iteration's mean reward."""
    answers = m.metrics.get("samples_per_s", 0.0) * m.metrics.get("step_time_s", 0.0)
    return m.metrics.get("reward_std", 0.0) / math.sqrt(max(1.0, answers))


def _updates(m: Measurement) -> list[tuple[float, float]]:
    """Returns (reward, loss) of the first updates."""
    return [*zip(m.losses[::2], m.losses[1::2], strict=False)][:_COMPARED]


def _series(m: Measurement) -> str:
    return "rewards [" + ", ".join(f"{reward:.5g}" for reward, _ in _updates(m)) + "]"
