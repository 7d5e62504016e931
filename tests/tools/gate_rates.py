"""Error rates, power and cost of `autoscout gate`, simulated with the very code that decides: docs/lab/testing.md.

PYTHONPATH=. python tests/tools/gate_rates.py --trials 1000
"""

import argparse

import numpy as np

from autoscout.tuning import pairs
from tests.tools.confirm_rates import REGIMES


def gate(rng: np.random.Generator, regime: str, level: float, slower: float, margin: float, limit: int):
    noise = REGIMES[regime](rng, level, 2 * limit)
    done: list[pairs.Pair] = []
    while True:
        n = len(done)
        first, second = np.exp(noise[2 * n : 2 * n + 2])
        a, b = (first, second) if pairs.order(n)[0] == pairs.A else (second, first)
        done.append((a, b * (1 + slower)))
        if n + 1 in pairs.levels(limit) and (standing := pairs.standing(done, margin, limit)).over:
            return standing


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--limit", type=int, default=20)
    parser.add_argument("--margin", type=float, default=0.01)
    parser.add_argument("--levels", type=float, nargs="+", default=[0.005, 0.01, 0.02])
    parser.add_argument("--slower", type=float, nargs="+", default=[0.0, 0.01, 0.03, 0.05])
    parser.add_argument("--regimes", nargs="+")
    asked = parser.parse_args()
    heads = "".join(f" {s:.0%} slower: worse · no worse · pairs |" for s in asked.slower)
    print(f"| noise | regime |{heads}\n|---|---|{'---|' * len(asked.slower)}")
    for level in asked.levels:
        for regime in asked.regimes or REGIMES:
            cells = []
            for slower in asked.slower:
                rng = np.random.default_rng((51, int(level * 1e4), int(slower * 1e4), list(REGIMES).index(regime)))
                found = [gate(rng, regime, level, slower, asked.margin, asked.limit) for _ in range(asked.trials)]
                share = {kind: sum(f.kind == kind for f in found) / len(found) for kind in ("worse", "no worse")}
                mean = sum(f.pairs for f in found) / len(found)
                cells.append(f" {share['worse']:.1%} · {share['no worse']:.1%} · {mean:.1f} |")
            print(f"| {level:.1%} | {regime} |{''.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
