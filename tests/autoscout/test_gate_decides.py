"""How often gates and bisections are right, simulated with the code that decides, on machines of five kinds."""

import math

import numpy as np
import pytest

from autoscout.tuning import changepoint, pairs
from tests.tools.confirm_rates import REGIMES
from tests.tools.gate_rates import bisection, gate

MARGIN, LIMIT = 0.01, 20


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize(("slower", "wrong", "most"), [(0.0, "worse", 0.05), (0.05, "no worse", 0.05)])
def test_a_gate_errs_in_at_most_one_of_twenty(regime, slower, wrong, most):
    rng = np.random.default_rng(51)
    found = [gate(rng, regime, 0.01, slower, MARGIN, LIMIT).kind for _ in range(40)]
    # 40 gates with at most 5 % wrong: more than 6 of them have a probability of 0.003.
    assert found.count(wrong) <= most * 40 + 4
    if slower:
        assert found.count("worse") >= 32


def test_looks_together_spend_the_error():
    rng, limit = np.random.default_rng(7), 20
    levels = pairs.levels(limit)
    crossed = 0
    for _ in range(4000):
        logs = rng.standard_normal(limit)
        crossed += any(
            logs[:n].mean() / (logs[:n].std(ddof=1) / math.sqrt(n)) > pairs.quantile(level, n - 1)
            for n, level in levels.items()
        )
    # Binomial with p = 0.05 and n = 4000: a deviation of 0.0034.
    assert abs(crossed / 4000 - pairs.ERROR) < 4 * 0.0034


def test_each_side_is_first_in_one_of_two_pairs():
    for pair in range(0, 40, 2):
        assert pairs.order(pair) == pairs.order(pair + 1)[::-1]


def test_sides_that_are_alike_are_no_worse_and_a_constant_clock_divides_by_nothing():
    same = pairs.standing([(1.0, 1.0)] * 4, MARGIN, LIMIT)
    assert (same.kind, same.over) == ("no worse", True)
    assert pairs.standing([(1.0, 1.02)] * 4, MARGIN, LIMIT).kind == "worse"


def test_the_change_is_found_among_64():
    rng = np.random.default_rng(3)
    found = [bisection(rng, "independent", 0.03, 0.05, 64, 40)[0] for _ in range(12)]
    # At 90 % each, fewer than 8 of 12 have a probability of 0.004.
    assert sum(found) >= 8


def test_points_that_do_not_run_are_not_chosen_and_slow_runs_tell_nothing():
    ends = [(pair, point, math.log(1.1) * (point == 8)) for pair in range(changepoint.FIRST) for point in (0, 8)]
    assert not {3, 4, 5} & set(changepoint.next_pair(ends, 8, broken={3, 4, 5}))
    assert changepoint.usual([*ends, (3, 2, math.log(2.5))]) == ends
