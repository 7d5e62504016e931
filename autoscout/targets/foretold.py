"""Shadows a configuration before its first experiment if it may not fit by the memory model, so that configurations
that do not fit cost no GPU time. Refusals are left to the real run, which takes seconds: stand-ins might refuse what
the framework accepts."""

import time
from collections.abc import Callable, Collection

from autoscout.running.cluster.devices import device_kind
from autoscout.simulate.shadow.traced import Shadow
from kb import dates
from kb.records import AutoscoutError, Configuration, Job, Measurement, Value

DOUBT = 0.1  # out-of-memory probability above which a configuration is shadowed first
SURE = 0.95  # out-of-memory probability above which the shadow replaces the experiment
LIMIT_S = 60.0
INTERRUPTED = 130
IN_VAIN = 2  # shadows without an answer after which a session asks no more

Stopping = Callable[[], bool]


class Doubts:
    """The checks of one session; a layout is traced once. `likely`: the chance to run out of memory by the model;
    `traced`: the shadow of a configuration (Errors: AutoscoutError); `alike`: knobs that hardly change start-up or peak
    memory; `vain`: verdicts that answer nothing."""

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
        """The failure predicted by its shadow; None: measure it."""
        if device_kind(self._job) == "cpu" or self._in_vain == IN_VAIN or self._likely(configuration) <= DOUBT:
            return None
        layout = tuple(sorted((k, v) for k, v in configuration.knobs.items() if k not in self._alike))
        if layout in self._asked:
            return None
        self._asked.add(layout)
        began = time.monotonic()
        try:
            found = self._traced(configuration, name, stopping)
        except AutoscoutError as error:  # without a shadow it is simply measured
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
            evidence=f"its shadow {found.sentence}",
            cost_s=time.monotonic() - began,
            at=dates.now(),
        )
