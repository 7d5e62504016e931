"""What a person and a session are told of the belief, against its definition: what is left to find, the best with each
value of a knob, and how good the measured configurations are believed to be."""

import math

import numpy as np
import pytest
from test_prior_means_by_hand import CODES, POOL
from test_surrogate_by_definition import MEASURED, TRUE, told

from autoscout.search.belief import outlook as of_outlook
from autoscout.search.belief.bending import slope
from autoscout.search.belief.by_value import by_value
from autoscout.search.belief.outlook import outlook, worth
from autoscout.search.belief.ranking import Ranking, believed_of
from autoscout.search.belief.surrogate import Surrogate
from autoscout.studies.rivals.gaussian import expected_improvement


@pytest.fixture(scope="module")
def model() -> Surrogate:
    made = told()
    made.update([])
    return made


def test_the_outlook_is_drawn_from_the_joint_posterior_of_each_hypothesis(model):
    chance, gain = outlook(model, 10, 0.01)
    order = np.argsort(-model.gain, kind="stable")
    rng, expected = np.random.default_rng(1), np.zeros(2)
    assert len(model.active()) > 1
    for member in model.active():
        across = member.unit * slope(member.expected[order], member.mean.bend)
        spread = across[:, None] * member.belief.covariance(order) * across + model.unexplained()[0] * np.eye(51)
        drawn = member.expected[order] + rng.multivariate_normal(np.zeros(51), spread, 4_000, method="eigh")
        drawn[rng.random(drawn.shape) >= model.runs[order]] = np.inf
        better = model.least - drawn
        expected += member.weight * np.array([
            np.mean(better.max(axis=1) > 0.01), np.maximum(better[:, :10].max(axis=1), 0).mean()
        ])  # fmt: skip
    assert chance == pytest.approx(expected[0], abs=0.06)
    assert gain == pytest.approx(expected[1], rel=0.15)
    assert outlook(model, 10, 10.0)[0] == 0.0
    gains, candidates = model.gain, model.candidates
    model.gain = np.full(51, -1.0)
    assert outlook(model, 10, 0.01) == (0.0, 0.0)
    model.gain, model.candidates = gains, candidates


def test_of_many_candidates_the_outlook_draws_the_most_promising(model, monkeypatch):
    monkeypatch.setattr(of_outlook, "_JOINT", 1)
    monkeypatch.setattr(of_outlook, "_DRAWS", 20_000)
    chance, gain = outlook(model, 10, 0.0)
    at, promised, less = int(np.argmax(model.gain)), 0.0, 0.0
    runs = float(model.runs[at])
    for member in model.active():
        across = member.unit * slope(member.expected[[at]], member.mean.bend)
        spread = across**2 * member.belief.covariance(np.array([at]))[0, 0] + model.unexplained()[0]
        promised += member.weight * expected_improvement(member.expected[[at]], np.sqrt(spread), model.least)[0]
        z = (model.least - member.expected[at]) / math.sqrt(spread[0])
        less += member.weight * 0.5 * math.erfc(-z / math.sqrt(2))
    assert gain == pytest.approx(runs * promised, rel=0.05)
    assert chance == pytest.approx(runs * less, abs=0.01)


def test_each_value_of_a_knob_is_told_by_the_cheapest_that_probably_runs(model):
    found = by_value(model)
    assert list(found) == [knob.name for knob in POOL.space.knobs]
    here, deviation = worth(model)
    believed = {row: (m, d, 1.0) for row, m, d in zip(MEASURED, here, deviation, strict=True)}
    for row, m, d, r in zip(model.candidates.tolist(), model.mean, model.deviation, model.runs, strict=True):
        believed[row] = m, d, r
    for column, knob in enumerate(POOL.space.knobs):
        assert [v.value for v in found[knob.name]] == list(knob.values)
        for code, value in enumerate(found[knob.name]):
            rows = [row for row in believed if CODES[row, column] == code]
            m, d, runs = min((believed[row] for row in rows), key=lambda b: (b[2] < 0.5, b[0]))
            for said, bent in ((value.cost, m), (value.low, m - 1.96 * d), (value.high, m + 1.96 * d)):
                assert said == pytest.approx(math.exp(model.log_cost(float(bent)) - model.logs.min()), rel=1e-6)
            assert value.runs == pytest.approx(runs)
            assert value.measured == sum(CODES[row, column] == code for row in [*MEASURED, 55, 58])


def test_a_ranking_is_what_another_measurement_would_tell():
    rows = [(POOL.configuration(row), float(TRUE[row])) for row in MEASURED]
    ranking = Ranking(POOL.space, [*rows, (POOL.configuration(55), None)], {rows[2][0].id: 0.2})
    model = ranking._model
    value, deviation = worth(model)
    order = np.argsort(value)
    assert [b.configuration for b in ranking.believed] == [rows[i][0] for i in order]
    assert [b.excess for b in ranking.believed] == pytest.approx(value[order] - value[order[0]])
    assert [b.deviation for b in ranking.believed] == pytest.approx(deviation[order])
    assert ranking.noise == model.noise > 0
    assert model.doubts[17] == 0.2
    around = ranking.around(rows[0][0])
    near = [row for row in range(60) if (CODES[row] != CODES[3]).sum() == 1]
    mean, sd = believed_of(model, np.array([*near, 3]))
    excess = mean[:-1] - mean[-1]
    assert around is not None
    assert around.neighbours == len(near)
    assert around.within == np.mean(excess <= math.log(1.05))
    middle, error = float(np.median(excess)), 1.96 * float(np.median(sd[:-1]))
    assert (around.median, around.low, around.high) == pytest.approx((middle, middle - error, middle + error))
    assert ranking.around(POOL.configuration(0)) is None  # not measured
    assert ranking.around(POOL.configuration(55)) is None


def test_of_three_rows_nothing_is_learned_from_neighbours():
    rows = [(POOL.configuration(row), cost) for row, cost in ((3, 2.0), (50, 1.0), (17, 4.0), (8, None))]
    ranking = Ranking(POOL.space, rows)
    assert [b.configuration for b in ranking.believed] == [rows[1][0], rows[0][0], rows[2][0]]
    expected = [0.0, *(0.8 * (1 - 0.5 ** (k / 0.8)) for k in (1, 2))]
    assert [b.excess for b in ranking.believed] == pytest.approx(expected)
    assert {b.deviation for b in ranking.believed} == {math.inf}
    assert ranking.noise == 0.0
    assert ranking.around(rows[0][0]) is None
    again = Ranking(POOL.space, [*rows, (rows[1][0], None)])  # the best failed when it was measured again
    assert [b.configuration for b in again.believed] == [rows[0][0], rows[2][0]]
    assert [b.excess for b in again.believed] == pytest.approx(expected[:2])
    assert Ranking(POOL.space, rows[3:]).believed == []
    four = Ranking(POOL.space, [*rows, (POOL.configuration(9), 3.0)])
    assert four.noise > 0
