"""Hyper-parameters of every session, of the published algorithm where the paper leaves them open, and of the default
strategy, each with its reason. The switches at the end of a class leave one part out, for ablations."""

import math
from typing import Any, TypeVar

import msgspec

from kb.records import Budget


class Hyper(msgspec.Struct, frozen=True, kw_only=True):
    """Hyper-parameters of every session, whatever its strategy."""

    patience: int = 30  # experiments without 1 % improvement after which the search has converged
    settled: float = (
        0.05  # a search ends if the chance that something 1 % better is left is below this twice in a row; 0: never
    )
    failures: float = 0.0  # share of the experiments that may fail; 0: less than half of the space's believed share
    tau: int = 5  # iterations between two checks of the simulators' accuracy
    epsilon: float = 0.15  # MAPE above which the simulators are no longer trusted
    window: int = 5  # checks that the MAPE is averaged over
    top_k: int = 4  # simulated favourites that are profiled first after the switch
    simulated_patience: int = 100  # simulated iterations without improvement after which profiling takes over
    prior_pulls: float = 2.0  # weight in pulls of bandit statistics from simulation or prediction
    k: int = 4  # tree orderings in the tournament; the paper finds 5 enough, 4 halve evenly: 4 + 2 evaluations
    gamma: float = 0.95  # halves the bandit's exploration, or the weight of its old rewards, about every 14 iterations


class PaperHyper(Hyper, frozen=True, kw_only=True):
    """Hyper-parameters of Algorithm 1 as published (strategy `paper`)."""

    c_uct: float = 0.05  # rewards of good structures lie within a few hundredths of each other, see `_reward`
    unvisited: float = 0.9  # assumed worth of an untried value, as a share of its best sibling's
    near: float = 0.8  # share of rollouts that complete a proposal like the base, the others at random
    c0: float = 0.5  # bandit exploration; rewards are relative improvements, rarely above 0.5
    control_limit: float = 1.15  # a control that is slower than the base by this factor is dropped as uninformative
    # for ablations
    dense: bool = True  # whether coordinate steps make proposals
    bandit: bool = True  # arms are chosen by their rewards; without it, in turns


class DefaultHyper(Hyper, frozen=True, kw_only=True):
    """Hyper-parameters of the default (strategy `autoscout`)."""

    opening: int = 6  # first experiments if nothing is known beforehand: the default and points far from it
    explore: float = 0.003  # bandit exploration: a relative gain that is hardly worth an experiment
    probe: float = 1.5  # UCT exploration in the tree over the belief, where gains are scaled to 1
    listed: int = 100_000  # limit on valid configurations to list; a search looks at no more anyway
    # for ablations
    sparse: bool = True  # the tree over structures proposes
    dense: bool = True  # coordinate steps propose
    effects: bool = True  # main effects in the posterior
    spending: bool = True  # gains count per device-second if experiments differ in cost
    simulators: bool = True  # simulators and past jobs as prior means


Shape = TypeVar("Shape", bound=Hyper)


def hyper_as(shape: type[Shape], given: Hyper | dict[str, Any] | None) -> Shape:
    """Given or journalled hyper-parameters, converted to a strategy's class with its defaults."""
    fields = given if isinstance(given, dict) else msgspec.to_builtins(given or {})
    return msgspec.convert(fields, shape)


def allowing(hyper: Shape, budget: Budget) -> tuple[Shape, float]:
    """The hyper-parameters with the share of failures that a job's budget allows, and the limit as a number."""
    most = budget.failures  # a share of the experiments, or a number of them
    share = min(most / max(budget.profiles, 1), 0.9) if most >= 1 else most
    return msgspec.structs.replace(hyper, failures=share or hyper.failures), most if most >= 1 else math.inf
