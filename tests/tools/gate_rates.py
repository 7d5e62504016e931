"""Simulates error rates, power and cost of `autoscout gate` with the code that decides: docs/lab/testing.md.

PYTHONPATH=. python tests/tools/gate_rates.py --trials 1000
PYTHONPATH=. python tests/tools/gate_rates.py --fixed     # compared to two samples of fixed size
PYTHONPATH=. python tests/tools/gate_rates.py --bisect    # finds the slow one among 64 changes
"""

import argparse
import math
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

from autoscout.tuning import changepoint, pairs
from tests.tools.confirm_rates import REGIMES


def gate(rng: np.random.Generator, regime: str, level: float, slower: float, margin: float, limit: int):
    noise = REGIMES[regime](rng, level, 2 * limit)
    done: list[pairs.Pair] = []
    for n in range(limit):
        first, second = np.exp(noise[2 * n : 2 * n + 2])
        a, b = (first, second) if pairs.order(n)[0] == pairs.A else (second, first)
        done.append((a, b * (1 + slower)))
    return decided(done, margin, limit)


def decided(done: Sequence[pairs.Pair], margin: float, limit: int) -> pairs.PairsStanding:
    """The state at the first look that ends a gate which measures these pairs."""
    looks = (pairs.standing(done[:n], margin, limit) for n in pairs.levels(limit))
    return next(standing for standing in looks if standing.over)


def fixed(rng: np.random.Generator, regime: str, level: float, slower: float, margin: float, n: int) -> str:
    """The result of n runs of A, then n of B, and a one-sided t-test in each direction with the gate's error rate."""
    noise = REGIMES[regime](rng, level, 2 * n)
    a, b = noise[:n], noise[n:] + math.log1p(slower)
    error = math.sqrt((a.var(ddof=1) + b.var(ddof=1)) / n)
    off = (b.mean() - a.mean() - math.log1p(margin)) / error
    edge = float(stdtrit(2 * n - 2, 1 - pairs.ERROR))
    return "worse" if off > edge else "no worse" if off < -edge else "undecided"


def bisection(
    rng: np.random.Generator, regime: str, level: float, slower: float, changes: int, limit: int, sure: float = 0.95
) -> tuple[bool, bool, int]:
    """(whether the most probable change is the right one, whether it was found within the limit, number of pairs)."""
    change, search = int(rng.integers(1, changes + 1)), changepoint.ChangeSearch(changes)
    noise, pair, before = REGIMES[regime](rng, level, 2 * limit), 0, search.p
    while pair < limit and np.minimum(search.p, before).max() < sure:
        both, logs, before = search.next_pair(), {}, search.p
        for i, point in enumerate(both if rng.random() < 0.5 else both[::-1]):
            logs[point] = float(noise[2 * pair + i]) + math.log1p(slower) * (point >= change)
        search.see((*both, logs[both[0]], logs[both[1]]))
        pair += 1
    return int(search.p.argmax()) + 1 == change, float(search.p.max()) >= sure, pair


_MOST, _FIXED = 100, 4_000  # limit on runs of each version, and trials per size


def share(
    rng: np.random.Generator, kind: str, regime: str, level: float, slower: float, n: int, asked: argparse.Namespace
) -> float:
    found = [fixed(rng, regime, level, slower, asked.margin, n) for _ in range(_FIXED)]
    return found.count(kind) / _FIXED


def beside_fixed(asked: argparse.Namespace) -> None:
    """Prints the smallest fixed sample size that is right as often as the gate at each slowdown. It is one size for all
    slowdowns, because the slowdown is not known in advance."""
    print("| noise | regime | slower | gate: right · pairs | two fixed samples: right | runs of each | gate's runs |")
    print("|---|---|---|---|---|---|---|")
    for level in asked.levels:
        for regime in asked.regimes or REGIMES:
            rights: dict[float, tuple[str, float, float]] = {}
            for slower in (each for each in asked.slower if each != asked.margin):
                rng = np.random.default_rng((51, int(level * 1e4), int(slower * 1e4)))
                gates = [gate(rng, regime, level, slower, asked.margin, asked.limit) for _ in range(asked.trials)]
                kind = "worse" if slower > asked.margin else "no worse"
                right = sum(g.kind == kind for g in gates) / len(gates)
                rights[slower] = kind, right, sum(g.pairs for g in gates) / len(gates)
            rng, least = np.random.default_rng((52, int(level * 1e4))), 0.5 / asked.trials

            def enough(n: int, rights=rights, regime=regime, level=level, rng=rng, least=least) -> bool:
                each = ((share(rng, kind, regime, level, s, n, asked), r) for s, (kind, r, _) in rights.items())
                return all(theirs >= r - least for theirs, r in each)

            size = 4 + bisect_left(range(4, _MOST + 1), True, key=enough)
            size = size if size <= _MOST else 0
            for slower, (kind, right, mean) in rights.items():
                theirs = share(rng, kind, regime, level, slower, size or _MOST, asked)
                runs, ratio = (f"{size}", f"{mean / size:.2f} ×") if size else (f"over {_MOST}", "")
                row = f"{slower:.0%} | {right:.1%} · {mean:.1f} | {theirs:.1%} | {runs} | {ratio} |"
                print(f"| {level:.1%} | {regime} | {row}", flush=True)
            wrong = share(rng, "worse", regime, level, asked.margin, size or _MOST, asked)
            print(f"| {level:.1%} | {regime} | at the margin: called worse | | {wrong:.1%} | | |", flush=True)


def bisected(asked: argparse.Namespace) -> None:
    print("| noise | regime | the right change | found in 40 pairs | of these right | pairs |")
    print("|---|---|---|---|---|---|")
    for level in asked.levels:
        for regime in asked.regimes or REGIMES:
            rng = np.random.default_rng((53, int(level * 1e4)))
            found = [bisection(rng, regime, level, 0.05, 64, 40) for _ in range(asked.trials)]
            right, sure = [r for r, _, _ in found], [r for r, s, _ in found if s]
            mean = sum(n for _, _, n in found) / len(found)
            row = f"{sum(right) / len(found):.1%} | {len(sure) / len(found):.1%} | {sum(sure) / max(1, len(sure)):.1%}"
            print(f"| {level:.1%} | {regime} | {row} | {mean:.1f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--limit", type=int, default=40)
    parser.add_argument("--margin", type=float, default=0.01)
    parser.add_argument("--levels", type=float, nargs="+", default=[0.005, 0.01, 0.02])
    parser.add_argument("--slower", type=float, nargs="+", default=[0.0, 0.01, 0.03, 0.05])
    parser.add_argument("--regimes", nargs="+")
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--bisect", action="store_true")
    asked = parser.parse_args()
    (bisected if asked.bisect else beside_fixed if asked.fixed else alone)(asked)


def alone(asked: argparse.Namespace) -> None:
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
