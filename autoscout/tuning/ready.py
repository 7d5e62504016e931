"""The queue of experiments to start, longest waiting first.

If a job mixes kinds of device, an experiment whose devices are busy lets those that need other kinds go first. Whenever
the engine is asked for more for that reason, the tape gets a `Passed`, so a resumed session asks at the same points.
"""

from collections.abc import Callable, Generator, Sequence

from autoscout.tuning.evaluator import WantedExperiment
from autoscout.tuning.tape import Tape
from kb.journal import ExperimentStarted, Passed
from kb.records import Configuration, Measurement

Asking = Generator[WantedExperiment, Measurement, None]  # yields the experiments that it wants, receives their results
# (configuration, those that have waited longer) → its placement as text; None if there is no room for it now.
Place = Callable[[Configuration, Sequence[Configuration]], str | None]
_MOST = 2  # most experiments waiting for devices


def anywhere(configuration: Configuration, before: Sequence[Configuration]) -> str:
    return ""


class Ready:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._queue: list[tuple[Asking, WantedExperiment]] = []

    def __len__(self) -> int:
        return len(self._queue)

    def begin(self, asking: Asking) -> None:
        """Starts a generator; its first experiment goes to the back of the queue."""
        try:
            self._queue.append((asking, next(asking)))
        except StopIteration:
            return

    def go_on(self, asking: Asking, measurement: Measurement) -> None:
        """Resumes a generator; its next experiment goes to the front of the queue."""
        try:
            self.first(asking, asking.send(measurement))
        except StopIteration:
            return

    def first(self, asking: Asking, wanted: WantedExperiment) -> None:
        self._queue.insert(0, (asking, wanted))

    def take(self, place: Place) -> tuple[Asking, WantedExperiment, str] | None:
        """The first experiment that there is room for, with its placement."""
        if self._tape.replaying:
            return self._recorded()
        before: list[Configuration] = []
        for i, (asking, wanted) in enumerate(self._queue):
            if (placement := place(wanted.configuration, before)) is not None:
                del self._queue[i]
                return asking, wanted, placement
            before.append(wanted.configuration)
        return None

    def may_pass(self) -> bool:
        """Whether to ask for more experiments while these wait."""
        if self._tape.replaying and not self._tape.next_is(Passed):
            return False
        if len(self._queue) < _MOST:
            self._tape.emit(Passed())
            return True
        return False

    def _recorded(self) -> tuple[Asking, WantedExperiment, str] | None:
        """The experiment that the journal started next; if it started none, since the search was over, the oldest."""
        started = (i for i, (_, w) in enumerate(self._queue) if self._tape.peek(ExperimentStarted, w.configuration))
        i = next(started, None)
        if not self._queue or (i is None and (self._tape.next_is(Passed) or self._tape.ended() is not None)):
            return None
        return *self._queue.pop(i or 0), ""
