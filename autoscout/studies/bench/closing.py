"""Re-measurements of a run, as in a session: the reference is repeated at intervals during the search, and at the end
the best configurations are repeated in rounds that decide the recommendation. These experiments do not count towards
the budget."""

from collections.abc import Callable

from autoscout.studies.bench.landscape import Landscape
from autoscout.tuning.anchors import Anchors
from autoscout.tuning.rounds import confirmed
from kb.records import AutoscoutError, Configuration, Job, Measurement


class Closing:
    def __init__(self, landscape: Landscape, again: Callable[[Configuration], Measurement]) -> None:
        """`again`: a function that measures a configuration again."""
        self._landscape, self._again = landscape, again
        self._job = Job(name=landscape.name, target="bench", objective=landscape.space.objective)
        self._anchors: Anchors | None = None  # repeats of the reference, which is the first measured configuration

    def measured(self, measurement: Measurement, searched: int) -> None:
        """Records one experiment of the search, and repeats the reference if it is due. `searched`: number of
        experiments so far, including this one."""
        if self._anchors is None:
            self._anchors = Anchors(self._job, measurement.configuration)
            self._anchors.tell(measurement, searched)
        elif self._anchors.due(searched):
            self._anchors.tell(self._again(self._anchors.reference), searched)

    def verdict(self, done: list[Measurement]) -> Configuration | None:
        """Returns the recommended configuration; None if none ran. `done`: the search's measurements, one per
        configuration."""
        if self._anchors is None:
            return None
        space, reference = self._landscape.space, self._anchors.reference
        asking = confirmed(
            self._job, space, space, done, reference, self._anchors, on_note=lambda _: None, over=lambda _: False
        )
        try:
            wanted = next(asking)
            while True:
                wanted = asking.send(self._again(wanted.configuration))
        except StopIteration as end:
            return end.value.winner
        except AutoscoutError:  # all configurations failed, in the search or when repeated
            return None
