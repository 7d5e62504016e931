"""An "experiment" on a design: the model chunk by chunk. Fidelity predicted, whatever else is said of it."""

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
        """Nothing is started and nothing written: the answer is a function of the configuration."""
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
        """Nothing runs that could finish by itself."""
        return None

    def interrupt(self) -> None:
        """Nothing lasts long enough."""

    def close(self) -> None:
        """Nothing is open."""
