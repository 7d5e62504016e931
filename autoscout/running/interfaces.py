"""The two interfaces for running experiments: a session uses a target's Profiler, and a target uses a Launcher."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

from autoscout.running.cluster.placement import Placement
from autoscout.running.outcome import RunOutcome
from kb.records import Configuration, Measurement


class Profiler(Protocol):
    """Runs the experiments of a session, one at a time; each target has its own implementation."""

    def environment(self) -> dict[str, str]:
        """Versions and devices, without starting an experiment. Errors: AutoscoutError."""
        ...

    def run(self, configuration: Configuration, name: str, folder: Path) -> Measurement:
        """Runs one experiment; a failed run is returned as a measurement, too. Errors: AutoscoutError if this machine
        cannot run any experiment."""
        ...

    def adopt(self, folder: Path) -> Measurement | None:
        """The measurement of an experiment that finished after its session was killed; None if it did not finish."""
        ...

    def interrupt(self) -> None:
        """Ends the running experiment, or if none is running, the next one. May be called in signal handlers and from
        any thread."""
        ...

    def close(self) -> None:
        """Ends the processes that are kept alive between experiments."""
        ...


@runtime_checkable
class Confirming(Protocol):
    """A profiler whose confirmation runs differ from those of the search."""

    def confirming(self, final: bool) -> None:
        """Sets whether the next runs are those of the final confirmation."""
        ...


@runtime_checkable
class Placed(Protocol):
    """A profiler that can choose from more devices than the job asks for."""

    def place(self, elsewhere: bool) -> None:
        """Sets whether the next run uses other devices than usual, if some are free."""
        ...


@runtime_checkable
class OnHosts(Protocol):
    """A profiler that runs on given hosts."""

    def on(self, placement: Placement) -> None:
        """Sets the hosts and devices of the next runs."""
        ...


class Launcher(Protocol):
    """Starts the ranks of one experiment and waits for their end. `start` and `run` return soon after `stopping()`
    becomes true. `unfit`, set by `start`: whether this launcher does not work on this machine, so that the target has
    to use one that starts a new process for each rank."""

    @property
    def unfit(self) -> bool: ...

    def start(self, stopping: Callable[[], bool]) -> None: ...

    def run(self, experiment: Path, ranks: int, timeout_s: float, stopping: Callable[[], bool]) -> RunOutcome: ...

    def close(self) -> None: ...
