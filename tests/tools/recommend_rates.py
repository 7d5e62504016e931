"""Simulates the quality of recommendations: finalists chosen by the belief with rounds that end adaptively, compared to
re-measuring the three best single measurements, in as many runs or ten times each. The tables of
docs/lab/statistics-measured.md.

    python tests/tools/recommend_rates.py --trials 100 --budgets 10 20 40
    python tests/tools/recommend_rates.py --trials 100 --budgets 10 20 40 --growing     does a larger budget harm?
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from autoscout.tuning.anchors import Anchors
from autoscout.tuning.evidence import half_width
from autoscout.tuning.rounds import confirmed
from kb.records import Configuration
from tests.autoscout.landscape import job_of, measured, space_of, step_time
from tests.tools.confirm_rates import REGIMES

JOB, SPACE = job_of("tiny-gpt-cpu"), space_of("tiny-gpt-cpu")
DEFAULT = SPACE.reference


@dataclass
class Ended:
    ours: float  # regret against the best measured configuration's true value
    ours_runs: int
    equal: float  # regret of the best of the three best single measurements, re-measured in as many runs
    ten: float  # the same, re-measured ten times each
    answer: float  # true cost of the recommended configuration


class Machine:
    """Returns successive measurements with a regime's noise."""

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
    asking = confirmed(JOB, SPACE, SPACE, done, DEFAULT, anchors, lambda text: None, lambda _: False)
    try:
        wanted = next(asking)
        while True:
            runs += 1
            wanted = asking.send(machine.run(wanted.configuration))
    except StopIteration as over:
        winner = over.value.winner
    three = [m.configuration for m in sorted(done, key=lambda m: cost[m.configuration.id])[:3]]
    other = Machine(rng, regime, level)
    logs = np.array([[np.log(other.run(c).metrics["step_time_s"]) for c in three] for _ in range(20)])
    times = max(1, round((runs + len(again)) / 3))
    equal, ten = (three[int(logs[:n].mean(axis=0).argmin())].id for n in (times, 10))
    return Ended(
        true[winner.id] / best - 1, runs + len(again), true[equal] / best - 1, true[ten] / best - 1, true[winner.id]
    )


def _sessions(asked: argparse.Namespace, regime: str, level: float, budget: int) -> list[Ended]:
    return [session(seed, regime, level, budget) for seed in range(asked.trials)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--budgets", type=int, nargs="+", default=[40])
    parser.add_argument("--levels", type=float, nargs="+", default=[0.0, 0.02, 0.1, 0.4])
    parser.add_argument("--growing", action="store_true", help="what is recommended costs, for each of the budgets")
    asked = parser.parse_args()
    if asked.growing:
        print("| noise | regime | " + " | ".join(f"{budget} experiments" for budget in asked.budgets) + " |")
        print("|---|---|" + "---|" * len(asked.budgets))
        for level in asked.levels:
            for regime in REGIMES if level else ["independent"]:
                answers = [np.mean([e.answer for e in _sessions(asked, regime, level, b)]) for b in asked.budgets]
                print(f"| {level:.1%} | {regime} | " + " | ".join(f"{x:.4f} s" for x in answers) + " |", flush=True)
        return
    print(
        "| noise | regime | budget | within 1 % | mean regret | runs | top 3 at equal cost | | ours is better by | "
        "top 3 × 10 (30 runs) | |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for level in asked.levels:
        for regime in REGIMES if level else ["independent"]:
            for budget in asked.budgets:
                ended = _sessions(asked, regime, level, budget)
                shown = [np.array([getattr(e, name) for e in ended]) for name in ("ours", "equal", "ten")]
                ours, equal, ten = (f"{np.mean(found <= 0.01):.0%} | {found.mean():.2%}" for found in shown)
                runs = np.mean([e.ours_runs for e in ended])
                gain = np.array([e.equal - e.ours for e in ended])
                half = half_width([float(x) for x in gain])
                better = f"{gain.mean():+.2%} ± {half:.2%}"
                print(
                    f"| {level:.1%} | {regime} | {budget} | {ours} | {runs:.0f} | {equal} | {better} | {ten} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
