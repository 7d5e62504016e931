"""Strategies behind one ask/tell interface; each knows a space and is told measurements, failures included."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from autoscout.job.words import nearest_name
from autoscout.search.belief.prior_means import Predictor
from autoscout.search.earlier import Past
from autoscout.search.hyper import Hyper
from autoscout.space.graph import Space
from kb.journal import Event
from kb.records import AutoscoutError, Configuration, Measurement


class Strategy(Protocol):
    def ask(self) -> list[Configuration]:
        """The next configurations to evaluate; empty when there is nothing left to try."""
        ...

    def tell(self, measurements: list[Measurement]) -> None:
        """What came of configurations that were asked, in any order; also what is known of others."""
        ...

    def drain(self) -> list[Event]:
        """What was decided since the last call, for the journal."""
        ...

    def recommend(self) -> Configuration | None:
        """The configuration to use after what was told; None if nothing ran."""
        ...

    def switch_to_profiling(self) -> None:
        """Evaluation went over from simulators to real experiments."""
        ...


def strategy(
    name: str,
    space: Space,
    seed: int = 0,
    default: Configuration | None = None,
    seeded: list[list[str]] | None = None,
    hyper: Hyper | None = None,
    simulators: Mapping[str, Predictor] | None = None,
    past: Sequence[Past] | None = None,
    budget: int | None = None,
    batch: int = 1,
) -> Strategy:
    """`default`: the configuration that is evaluated first; `seeded`: orderings that won earlier tournaments;
    `simulators`: codes → predicted metric values (NaN: cannot say, inf: predicted to fail); `past`: similar jobs;
    `budget`: real evaluations, the last few of which measure the front-runners again; `batch`: how many an ask."""
    from autoscout.search.autoscout import AutoScout
    from autoscout.search.paper.published import Paper
    from autoscout.search.rivals.registry import RIVALS, rival

    if name == "autoscout":
        return AutoScout(
            space, default, seed, hyper or Hyper(), simulators, past or (), seeded or (), budget=budget, batch=batch
        )
    default = default or space.sample(np.random.default_rng((seed, 1)))
    if name == "paper":
        return Paper(space, default, seeded or [], seed, hyper or Hyper())
    if name in RIVALS:
        return rival(name, space, default, seed, simulators)
    known = ["autoscout", "paper", *RIVALS]
    raise AutoscoutError(f"strategy '{name}'{nearest_name(name, known)}", 2)
