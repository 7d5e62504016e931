"""What runs experiments: the two interfaces between a session, a target and a launcher."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

from autoscout.cluster.placement import Placement
from autoscout.running.outcome import Outcome
from kb.records import Configuration, Measurement


class Profiler(Protocol):
    """What a session needs of a target. One experiment at a time."""

    def environment(self) -> dict[str, str]:
        """Versions and devices, without starting an experiment. Errors: AutoscoutError."""
        ...

    def run(self, configuration: Configuration, name: str, folder: Path) -> Measurement:
        """One experiment; failures are measurements. Errors: AutoscoutError when it cannot be one at all."""
        ...

    def adopt(self, folder: Path) -> Measurement | None:
        """The measurement of an experiment that finished while nobody was left to write it down."""
        ...

    def interrupt(self) -> None:
        """Ends the experiment that is running, or the next one; safe in a signal handler and from any thread."""
        ...

    def close(self) -> None:
        """Ends every process that is still held."""
        ...


@runtime_checkable
class Confirming(Protocol):
    """A profiler whose last runs are not like those of the search."""

    def confirming(self, final: bool) -> None:
        """Whether the next runs are those of the final confirmation."""
        ...


@runtime_checkable
class Placed(Protocol):
    """A profiler that can choose among more devices than the job asks for."""

    def place(self, elsewhere: bool) -> None:
        """Whether the next run is to be on other devices than usual, where there are free ones."""
        ...


@runtime_checkable
class OnHosts(Protocol):
    """A profiler that runs where it is told, of whatever hosts there are."""

    def on(self, placement: Placement) -> None:
        """The hosts and devices of the next runs."""
        ...


class Launcher(Protocol):
    """Starts the ranks of one experiment and waits for their end. Both calls return soon after `stopping()`.

    `unfit`: once started, whether it cannot serve this machine, so that ranks have to be started afresh."""

    @property
    def unfit(self) -> bool: ...

    def start(self, stopping: Callable[[], bool]) -> None: ...

    def run(self, experiment: Path, ranks: int, timeout_s: float, stopping: Callable[[], bool]) -> Outcome: ...

    def close(self) -> None: ...
