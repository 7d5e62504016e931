"""The end of a run, as in a session: the reference is re-measured now and then during the search, and at the end the
finalists are re-measured in rounds, whose verdict is the recommendation. All this is outside the budget."""

from collections.abc import Callable

from autoscout.studies.bench.landscape import Landscape
from autoscout.tuning.anchors import Anchors
from autoscout.tuning.rounds import confirmed
from kb.records import AutoscoutError, Configuration, Job, Measurement


class Closing:
    def __init__(self, landscape: Landscape, again: Callable[[Configuration], Measurement]) -> None:
        """`again`: measures a configuration once more."""
        self._landscape, self._again = landscape, again
        self._job = Job(name=landscape.name, target="bench", objective=landscape.space.objective)
        self._anchors: Anchors | None = None  # the reference is the first measured configuration

    def measured(self, measurement: Measurement, searched: int) -> None:
        """Takes in one experiment of the search; `searched`: how many there were so far, this one included."""
        if self._anchors is None:
            self._anchors = Anchors(self._job, measurement.configuration)
            self._anchors.tell(measurement, searched)
        elif self._anchors.due(searched):
            self._anchors.tell(self._again(self._anchors.reference), searched)

    def verdict(self, done: list[Measurement]) -> Configuration | None:
        """The winner. `done`: the measurements, one per configuration. None if nothing worked."""
        if self._anchors is None:
            return None
        space, reference = self._landscape.space, self._anchors.reference
        asking = confirmed(
            self._job, space, space, done, reference, self._anchors, on_note=lambda _: None, over=lambda: False
        )
        try:
            wanted = next(asking)
            while True:
                wanted = asking.send(self._again(wanted.configuration))
        except StopIteration as end:
            return end.value.winner
        except AutoscoutError:  # nothing worked, in the search or when it was measured again
            return None
