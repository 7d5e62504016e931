"""Compares searches under constraints on generated tables: throughput of a server with bounds on TTFT and TPOT. A
quarter of the 17,280 configurations keeps both bounds; the fastest configuration breaks one.

    PYTHONPATH=. python tests/tools/search_bounds.py [--draws 0,1,2] [--seeds 3] [--with good] [autoscout …]

Draws below 100 are for development. Measurements have 2 % noise. Each line: experiments until one within 1 % · 5 % of
the best configuration that keeps its bounds (geometric means), runs that reached it, broken bounds until then and in
total. Simulators: `good`, the same formulas with constants up to a quarter wrong; `biased`, additionally half the
tokens/s, 0.7 times TPOT and twice TTFT; `blind`, a good one of tokens/s without predictions of bounds."""

import argparse
import itertools

import numpy as np

from autoscout.job.objective import broken, constraint
from autoscout.search.belief.prior_means import Predictor
from autoscout.search.strategy import strategy
from autoscout.space.graph import Space
from autoscout.studies.bench.variants import variant
from kb.records import Configuration, Measurement, Objective, Value

NOISE = 0.02
_CONSTANTS = (
    (0.6, 0.95),
    (0.5, 0.95),
    (2, 9),
    (0.02, 0.12),
    (0.6, 0.95),
    (0.02, 0.1),
    (0.03, 0.1),
    (0.1, 0.4),
    (0.03, 0.15),
    (0.3, 1.2),
)
_BIASED = (0.5, 0.7, 2.0)
DOMAINS: dict[str, list[Value]] = {
    "tp": [1, 2, 4, 8],
    "pp": [1, 2, 4],
    "batch": [2**i for i in range(2, 11)],
    "chunk": [256, 512, 1024, 2048, 4096],
    "kv": [False, True],
    "block": [8, 16, 32],
    "eager": [False, True],
    "steps": [1, 4, 8],
}
METRICS: list[str] = ["tokens_per_s", "tpot_ms", "ttft_ms"]


class Drawn:
    """`values`: (n, 3) of METRICS, without noise."""

    def __init__(self, number: int) -> None:
        rng = np.random.default_rng((number, 5))
        rows = [dict(zip(DOMAINS, values, strict=True)) for values in itertools.product(*DOMAINS.values())]
        constants = [rng.uniform(*ends) for ends in _CONSTANTS]
        self.values = _surprised(rng, rows, _served(constants, rows))
        off = np.random.default_rng((number, 6)).uniform(-1, 1, len(constants))
        self.said = _served([c * 1.25**o for c, o in zip(constants, off, strict=True)], rows)
        limits = np.quantile(self.values[:, 1], 0.35), np.quantile(self.values[:, 2], 0.45)
        bounds = [f"{name} <= {limit:.6g}" for name, limit in zip(METRICS[1:], limits, strict=True)]
        self.objective = Objective(maximize=METRICS[0], constraints=bounds)
        self.space = Space.from_table(
            rows, ["tp", "pp", "kv", "eager"], ["batch", "chunk", "block", "steps"], self.objective
        )
        self._row = {tuple(row.values()): i for i, row in enumerate(rows)}
        kept = (self.values[:, 1] <= limits[0]) & (self.values[:, 2] <= limits[1])
        self.best = float(self.values[kept, 0].max())

    def simulators(self, kind: str) -> tuple[dict[str, Predictor], dict[str, Predictor]]:
        """(simulators of the objective, simulators of the bounded metrics)."""
        said = self.said * (_BIASED if kind == "biased" else (1.0, 1.0, 1.0))
        limits = [constraint(text)[2] for text in self.objective.constraints]

        def over(values: np.ndarray) -> Predictor:
            return lambda codes: values[[self._at(self.space.of_codes(row)) for row in codes.tolist()]]

        bounds = zip(self.objective.constraints, limits, said.T[1:], strict=True)
        foreseen = {text: over(np.log(metric / limit)) for text, limit, metric in bounds}
        return {} if kind == "none" else {kind: over(said[:, 0])}, {} if kind in ("none", "blind") else foreseen

    def _at(self, configuration: Configuration) -> int:
        return self._row[tuple(configuration.knobs[name] for name in DOMAINS)]

    def measure(self, configuration: Configuration, rng: np.random.Generator | None = None) -> Measurement:
        values = self.values[self._at(configuration)]
        if rng is not None:
            values = values * np.exp(NOISE * rng.standard_normal(len(values)))
        metrics = dict(zip(METRICS, values.tolist(), strict=True))
        return Measurement(configuration=configuration, name="", context="", status="ok", metrics=metrics)


def _served(constants: list[float], rows: list[dict[str, Value]]) -> np.ndarray:
    of = {name: np.array([float(row[name]) for row in rows]) for name in DOMAINS}
    batched, waits, middle, bend, spread, reduce, blocks, eager, stages, steps = constants
    slow = (1 + bend * (np.log2(of["chunk"] / 256) - middle / 3) ** 2) * (
        1 + blocks * (np.log2(of["block"] / 8) - 1) ** 2
    )
    slow *= (1 + eager * of["eager"]) * (1 - 0.06 * of["kv"]) / (1 + 0.04 * np.log2(of["steps"]) * (1 - steps / 2))
    decode = 5 * of["tp"] ** -spread + 3 * reduce * np.log2(of["tp"] + 1) + stages * of["pp"]
    decode += 0.05 * of["batch"] ** batched / of["tp"] ** 0.5 * (1 - 0.25 * of["kv"])
    tpot = slow * decode * (1 + 0.01 * of["steps"])
    tokens = of["batch"] / tpot * 1000 / (of["tp"] * of["pp"]) ** 0.5 * of["pp"] ** 0.45
    ttft = 30 * slow * of["batch"] ** waits * (of["chunk"] / 1024) ** -0.3 / of["tp"] ** 0.4 + 0.02 * of["chunk"]
    return np.stack([tokens, tpot, ttft], axis=1)


def _surprised(rng: np.random.Generator, rows: list[dict[str, Value]], values: np.ndarray) -> np.ndarray:
    """The values with effects that no simulator predicts."""
    tokens, tpot, ttft = values.T
    pairs = np.zeros(len(rows))
    codes = {name: np.array([DOMAINS[name].index(row[name]) for row in rows]) for name in DOMAINS}
    for a, b in itertools.combinations(DOMAINS, 2):
        pairs += rng.standard_normal((len(DOMAINS[a]), len(DOMAINS[b])))[codes[a], codes[b]]
    tokens *= np.exp(0.03 * pairs / 28**0.5 + 0.01 * rng.standard_normal(len(rows)))
    tpot *= np.exp(0.02 * rng.standard_normal(len(rows)))
    return np.stack([tokens, tpot, ttft], axis=1)


def searched(drawn: Drawn, name: str, seed: int, budget: int, kind: str) -> tuple[int, int, int, int]:
    """Experiments until within 1 % and within 5 % (the budget + 1 if not reached), broken bounds until 1 % and in
    total."""
    plain, hyper = variant(name)
    simulators, foreseen = drawn.simulators(kind)
    chosen = strategy(plain, drawn.space, seed, hyper=hyper, simulators=simulators, foreseen=foreseen)
    noise = np.random.default_rng((seed, 77))
    one = five = budget + 1
    until = over = 0
    for n in range(1, budget + 1):
        (c,) = chosen.ask()
        chosen.tell([drawn.measure(c, noise)])
        chosen.drain()
        true = drawn.measure(c)
        if broken(drawn.objective, true):
            over, until = over + 1, until + (one > budget)
            continue
        behind = 1 - true.metrics[METRICS[0]] / drawn.best
        five = min(five, n) if behind <= 0.05 else five
        one = min(one, n) if behind <= 0.01 else one
    return one, five, until, over


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("strategies", nargs="*", default=["autoscout"])
    parser.add_argument("--draws", default="0,1,2")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budget", type=int, default=60)
    parser.add_argument("--with", dest="kinds", default="none")
    given = parser.parse_args()
    tables = [Drawn(int(number)) for number in given.draws.split(",")]
    for name, kind in itertools.product(given.strategies, given.kinds.split(",")):
        runs = [searched(t, name, seed, given.budget, kind) for t in tables for seed in range(given.seeds)]
        found = np.array(runs)
        one, five = np.exp(np.log(found[:, :2]).mean(axis=0))
        solved, (until, over) = int((found[:, 0] <= given.budget).sum()), found[:, 2:].mean(axis=0)
        print(
            f"{name}, {kind}: {one:.1f} · {five:.1f} ({solved}/{len(found)}), "
            f"broke a bound {until:.1f} and {over:.1f} times of {given.budget}",
            flush=True,
        )


if __name__ == "__main__":
    main()
