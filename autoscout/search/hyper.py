"""Hyper-parameters with the reasons for their values: of every session; of the published algorithm where the paper
leaves them open; and of the default strategy. The switches at the end of a class disable a component, for ablations."""

import math
from typing import Any, TypeVar

import msgspec

from kb.records import Budget


class Hyper(msgspec.Struct, frozen=True, kw_only=True):
    """Hyper-parameters of every session, whatever its strategy."""

    patience: int = 30  # experiments without an improvement of 1 % after which the search ends
    settled: float = (
        0.05  # a search ends if P(a configuration that is 1 % better is left) is below this twice in a row; 0: never
    )
    failures: float = 0.0  # share of the experiments that may fail; 0: see chances.py
    tau: int = 5  # iterations between two checks of the simulators' accuracy
    epsilon: float = 0.15  # MAPE above which the simulators are no longer trusted
    window: int = 5  # checks that the MAPE is averaged over
    top_k: int = 4  # best simulated configurations to profile first after switching from simulation
    simulated_patience: int = 100  # simulated iterations without improvement before switching to profiling
    prior_pulls: float = 2.0  # pulls that a bandit's statistics from simulation or prediction count as
    # tree orderings in the tournament; the paper finds 5 sufficient, but 4 can be halved evenly (4 + 2 evaluations)
    k: int = 4
    # decay per iteration of exploration (paper) or of old rewards (default); it halves in 14 iterations
    gamma: float = 0.95


class PaperHyper(Hyper, frozen=True, kw_only=True):
    """Hyper-parameters of Algorithm 1 as published (strategy `paper`)."""

    c_uct: float = 0.05  # UCT exploration: good structures' rewards differ by a few hundredths (`Algorithm1._reward`)
    unvisited: float = 0.9  # assumed value of an unvisited branch, as a share of its best sibling's
    near: float = 0.8  # share of rollouts that resemble the base; the remaining rollouts are random
    c0: float = 0.5  # bandit exploration: rewards are relative improvements, rarely above 0.5
    control_limit: float = 1.15  # controls that cost more than this multiple of the base are replaced by the base
    # for ablations
    dense: bool = True  # the dense optimizer makes proposals
    bandit: bool = True  # rewards choose the arm; else the arms alternate


class DefaultHyper(Hyper, frozen=True, kw_only=True):
    """Hyper-parameters of the default (strategy `autoscout`)."""

    opening: int = 6  # number of first experiments if there are no prior means: the default and distant points
    explore: float = 0.003  # bandit exploration: a relative gain hardly worth an experiment
    probe: float = 1.5  # UCT exploration of the arm SPARSE, where gains are scaled to at most 1
    listed: int = 100_000  # larger spaces are sampled, because a search scores at most so many configurations
    # for ablations
    sparse: bool = True  # the arm SPARSE (tree over the sparse knobs) makes proposals
    dense: bool = True  # the arm DENSE (steps of one dense knob) makes proposals
    effects: bool = True  # the model has main effects
    spending: bool = True  # gains are divided by prices (belief/spending.py)
    simulators: bool = True  # simulators and past jobs are prior means


Shape = TypeVar("Shape", bound=Hyper)


def hyper_as(shape: type[Shape], given: Hyper | dict[str, Any] | None) -> Shape:
    """Converts hyper-parameters to the class of a strategy, whose defaults fill missing ones."""
    fields = given if isinstance(given, dict) else msgspec.to_builtins(given or {})
    return msgspec.convert(fields, shape)


def allowing(hyper: Shape, budget: Budget) -> tuple[Shape, float]:
    """(hyper-parameters with the job's permitted share of failures; the permitted number of failures)."""
    most = budget.failures  # a share if below 1, else a number of experiments
    share = min(most / max(budget.profiles, 1), 0.9) if most >= 1 else most
    return msgspec.structs.replace(hyper, failures=share or hyper.failures), most if most >= 1 else math.inf
