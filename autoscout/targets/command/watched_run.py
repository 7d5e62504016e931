"""One run of a command: writes the input files, reads the output while the command runs, and ends the command once
enough iterations are measured."""

import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from autoscout.line.containers import mounted
from autoscout.running import early, every_host, results, supervised
from autoscout.running.supervised import Ended
from autoscout.space.language.template import filled
from autoscout.targets.command import measurement, surroundings
from autoscout.targets.command.arguments import Started
from autoscout.targets.command.preset import metrics_of
from autoscout.targets.command.reading import MetricReader, ResultFile, Stream, Tail, number_at
from kb.records import AutoscoutError, Job, MetricSource

_LEFT = ("measured.json", "result.json", "output.log", "ended.json", every_host.LOST, every_host.FAILED)
_LOOK_S = 0.2  # polling interval of growing files in seconds
RESULT = "AUTOSCOUT_RESULT"


def prepare(folder: Path) -> None:
    """Deletes the files of an earlier attempt. Errors: AutoscoutError if the folder cannot be written."""
    with results.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name in _LEFT:
            (folder / name).unlink(missing_ok=True)


def launched(
    job: Job,
    run: Started,
    folder: Path,
    limit_s: float,
    stopping: Callable[[], bool],
    reader: "OutputReader",
    begin: supervised.Begin | None = None,
) -> Ended:
    """Writes the command's input files and runs the command until it ends or enough iterations are measured. Returns
    how it ended. `begin`: starts the command in a warm interpreter."""
    for name, content in run.files.items():
        path = Path(name)
        if not path.is_relative_to(folder):
            raise AutoscoutError(
                f'launch.render.to = "{name}" is outside the run\'s folder; begin the path with {{folder}}/', 2
            )
        with results.writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
    variables = {**surroundings.variables(job, run), RESULT: str(folder / "result.json")}
    cwd = Path(job.launch.path or ".")
    line = mounted(run.line, str(folder)) if run.files else run.line
    ended = supervised.run(
        [*line.words], variables, cwd, folder, limit_s, stopping, reader.feed, reader.enough, begin=begin
    )
    reader.close()
    return ended


def at_the_end(sources: Iterable[str | MetricSource]) -> bool:
    """Whether a metric is in a summary at the end of the run."""
    return any(isinstance(source, MetricSource) and source.json for source in sources)


def _sources(job: Job) -> dict[str, MetricSource]:
    found = metrics_of(job).items()
    return {name: MetricSource(pattern=source) if isinstance(source, str) else source for name, source in found}


def logged(job: Job, log: Path) -> measurement.Readings:
    """Returns the readings of a finished run from its log, without the arrival times of lines.

    Errors: AutoscoutError (exit 2) if no pattern of the job matches a number in the output."""
    printed = {name: source for name, source in _sources(job).items() if source.pattern and not source.file}
    if not printed:
        raise AutoscoutError(f"job {job.name} has no pattern in launch.metrics, so its logs cannot be read; add one", 2)
    numbers = {name: MetricReader(source) for name, source in printed.items()}
    Tail(log, Stream([*numbers.values()])).close()
    return measurement.readings(job, {name: number.values for name, number in numbers.items()})


class OutputReader:
    """Reads one run's output and decides when enough iterations are measured."""

    def __init__(self, job: Job, folder: Path, bar: early.Bar | None) -> None:
        self._job, self._folder, self._bar = job, folder, bar
        self._sources = _sources(job)
        self._numbers = {n: MetricReader(s) for n, s in self._sources.items() if not s.json}
        self._stream = Stream([self._numbers[n] for n, s in self._sources.items() if not s.json and not s.file])
        by_file: dict[str, list[MetricReader]] = {}
        for name, source in self._sources.items():
            if source.file and not source.json:
                by_file.setdefault(source.file, []).append(self._numbers[name])
        self._tails = [Tail(self._path(file), Stream(numbers)) for file, numbers in by_file.items()]
        self._result = ResultFile(folder / "result.json")
        self._looked = 0.0
        self._count = -1
        self.first_at: float | None = None  # monotonic time (seconds) of the first reported iteration
        self.began = time.monotonic()
        self.hopeless = ""

    def patterns(self) -> list[str]:
        """Returns the regular expressions of the metrics in the command's output."""
        printed = [s for s in self._sources.values() if not s.json and not s.file]
        return [s.pattern or s.between or s.counter for s in printed]

    def feed(self, piece: bytes) -> None:
        self._stream.feed(piece, time.monotonic())

    def values(self) -> dict[str, list[float]]:
        found = dict(self._result.values)
        for name, source in self._sources.items():
            if not source.json:
                found[name] = self._numbers[name].values
                continue
            path = self._path(source.file) if source.file else self._folder / "result.json"
            number = number_at(path, source.json)
            found[name] = [] if number is None else [number]
        return found

    def costs(self) -> list[float]:
        return measurement.costs(self._job, self.values())

    def warm_up(self) -> int:
        return measurement.warm_up(self._job, self.values())

    def enough(self) -> str:
        """Returns why the run may end now; "" if it has to continue."""
        now = time.monotonic()
        if now > self._looked + _LOOK_S:
            self._looked = now
            for tail in self._tails:
                tail.read()
            self._result.read()
        count = sum(len(n.values) for n in self._numbers.values()) + sum(map(len, self._result.values.values()))
        if count == self._count:
            return ""
        self._count = count
        costs = self.costs()
        if not costs:
            return ""
        self.first_at = self.first_at or now
        if not self._all_reported():
            return ""
        self.hopeless = early.hopeless(costs, self._bar)
        launch = self._job.launch
        return self.hopeless or early.known_well(
            costs, launch.iterations, now - self.first_at, launch.measure_s, self._bar
        )

    def close(self) -> None:
        self._stream.close(time.monotonic())
        for tail in self._tails:
            tail.close()
        self._result.close()

    @property
    def problem(self) -> str:
        return self._result.problem

    def not_finite(self) -> str:
        """Returns a text that names the loss or gradient norm that is not finite; "" if all are finite."""
        for name, values in self.values().items():
            if ("loss" in name or "grad_norm" in name) and not all(map(math.isfinite, values)):
                at = next(i for i, value in enumerate(values) if not math.isfinite(value))
                return f"{name} is not finite from iteration {at + 1} on"
        return ""

    def _all_reported(self) -> bool:
        """Whether every metric was reported at least once. Exceptions are a preset's metrics that this run never
        reports (memory on CPUs, gradient norms without clipping). False if a metric is in a final summary, for which
        the run has to reach its end."""
        launch = self._job.launch
        through = len(self.costs()) >= launch.iterations > 1
        awaited = {name: n for name, n in self._numbers.items() if not through or name in launch.metrics}
        return all(n.values for n in awaited.values()) and not any(s.json for s in self._sources.values())

    def _path(self, file: str) -> Path:
        names = {"folder": str(self._folder)}
        return Path(self._job.launch.path or ".") / filled(file, names, "launch.metrics")
