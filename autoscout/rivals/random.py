"""Uniform random search over the valid configurations, without repeats; the expert default comes first."""

import numpy as np

from autoscout.space.graph import Space
from kb.journal import Decided, Event
from kb.records import Configuration, Measurement


class Random:
    def __init__(self, space: Space, default: Configuration, seed: int) -> None:
        self.space = space
        self.rng = np.random.default_rng(seed)
        self.asked: set[str] = set()
        self.next = default
        self.events: list[Event] = []

    def ask(self) -> list[Configuration]:
        if len(self.asked) == self.space.count:
            return []
        while self.next.id in self.asked:
            self.next = self.space.sample(self.rng)
        step = len(self.asked) + 1
        self.events.append(
            Decided(
                step=step,
                phase="search" if self.asked else "default",
                arm="RANDOM",
                configurations=[self.next],
                names=[self.space.name(self.next)],
                why="uniform over the valid configurations",
            )
        )
        return [self.next]

    def tell(self, measurements: list[Measurement]) -> None:
        self.asked |= {m.configuration.id for m in measurements}

    def drain(self) -> list[Event]:
        events, self.events = self.events, []
        return events

    def switch_to_profiling(self) -> None:
        self.asked.clear()
