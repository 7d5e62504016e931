"""What is to be started next, the longest waiting first.

Where a job mixes kinds of device, one whose devices others have lets pass what needs other kinds; the tape has a
`Passed` whenever more was asked for that reason, so that a session that goes on asks at the same moments.
"""

from collections.abc import Callable, Generator, Sequence

from autoscout.tuning.evaluator import Wanted
from autoscout.tuning.tape import Tape
from kb.journal import ExperimentStarted, Passed
from kb.records import Configuration, Measurement

Asking = Generator[Wanted, Measurement, None]  # yields what it wants to be run, is sent what came of it
# (configuration, those that wait longer) → its placement as it is spelled, None where there is no room for it now.
Place = Callable[[Configuration, Sequence[Configuration]], str | None]
_MOST = 2  # most experiments that wait for devices


def anywhere(configuration: Configuration, before: Sequence[Configuration]) -> str:
    return ""


class Ready:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._queue: list[tuple[Asking, Wanted]] = []

    def __len__(self) -> int:
        return len(self._queue)

    def begin(self, asking: Asking) -> None:
        """What it wants first waits behind all others."""
        try:
            self._queue.append((asking, next(asking)))
        except StopIteration:
            return

    def go_on(self, asking: Asking, measurement: Measurement) -> None:
        """What it wants next goes before all others."""
        try:
            self.first(asking, asking.send(measurement))
        except StopIteration:
            return

    def first(self, asking: Asking, wanted: Wanted) -> None:
        self._queue.insert(0, (asking, wanted))

    def take(self, place: Place) -> tuple[Asking, Wanted, str] | None:
        """The first that there is room for, with its placement."""
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
        """Whether something more is asked for while these wait."""
        if self._tape.replaying and not self._tape.next_is(Passed):
            return False
        if len(self._queue) < _MOST:
            self._tape.emit(Passed())
            return True
        return False

    def _recorded(self) -> tuple[Asking, Wanted, str] | None:
        """What the journal says was started next; the oldest where it says that none was, since the search is over."""
        started = (i for i, (_, w) in enumerate(self._queue) if self._tape.peek(ExperimentStarted, w.configuration))
        i = next(started, None)
        if not self._queue or (i is None and (self._tape.next_is(Passed) or self._tape.ended() is not None)):
            return None
        return *self._queue.pop(i or 0), ""
