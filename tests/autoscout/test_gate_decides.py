"""How often gates and bisections are right, simulated with the code that decides, on machines of five kinds."""

import math

import numpy as np
import pytest
from cases import few

from autoscout.tuning import changepoint, pairs
from tests.tools.confirm_rates import REGIMES
from tests.tools.gate_rates import bisection, gate

MARGIN, LIMIT = 0.01, 40


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize(("slower", "wrong", "most"), [(0.0, "worse", 0.05), (0.05, "no worse", 0.05)])
def test_a_gate_errs_in_at_most_one_of_twenty(regime, slower, wrong, most):
    rng = np.random.default_rng(51)
    gates = [gate(rng, regime, 0.01, slower, MARGIN, LIMIT) for _ in range(40)]
    found = [each.kind for each in gates]
    # 40 gates with at most 5 % wrong: more than 6 of them have a probability of 0.003.
    assert found.count(wrong) <= most * 40 + 4
    if slower:
        assert found.count("worse") >= 32
        assert all(g.pairs <= pairs.EARLY for g in gates if g.kind == "worse")


@pytest.mark.parametrize("alike", [0.0, 0.5])
def test_looks_together_spend_the_error(alike):
    """In either direction, at the margin; `alike`: variance that the runs of a pair share, in shares of their own."""
    rng, wrong, trials = np.random.default_rng(7), {"worse": 0, "no worse": 0, "undecided": 0}, 300
    for _ in range(trials):
        noise = 0.003 * rng.standard_normal((12, 2)) + 0.003 * math.sqrt(alike) * rng.standard_normal((12, 1))
        done = [(math.exp(a), math.exp(b)) for a, b in noise]
        found = (pairs.standing(done[:n], 0.0, 12) for n in pairs.levels(12))
        wrong[next(each for each in found if each.over).kind] += 1
    # Binomial with p = 0.05: a deviation of 0.0126.
    assert wrong["worse"] / trials < pairs.ERROR + 3 * 0.0126
    assert wrong["no worse"] / trials < pairs.ERROR + 3 * 0.0126


def test_each_side_is_first_in_one_of_two_pairs():
    for pair in range(0, 40, 2):
        assert pairs.order(pair) == pairs.order(pair + 1)[::-1]


def test_sides_that_are_alike_are_no_worse_and_a_constant_clock_divides_by_nothing():
    same = pairs.standing([(1.0, 1.0)] * 4, MARGIN, LIMIT)
    assert (same.kind, same.over) == ("no worse", True)
    assert pairs.standing([(1.0, 1.02)] * 4, MARGIN, LIMIT).kind == "worse"


@pytest.mark.parametrize("regime", few(["bimodal", "independent", "bursty"], 1))
def test_the_change_is_found_among_64(regime):
    rng = np.random.default_rng(3)
    found = [bisection(rng, regime, 0.03, 0.05, 64, 40)[0] for _ in range(5)]
    # At 90 % each, fewer than 3 of 5 have a probability of 0.009.
    assert sum(found) >= 3


def test_a_run_that_takes_three_times_as_long_is_no_change():
    ends = [(0, 8, 0.001 * pair, math.log(1.1) - 0.001 * pair) for pair in range(changepoint.FIRST)]
    search = changepoint.ChangeSearch(8, [*ends, (2, 6, 0.0, math.log(1.1)), (2, 4, math.log(3.0), math.log(1.1))])
    assert search.p[2:4].sum() > 0.9
    assert math.exp(search.slowdown(3)) == pytest.approx(1.1, abs=0.01)


def test_points_that_do_not_run_are_not_chosen():
    ends = [(0, 8, 0.001 * pair, math.log(1.1)) for pair in range(changepoint.FIRST)]
    search = changepoint.ChangeSearch(8, ends)
    assert not {3, 4, 5} & set(search.next_pair(broken={3, 4, 5}))
