"""How good what a session recommends is, simulated: finalists by what is believed of them and rounds that end by
themselves, beside re-measuring the three best single measurements ten times. The tables of docs/statistics.md.

    python tests/tools/recommend_rates.py --trials 100 --budgets 10 20 40
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from autoscout.targets.jobs import expert_default
from autoscout.tuning.anchors import Anchors
from autoscout.tuning.rounds import confirmed
from kb.records import Configuration
from tests.autoscout.landscape import job_of, measured, space_of, step_time
from tests.tools.confirm_rates import REGIMES

JOB, SPACE = job_of("tiny-gpt-cpu"), space_of("tiny-gpt-cpu")
DEFAULT = expert_default(SPACE)


@dataclass
class Ended:
    ours: float  # regret against the best measured configuration's true value
    ours_runs: int
    theirs: float
    theirs_runs: int


class Machine:
    """Measurements one after the other, with the noise of a regime."""

    def __init__(self, rng: np.random.Generator, regime: str, level: float) -> None:
        self._log, self._at = REGIMES[regime](rng, level, 1000), 0

    def run(self, configuration: Configuration):
        self._at += 1
        found = measured(SPACE, configuration)
        return found.__class__(
            **{f: getattr(found, f) for f in found.__struct_fields__ if f != "metrics"},
            metrics={"step_time_s": step_time(configuration) * float(np.exp(self._log[self._at]))},
        )


def session(seed: int, regime: str, level: float, budget: int) -> Ended:
    rng = np.random.default_rng((seed, budget, int(1000 * level)))
    machine = Machine(rng, regime, level)
    drawn = np.random.default_rng(seed)
    tried = [DEFAULT, *(SPACE.sample(drawn) for _ in range(budget - 1))]
    done = list({c.id: machine.run(c) for c in tried}.values())
    again = [machine.run(DEFAULT) for _ in range(2)]
    cost = {m.configuration.id: m.metrics["step_time_s"] for m in done}
    true = {m.configuration.id: step_time(m.configuration) for m in done}
    best, runs = min(true.values()), 0
    anchors = Anchors(JOB, DEFAULT)
    for m in [*(m for m in done if m.configuration == DEFAULT), *again]:
        anchors.tell(m, 0)
    asking = confirmed(JOB, SPACE, SPACE, done, DEFAULT, anchors, lambda text: None, lambda: False)
    try:
        wanted = next(asking)
        while True:
            runs += 1
            wanted = asking.send(machine.run(wanted.configuration))
    except StopIteration as over:
        winner = over.value.winner
    three = sorted(done, key=lambda m: cost[m.configuration.id])[:3]
    other = Machine(rng, regime, level)
    means = {m.configuration.id: 0.0 for m in three}
    for _ in range(10):
        for m in three:
            means[m.configuration.id] += np.log(other.run(m.configuration).metrics["step_time_s"])
    theirs = min(means, key=means.__getitem__)
    return Ended(true[winner.id] / best - 1, runs + len(again), true[theirs] / best - 1, 30)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--budgets", type=int, nargs="+", default=[40])
    parser.add_argument("--levels", type=float, nargs="+", default=[0.0, 0.02, 0.1, 0.4])
    asked = parser.parse_args()
    print("| noise | regime | budget | within 1 % | mean regret | runs | top 3 × 10: within 1 % | mean regret | runs |")
    print("|---|---|---|---|---|---|---|---|---|")
    for level in asked.levels:
        for regime in REGIMES if level else ["independent"]:
            for budget in asked.budgets:
                ended = [session(seed, regime, level, budget) for seed in range(asked.trials)]
                ours, theirs = np.array([e.ours for e in ended]), np.array([e.theirs for e in ended])
                runs = np.mean([e.ours_runs for e in ended])
                print(
                    f"| {level:.0%} | {regime} | {budget} | {np.mean(ours <= 0.01):.0%} | {ours.mean():.2%} | "
                    f"{runs:.0f} | "
                    f"{np.mean(theirs <= 0.01):.0%} | {theirs.mean():.2%} | 30 |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
