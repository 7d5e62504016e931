"""Evaluations to 1 % of strategies on the landscapes of search_landscapes.py, a line a landscape: what choices of the
search are made on (`design`), and what they are judged on (`held-out`).

    python tests/tools/search_tune.py design --seeds 10 autoscout gp-ei autoscout:effects=false
    python tests/tools/search_tune.py held-out --simulator biased --strategies autoscout

A run ends when it has come within 1 %; one that does not in 200 evaluations counts as 201. Choices are made by the
geometric mean over landscapes; leave-one-out shows whether one landscape alone decides between strategies.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import search_landscapes
from search_landscapes import Landscape

from autoscout.search.earlier import Past
from autoscout.search.strategy import strategy
from autoscout.studies.bench.variants import variant
from kb.records import Configuration, Measurement

BUDGET = 200


@dataclass
class Run:
    to_1: int
    to_5: int
    evaluations: int
    cpu_s: float
    within: bool | None  # whether what is recommended is within 1 %; of runs that use their whole budget
    told: list[tuple[Configuration, float | None]]


def run(
    land: Landscape,
    name: str,
    seed: int,
    simulator: str = "none",
    noise: float = 0.0,
    whole: bool = False,
    past: list[Past] | None = None,
) -> Run:
    plain, hyper = variant(name)
    space, rng = land.space, np.random.default_rng((seed, 7))
    default = land.default or space.feasible.configuration(
        int(np.random.default_rng((seed, 1)).integers(len(space.feasible)))
    )
    predictors = {}
    for which in () if simulator == "none" else simulator.split("+"):
        values = land.simulators[which.removesuffix("-noisy")]
        if which.endswith("-noisy"):
            values = values * np.exp(0.8 * np.random.default_rng((seed, 8)).standard_normal(len(values)))
        predictors[which] = lambda codes, values=values: values
    begun = time.process_time()
    chosen = strategy(plain, space, seed, default, hyper=hyper, simulators=predictors, past=past or ())
    spent, told, hits = time.process_time() - begun, [], {}
    while len(told) < BUDGET and (whole or 0.01 not in hits):
        begun = time.process_time()
        batch = chosen.ask()
        spent += time.process_time() - begun
        if not batch:
            break
        measurements = []
        for configuration in batch:
            row = space.feasible.index(configuration)
            assert row is not None
            cost = float(land.cost[row])
            told.append((configuration, cost if np.isfinite(cost) else None))
            for share in (0.05, 0.01):
                if cost <= land.best * (1 + share):
                    hits.setdefault(share, len(told))
            measurements.append(_measurement(land, configuration, cost * float(np.exp(noise * rng.standard_normal()))))
        begun = time.process_time()
        chosen.tell(measurements)
        chosen.drain()
        spent += time.process_time() - begun
    within = None
    if whole:
        recommended = chosen.recommend()
        row = None if recommended is None else space.feasible.index(recommended)
        within = row is not None and bool(land.cost[row] <= 1.01 * land.best)
    return Run(hits.get(0.01, BUDGET + 1), hits.get(0.05, BUDGET + 1), len(told), spent, within, told)


def _measurement(land: Landscape, configuration: Configuration, cost: float) -> Measurement:
    objective = land.space.objective
    if not np.isfinite(cost):
        return Measurement(configuration=configuration, name="", context="", status="oom")
    metrics = {objective.metric: cost if objective.minimize else 1 / cost, "peak_memory_gib": 1.0}
    return Measurement(configuration=configuration, name="", context="", status="ok", metrics=metrics)


def table(
    lands: list[Landscape], names: list[str], seeds: int, one: Callable[[Landscape, str, int], Run]
) -> dict[str, dict[str, list[Run]]]:
    """Strategy → landscape → runs, printed as they come; all groups of vTrain count as one landscape."""
    found: dict[str, dict[str, list[Run]]] = {name: {} for name in names}
    for land in lands:
        for name in names:
            runs = [one(land, name, seed) for seed in range(seeds)]
            group = "vtrain" if land.name.startswith("vtrain") else land.name
            found[name].setdefault(group, []).extend(runs)
    for group in found[names[0]]:
        print(f"{group[:34]:34}", *(_cell(found[name][group]) for name in names), sep=" | ", flush=True)
    print(f"{'geometric mean':34}", *(f"{_mean(list(found[name].values())):34.1f}" for name in names), sep=" | ")
    if len(names) > 1 and len(found[names[0]]) > 1:
        ratios = []
        for left_out in found[names[0]]:
            kept = [[runs for g, runs in found[name].items() if g != left_out] for name in names[:2]]
            ratios.append(_mean(kept[0]) / _mean(kept[1]))
        print(f"{names[0]} / {names[1]}, leaving one landscape out: {min(ratios):.2f} to {max(ratios):.2f}")
    return found


def _cell(runs: list[Run]) -> str:
    ones = np.array([r.to_1 for r in runs])
    solved = f"{(ones <= BUDGET).sum()}/{len(ones)}"
    ms = 1000 * sum(r.cpu_s for r in runs) / sum(r.evaluations for r in runs)
    right = [r.within for r in runs if r.within is not None]
    recommended = f" rec {np.mean(right):.2f}" if right else ""
    fives = np.median([r.to_5 for r in runs])
    return f"{np.median(ones):4.0f} {_mean([runs]):6.1f} {solved:>7} 5%:{fives:3.0f} {ms:4.1f}ms{recommended}"


def _mean(groups: list[list[Run]]) -> float:
    return float(np.exp(np.mean([np.mean(np.log([r.to_1 for r in runs])) for runs in groups])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=["design", "held-out"])
    parser.add_argument("strategies", nargs="+")
    parser.add_argument("--only", default="", help="landscapes whose name has this in it; several with commas")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--simulator", default="none", help="none, good, biased, biased-noisy; several with +")
    parser.add_argument("--noise", type=float, default=0.0, help="of what is told; the whole budget is used then")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    makers = search_landscapes.DESIGN if given.set == "design" else search_landscapes.HELD_OUT
    wanted = [part for part in given.only.split(",") if part]
    lands = [land for make in makers for land in make(wanted) if given.simulator == "none" or land.simulators]
    table(
        lands,
        given.strategies,
        given.seeds,
        lambda land, name, seed: run(land, name, seed, given.simulator, given.noise, given.noise > 0),
    )


if __name__ == "__main__":
    main()
