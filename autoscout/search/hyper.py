"""The hyper-parameters that the paper leaves open, and ours, each with its reason."""

import msgspec


class Hyper(msgspec.Struct, frozen=True, kw_only=True):
    # Algorithm 1 as published (strategy `paper`)
    k: int = 4  # tree orderings in the tournament; the paper finds 5 enough, 4 halve evenly: 4 + 2 evaluations
    c_uct: float = 0.05  # rewards of good structures lie within a few hundredths of each other, see `_reward`
    unvisited: float = 0.9  # assumed worth of an untried value, as a share of its best sibling's
    near: float = 0.8  # share of rollouts that complete a proposal like the base, the others at random
    c0: float = 0.5  # bandit exploration; rewards are relative improvements, rarely above 0.5
    gamma: float = 0.95  # halves the exploration about every 14 iterations
    control_limit: float = 1.15  # a control this much slower than the base tells nothing about it
    # every session
    patience: int = 30  # experiments without 1 % improvement after which the search has converged
    settled: float = 0.05  # chance that something 1 % better is left, below which (twice) a search ends; 0: never
    tau: int = 5  # iterations between two checks of the simulators
    epsilon: float = 0.15  # MAPE above which the simulators are no longer trusted
    window: int = 5  # checks that the MAPE is averaged over
    top_k: int = 4  # simulated favourites that are profiled first after the switch
    prior_pulls: float = 2.0  # pulls that bandit statistics from simulation (or from prediction) are worth
    simulated_patience: int = 100  # simulated iterations without improvement, then profiling takes over
    # the default (strategy `autoscout`); switches are for the ablation
    opening: int = 6  # first experiments where nothing is known beforehand: the default and points far from it
    explore: float = 0.003  # bandit exploration: a relative gain that is hardly worth an experiment any more
    probe: float = 1.5  # UCT exploration in the tree over the belief, where gains are scaled to 1
    failures: float = 0.0  # share of the experiments that may fail; 0: less than half of the space's believed share
    sparse: bool = True  # the tree over structures proposes
    dense: bool = True  # coordinate steps propose
    bandit: bool = True  # of `paper`: arms are chosen by their rewards, else in turns
    effects: bool = True  # main effects in the posterior
    spending: bool = True  # gains count per device-second where experiments differ in what they cost
    listed: int = 100_000  # the most valid configurations to list: a search looks at no more of them anyway
    simulators: bool = True  # simulators and past jobs as prior means


def hyper_of(name: str) -> tuple[str, Hyper | None]:
    """ "autoscout:sparse=false,dense=false" → ("autoscout", Hyper(sparse=False, dense=False)); None without a colon."""
    plain, colon, given = name.partition(":")
    if not colon:
        return plain, None
    fields = {name: value for name, _, value in (pair.partition("=") for pair in given.split(","))}
    return plain, msgspec.convert(fields, Hyper, strict=False)
