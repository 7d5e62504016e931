"""Algorithm 1 as published (orchestrator.py), as a strategy."""

from autoscout.job.objective import cost
from autoscout.search.hyper import Hyper
from autoscout.search.paper.orchestrator import Algorithm1, ToldCost
from autoscout.search.strategy import Kind
from autoscout.space.graph import Space
from kb.journal import Event
from kb.records import Configuration, Measurement


class Paper:
    """Its batches are the 2×2 grids; asked again before a whole grid was told, it returns what is missing."""

    def __init__(self, space: Space, default: Configuration, seeded: list[list[str]], seed: int, hyper: Hyper) -> None:
        self.space = space
        self.search = Algorithm1(space, default, seeded, seed, hyper)
        self._run = self.search.run()
        self._batch: list[Configuration] = []
        self._told: dict[str, ToldCost] = {}
        self._begun = False

    def ask(self) -> list[Configuration]:
        if self._batch and len(self._told) < len(self._batch):
            return [c for c in self._batch if c.id not in self._told]
        try:
            told = [self._told[c.id] for c in self._batch]
            self._batch = self._run.send(told) if self._begun else next(self._run)
        except StopIteration:
            self._batch = []
        self._begun, self._told = True, {}
        return self._batch

    def tell(self, measurements: list[Measurement]) -> None:
        asked = {c.id for c in self._batch}
        for m in measurements:
            if m.configuration.id in asked:
                found = cost(self.space.objective, m)
                self._told[m.configuration.id] = ToldCost(m.configuration, found, m.fidelity == "predicted")

    def drain(self) -> list[Event]:
        events, self.search.events = self.search.events, []
        return events

    def recommend(self) -> Configuration | None:
        """(S*, X*): the cheapest that was told."""
        return self.search.best.configuration if self.search.best else None

    def switch_to_profiling(self) -> None:
        self.search.switched = True


STRATEGY = Kind(
    name="paper",
    make=lambda s: Paper(s.space, s.first(), [list(o) for o in s.seeded], s.seed, s.hyper or Hyper()),
    hyper=Hyper,
)
