"""Strategies behind one ask/tell interface; each knows a space and is told measurements, failures included."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from autoscout.objective import cost
from autoscout.rivals.sequential import Predictor
from autoscout.search.orchestrator import Algorithm1, Hyper, Told
from autoscout.search.past import Past
from autoscout.space.graph import Space
from autoscout.words import nearest_name
from kb.journal import Event
from kb.records import AutoscoutError, Configuration, Measurement


class Strategy(Protocol):
    def ask(self) -> list[Configuration]:
        """The next configurations to evaluate; empty when there is nothing left to try."""
        ...

    def tell(self, measurements: list[Measurement]) -> None:
        """One measurement for each configuration of the last ask, in any order."""
        ...

    def drain(self) -> list[Event]:
        """What was decided since the last call, for the journal."""
        ...

    def switch_to_profiling(self) -> None:
        """Evaluation went over from simulators to real experiments."""
        ...


class AutoScout:
    """Algorithm 1 of the paper as a strategy."""

    def __init__(self, space: Space, default: Configuration, seeded: list[list[str]], seed: int, hyper: Hyper) -> None:
        self.space = space
        self.search = Algorithm1(space, default, seeded, seed, hyper)
        self._run = self.search.run()
        self._pending: list[Configuration] = []
        self._told: list[Told] | None = None

    def ask(self) -> list[Configuration]:
        if not self._pending:
            try:
                self._pending = next(self._run) if self._told is None else self._run.send(self._told)
            except StopIteration:
                self._pending = []
        return self._pending

    def tell(self, measurements: list[Measurement]) -> None:
        by_id = {m.configuration.id: m for m in measurements}
        self._told = [
            Told(c, cost(self.space.objective, by_id[c.id]), by_id[c.id].fidelity == "simulated") for c in self._pending
        ]
        self._pending = []

    def drain(self) -> list[Event]:
        events, self.search.events = self.search.events, []
        return events

    def switch_to_profiling(self) -> None:
        self.search.switched = True


def strategy(
    name: str,
    space: Space,
    seed: int = 0,
    default: Configuration | None = None,
    seeded: list[list[str]] | None = None,
    hyper: Hyper | None = None,
    simulators: Mapping[str, Predictor] | None = None,
    past: list[Past] | None = None,
    budget: int | None = None,
) -> Strategy:
    """`default`: the configuration that is evaluated first; `seeded`: orderings that won earlier tournaments;
    `simulators`: free predictions, rows of codes → metric; `past`: earlier jobs; `budget`: evaluations to come."""
    from autoscout.rivals.registry import RIVALS, rival

    default = default or _first(space, seed)
    if name in ("autoscout", "paper"):
        return AutoScout(space, default, seeded or [], seed, hyper or Hyper())
    if name in RIVALS:
        return rival(name, space, default, seed, simulators)
    known = ["autoscout", "paper", *RIVALS]
    raise AutoscoutError(f"strategy '{name}'{nearest_name(name, known)}", 2)


def _first(space: Space, seed: int) -> Configuration:
    """The expert default; of a table, about which nobody knows anything, any row."""
    from autoscout.rivals.expert import expert_default

    return expert_default(space) if space.attributes else space.sample(np.random.default_rng(seed))
