"""Shadows a layout before its first experiment if the analytic memory model doubts that it fits, so that layouts that
do not fit cost no GPU time. Refusals are left to the real run, which takes seconds: stand-ins might refuse what
Megatron accepts."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from autoscout.cluster.devices import device_kind
from autoscout.simulate.shadow.traced import Shadow
from autoscout.simulate.training.memory import Memory
from autoscout.space.attributes import attributes_of
from autoscout.targets.megatron.shadow import shadow
from autoscout.targets.megatron.shadow_parts import from_parts
from kb.records import AutoscoutError, Configuration, Job, Measurement, Value
from kb.store import default_path

DOUBT = 0.1  # out-of-memory probability above which a layout is shadowed first
SURE = 0.95  # out-of-memory probability above which the shadow replaces the experiment
_LIMIT_S = 60.0
# Knobs that hardly change start-up or peak memory.
_LAYS_NOTHING_OUT = ("ddp_bucket", "tp_comm", "overlap_grad", "overlap_param", "overlap_p2p", "tp_comm_overlap")


class Doubts:
    """The checks of one session; a layout is traced once."""

    def __init__(self, job: Job, kb: Path | None = None) -> None:
        self._job, self._kb = job, kb
        self._asked: set[tuple[tuple[str, Value], ...]] = set()

    def foretold(
        self, configuration: Configuration, name: str, stopping: Callable[[], bool] = lambda: False
    ) -> Measurement | None:
        """The failure predicted by its shadow; None: measure it."""
        if device_kind(self._job) == "cpu" or not self._doubted(configuration):
            return None
        layout = tuple(sorted((k, v) for k, v in configuration.knobs.items() if k not in _LAYS_NOTHING_OUT))
        if layout in self._asked:
            return None
        self._asked.add(layout)
        began = time.monotonic()
        try:
            found = self._shadow(configuration, name, stopping)
        except AutoscoutError:  # without a shadow it is simply measured
            return None
        if found.verdict != "starts" or (found.oom_probability or 0.0) <= SURE:
            return None
        return Measurement(
            configuration=configuration,
            name=name,
            context="",
            status="oom",
            fidelity="shadow",
            metrics={"peak_memory_gib": found.reserved + found.beside},
            evidence=f"its shadow {found.sentence}",
            cost_s=time.monotonic() - began,
            at=time.time(),
        )

    def _shadow(self, configuration: Configuration, name: str, stopping: Callable[[], bool]) -> Shadow:
        """A known whole trace, else one composed from parts, which later layouts share, else a new whole trace. Errors:
        AutoscoutError."""
        kb = self._kb or default_path()
        until = time.monotonic() + _LIMIT_S
        with contextlib.suppress(AutoscoutError):
            return shadow(self._job, configuration, name, kb, 0.0)
        with contextlib.suppress(AutoscoutError):
            return from_parts(self._job, configuration, name, kb, _LIMIT_S, stopping)
        return shadow(self._job, configuration, name, kb, max(1.0, until - time.monotonic()), None, stopping)

    def _doubted(self, configuration: Configuration) -> bool:
        attributes = {name: value for name, value in attributes_of(self._job).items() if name != "degrees"}
        columns = {**attributes, **configuration.knobs}
        model = Memory.of_job(self._job)
        if model.applies(columns):
            return True
        probability = float(model.oom_probability(columns)[0])
        return bool(np.isnan(probability)) or probability > DOUBT
