"""A strategy that a package adds: every configuration, in the space's order."""

from autoscout.job.objective import cost
from autoscout.search.strategy import Kind, Search
from kb.journal import Event
from kb.records import Configuration, Measurement


class InOrder:
    def __init__(self, search: Search) -> None:
        self._space = search.space
        self._rows = iter(search.space.feasible.codes)
        self._ran: list[tuple[float, Configuration]] = []

    def ask(self) -> list[Configuration]:
        row = next(self._rows, None)
        return [] if row is None else [self._space.of_codes(row.tolist())]

    def tell(self, measurements: list[Measurement]) -> None:
        for m in measurements:
            if (c := cost(self._space.objective, m)) is not None:
                self._ran.append((c, m.configuration))

    def drain(self) -> list[Event]:
        return []

    def recommend(self) -> Configuration | None:
        return min(self._ran, key=lambda pair: pair[0])[1] if self._ran else None

    def switch_to_profiling(self) -> None: ...


STRATEGY = Kind(name="in-order", make=InOrder)
