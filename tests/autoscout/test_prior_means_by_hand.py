"""What simulators and past jobs say, as prior means: how a prediction is split into what knobs explain and the rest,
what is noise in it, and how both are carried to the rows of another job."""

import itertools
import math

import numpy as np
import pytest

from autoscout.search.belief import prior_means
from autoscout.search.belief.bending import bent
from autoscout.search.belief.encoding import Encoding
from autoscout.search.belief.feasibility import Feasibility
from autoscout.search.belief.posterior import Belief, Posterior, Prior
from autoscout.search.belief.prior_means import (
    Mean,
    _alikeness,
    _in_parts,
    _pairs,
    _Ridge,
    _smooth,
    _telling,
    hypotheses,
    of_past,
    of_simulator,
)
from autoscout.search.earlier import Past
from autoscout.search.pool import CandidatePool
from autoscout.space.graph import Space
from kb.records import Objective, Value

TABLE: list[dict[str, Value]] = [
    {"x": x, "y": y, "z": z} for x in (1, 2, 4, 8, 16) for y in (1, 2, 4, 8) for z in ("a", "b", "c")
]


def setting(objective: Objective | None = None) -> tuple[CandidatePool, Encoding]:
    space = Space.from_table(TABLE, ["z"], ["x", "y"], objective or Objective(minimize="s"))
    pool = CandidatePool(space, np.random.default_rng(0))
    return pool, Encoding(space.knobs, pool.codes)


POOL, ENCODING = setting()
CODES = POOL.codes
COLUMN = {knob.name: i for i, knob in enumerate(POOL.space.knobs)}
LOG = 0.5 * CODES[:, COLUMN["x"]] - 0.3 * CODES[:, COLUMN["y"]] + 0.2 * CODES[:, COLUMN["z"]]  # main effects alone


def saying(values: np.ndarray, asked: list[int] | None = None):
    """A simulator that says these of the pool's rows."""
    known = {tuple(code): value for code, value in zip(CODES.tolist(), values.tolist(), strict=True)}

    def predict(codes: np.ndarray) -> np.ndarray:
        if asked is not None:
            asked.append(len(codes))
        return np.array([known[tuple(code)] for code in codes.tolist()])

    return predict


def of(values: np.ndarray, pool: CandidatePool = POOL) -> Mean:
    return of_simulator("sim", saying(values), pool, ENCODING, np.random.default_rng(1))


# ---- means ----------------------------------------------------------------------------------------------------------


def test_a_mean_speaks_of_the_rows_that_a_pool_got_since():
    def said(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return codes[:, :1] * 10.0, np.ones(len(codes))

    mean = Mean("it", np.ones((58, 1)), np.array([2.0]), fails=np.zeros(58), predicted=said)
    mean.grow(POOL)
    assert mean.z[57:, 0].tolist() == [1.0, *(CODES[58:, 0] * 10.0)]
    assert mean.fails is not None
    assert mean.fails.tolist() == [0.0] * 58 + [1.0, 1.0]
    assert mean.expected(np.array([0, 59])).tolist() == [2.0, 20.0 * CODES[59, 0]]
    mean.grow(POOL)
    assert len(mean.z) == len(mean.fails) == 60
    silent = Mean("it", np.ones((57, 2)))
    silent.grow(POOL)
    assert silent.z[57:].tolist() == [[0.0, 0.0]] * 3
    assert silent.fails is None
    assert (silent.foresees, silent.close, silent.doubt, silent.prior) == (False, False, 0.2, Prior())


def test_a_simulator_may_be_right_up_to_what_knobs_correct_or_as_it_is():
    whole = of(np.where(np.arange(60) < 3, np.inf, np.exp(LOG)))
    assert whole.fails is not None
    first, near = hypotheses(whole)
    assert first is whole
    assert (near.name, near.fails, near.doubt, near.close) == ("sim as it is", None, 0.05, True)
    assert near.spread == pytest.approx([0.09, 0.15])
    assert near.prior == Prior(noise=(0.5, 1.0))
    assert near.z is whole.z
    silent = of(np.where(np.arange(60) < 3, np.inf, 2.0))
    assert hypotheses(silent) == [silent]
    assert hypotheses(of(np.full(60, 2.0))) == []


def test_what_a_simulator_says_of_main_effects_is_believed_whole():
    mean = of(np.exp(LOG))
    assert (mean.name, mean.fails, mean.foresees, mean.close) == ("sim", None, True, False)
    assert mean.slopes.tolist() == [1.0, 0.0]
    assert mean.spread.tolist() == [0.3, 0.5]
    above = bent(LOG - np.quantile(LOG, 0.001))
    assert mean.z[:, 0] == pytest.approx(above - above.mean(), abs=2e-3)
    assert mean.z[:, 1] == pytest.approx(np.zeros(60), abs=2e-3)
    assert mean.z.mean(axis=0) == pytest.approx([0, 0], abs=1e-6)
    assert mean.predicted is not None
    z, fails = mean.predicted(CODES[[4, 9]])
    assert z == pytest.approx(mean.z[[4, 9]], abs=1e-6)
    assert fails is not None
    assert fails.tolist() == [0.0, 0.0]


def test_where_more_is_better_the_sign_turns_round():
    pool, _ = setting(Objective(maximize="s"))
    assert of(np.exp(-LOG), pool).z == pytest.approx(of(np.exp(LOG)).z, abs=1e-6)


def test_noise_in_a_simulator_is_told_from_physics():
    noise = 0.4 * np.random.default_rng(3).choice([-1.0, 1.0], 60)
    mean = of(np.exp(LOG + noise))
    z = mean.z - mean.z.min(axis=0)
    assert np.corrcoef(z[:, 0], LOG)[0, 1] > 0.85  # the smooth part follows the knobs,
    assert np.corrcoef(mean.z[:, 1], noise)[0, 1] > 0.7  # and the rest is what was drawn


def test_a_simulator_that_says_nothing_of_costs_may_foresee_failures():
    lone = np.full(60, np.nan)
    lone[7], lone[3] = 2.0, np.inf
    mean = of(lone)
    assert mean.z.shape == (60, 0)
    assert mean.foresees
    assert mean.fails is not None
    assert np.flatnonzero(mean.fails).tolist() == [3]
    assert mean.predicted is not None
    z, fails = mean.predicted(CODES[2:5])
    assert z.shape == (3, 0)
    assert fails is not None
    assert fails.tolist() == [0, 1, 0]
    two = np.full(60, np.nan)
    two[[7, 8]] = 2.0, 3.0
    assert of(two).z.shape == (60, 2)
    assert of(np.full(60, 2.0)).fails is None


def test_rows_of_which_a_simulator_says_nothing_get_what_the_others_tell_of_them():
    values = np.exp(LOG)
    values[[5, 30]] = np.nan, np.inf
    mean = of(values)
    known = np.setdiff1d(np.arange(60), [5, 30])
    above = bent(LOG - np.quantile(LOG[known], 0.001))
    assert mean.z[known].mean(axis=0) == pytest.approx([0, 0], abs=1e-6)
    assert mean.z[[5, 30], 0] == pytest.approx(above[[5, 30]] - above[known].mean(), abs=0.02)
    assert mean.z[[5, 30], 1] == pytest.approx(-mean.z[known, 1].mean() + np.zeros(2), abs=2e-3)
    assert mean.fails is not None
    assert np.flatnonzero(mean.fails).tolist() == [30]


# ---- the smooth part ------------------------------------------------------------------------------------------------


def test_regressors_are_a_constant_the_effects_and_all_pairs():
    rows = ENCODING.rows(CODES[:2])
    found = _pairs(CODES[:2], ENCODING, np.array([0, 2]))
    a, b = rows.points[:, 0], rows.points[:, 2]
    expected = np.column_stack([np.ones(2), rows.effects, a * a, a * b, b * b])
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("noise", [0.0, 0.1, 1.0, 5.0])
def test_the_penalty_of_a_ridge_is_that_of_the_largest_evidence(noise):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(25, 6)).astype(np.float32)
    ridge = _Ridge(x)
    wide = x.astype(float)
    penalties = [10.0**e for e in (-4, -3.5, -3, -2.5, -2, -1.5, -1, -0.5, 0, 0.5)]
    for _ in range(2):
        y = x @ rng.normal(size=6) + noise * rng.normal(size=25)
        evidence = []
        for penalty in penalties:
            k = wide @ wide.T / (penalty * 25) + np.eye(25)  # of y, in units of the noise that fits best
            left = max(y @ np.linalg.inv(k) @ y, 1e-9 * y @ y) / 25
            evidence.append(-0.5 * (25 * math.log(left) + np.linalg.slogdet(k)[1]))
        best = penalties[int(np.argmax(evidence))]
        weights = np.linalg.solve(wide.T @ wide + best * 25 * np.eye(6), wide.T @ y)
        assert ridge.fit(y) == pytest.approx(weights, rel=1e-3, abs=1e-4)
    for (low, volume), penalty in zip(ridge._factors, penalties, strict=True):
        assert low @ low.T == pytest.approx(wide.T @ wide + penalty * 25 * np.eye(6), rel=1e-5, abs=1e-4)
        assert volume == pytest.approx(np.linalg.slogdet(wide @ wide.T / (penalty * 25) + np.eye(25))[1], rel=1e-4)
    assert ridge.fit(np.zeros(25)).tolist() == [0.0] * 6


def test_predictions_far_out_are_drawn_in():
    log = LOG + 0.05 * np.random.default_rng(4).normal(size=60)
    log[[7, 41]] += 3.0
    known = np.ones(60, dtype=bool)
    known[11] = False
    smooth = _smooth(log, known, POOL, ENCODING, np.random.default_rng(0))
    rows = np.flatnonzero(known)
    x = _pairs(CODES[rows], ENCODING, np.arange(len(ENCODING.point_axis)))
    ridge = _Ridge(x)
    weights = ridge.fit(log[rows])
    for _ in range(3):
        off = log[rows] - x @ weights
        most = 1.5 * 1.4826 * np.median(np.abs(off))
        weights = ridge.fit(x @ weights + np.clip(off, -most, most))
    assert smooth(CODES) == pytest.approx(_pairs(CODES, ENCODING, np.arange(5)) @ weights, abs=1e-4)
    assert np.abs(smooth(CODES) - LOG)[[7, 41]].max() < 0.5


def test_of_very_many_predictions_some_are_fitted(monkeypatch):
    monkeypatch.setattr(prior_means, "_ROWS", 40)
    monkeypatch.setattr(prior_means, "_AT_ONCE", 7)
    log = LOG + 0.3 * np.random.default_rng(4).normal(size=60)
    found = _smooth(log, np.ones(60, dtype=bool), POOL, ENCODING, np.random.default_rng(5))(CODES)
    chosen = np.zeros(60, dtype=bool)
    chosen[np.random.default_rng(5).choice(60, 40, replace=False)] = True
    expected = _smooth(log, chosen, POOL, ENCODING, np.random.default_rng(0))(CODES)
    assert found == pytest.approx(expected, abs=1e-5)
    assert len(found) == 60


def test_the_coordinates_that_tell_most_are_those_that_are_correlated_most(monkeypatch):
    rng = np.random.default_rng(0)
    points = rng.normal(size=(50, 4)) * [1, 10, 1e-3, 0]
    y = 3e3 * points[:, 2] + 0.1 * points[:, 1] + 0.1 * rng.normal(size=50) + 7.0
    monkeypatch.setattr(prior_means, "_COORDINATES", 2)
    assert _telling(points, y).tolist() == [1, 2]
    monkeypatch.setattr(prior_means, "_COORDINATES", 1)
    assert _telling(points, -y).tolist() == [2]


# ---- the rough part -------------------------------------------------------------------------------------------------


def alikeness(rough: np.ndarray, known: np.ndarray, seed: int = 0, at_most: int = 4000) -> float:
    """The correlation between neighbours in the order of the knobs, shuffled: plainly."""
    most = 2 * 1.4826 * np.median(np.abs(rough[known]))
    rough = np.clip(rough, -most, most)
    columns = np.random.default_rng(seed).permutation(CODES.shape[1])
    order = sorted((row for row in range(60) if known[row]), key=lambda row: [CODES[row, c] for c in columns[::-1]])
    pairs = [(a, b) for a, b in itertools.pairwise(order) if sum(CODES[a] != CODES[b]) <= 2]
    pairs = pairs[:: max(1, len(pairs) // at_most)]
    spread = sum(rough[a] ** 2 + rough[b] ** 2 for a, b in pairs) / 2
    return float(np.clip(sum(rough[a] * rough[b] for a, b in pairs) / spread, 0.0, 1.0))


def test_how_alike_neighbours_are():
    rng = np.random.default_rng(6)
    known = rng.random(60) < 0.8
    for smooth, seed in ((0.0, 0), (0.5, 1), (1.0, 2), (2.0, 3)):
        rough = smooth * np.sin(1.5 * CODES[:, 0] + CODES[:, 1]) + rng.standard_t(2, 60)
        found = _alikeness(rough, known, CODES, np.random.default_rng(seed))
        assert found == pytest.approx(alikeness(rough, known, seed))
    assert _alikeness(np.zeros(60), known, CODES, rng) == 1.0
    assert _alikeness(np.ones(60), known, CODES, rng) == 1.0
    only = np.zeros(60, dtype=bool)
    only[5] = True
    assert _alikeness(np.ones(60), only, CODES, rng) == 1.0  # no neighbour


def test_of_very_many_neighbours_some_are_asked(monkeypatch):
    rough = np.random.default_rng(6).normal(size=60) + 0.4
    for most in (10, 30, 59, 100):
        monkeypatch.setattr(prior_means, "_PAIRS", most)
        found = _alikeness(rough, np.ones(60, dtype=bool), CODES, np.random.default_rng(0))
        assert found == pytest.approx(alikeness(rough, np.ones(60, dtype=bool), 0, most))


@pytest.mark.parametrize(("measured", "kept"), [(0.04, 0.0), (0.05, 0.0), (0.1, 0.5), (0.15, 1.0), (0.3, 1.0)])
def test_between_noise_and_physics_a_share_is_kept(monkeypatch, measured, kept):
    noise = np.random.default_rng(3).normal(size=60)
    monkeypatch.setattr(prior_means, "_alikeness", lambda *_: measured)
    mean = of(np.exp(LOG + noise))
    rough = LOG + noise - _smooth(LOG + noise, np.ones(60, dtype=bool), POOL, ENCODING, np.random.default_rng(1))(CODES)
    smooth = LOG + noise - rough
    believed = smooth + kept * rough
    above = bent(believed - np.quantile(believed, 0.001))
    assert mean.z[:, 0] == pytest.approx(above - above.mean(), abs=1e-4)
    assert mean.z[:, 1] == pytest.approx((1 - kept) * (rough - rough.mean()), abs=1e-4)


# ---- past jobs ------------------------------------------------------------------------------------------------------


def past(costs: dict[int, float | None]) -> Past:
    rows = [(POOL.configuration(row), cost) for row, cost in costs.items()]
    return Past(name="before", distance=0.1, rows=rows)


@pytest.mark.parametrize("spread", [1.0, 1e-3])
def test_a_past_job_s_posterior_is_moved_by_the_knobs_values(spread):
    rows = [0, 7, 22, 33, 48, 59]
    costs: dict[int, float | None] = {row: float(np.exp(spread * LOG[row])) for row in rows}
    mean = of_past(past(costs), POOL, ENCODING)
    y = spread * LOG[rows]
    unit = max(y.std(), 0.05)
    posterior, none = Posterior(ENCODING, Prior()), np.zeros(0)
    posterior.fit(ENCODING.rows(CODES[rows]), (y - y.mean()) / unit, np.zeros((6, 0)), none)
    there, here = (
        posterior.features(ENCODING.rows(CODES[at]), np.zeros((len(at), 0)), none) for at in (rows, range(60))
    )
    expected = unit * Belief(posterior, there, here).mean((y - y.mean()) / unit)
    assert mean.z[:, 0] == pytest.approx(expected - expected.mean(), rel=2e-2, abs=2e-2 * unit)
    assert (mean.name, mean.fails, mean.foresees) == ("past before", None, False)
    assert (mean.slopes.tolist(), mean.spread.tolist()) == ([1.0], [0.5])
    assert mean.predicted is not None
    z, fails = mean.predicted(CODES[[3, 9]])
    assert z == pytest.approx(mean.z[[3, 9]], abs=1e-5)
    assert fails is None


def test_what_failed_in_a_past_job_is_believed_to_fail_here():
    rows = [0, 7, 22, 33, 48, 59]
    costs: dict[int, float | None] = {row: None if row > 30 else 1.0 for row in rows}
    costs[7] = 2.0
    mean = of_past(past(costs), POOL, ENCODING)
    learned = Feasibility(ENCODING)
    learned.tell(learned.features(ENCODING.rows(CODES[rows])), np.array([row <= 30 for row in rows]))
    learned.watch(learned.features(ENCODING.rows(CODES)))
    learned.fit()
    assert mean.fails is not None
    assert mean.fails == pytest.approx(1 - learned.chance(np.ones(60)), abs=1e-3)
    assert mean.z.shape == (60, 1)
    few = of_past(past({0: 1.0, 7: 2.0, 22: None}), POOL, ENCODING)  # two that ran tell nothing of costs
    assert few.z.shape == (60, 0)
    assert few.slopes.shape == (0,)
    assert few.predicted is not None
    z, fails = few.predicted(CODES[:2])
    assert z.shape == (2, 0)
    assert fails == pytest.approx(few.fails[:2] if few.fails is not None else None, abs=1e-4)


def test_rows_are_encoded_some_at_a_time(monkeypatch):
    monkeypatch.setattr(prior_means, "_AT_ONCE", 25)
    sizes: list[int] = []
    found = _in_parts(lambda part: (sizes.append(len(part)), part.points[:, 0])[1], CODES, ENCODING)
    assert sizes == [25, 25, 10]
    assert found.tolist() == ENCODING.rows(CODES).points[:, 0].tolist()
