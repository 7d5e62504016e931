"""The belief of the default search about costs, against its definition under whatever hyper-parameters were fitted:
what is told it, how its members are scaled and weighed, what it expects of each candidate, and how surely."""

import math

import numpy as np
import pytest
from test_prior_means_by_hand import CODES, ENCODING, LOG, POOL, of, saying

from autoscout.search import pool as pool_module
from autoscout.search.belief import surrogate
from autoscout.search.belief.encoding import Encoding
from autoscout.search.belief.outlook import worth
from autoscout.search.belief.prior_means import of_simulator
from autoscout.search.belief.ranking import believed_of
from autoscout.search.belief.surrogate import Surrogate, _Member
from autoscout.search.hyper import DefaultHyper
from autoscout.search.pool import CandidatePool
from autoscout.studies.rivals.gaussian import expected_improvement

TRUE = np.exp(-0.7 * LOG + 0.5 * np.sin(3.0 * CODES[:, 0] + CODES[:, 1]))
MEASURED = [3, 50, 17, 29, 41, 8, 22]


def told(simulator: bool = True) -> Surrogate:
    """Seven rows that ran, one of them twice and one of another period; two that failed."""
    means = [of(np.exp(-LOG))] if simulator else []
    model = Surrogate(POOL, ENCODING, means, DefaultHyper(), np.random.default_rng(0))
    for row in MEASURED:
        model.tell(row, float(TRUE[row]), doubt=0.1 if row == 29 else 0.0)
    model.tell(17, 1.1 * float(TRUE[17]))
    for row in (55, 58):
        model.tell(row, None)
    return model


@pytest.fixture(scope="module")
def model() -> Surrogate:
    made = told()
    made.update([])
    return made


def scaled(model: Surrogate, member: _Member) -> np.ndarray:
    """Log-costs u above the best on a member's scale: b (1 − e^(−u/b))."""
    b = member.mean.bend
    return b * (1 - np.exp(-(model.logs - model.logs.min()) / b))


def shared(member: _Member, mean: np.ndarray, variance: np.ndarray | float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """The same on the scale of 0.8, where costs of 0.95 and more of either b are not told apart: dv/dv' is the ratio of
    the slopes e^(−u/0.8) and e^(−u/b)."""
    b = member.mean.bend
    u = np.where(mean < 0, mean, -b * np.log(1 - np.clip(mean, 0, 0.95 * b) / b))
    common = np.where(u < 0, u, 0.8 * (1 - np.exp(-np.maximum(u, 0) / 0.8)))
    over = np.clip(u, 0, -0.8 * math.log(0.05))
    return common, variance * np.exp(-over * (1 / 0.8 - 1 / b)) ** 2


def textbook(model: Surrogate, member: _Member, at: np.ndarray) -> tuple[np.ndarray, ...]:
    """(mean, variance) of f at rows, and its mean at the measured ones, on the member's own scale of costs."""
    rows = model.rows
    every = np.concatenate([rows, at])
    z = member.mean.z[every] / member.unit
    features = member.posterior.features(ENCODING.rows(CODES[every]), z, member.mean.spread)
    k = member.posterior.kernel(features, features)
    n = len(rows)
    vague = np.array([model.doubts[int(row)] ** 2 for row in rows]) / member.unit**2
    inverse = np.linalg.inv(k[:n, :n] + np.diag(vague + member.posterior.theta.noise**2 + 1e-6))
    bent = scaled(model, member)
    offset = member.mean.z[every] @ member.mean.slopes + member.centre
    y = (bent - offset[:n]) / member.unit
    across = k[:, :n]
    mean = offset + member.unit * (across @ inverse @ y)
    variance = member.unit**2 * (np.diag(k) - np.einsum("ij,jk,ik->i", across, inverse, across))
    return mean[n:], variance[n:], mean[:n]


# ---- what is told ---------------------------------------------------------------------------------------------------


def see(model: Surrogate, costs: dict[int, list[float]]) -> None:
    """Puts other log-costs in place of those that were told."""
    model.costs, model.again = costs, {row for row, values in costs.items() if len(values) > 1}
    model._average()


def test_what_is_told_is_held_as_log_costs_by_row():
    model = told()
    assert model.rows.tolist() == MEASURED
    assert model.costs[3] == [pytest.approx(math.log(TRUE[3]))]
    assert model.logs[2] == pytest.approx(math.log(TRUE[17]) + 0.5 * math.log(1.1))
    assert model.logs[[0, 1]] == pytest.approx(np.log(TRUE[[3, 50]]))
    assert (model.again, model.failed) == ({17}, {55, 58})
    assert model.doubts[29] == 0.1
    model.tell(29, 2.0, doubt=0.1)  # again of another period: beside what was said
    assert len(model.costs[29]) == 2
    assert model.again == {17, 29}
    model.tell(29, 3.0)  # measured here: what was said before is forgotten
    assert model.costs[29] == [pytest.approx(math.log(3.0))]
    assert (model.doubts[29], model.again, model._fitted_on) == (0.0, {17}, 0)
    assert model.logs[model.rows == 29] == pytest.approx([math.log(3.0)])
    assert model.rows.tolist() == MEASURED
    assert len(model.chances.feasibility._ran) == 9  # each row once
    see(model, {row: [0.5, 1.5] if row == 3 else [2.0] for row in MEASURED})
    assert model.logs.tolist() == [1.0, *[2.0] * 6]
    assert model.again == {3}


def test_of_very_many_rows_the_best_the_latest_and_some_are_held(monkeypatch):
    monkeypatch.setattr(surrogate, "_HELD", 9)
    model = Surrogate(POOL, ENCODING, [], DefaultHyper(), np.random.default_rng(0))
    order = np.random.default_rng(1).permutation(60)
    for row in order[:9]:
        model.tell(int(row), float(TRUE[row]))
    model._hold()
    assert model.rows.tolist() == order[:9].tolist()
    for row in order[9:30]:
        model.tell(int(row), float(TRUE[row]))
    model._hold()
    assert len(model.rows) == 9
    held = set(model.rows.tolist())
    best = sorted(order[:30].tolist(), key=lambda row: TRUE[row])[:3]
    assert {*best, *order[27:30].tolist()} <= held
    assert model.logs == pytest.approx(np.log(TRUE[model.rows]))
    model.tell(int(order[0]), 1.0)  # known, whether it is held or not: does not come in again
    assert set(model.rows.tolist()) == held


# ---- members --------------------------------------------------------------------------------------------------------


def test_members_are_scaled_by_what_they_leave_over_and_weighed_by_evidence(model):
    assert [m.mean.bend for m in model.members] == [0.8, 50.0, 0.8]
    assert model.bent() == pytest.approx(0.8 * (1 - np.exp(-(model.logs - model.logs.min()) / 0.8)))
    evidence = []
    for member in model.members:
        y = scaled(model, member) - member.mean.z[MEASURED] @ member.mean.slopes
        assert member.centre == pytest.approx(y.mean())
        scatter = ((y - y.mean()) ** 2).sum() + 2 * member.mean.doubt**2
        assert member.unit == pytest.approx(math.sqrt(scatter / 9))
        # p(log-costs) = p(scaled costs) · Π e^(−u/b) / unit
        stretched = 7 * math.log(member.unit) + (model.logs - model.logs.min()).sum() / member.mean.bend
        evidence.append(member.posterior.evidence - stretched)
    likely = np.exp(np.array(evidence) - max(evidence)) * [0.1, 0.1, 0.8]
    share = np.where(likely < 0.02 * likely.sum(), 0, likely)
    assert [m.weight for m in model.members] == pytest.approx(share / share.sum())
    most = max(model.members, key=lambda m: m.weight)
    assert model.noise == pytest.approx(most.posterior.theta.noise * most.unit)
    assert model.trust == 0.0


def test_weights_below_a_fiftieth_are_nothing():
    model, five = told(), np.arange(5)
    see(model, {row: [1.0] for row in MEASURED})  # all alike: no scale is stretched
    some = math.log(4)
    for evidence, share in (
        ([0.0, 0.0, 0.0], [0.1, 0.1, 0.8]),
        ([some, some, 0.0], [0.25, 0.25, 0.5]),
        ([-4.0, -4.0, 0.0], [0.0, 0.0, 1.0]),
    ):
        for member, value in zip(model.members, evidence, strict=True):
            member.unit, member.posterior.evidence = 2.0, value
        model._weigh(five)
        assert [m.weight for m in model.members] == pytest.approx(share)
    model.members[0].unit = 1.0  # 5 rows of twice the spread are 2⁵ times less likely
    for member in model.members:
        member.posterior.evidence = 0.0
    model._weigh(five)
    assert [m.weight for m in model.members] == pytest.approx([3.2 / 4.1, 0.1 / 4.1, 0.8 / 4.1])
    model.members[2].mean.close = True
    assert model.trust == pytest.approx(0.8 / 4.1)
    model.members[2].mean.close = False
    alone = told(simulator=False)
    see(alone, {row: [1.0] for row in MEASURED})
    for member, value in zip(alone.members, (math.log(3), 0.0), strict=True):
        member.unit, member.posterior.evidence = 2.0, value
    alone._weigh(five)
    assert [m.weight for m in alone.members] == pytest.approx([0.75, 0.25])


# ---- what is expected -----------------------------------------------------------------------------------------------


def test_what_no_knob_explains_is_partly_a_row_s_own(model):
    noise = model.noise**2
    scatter = 2 * (0.5 * math.log(1.1)) ** 2
    once = (2 * 0.5 * noise + scatter) / (2 + 1)  # eight measurements of seven rows
    own, added = model.unexplained()
    assert own == pytest.approx(max(noise - once, 0.05 * once))
    count = np.array([2 if row == 17 else 1 for row in MEASURED])
    assert added == pytest.approx(once / count + np.where(np.array(MEASURED) == 29, 0.01, 0))


@pytest.mark.parametrize("noise", [None, 0.9])
def test_candidates_are_what_is_open_and_their_gain_is_the_definition(model, noise):
    assert sorted({*model.candidates.tolist(), *MEASURED, 55, 58}) == list(range(60))
    assert len(model.candidates) == 51
    if noise:  # much that no knob explains
        model = told()
        model.update([])
        for member in model.members:
            member.posterior.log_theta[3] = math.log(noise)
            member.belief = model.belief_of(member, model.candidates)
        model.look([])
        assert model.unexplained()[0] > 0.002
    own, added = model.unexplained()
    gain, least = np.zeros(51), 0.0
    mean, second = np.zeros(51), np.zeros(51)
    for member in model.members:
        if not member.weight:
            continue
        expected, variance, here = textbook(model, member, model.candidates)
        here = here + own / (own + added) * (scaled(model, member) - here)
        gain += member.weight * expected_improvement(expected, np.sqrt(variance + own), here.min())
        least += member.weight * here.min()
        expected, variance = shared(member, expected, variance)
        mean += member.weight * expected
        second += member.weight * (variance + expected**2)
    assert model.mean == pytest.approx(mean, abs=2e-3)
    assert model.deviation == pytest.approx(np.sqrt(second - mean**2), abs=3e-3)
    assert model.least == pytest.approx(least, abs=1e-4)
    runs = model.chances.chance(model.candidates, model.gain)
    assert model.runs == pytest.approx(runs)
    assert model.chances.fails == np.mean(runs < 0.5)
    weighed = model.chances.weighed(gain, runs, 9, 2)
    assert weighed.max() > 1e-5
    assert model.gain == pytest.approx(weighed, rel=0.03, abs=0.02 * float(weighed.max()))
    before = model.gain
    model.look([int(model.candidates[4])], times=3.0)
    assert model.gain[4] == -1.0
    assert np.delete(model.gain >= before, 4).all()
    model.look([])
    assert model.gain == pytest.approx(before)


def test_what_another_measurement_of_a_row_is_expected_to_tell(model):
    own, added = model.unexplained()
    value, second = np.zeros(7), np.zeros(7)
    for member in model.members:
        features = member.posterior.features(
            ENCODING.rows(CODES[MEASURED]), member.mean.z[MEASURED] / member.unit, member.mean.spread
        )
        k = member.unit**2 * member.posterior.kernel(features, features) + own * np.eye(7)
        inverse = np.linalg.inv(k + np.diag(added))
        offset = member.mean.z[MEASURED] @ member.mean.slopes + member.centre
        mean = offset + k @ inverse @ (scaled(model, member) - offset)
        mean, variance = shared(member, mean, np.diag(k - k @ inverse @ k))
        value += member.weight * mean
        second += member.weight * (mean**2 + variance)
    found, deviation = worth(model)
    assert found == pytest.approx(value, abs=1e-4)
    assert deviation == pytest.approx(np.sqrt(second - value**2), abs=1e-3)


def test_rows_are_believed_as_the_posteriors_say(model):
    rows = np.array([0, 3, 59])
    mean, second, here = np.zeros(3), np.zeros(3), np.zeros(7)
    for member in model.members:
        expected, variance, measured = textbook(model, member, rows)
        expected, variance = shared(member, expected, variance)
        mean += member.weight * expected
        second += member.weight * (variance + expected**2)
        here += member.weight * shared(member, measured)[0]
    found, deviation = believed_of(model, rows)
    assert found == pytest.approx(mean, abs=2e-3)
    assert deviation == pytest.approx(np.sqrt(second - mean**2), abs=5e-3)
    assert model.believed_costs() == pytest.approx(here, abs=1e-4)
    assert model.log_cost(0.4) == pytest.approx(model.logs.min() - 0.8 * math.log(0.5))
    assert model.corner(50) == (pytest.approx(model.log_cost(here[1]), abs=1e-3), 0.0)
    at = int(np.flatnonzero(model.candidates == 7)[0])
    assert model.corner(7) == (model.log_cost(model.mean[at]), model.deviation[at])
    assert model.corner(55) is None


def test_a_row_that_failed_when_it_was_measured_again_is_worth_nothing():
    model = told()
    model.tell(3, None)
    model.update([])
    assert model.failed == {3, 55, 58}
    assert np.isinf(worth(model)[0]).tolist() == [True, *[False] * 6]
    assert len(model.chances.feasibility._ran) == 9


def test_pending_rows_count_as_if_they_had_come_back_as_expected():
    model = told(simulator=False)
    model.update([])
    at = int(np.argmax(model.gain))
    row, deviation, mean = int(model.candidates[at]), model.deviation[at], model.mean.copy()
    candidates, rows = model.candidates.copy(), model.rows.copy()
    model.update([row])
    assert model.candidates.tolist() == candidates.tolist()
    assert model.rows.tolist() == rows.tolist()
    assert model.gain[at] == -1.0
    assert model.deviation[at] < 0.5 * deviation
    assert model.mean == pytest.approx(mean, abs=5e-3)
    belief = model.members[0].belief
    assert belief is not None
    assert len(belief.low) == 7  # and are forgotten again


def test_hyper_parameters_are_fitted_anew_when_the_data_have_grown_by_a_quarter():
    model = told(simulator=False)
    model.update([])
    assert model._fitted_on == 7
    theta = model.members[0].posterior.log_theta
    model.tell(0, float(TRUE[0]))
    model.update([])
    assert model.members[0].posterior.log_theta is theta  # 8 < 1.25 · 7
    assert model._believed == [*MEASURED, 0]
    belief = model.members[0].belief
    assert belief is not None
    assert len(belief.low) == 8
    model.tell(1, float(TRUE[1]))
    model.update([])
    assert model._fitted_on == 9
    assert model.members[0].posterior.log_theta is not theta
    assert len(model.candidates) == 60 - 9 - 2


def test_of_very_many_rows_candidates_are_chosen(monkeypatch):
    monkeypatch.setattr(surrogate, "_CANDIDATES", 40)
    monkeypatch.setattr(surrogate, "_LEAST", 16)
    monkeypatch.setattr(surrogate, "_WORK", 0)
    monkeypatch.setattr(surrogate, "_AT_ONCE", 7)
    model = told(simulator=False)
    model.update([])
    best = [MEASURED[i] for i in np.argsort(model.logs)[:2]]
    beside = {int(row) for b in best for row in POOL.near(b)}
    assert beside - {*MEASURED, 55, 58} <= set(model.candidates.tolist())
    assert len(model.candidates) < 51
    assert 0.0 <= model.chances.fails <= 1.0
    model.chances._allowed = 0.3  # whatever share of the looked at is believed to fail
    scored = model._scored(np.arange(60), [])
    fails = model.chances.fails
    model.candidates = np.arange(60)
    for member in model.members:
        member.belief = model.belief_of(member, model.candidates)
    model.chances.watch(model.candidates, ENCODING.rows(CODES))
    model.look([])
    open_ones = np.setdiff1d(np.arange(60), [*MEASURED, 55, 58])
    assert scored[open_ones] == pytest.approx(model.gain[open_ones], rel=1e-3, abs=1e-5)
    assert fails == pytest.approx(np.mean(model.runs <= 0.5))


def test_what_promised_most_is_looked_at_again(monkeypatch):
    """Also where chance does not: neighbours of the best are left out here."""
    monkeypatch.setattr(surrogate, "_LEAST", 16)
    monkeypatch.setattr(surrogate, "_WORK", 0)
    model = told(simulator=False)
    model.update([])
    candidates, gain = model.candidates, model.gain
    top = candidates[np.argsort(-gain)[:5]]
    monkeypatch.setattr(pool_module, "_NEAR", 0)
    for seed in range(6):
        model.candidates, model.gain, model.rng = candidates, gain, np.random.default_rng(seed)
        model._choose_candidates(model.rows, [])
        assert {*top.tolist()} <= {*model.candidates.tolist()}
        assert len(model.candidates) <= 16


def test_beyond_fifty_rows_a_fit_takes_several_steps(monkeypatch):
    monkeypatch.setattr(surrogate, "_QUICK", 6)
    model, taken = told(), []
    for member in model.members:
        fit = member.posterior.fit
        monkeypatch.setattr(
            member.posterior, "fit", lambda *given, fit=fit: (taken.append((len(given[1]), given[5])), fit(*given))[1]
        )
    model.update([])
    assert taken == [(7, 10)] * 3  # 30 steps for three members
    assert model._left == 2
    for member in model.members:
        member.weight = 1 / 3
    model.update([])
    assert taken[3:] == [(7, 10)] * 3
    assert model._left == 1
    for member in model.members:
        member.weight = 1 / 3
    model.update([])
    assert model._left == 0
    model.update([])
    assert len(taken) == 9
    for member, weight in zip(model.members, (0.0, 0.0, 1.0), strict=True):
        member.weight = weight
    model._fitted_on = 1
    model.update([])
    assert taken[9:] == [(7, 10), (7, 10), (7, 30)]  # of what is not believed a third
    assert model._left == 0


def test_a_model_of_a_sample_grows_and_renews_its_candidates(monkeypatch):
    monkeypatch.setattr(pool_module, "_SAMPLE", 12)
    for simulator, rounds in ((False, [3, 6, 9]), (True, [0, 1, 2])):
        some = CandidatePool(POOL.space, np.random.default_rng(0), listed=1)
        encoding = Encoding(POOL.space.knobs, some.levels())
        means = (
            [of_simulator("sim", saying(np.exp(LOG)), some, encoding, np.random.default_rng(0))] if simulator else []
        )
        model = Surrogate(some, encoding, means, DefaultHyper(), np.random.default_rng(0))
        before = len(some)
        for row in range(6):
            model.tell(row, 1.0 + row)
        found = []
        for _ in rounds:
            model.update([])
            assert model.renewal is not None
            found.append(model.renewal._rounds)
            assert len(model.candidates) == len(model.gain) == len(model.mean) == len({*model.candidates.tolist()})
            assert not {*model.candidates.tolist()} & {*range(6)} or (model.gain[model.candidates < 6] == -1).all()
        assert found == rounds
        assert len(some) > before
        model._grow()
        assert model._encoded is not None
        assert model._encoded.points.tolist() == encoding.rows(some.codes).points.tolist()
        assert model._encoded.effects.tolist() == encoding.rows(some.codes).effects.tolist()
        assert all(len(member.mean.z) == len(some) for member in model.members)
