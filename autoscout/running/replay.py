"""A profiler that answers from a recorded session's journal instead of running anything."""

import time
from pathlib import Path

import msgspec

from autoscout.running import interpreter
from kb import dates, journal
from kb.records import AutoscoutError, Configuration, Job, Measurement

_LONGEST_S = 0.05


class Replay:
    """Returns the recorded measurements of a configuration in the recorded order; after the last one, starts again with
    the first.

    Errors: AutoscoutError if `launch.recorded` is not the journal of a session with the same workload.
    """

    def __init__(self, job: Job) -> None:
        path = Path(job.launch.recorded)
        if not job.launch.recorded:
            raise AutoscoutError(
                'launch.recorded: name the journal whose measurements the "replay" launcher returns', 2
            )
        self._job = job
        self._environment: dict[str, str] | None = None
        self._recorded: dict[str, list[Measurement]] = {}
        for event in journal.events(path):
            if isinstance(event, journal.SessionStarted):
                if event.job.id != job.id:
                    problem = "the journal was recorded for a different model or traffic; name a journal of this job"
                    raise AutoscoutError(f"{path}: {problem}", 2)
                self._environment = event.environment
            elif isinstance(event, journal.ExperimentEnded):
                found = event.measurement
                self._recorded.setdefault(found.configuration.id, []).append(found)
        if self._environment is None:
            raise AutoscoutError(f"{path}: the file contains no session; name a journal.jsonl that AutoScout wrote", 2)

    def environment(self) -> dict[str, str]:
        """The recorded session's environment, so that replayed measurements are comparable with it."""
        return self._environment or {}

    def run(self, configuration: Configuration, name: str, folder: Path) -> Measurement:
        """The recorded measurement, with the current time; nothing is written to `folder`. The number of earlier
        requests is read from the running session's own journal, so that a resumed session gets the same measurements as
        an uninterrupted one.
        """
        context = interpreter.context_of(self._job, self.environment())
        recorded = self._recorded.get(configuration.id)
        if not recorded:
            return Measurement(
                configuration=configuration,
                name=name,
                context=context,
                status="error",
                evidence=f"no measurement of this configuration is recorded in {self._job.launch.recorded}",
                environment=self.environment(),
                at=dates.now(),
            )
        asked = _asked_before(folder.parent.parent / "journal.jsonl", configuration)
        found = recorded[asked % len(recorded)]
        time.sleep(min(found.cost_s, _LONGEST_S))
        return msgspec.structs.replace(found, name=name, context=context, at=dates.now())

    def adopt(self, folder: Path) -> Measurement | None:
        """Always None, since no experiment can finish without its session."""
        return None

    def interrupt(self) -> None:
        """Does nothing, because no experiment runs."""

    def close(self) -> None:
        """Does nothing, because no process is kept."""


def _asked_before(path: Path, configuration: Configuration) -> int:
    if not path.is_file():
        return 0
    return sum(
        isinstance(event, journal.ExperimentEnded) and event.measurement.configuration.id == configuration.id
        for event in journal.events(path)
    )
