"""An "experiment" on a design: evaluates the cost model chunk by chunk. Fidelity is always "predicted"."""

import time
from pathlib import Path

import numpy as np

from autoscout.running.interpreter import context_of
from autoscout.simulate.stack import parts_version
from autoscout.simulate.stack.designs import evaluate
from autoscout.simulate.stack.workloads import workloads
from kb.records import DESIGNED, Configuration, Job, Measurement


class StackProfiler:
    def __init__(self, job: Job) -> None:
        self._job, self._workloads = job, workloads(job)

    def environment(self) -> dict[str, str]:
        return {"recommended": DESIGNED, "model": parts_version()}

    def run(self, configuration: Configuration, name: str, folder: Path) -> Measurement:
        """Starts and writes nothing: the result is a function of the configuration."""
        began = time.time()
        columns = {knob: np.array([value]) for knob, value in configuration.knobs.items()}
        for i in range(1, 5):
            columns.setdefault(f"npus_{i}", np.array([1]))
        found = evaluate(columns, self._workloads, whole=True)
        about = self.environment()
        cost = time.time() - began
        return Measurement(
            configuration=configuration,
            name=name,
            context=context_of(self._job, about),
            status="ok",
            fidelity="predicted",
            metrics={metric: float(value[0]) for metric, value in found.items() if not metric.startswith("part_")},
            evidence=f"{DESIGNED}; nothing was measured",
            cost_s=cost,
            environment=about,
            at=began + cost,
        )

    def adopt(self, folder: Path) -> Measurement | None:
        """No process that could have finished by itself."""
        return None

    def interrupt(self) -> None:
        """Nothing to interrupt."""

    def close(self) -> None:
        """Nothing to close."""
