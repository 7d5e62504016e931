"""The queue of experiments to start, the one that has waited longest first.

If a job mixes kinds of device, an experiment whose devices are busy is overtaken by experiments on other kinds.
Whenever the strategy is asked for more experiments for this reason, a `Passed` event is recorded, so that a resumed
session asks it at the same points.
"""

from collections.abc import Callable, Generator, Sequence

from autoscout.tuning.evaluator import WantedExperiment
from autoscout.tuning.tape import Tape
from kb.journal import ExperimentStarted, Passed
from kb.records import Configuration, Measurement

Asking = Generator[WantedExperiment, Measurement, None]  # yields experiments and is sent their results
# (configuration, configurations that have waited longer) → its placement as text; None if too few devices are free.
Place = Callable[[Configuration, Sequence[Configuration]], str | None]
_MOST = 2  # with this many experiments in the queue, the strategy is not asked for more


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
        """The first experiment in the queue for which enough devices are free, with its placement."""
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
        """Whether to ask the strategy for more experiments, although those in the queue wait for devices."""
        if self._tape.replaying and not self._tape.next_is(Passed):
            return False
        if len(self._queue) < _MOST:
            self._tape.emit(Passed())
            return True
        return False

    def _recorded(self) -> tuple[Asking, WantedExperiment, str] | None:
        """During replay: the experiment whose start is the next recorded event. If none is, the search had ended, and
        the first one in the queue is returned."""
        started = (i for i, (_, w) in enumerate(self._queue) if self._tape.peek(ExperimentStarted, w.configuration))
        i = next(started, None)
        if not self._queue or (i is None and (self._tape.next_is(Passed) or self._tape.ended() is not None)):
            return None
        return *self._queue.pop(i or 0), ""
