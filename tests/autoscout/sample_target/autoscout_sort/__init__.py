"""A target of somebody else's, whole: this folder and two lines of entry points, installed as a wheel by
tests/autoscout/test_sample_target.py."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from autoscout import Target
from autoscout.running.interpreter import context_of
from autoscout.simulate.member import Columns, Member, Prediction
from autoscout.targets.launch import Launch, words
from kb.records import Configuration, Job, Measurement, Status

_PROGRAM = [sys.executable, str(Path(__file__).parent / "program.py")]


def arguments(configuration: Configuration) -> dict[str, Any]:
    """The engine's flags: of an experiment and of an export alike."""
    return {f"--{knob}": value for knob, value in configuration.knobs.items()}


class Sort(Target):
    name = "sort"
    about = "sorting on the CPU, to show what a target needs"
    packages = ("numpy",)

    def metrics(self, job: Job) -> tuple[str, ...]:
        return ("sort_time_s",)

    def profiler(self, job: Job) -> "Profiler":
        return Profiler(job)

    def launch(self, job: Job, configuration: Configuration) -> Launch:
        return Launch(
            job=job.name,
            name="",
            evidence="",
            program=_PROGRAM,
            arguments=arguments(configuration),
            environment={},
            devices=[1],
            on_gpus=False,
        )

    def simulators(self, job: Job) -> list[Member]:
        return [Comparisons()]


class Profiler:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._running: subprocess.Popen[str] | None = None
        self._stopping = False

    def environment(self) -> dict[str, str]:
        return {"numpy": np.__version__}

    def run(self, configuration: Configuration, name: str, folder: Path) -> Measurement:
        folder.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        launch = Sort().launch(self._job, configuration)
        flags = [word for pair in words(launch) for word in pair]
        self._running = subprocess.Popen(
            [*launch.program, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        told, complaint = self._running.communicate()
        stopped, self._stopping = self._stopping, False
        status: Status = "killed" if stopped else "ok" if self._running.returncode == 0 else "error"
        return Measurement(
            configuration=configuration,
            name=name,
            context=context_of(self._job, self.environment()),
            status=status,
            metrics=json.loads(told) if status == "ok" else {},
            evidence=complaint[-200:],
            cost_s=time.monotonic() - began,
            environment=self.environment(),
            at=time.time(),
        )

    def adopt(self, folder: Path) -> Measurement | None:
        return None

    def interrupt(self) -> None:
        self._stopping = True
        if self._running is not None:
            self._running.kill()

    def close(self) -> None:
        pass


class Comparisons:
    """n log n comparisons a round."""

    name = "comparisons"

    def applies(self, columns: Columns) -> str:
        return ""

    def fit(self, columns: Columns, values: np.ndarray) -> None:
        pass

    def predict(self, columns: Columns) -> Prediction:
        work = 2**17 * np.log2(np.asarray(columns["block"], dtype=float)) * np.asarray(columns["rounds"], dtype=float)
        return Prediction(value=2e-9 * work, error=np.full(work.shape, 0.5))
