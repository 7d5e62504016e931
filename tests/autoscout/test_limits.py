"""Constraints as beliefs: what breaks one is a value, not a failure."""

import itertools

import numpy as np
import pytest

from autoscout.job.objective import broken
from autoscout.search.belief.chances import Chances
from autoscout.search.belief.encoding import Encoding
from autoscout.search.belief.foreseen import Foreseen
from autoscout.search.belief.limits import Limits, beyond
from autoscout.search.belief.prior_means import Predictor
from autoscout.search.pool import CandidatePool
from autoscout.search.strategy import strategy
from autoscout.space.graph import Space
from kb.records import Configuration, Measurement, Objective, Status, Value

BOUND = 200.0
BOUNDED = Objective(maximize="tokens_per_s", constraints=[f"ttft_ms <= {BOUND:g}", "goodput >= 0.9"])
ROWS: list[dict[str, Value]] = [
    {"batch": 2**b, "tp": 2**t, "chunk": 2**c, "eager": e, "blocks": 2**k}
    for b, t, c, e, k in itertools.product(range(10), range(4), range(6), (False, True), range(4))
]


def space(objective: Objective) -> Space:
    return Space.from_table(ROWS, ["tp", "eager"], ["batch", "chunk", "blocks"], objective)


def measured(c: Configuration, silent: bool = False) -> Measurement:
    """More tokens with larger batches, whose first token waits longer. `silent`: what breaks a bound just fails."""
    batch, tp, chunk, blocks = (np.log2(float(c.knobs[n])) for n in ("batch", "tp", "chunk", "blocks"))
    slow = 1 + 0.1 * (chunk - 3) ** 2 + 0.05 * (blocks - 2) ** 2 + (0.3 if c.knobs["eager"] else 0.0)
    wait = 3 * slow * 2 ** (0.9 * batch - 0.5 * tp)
    metrics = {"tokens_per_s": 100 * 2 ** (0.8 * batch - 0.1 * tp) / slow, "ttft_ms": wait, "goodput": 1 - wait / 4000}
    found = Measurement(configuration=c, name="", context="", status="ok", metrics=metrics)
    status: Status = "error"
    if silent and broken(BOUNDED, found):
        return Measurement(configuration=c, name="", context="", status=status, metrics={})
    return found


def searched(seed: int, silent: bool, experiments: int = 40) -> tuple[int, float]:
    """Runs that broke a bound, and the best that kept them all."""
    objective = Objective(maximize="tokens_per_s") if silent else BOUNDED
    chosen = strategy("autoscout", space(objective), seed)
    asked = []
    for _ in range(experiments):
        (c,) = chosen.ask()
        chosen.tell([measured(c, silent)])
        chosen.drain()
        asked.append(measured(c))
    kept = [m.metrics["tokens_per_s"] for m in asked if not broken(BOUNDED, m)]
    return experiments - len(kept), max(kept)


def test_a_constraint_s_metric_is_a_value_whether_it_is_kept_or_not():
    run = measured(Configuration({"batch": 512, "tp": 1, "chunk": 8, "eager": False, "blocks": 4}))
    assert broken(BOUNDED, run)
    y = beyond(BOUNDED, run)
    assert set(y) == set(BOUNDED.constraints)
    assert y["ttft_ms <= 200"] > 0.5
    failed = Measurement(configuration=run.configuration, name="", context="", status="error", metrics={})
    assert beyond(BOUNDED, failed) == {}
    zero = Measurement(configuration=run.configuration, name="", context="", status="ok", metrics={"ttft_ms": 0.0})
    assert beyond(BOUNDED, zero) == {}


def nothing_foreseen(table: Space) -> Foreseen:
    return Foreseen(CandidatePool(table, np.random.default_rng(0)), {})


def test_where_a_limit_lies_is_learned_before_anything_breaks_it():
    table = space(BOUNDED)
    codes, encoding = table.feasible.codes, Encoding(table.knobs, table.feasible.codes)
    limits = Limits(encoding, nothing_foreseen(table))
    y = np.array(
        [beyond(BOUNDED, measured(table.feasible.configuration(row)))["ttft_ms <= 200"] for row in range(len(codes))]
    )
    rng = np.random.default_rng(0)
    for row in rng.choice(np.flatnonzero(y < -0.1), 30, replace=False):
        limits.tell(np.array([row]), encoding.rows(codes[[row]]), {"ttft_ms <= 200": float(y[row])})
    limits.fit()
    limits.watch(np.arange(len(codes)), encoding.rows(codes))
    chance = np.asarray(limits.chance())
    assert np.mean(chance[y > 0.4] < 0.5) > 0.9
    assert np.mean(chance[y < -0.4] > 0.5) > 0.9


def simulated(table: Space, metric: str, factor: float) -> Predictor:
    def predict(codes: np.ndarray) -> np.ndarray:
        return np.array([factor * measured(table.of_codes(row)).metrics[metric] for row in codes.tolist()])

    return predict


@pytest.mark.parametrize("foretold", [False, True])
def test_a_reference_that_breaks_a_bound_does_not_bind_the_search_to_a_simulators_favourites(foretold):
    """A simulator of the objective alone likes what breaks the bound most, and its favourites all do: what they tell of
    the bound leads away from them. One of the bound, twice too high, does so sooner."""
    table = space(BOUNDED)
    seconds = simulated(table, "ttft_ms", 2.0)
    foreseen: dict[str, Predictor] = {"ttft_ms <= 200": lambda codes: np.log(seconds(codes) / BOUND)}
    default = Configuration({"batch": 512, "tp": 1, "chunk": 8, "eager": False, "blocks": 4})
    assert broken(BOUNDED, measured(default))
    chosen = strategy(
        "autoscout",
        table,
        0,
        default=default,
        simulators={"tokens": simulated(table, "tokens_per_s", 1.0)},
        foreseen=foreseen if foretold else {},
    )
    over = []
    for _ in range(12):
        (c,) = chosen.ask()
        over.append(bool(broken(BOUNDED, measured(c))))
        chosen.tell([measured(c)])
        chosen.drain()
    assert over[0]
    assert sum(over[1:8]) <= (2 if foretold else 4)


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 10), marks=pytest.mark.thorough)])
def test_fewer_experiments_break_a_bound_where_its_metric_is_known(seeds):
    values = [searched(seed, silent=False) for seed in seeds]
    failures = [searched(seed, silent=True) for seed in seeds]
    assert sum(n for n, _ in values) < 0.75 * sum(n for n, _ in failures)
    assert np.mean([best for _, best in values]) > 0.98 * np.mean([best for _, best in failures])


def test_beyond_the_budget_of_failures_what_is_unlikely_to_run_comes_last_however_little_the_rest_promises():
    table = space(BOUNDED)
    encoding = Encoding(table.knobs, table.feasible.codes)
    chances = Chances(encoding, [], 0.1, nothing_foreseen(table))
    chances.limits.tell(np.array([0]), encoding.rows(table.feasible.codes[:1]), {"ttft_ms": -1.0})
    gain, runs = np.array([1e-2, 1e-9, 1e-12]), np.array([0.3, 0.97, 0.99])
    assert np.argmax(chances.weighed(gain, runs, tried=20, failed=2)) == 0
    assert np.argsort(-chances.weighed(gain, runs, tried=20, failed=10)).tolist() == [1, 2, 0]
