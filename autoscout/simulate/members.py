"""Selects the simulators for a metric: analytic ones, which need no measurements, and learned ones, which predict the
metric alone or correct another simulator."""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from autoscout.simulate.joules import TrainingEnergy
from autoscout.simulate.learned.linear import table_2
from autoscout.simulate.learned.residual import Residual
from autoscout.simulate.learned.trees import Trees
from autoscout.simulate.member import Columns, Member, Prediction
from autoscout.simulate.training.memory import Memory
from autoscout.simulate.training.step import Training
from kb.records import Task


class PerSecond:
    """Converts a predictor of step seconds into a predictor of a rate (work per second). `done(columns)`: the work per
    step, such as tokens. The `parts` of its predictions remain the seconds of the step."""

    def __init__(self, steps: Member, done: Callable[[Columns], np.ndarray]) -> None:
        self.steps, self.done, self.name = steps, done, steps.name

    def applies(self, columns: Columns) -> str:
        return self.steps.applies(columns)

    def fit(self, columns: Columns, values: np.ndarray) -> None:
        self.steps.fit(columns, self.done(columns) / values)

    def predict(self, columns: Columns) -> Prediction:
        seconds = self.steps.predict(columns)
        return msgspec.structs.replace(seconds, value=self.done(columns) / seconds.value)


class AsItIs:
    """An analytic member that is not corrected by measurements, because measurements of dissimilar jobs may worsen its
    predictions."""

    min_rows, as_it_is = 1, True

    def __init__(self, member: Member) -> None:
        self.member, self.name = member, f"{member.name}, as it is"
        self._rows = 0

    def applies(self, columns: Columns) -> str:
        return (
            self.member.applies(columns)
            if self._rows
            else "without measured rows, this model equals the one that it corrects"
        )

    def fit(self, columns: Columns, values: np.ndarray) -> None:
        self._rows = len(values)

    def predict(self, columns: Columns) -> Prediction:
        return self.member.predict(columns)


def analytic(metric: str, task: Task = "pretrain") -> list[Member]:
    """The simulators that predict a metric without measurements; none for metrics that no model covers."""
    if task == "serve":
        from autoscout.simulate.serving.serving_joules import ServingEnergy  # imported here because scipy loads slowly
        from autoscout.simulate.serving.simulator import ServingSimulator

        return [ServingEnergy() if metric == "joules_per_token" else ServingSimulator(metric)]
    if task == "rl" and metric != "peak_memory_gib":
        from autoscout.simulate.iteration.iteration import (  # imports scipy
            Iteration,
            devices_of_iteration,
            tokens_of_iteration,
        )

        done: dict[str, Callable[[Columns], np.ndarray]] = {
            "samples_per_s": _answers,
            "tokens_per_s": tokens_of_iteration,
            "tokens_per_s_per_gpu": lambda columns: tokens_of_iteration(columns) / devices_of_iteration(columns),
        }
        if metric == "step_time_s":
            return [Iteration()]
        return [PerSecond(Iteration(), done[metric])] if metric in done else []
    if metric in ("step_time_s", "step_time_min_s"):
        return [Training()]
    if metric in _DONE:
        return [PerSecond(Training(), _DONE[metric])]
    if metric == "joules_per_token":
        return [TrainingEnergy()]
    if metric == "peak_memory_gib":
        return [Memory()]
    return []


def members_of(
    metric: str,
    task: Task = "pretrain",
    more: Sequence[Member] = (),
    bases: Callable[[], list[Member]] | None = None,
) -> list[Member]:
    """All simulators of a metric, analytic ones first. `more`: further simulators for learned members to correct;
    `bases()`: creates the analytic simulators, by default `analytic(metric, task)`."""
    made = bases or (lambda: analytic(metric, task))
    as_they_are: list[Member] = [AsItIs(member) for member in made()]
    return [*with_learned([*made(), *more]), *as_they_are]


def with_learned(bases: list[Member]) -> list[Member]:
    """Returns `bases`, the learned members that correct each base, and the learned members without a base."""
    shared = [Shared(base) for base in bases]
    on_top: list[Member] = [learned for base in shared for learned in (Residual(base), Trees(base))]
    return [*shared, *on_top, *table_2(), *table_2(log=True), Trees()]


def _samples(columns: Columns) -> np.ndarray:
    return np.asarray(columns["global_batch"], dtype=float)


def _tokens(columns: Columns) -> np.ndarray:
    """(n,) tokens per optimizer step, without padding."""
    length = columns["length_mean"] if "length_mean" in columns else columns["seq_len"]
    return np.asarray(length, dtype=float) * _samples(columns)


def _answers(columns: Columns) -> np.ndarray:
    """(n,) answers per RL iteration."""
    return np.asarray(columns["answers"], dtype=float)


def _flops(columns: Columns) -> np.ndarray:
    """(n,) FLOPs of the matrix products per optimizer step and device, counted like DeepSpeed's autotuner
    (profiling/flops_profiler, runtime/engine.py): three times the forward pass, and attention without a causal mask."""
    layers, hidden, length, gpus, params, vocab, tied = (
        np.asarray(columns[name], dtype=float)
        for name in ("layers", "hidden", "seq_len", "gpus", "params", "vocab", "tied")
    )
    looked_up = np.where(tied > 0, 0.0, vocab * hidden)
    return 3 * _tokens(columns) * (2 * (params - looked_up) + 4 * layers * hidden * length) / gpus


_DONE = {"tokens_per_s": _tokens, "samples_per_s": _samples, "flops_per_gpu": _flops}


class Shared:
    """Lets several learned members share a base: the last fit and the last prediction of the base are cached by the
    identity of the mapping `columns`. Callers must therefore pass a new mapping when values change (`Ensemble` always
    does)."""

    def __init__(self, member: Member) -> None:
        self.member, self.name = member, member.name
        self._fitted: tuple[Columns, int] | None = None
        self._asked: tuple[Columns, Prediction] | None = None

    def applies(self, columns: Columns) -> str:
        return self.member.applies(columns)

    def fit(self, columns: Columns, values: np.ndarray) -> None:
        if self._fitted is None or self._fitted[0] is not columns or self._fitted[1] != len(values):
            self.member.fit(columns, values)
            self._fitted, self._asked = (columns, len(values)), None

    def predict(self, columns: Columns) -> Prediction:
        if self._asked is None or self._asked[0] is not columns:
            self._asked = columns, self.member.predict(columns)
        return self._asked[1]
