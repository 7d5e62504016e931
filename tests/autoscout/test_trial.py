"""The rounds of the confirmation over simulated costs: how often it errs, and what it costs."""

import numpy as np
import pytest
from cases import few
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import chdtrc

from autoscout.tuning.evidence import fit, plan
from autoscout.tuning.repeats import Noise, beyond, most_rounds
from autoscout.tuning.trial import Trial
from tests.tools.confirm_rates import REGIMES, confirmation, rates
from tests.tools.recommend_rates import session


@pytest.mark.parametrize("regime", few([*REGIMES], 4))
def test_equals_are_called_faster_in_at_most_five_of_a_hundred(regime):
    """60 confirmations; docs/statistics.md has more of each, at every noise."""
    assert rates(regime, 0.1, [0.0] * 3, 6, 60)[0] <= 0.05


@pytest.mark.parametrize("regime", ["heavy-tailed", "bimodal"])
def test_a_second_slower_speed_of_the_machine_does_not_hide_a_gain(regime):
    """Least squares proved two of ten such gains; docs/statistics.md has 150 of each."""
    assert rates(regime, 0.01, [0.05, 0.0, 0.0], 6, 24)[0] >= 0.55


def test_whose_runs_were_slow_is_found_and_the_others_are_compared():
    """The seconds of 12 runs: three of them at twice the time, one of these a finalist's that is faster by 5 %."""
    rounds = [
        [("a", 0.950), ("b", 1.001), ("ref", 1.000), ("ref", 2.003)],
        [("a", 1.901), ("b", 0.999), ("ref", 1.001), ("ref", 0.999)],
        [("a", 0.951), ("b", 2.002), ("ref", 1.000)],
        [("a", 0.949), ("b", 1.000), ("ref", 0.998)],
    ]
    trial = Trial(finalists=["a", "b"], reference="ref", limit=4, anchors=[1.0, 1.001, 2.0])
    found = trial.fit(rounds)
    assert found.slow == 3
    assert trial.proven(rounds) == ["a"]
    assert trial.against(found, "a").log == pytest.approx(np.log(1 / 0.95), abs=2e-3)
    assert trial.against(fit(rounds, trial.share(4)), "a").low < 0, "noise alone would hide it"


def test_what_all_runs_of_one_configuration_took_is_not_called_slow():
    """A finalist that is twice as slow is no finalist at the machine's slower speed."""
    rounds = [[("a", 2.0), ("b", 1.0), ("ref", 1.01)], [("a", 2.01), ("b", 0.99), ("ref", 1.0)]]
    trial = Trial(finalists=["a", "b"], reference="ref", limit=2)
    assert trial.fit(rounds).slow == 0
    assert trial.against(trial.fit(rounds), "a").log == pytest.approx(-np.log(2), abs=0.01)


@pytest.mark.parametrize("level", [0.001, 0.003, 0.005])
def test_at_the_noise_of_dedicated_systems_two_rounds_are_enough(level):
    rng = np.random.default_rng(1)
    made = [len(confirmation(rng, REGIMES["independent"], level, [0.02, 0.0, -0.01], 6)[1]) for _ in range(60)]
    assert np.mean(np.array(made) > 2) <= 0.1
    found = rates("independent", 0.003, [0.03, 0.0, 0.0], 6, 100)[0]
    assert found >= 0.9


@given(
    data=st.data(),
    finalists=st.integers(1, 8),
    limit=st.integers(2, 12),
    gains=st.lists(st.floats(-0.3, 0.3), min_size=8, max_size=8),
)
def test_whatever_a_dedicated_system_does_within_half_a_percent_nobody_is_measured_more_than_twice(
    data, finalists, limit, gains
):
    """Any values, not only those of a noise that is independent; the reference is measured twice in each round."""

    def cost(name):
        level = 0.0 if name == "ref" else gains[int(name)]
        return float(np.exp(level + data.draw(st.floats(-0.005, 0.005))))

    names = [str(i) for i in range(finalists)]
    trial = Trial(finalists=names, reference="ref", limit=limit, anchors=[cost("ref") for _ in range(3)])
    rounds = []
    while active := trial.active(rounds):
        rounds.append([(name, cost(name)) for name in trial.order(rounds, active)])
    assert len(rounds) == 2


def test_rounds_end_where_a_further_one_is_worth_next_to_nothing():
    """Both are proven to be faster; which of them is, by a tenth of a percent, is seldom worth four rounds more."""
    rng = np.random.default_rng(0)
    made = [len(confirmation(rng, REGIMES["independent"], 0.01, [0.101, 0.1], 6)[1]) for _ in range(40)]
    assert np.mean(np.array(made) > 2) <= 0.3


def test_on_a_noisy_machine_many_finalists_are_screened_after_one_round():
    rng = np.random.default_rng(0)
    runs = [confirmation(rng, REGIMES["independent"], 0.05, [0.3, *[-0.3] * 7], 6) for _ in range(20)]
    assert np.mean([len(rounds[1]) for _, rounds, _ in runs]) < 5
    assert all(any(name == "f0" for name, _ in rounds[1]) for _, rounds, _ in runs)


@given(limit=st.integers(1, 60), scatter=st.floats(0, 0.5), dof=st.integers(0, 5))
def test_no_plan_spends_more_than_all_of_the_five_percent(limit, scatter, dof):
    shares = plan(limit, Noise(scatter**2 * dof, dof))
    assert sum(shares.values()) == pytest.approx(1.0)
    assert all(share > 0 for share in shares.values())
    assert max(shares) <= max(2, limit)


@given(seed=st.integers(0, 10_000), drift=st.floats(-1, 1))
def test_what_all_of_a_round_have_in_common_changes_nothing(seed, drift):
    rng = np.random.default_rng(seed)
    rounds = [[(name, float(np.exp(0.05 * rng.standard_normal()))) for name in "abr"] for _ in range(3)]
    moved = [[(name, c * np.exp(drift * r)) for name, c in row] for r, row in enumerate(rounds)]
    one, other = fit(rounds, 1.0).contrast("r", "a"), fit(moved, 1.0).contrast("r", "a")
    assert one.log == pytest.approx(other.log, abs=1e-9)
    assert one.error == pytest.approx(other.error, rel=1e-6)


def test_a_constant_metric_proves_nothing_and_ends_after_two_rounds():
    trial = Trial(finalists=["a", "b"], reference="r", limit=8)
    rounds = []
    while active := trial.active(rounds):
        rounds.append([(name, 1.0) for name in active])
    assert len(rounds) == 2
    assert trial.proven(rounds) == []


def test_who_cannot_win_any_more_is_not_measured_again():
    trial = Trial(finalists=["a", "b"], reference="r", limit=8)
    rounds = [
        [("a", 0.8), ("b", 2.0), ("r", 1.0), ("r", 1.05)],
        [("a", 0.95), ("b", 2.1), ("r", 1.0), ("r", 0.98)],
    ]
    assert trial.active(rounds) == ["a", "r"]


@pytest.mark.parametrize(
    ("level", "regime"), [(0.0, "independent"), (0.02, "drifting"), (0.1, "bursty"), (0.4, "independent")]
)
def test_more_budget_does_not_make_the_expected_answer_worse(level, regime):
    """The larger budget measures what the smaller one did, and more; tests/tools/recommend_rates.py --growing has all
    regimes."""
    few, many = (np.mean([session(seed, regime, level, budget).answer for seed in range(4)]) for budget in (6, 18))
    assert many <= 1.01 * few


@pytest.mark.parametrize(
    ("repeats", "searched", "rounds"),
    [(3, 0, 6), (3, 60, 6), (3, 150, 6), (3, 200, 8), (3, 1000, 8), (1, 200, 3), (1, 20, 2)],
)
def test_after_a_longer_search_there_may_be_more_rounds(repeats: int, searched: int, rounds: int):
    assert most_rounds(repeats, searched) == rounds


@given(x=st.floats(0, 2000), dof=st.integers(1, 60))
def test_the_tail_of_chi_squared_is_scipys(x: float, dof: int):
    assert beyond(x, dof) == pytest.approx(float(chdtrc(dof, x)), abs=1e-12)
