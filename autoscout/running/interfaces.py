"""The two interfaces for running experiments: a session uses a target's Profiler, and a target uses a Launcher."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

from autoscout.running.cluster.placement import Placement
from autoscout.running.outcome import RunOutcome
from kb.records import Configuration, Measurement


class Profiler(Protocol):
    """The part of a target that a session needs. Runs one experiment at a time."""

    def environment(self) -> dict[str, str]:
        """Versions and devices, without starting an experiment. Errors: AutoscoutError."""
        ...

    def run(self, configuration: Configuration, name: str, folder: Path) -> Measurement:
        """Runs one experiment; failures are measurements. Errors: AutoscoutError if none is possible at all."""
        ...

    def adopt(self, folder: Path) -> Measurement | None:
        """The measurement of an experiment that finished after its session was killed."""
        ...

    def interrupt(self) -> None:
        """Ends the running experiment, or the next one; safe in signal handlers and from any thread."""
        ...

    def close(self) -> None:
        """Ends every process kept alive."""
        ...


@runtime_checkable
class Confirming(Protocol):
    """A profiler whose confirmation runs differ from those of the search."""

    def confirming(self, final: bool) -> None:
        """Whether the next runs are those of the final confirmation."""
        ...


@runtime_checkable
class Placed(Protocol):
    """A profiler that can choose from more devices than the job asks for."""

    def place(self, elsewhere: bool) -> None:
        """Whether to use other devices than usual for the next run, if some are free."""
        ...


@runtime_checkable
class OnHosts(Protocol):
    """A profiler that runs on given hosts."""

    def on(self, placement: Placement) -> None:
        """Sets the hosts and devices of the next runs."""
        ...


class Launcher(Protocol):
    """Starts the ranks of one experiment and waits for their end. `start` and `run` return soon after `stopping()`
    becomes true. `unfit` (known after `start`): it does not work on this machine, so each rank needs a fresh
    process."""

    @property
    def unfit(self) -> bool: ...

    def start(self, stopping: Callable[[], bool]) -> None: ...

    def run(self, experiment: Path, ranks: int, timeout_s: float, stopping: Callable[[], bool]) -> RunOutcome: ...

    def close(self) -> None: ...
