"""Checks by a shadow run (on fake tensors) whether a configuration fits in memory, if the memory model's prediction is
uncertain. This saves the GPU time of runs that do not fit. Other failures of a shadow are ignored, because a real run
fails within seconds, and a shadow might reject a configuration that the framework accepts."""

import time
from collections.abc import Callable, Collection

from autoscout.running.cluster.devices import device_kind
from autoscout.simulate.shadow.traced import Shadow
from kb import dates
from kb.records import AutoscoutError, Configuration, Job, Measurement, Value

DOUBT = 0.1  # out-of-memory probability above which a shadow run precedes the experiment
SURE = 0.95  # out-of-memory probability, according to the shadow run, above which there is no experiment
LIMIT_S = 60.0
INTERRUPTED = 130
IN_VAIN = 2  # number of failed shadow runs after which a session starts no further ones

Stopping = Callable[[], bool]


class Doubts:
    """The shadow checks of one session. `likely`: returns the modelled probability that a configuration runs out of
    memory. `traced`: runs a configuration's shadow (errors: AutoscoutError). `alike`: knobs that hardly affect start-up
    or peak memory, so configurations that differ only in them are traced once. `vain`: verdicts of failed shadows."""

    def __init__(
        self,
        job: Job,
        likely: Callable[[Configuration], float],
        traced: Callable[[Configuration, str, Stopping], Shadow],
        alike: Collection[str],
        vain: Collection[str],
    ) -> None:
        self._job, self._likely, self._traced, self._alike, self._vain = job, likely, traced, alike, vain
        self._asked: set[tuple[tuple[str, Value], ...]] = set()
        self._in_vain = 0

    def foretold(
        self, configuration: Configuration, name: str, stopping: Stopping = lambda: False
    ) -> Measurement | None:
        """Returns the failure that the shadow predicts; None if the configuration should be measured."""
        if device_kind(self._job) == "cpu" or self._in_vain == IN_VAIN or self._likely(configuration) <= DOUBT:
            return None
        layout = tuple(sorted((k, v) for k, v in configuration.knobs.items() if k not in self._alike))
        if layout in self._asked:
            return None
        self._asked.add(layout)
        began = time.monotonic()
        try:
            found = self._traced(configuration, name, stopping)
        except AutoscoutError as error:  # if the shadow fails, the configuration is measured
            self._in_vain += error.exit_code != INTERRUPTED
            return None
        self._in_vain += found.verdict in self._vain
        if found.verdict != "starts" or (found.oom_probability or 0.0) <= SURE:
            return None
        return Measurement(
            configuration=configuration,
            name=name,
            context="",
            status="oom",
            fidelity="shadow",
            metrics={"peak_memory_gib": found.reserved + found.beside},
            evidence=f"the shadow run (the engine's own code without a GPU) {found.sentence}",
            cost_s=time.monotonic() - began,
            at=dates.now(),
        )
