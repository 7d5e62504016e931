"""Simulates error rates and power of the confirmation with the code that sessions use: docs/statistics.md.

python tests/tools/confirm_rates.py
"""

import argparse
from collections.abc import Callable

import numpy as np

from autoscout.tuning.trial import Trial

# A regime returns the log-cost noise of n successive measurements; one measurement has standard deviation `level`.
Regime = Callable[[np.random.Generator, float, int], np.ndarray]


def independent(rng: np.random.Generator, level: float, n: int) -> np.ndarray:
    return level * rng.standard_normal(n)


def drifting(rng: np.random.Generator, level: float, n: int) -> np.ndarray:
    """A random walk that moves by `level` in ten measurements, plus a linear trend, plus noise of `level` / 5."""
    walk = np.cumsum(rng.standard_normal(n)) * level / np.sqrt(10)
    return walk + rng.normal(0, level / 10) * np.arange(n) + 0.2 * level * rng.standard_normal(n)


def bursty(rng: np.random.Generator, level: float, n: int) -> np.ndarray:
    """Low noise (`level` / 10), but every tenth measurement starts a burst that slows it and, on average, the next
    three by one to three times `level`."""
    log, left, by = np.zeros(n), 0, 0.0
    for i in range(n):
        if left == 0 and rng.random() < 0.1:
            left, by = int(rng.geometric(0.25)), level * rng.uniform(1, 3)
        if left > 0:
            log[i], left = by, left - 1
    return log + 0.1 * level * rng.standard_normal(n)


def heavy_tailed(rng: np.random.Generator, level: float, n: int) -> np.ndarray:
    """One run in ten takes twice the time; `level` is the noise of the others."""
    return level * rng.standard_normal(n) + np.log(2) * (rng.random(n) < 0.1)


def bimodal(rng: np.random.Generator, level: float, n: int) -> np.ndarray:
    """Half of the runs take 1.2 times the time, in addition to noise of `level`."""
    return level * rng.standard_normal(n) + np.log(1.2) * (rng.random(n) < 0.5)


def skewed(rng: np.random.Generator, level: float, n: int) -> np.ndarray:
    """Runs never beat the machine's speed; each is delayed by an exponentially distributed time."""
    return level * rng.standard_exponential(n)


def periodic(rng: np.random.Generator, level: float, n: int) -> np.ndarray:
    """A load with a period of thirty measurements plus noise, each with half of the variance."""
    wave = np.sin(2 * np.pi * (np.arange(n) / 30 + rng.random()))
    return level * wave + level / np.sqrt(2) * rng.standard_normal(n)


REGIMES: dict[str, Regime] = {
    "independent": independent,
    "drifting": drifting,
    "bursty": bursty,
    "heavy-tailed": heavy_tailed,
    "bimodal": bimodal,
    "skewed": skewed,
    "periodic": periodic,
}
ANCHORS = 3


def confirmation(
    rng: np.random.Generator, regime: Regime, level: float, gains: list[float], limit: int
) -> tuple[Trial, list[list[tuple[str, float]]], int]:
    """One confirmation of finalists that are cheaper than the reference by `gains` (log), with its number of runs."""
    names = [f"f{i}" for i in range(len(gains))]
    log = {"ref": 0.0} | {name: -gain for name, gain in zip(names, gains, strict=True)}
    noise = regime(rng, level, 400)
    anchors = [float(np.exp(noise[i])) for i in range(0, 40, 14)][:ANCHORS]
    trial = Trial(finalists=names, reference="ref", limit=limit, anchors=anchors)
    rounds: list[list[tuple[str, float]]] = []
    at, runs = 60, 0
    while active := trial.active(rounds):
        order = trial.order(rounds, active)
        rounds.append([(name, float(np.exp(log[name] + noise[at + i]))) for i, name in enumerate(order)])
        at, runs = at + len(order), runs + len(order)
    return trial, rounds, runs


def rates(
    regime: str, level: float, gains: list[float], limit: int, trials: int, seed: int = 0
) -> tuple[float, float, float]:
    """(share of confirmations with a finalist declared faster, mean rounds, mean runs)."""
    rng = np.random.default_rng((seed, int(level * 1000), len(gains), list(REGIMES).index(regime)))
    faster = rounds_made = runs_made = 0
    for _ in range(trials):
        trial, rounds, runs = confirmation(rng, REGIMES[regime], level, gains, limit)
        faster += bool(trial.proven(rounds))
        rounds_made += len(rounds)
        runs_made += runs
    return faster / trials, rounds_made / trials, runs_made / trials


def found_in_80(regime: str, level: float, limit: int, trials: int) -> float:
    """The smallest gain (log, within 4 %) of one of three finalists, the others without gain, with which 80 % of
    confirmations declare a finalist faster; inf if no tried gain suffices."""
    low, high, found = level / 10, max(40 * level, 1.0), np.inf
    for _ in range(8):
        middle = float(np.sqrt(low * high))
        if rates(regime, level, [middle, 0.0, 0.0], limit, trials)[0] >= 0.8:
            high = found = middle
        else:
            low = middle
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--power", type=int, default=150, help="confirmations of each gain that is tried")
    parser.add_argument("--limit", type=int, default=6)
    parser.add_argument("--levels", type=float, nargs="+", default=[0.001, 0.005, 0.01, 0.02, 0.1, 0.4])
    asked = parser.parse_args()
    print(f'| noise | regime | false "faster" | rounds | 5 % found, of {asked.power} | found in 80 % |')
    print("|---|---|---|---|---|---|")
    for level in asked.levels:
        for regime in REGIMES:
            false, rounds, _ = rates(regime, level, [0.0] * 3, asked.limit, asked.trials)
            five = rates(regime, level, [np.log(1.05), 0.0, 0.0], asked.limit, asked.power)[0] * asked.power
            power = found_in_80(regime, level, asked.limit, asked.power)
            print(
                f"| {level:.1%} | {regime} | {false:.1%} | {rounds:.1f} | {five:.0f} | {np.expm1(power):.1%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
