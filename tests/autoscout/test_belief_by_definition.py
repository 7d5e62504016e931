"""The Gaussian processes of the search against their definitions, written out plainly: covariances entry by entry, the
evidence as a density, what is expected and how surely by the textbook's formulas with a plain inverse."""

import math

import numpy as np
import pytest

from autoscout.search.belief import feasibility
from autoscout.search.belief.encoding import EncodedRows, Encoding, is_number, scale
from autoscout.search.belief.feasibility import Feasibility
from autoscout.search.belief.posterior import Belief, Posterior, Prior, Theta, _Pairs, matern
from autoscout.search.belief.ranking import Around, BelievedCost
from autoscout.search.earlier import Past
from autoscout.search.paper import ToldCost
from autoscout.search.proposers import Proposal
from autoscout.space.knob import Knob
from kb.records import Value


def knob(name: str, *values: Value) -> Knob:
    return Knob(name=name, kind="dense", layer="", values=values, meaning="", sets=name)


KNOBS = [knob("tile", 2, 4, 16), knob("mode", "a", "b"), knob("fixed", 1, 2), knob("size", 0, 10, 30, 40)]
CODES = np.array(
    [[t, m, 1, s] for t in range(3) for m in range(2) for s in (-1, 0, 1, 3)], dtype=np.int16
)  # 24 rows; `fixed` has one level, the third level of `size` does not occur
ENCODING = Encoding(KNOBS, CODES)
NONE = np.zeros(0)


# ---- encoding -------------------------------------------------------------------------------------------------------


def test_numbers_are_placed_by_logarithm_or_rank_and_what_is_inactive_apart():
    assert ENCODING.names == ["tile", "mode", "size"]
    assert len(ENCODING) == 3
    assert ENCODING.point_axis.tolist() == [0, 1, 1, 2, 2]
    assert ENCODING.effect_axis.tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 2]
    half = math.sqrt(0.5)
    rows = ENCODING.rows(np.array([[0, 0, 1, -1], [1, 1, 1, 0], [2, 0, 1, 1], [0, 1, 1, 3], [0, 1, 1, 2]]))
    assert len(rows) == 5
    assert rows.points == pytest.approx(
        np.array(
            [
                [0, half, 0, 0.5, 0.75],
                [1 / 3, 0, half, 0, 0],  # log₂ 4 / 2 of log₂ 16 / 2
                [1, half, 0, 1 / 3, 0],  # rank 1 of 3: not all are positive
                [0, 0, half, 1, 0],
                [0, 0, half, 2 / 3, 0],
            ]
        )
    )
    assert rows[np.array([1, 3])].points.tolist() == rows.points[[1, 3]].tolist()
    assert rows[1:2].effects.tolist() == rows.effects[1:2].tolist()


def test_effects_of_numbers_are_correlated_by_distance_and_those_of_names_are_not():
    codes = np.array([[t, 0, 1, 0] for t in range(3)] + [[0, 1, 1, 0]])
    effects = ENCODING.rows(codes).effects.astype(float)
    products = effects @ effects.T
    # All four share mode's or tile's effect as they do, and size's: 1 each on the diagonal, exp(−gap / 0.5) beside.
    tile = np.exp(-np.abs(np.subtract.outer([0, 1 / 3, 1, 0], [0, 1 / 3, 1, 0])) / 0.5)
    mode = np.equal.outer([0, 0, 0, 1], [0, 0, 0, 1]).astype(float)
    assert products == pytest.approx(tile + mode + 1, abs=1e-5)
    sizes = ENCODING.rows(np.array([[0, 0, 1, s] for s in (-1, 0, 3)])).effects[:, 5:].astype(float)
    off, far = math.hypot(0.5, 0.75), 1.0
    expected = np.exp(-np.array([[0, off, off], [off, 0, far], [off, far, 0]]) / 0.5)
    assert sizes @ sizes.T == pytest.approx(expected, abs=1e-5)
    assert not np.any(ENCODING._axes[2][2][2])  # a level that does not occur has no effect


def test_two_levels_are_like_names():
    two = Encoding([knob("x", 1, 2, 4)], np.array([[0], [2]]))
    assert two.rows(np.array([[0], [2]])).points == pytest.approx(math.sqrt(0.5) * np.eye(2))
    effects = two.rows(np.array([[0], [2]])).effects
    assert effects @ effects.T == pytest.approx(np.eye(2))
    switched = Encoding([knob("x", 1, 2, 4)], np.array([[0], [2], [-1]]))  # two numbers and inactive: three names
    assert switched.rows(np.array([[0], [2], [-1]])).points[:, [1, 2, 0]] == pytest.approx(math.sqrt(0.5) * np.eye(3))


def test_what_is_a_number_and_its_scale():
    assert is_number(knob("x", 1, 2.5))
    assert not is_number(knob("x", True, False))
    assert not is_number(knob("x", 1, "auto"))
    assert scale(knob("x", 1, 2, 8)).tolist() == [0, 1, 3]
    assert scale(knob("x", 7, 0, 100)).tolist() == [1, 0, 2]


@pytest.mark.parametrize("record", [EncodedRows, Prior, Theta, _Pairs, Proposal, ToldCost, BelievedCost, Around, Past])
def test_records_stay_as_they_are(record):
    settings = getattr(record, "__dataclass_params__", None) or record.__struct_config__
    assert settings.frozen


def test_without_a_knob_that_varies_there_are_no_columns():
    alone = Encoding([knob("x", 1, 2)], np.array([[1]]))
    assert (len(alone), alone.rows(np.array([[1], [1]])).points.shape) == (0, (2, 0))


# ---- the Gaussian process -------------------------------------------------------------------------------------------

LOG = np.log([0.4, 1.3, 0.5, 0.3, 0.7, 1.1, 2.0])  # effects, residual, rough, noise, three lengths
SLOPES = np.array([0.5, 0.2])


def posterior(prior: Prior | None = None, effects: bool = True) -> Posterior:
    made = Posterior(ENCODING, prior or Prior()) if effects else Posterior(ENCODING, prior or Prior(), False)
    made.log_theta = LOG.copy()
    return made


def drawn(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(n,) rows, (24, 2) z of all rows, (n,) y"""
    rng = np.random.default_rng(seed)
    return rng.choice(len(CODES), n, replace=False), rng.normal(size=(24, 2)), rng.normal(size=n)


def covariance(codes: np.ndarray, z: np.ndarray, effects: bool = True) -> np.ndarray:
    """Of f, entry by entry, from the docstring of posterior.py."""
    theta = Theta.of(LOG)
    rows = ENCODING.rows(codes)
    found = np.zeros((len(codes), len(codes)))
    for a in range(len(codes)):
        for b in range(len(codes)):
            square = sum(
                (float(rows.points[a, c]) - float(rows.points[b, c])) ** 2 / theta.lengths[axis] ** 2
                for c, axis in enumerate(ENCODING.point_axis)
            )
            t = math.sqrt(5 * square)
            smooth = theta.residual**2 * (1 + t + t**2 / 3) * math.exp(-t)
            rough = theta.rough**2 * math.exp(-math.sqrt(square))
            main = theta.effects**2 * float(rows.effects[a] @ rows.effects[b]) if effects else 0.0
            found[a, b] = 1.0 + smooth + rough + main + sum(z[a] * z[b] * SLOPES**2)
    return found


def test_theta_is_read_in_its_order():
    theta = Theta.of(LOG)
    assert (theta.effects, theta.residual, theta.rough, theta.noise) == pytest.approx((0.4, 1.3, 0.5, 0.3))
    assert theta.lengths == pytest.approx([0.7, 1.1, 2.0])
    t = math.sqrt(5) * 0.6
    assert matern(np.array([0.0, 0.6])) == pytest.approx([1.0, (1 + t + t**2 / 3) * math.exp(-t)])


@pytest.mark.parametrize("effects", [True, False])
def test_the_kernel_is_the_sum_of_its_parts(effects):
    rows, z, _ = drawn(9)
    made = posterior(effects=effects)
    features = made.features(ENCODING.rows(CODES[rows]), z[rows], SLOPES)
    expected = covariance(CODES[rows], z[rows], effects)
    assert made.kernel(features, features) == pytest.approx(expected, rel=1e-5)
    part = features[0][:4], features[1][:4]
    assert made.kernel(part, features) == pytest.approx(expected[:4], rel=2e-3)  # in single precision
    assert made.variance(features) == pytest.approx(np.diag(expected), rel=1e-5)
    assert features[0].dtype == features[1].dtype == np.float32


@pytest.mark.parametrize("effects", [True, False])
def test_the_evidence_is_the_density_of_y_and_theta(effects):
    rows, z, y = drawn(7)
    prior = Prior((0.3, 0.5), (0.9, 0.4), (0.2, 1.1), (0.1, 0.6), length=(1.5, 0.8))
    made = posterior(prior, effects)
    vague = np.linspace(0, 0.5, 7)
    pairs = made._pairs(ENCODING.rows(CODES[rows]), z[rows], SLOPES, vague)
    value, slope = made._objective(LOG, pairs, y)
    k = covariance(CODES[rows], z[rows], effects) + np.diag(vague + 0.3**2 + 1e-8)
    likely = -0.5 * (y @ np.linalg.inv(k) @ y + np.linalg.slogdet(k)[1])
    centres = np.log([0.3, 0.9, 0.2, 0.1, 1.5, 1.5, 1.5])  # three axes are fewer than four: √(D / 4) counts as 1
    widths = np.array([0.5, 0.4, 1.1, 0.6, 0.8, 0.8, 0.8])
    assert value == pytest.approx(-likely + 0.5 * (((LOG - centres) / widths) ** 2).sum(), rel=1e-6)
    for place in range(7):
        step = np.eye(7)[place] * 1e-5
        there, back = (made._objective(LOG + s, pairs, y)[0] for s in (step, -step))
        assert slope[place] == pytest.approx((there - back) / 2e-5, rel=1e-4, abs=1e-5)


def test_theta_that_no_matrix_can_have_is_not_likely():
    rows, z, y = drawn(3)
    made = posterior()
    pairs = made._pairs(ENCODING.rows(CODES[rows]), z[rows], SLOPES, -100.0)
    value, slope = made._objective(LOG, pairs, y)
    assert (value, slope.tolist()) == (1e10, [0.0] * 7)


def test_more_axes_have_longer_lengths():
    codes = np.array([[i >> j & 1 for j in range(9)] for i in range(2, 512, 7)])
    wide = Posterior(Encoding([knob(f"k{i}", 0, 1) for i in range(9)], codes), Prior())
    assert wide.theta.lengths == pytest.approx([2.0 * 1.5] * 9)  # √(9 / 4)
    assert wide.evidence == -np.inf
    five = Posterior(Encoding([knob(f"k{i}", 0, 1) for i in range(5)], codes[:, :5]), Prior())
    assert five.theta.lengths == pytest.approx([2.0 * math.sqrt(1.25)] * 5)
    defaults = [0.15, 1.2, 0.2, 0.07]
    assert np.exp(wide.log_theta[:4]) == pytest.approx(defaults)
    assert wide._width.tolist() == [0.7, 0.6, 0.7, 0.8] + [1.2] * 9


def test_a_fit_climbs_to_where_the_slope_ends_or_as_many_steps_as_it_may():
    rows, z, y = drawn(12, 3)
    given = ENCODING.rows(CODES[rows]), y, z[rows], SLOPES
    few, many, plain = (Posterior(ENCODING, Prior()) for _ in range(3))
    pairs = plain._pairs(given[0], given[2], SLOPES, 0.0)
    before = plain._objective(plain.log_theta, pairs, y)[0]
    few.fit(*given, iterations=1)
    many.fit(*given, iterations=200)
    plain.fit(*given)
    assert -before < few.evidence < plain.evidence <= many.evidence
    assert many.evidence == pytest.approx(-many._objective(many.log_theta, pairs, y)[0])
    assert np.abs(many._objective(many.log_theta, pairs, y)[1]).max() < 0.05
    # Three widths from the centre at most, whatever is told.
    sure = Posterior(ENCODING, Prior(*[(1.0, 1e-3)] * 4, length=(1.0, 1e-3)))
    sure.fit(given[0], 100 * y, given[2], SLOPES, iterations=200)
    assert np.abs(sure.log_theta).max() <= 3e-3 + 1e-12


def test_what_is_believed_is_the_conditional_distribution():
    rows, z, y = drawn(8)
    others = np.setdiff1d(np.arange(24), rows)
    made, vague = posterior(), np.linspace(0.0, 0.7, 8)
    features = made.features(ENCODING.rows(CODES), z, SLOPES)
    of = lambda at: (features[0][at], features[1][at])  # noqa: E731
    belief = Belief(made, of(rows), of(others), vague)
    every = covariance(CODES, z)
    noisy = every[np.ix_(rows, rows)] + np.diag(vague + 0.09 + 1e-6)
    across, inverse = every[np.ix_(others, rows)], np.linalg.inv(noisy)
    left = every[np.ix_(others, others)] - across @ inverse @ across.T
    assert belief.mean(y) == pytest.approx(across @ inverse @ y, abs=1e-3)
    assert belief.deviation == pytest.approx(np.sqrt(np.diag(left)), rel=1e-3)
    assert belief.fitted(y) == pytest.approx(every[np.ix_(rows, rows)] @ inverse @ y, abs=1e-6)
    places = np.array([3, 0, 11])
    assert belief.covariance(places) == pytest.approx(left[np.ix_(places, places)], abs=2e-3)
    for at in (0, 5):
        mean, variance = belief.expected(of(others[[at]]), y)
        assert mean == pytest.approx(across[at] @ inverse @ y, abs=1e-5)
        assert variance == pytest.approx(left[at, at] + 0.09 + 1e-6, rel=1e-4)

    # Two more, of which the second is as if it had come back as expected; then they are forgotten.
    before = belief.deviation
    grown = np.concatenate([rows, others[[2, 6]]])
    belief.append(of(others[[2]]), 0.25)
    belief.append(of(others[[6]]))
    noisy = every[np.ix_(grown, grown)] + np.diag([*vague, 0.25, 0.0]) + np.eye(10) * (0.09 + 1e-6)
    across, inverse = every[np.ix_(others, grown)], np.linalg.inv(noisy)
    more = np.append(y, 0.7)
    whole = belief.completed(more)
    nine = every[np.ix_(grown[9:], grown[:9])] @ np.linalg.inv(noisy[:9, :9]) @ more
    assert whole == pytest.approx([*more, *nine], abs=1e-5)
    assert belief.completed(whole) is whole
    left = np.diag(every)[others] - np.einsum("ij,jk,ik->i", across, inverse, across)
    assert belief.mean(whole) == pytest.approx(across @ inverse @ whole, abs=2e-3)
    assert belief.deviation == pytest.approx(np.sqrt(left), rel=2e-3)
    assert belief.fitted(whole) == pytest.approx(every[np.ix_(grown, grown)] @ inverse @ whole, abs=1e-5)
    belief.forget(2)
    assert belief.deviation == pytest.approx(before, abs=1e-4)
    assert (len(belief.low), len(belief.measured[0]), len(belief.measured[1])) == (8, 8, 8)
    assert belief.fitted(y).shape == (8,)


def test_candidates_may_be_exchanged_and_rows_beyond_the_first_room_taken_in():
    rows, z, y = drawn(23)
    made = posterior()
    features = made.features(ENCODING.rows(CODES), z, SLOPES)
    of = lambda at: (features[0][at], features[1][at])  # noqa: E731
    belief = Belief(made, of(rows[:1]), of(np.arange(6)))
    for row in rows[1:20]:  # there was room for 17
        belief.append(of(np.array([row])))
    belief.turn(np.array([5, 1]), of(np.array([20, 23, 9])))
    for row in rows[20:]:
        belief.append(of(np.array([row])))
    at = np.array([5, 1, 20, 23, 9])
    plain = Belief(made, of(rows), of(at))
    assert belief.mean(y) == pytest.approx(plain.mean(y), abs=2e-3)
    assert belief.deviation == pytest.approx(plain.deviation, abs=2e-3)
    assert belief.candidates[0].tolist() == features[0][at].tolist()
    assert belief.candidates[1].tolist() == features[1][at].tolist()
    assert belief.covariance(np.array([2])) == pytest.approx(plain.covariance(np.array([2])), abs=2e-3)


def test_what_is_known_exactly_is_nearly_certain():
    made = posterior()
    made.log_theta[:4] = np.log([1e-6, 1.0, 1e-6, 1e-6])
    one = made.features(ENCODING.rows(CODES[:1]), np.zeros((1, 0)), NONE)
    belief = Belief(made, one, one)
    assert belief.deviation[0] == pytest.approx(1e-3, rel=0.5)  # 1e-6 of variance beside the noise
    assert belief.expected(one, np.array([0.5]))[1] == pytest.approx(2e-6, rel=0.1)
    belief.append(one)
    belief.append(one)
    assert belief.deviation[0] >= 1e-5


# ---- what runs ------------------------------------------------------------------------------------------------------


def told(n: int) -> tuple[Feasibility, np.ndarray, np.ndarray, np.ndarray]:
    """(it, (n,) rows, (n,) whether they ran, (24, 24) covariance of the logits)"""
    rows, _, _ = drawn(n, 5)
    ran = (CODES[rows, 0] < 2) | (CODES[rows, 3] < 0)
    learned = Feasibility(ENCODING)
    learned.tell(learned.features(ENCODING.rows(CODES[rows])), ran)
    encoded = ENCODING.rows(CODES)
    points, effects = encoded.points.astype(float), encoded.effects.astype(float)
    gaps = np.sqrt(((points[:, None] - points[None]) ** 2).sum(axis=2)) / 2.0
    t = math.sqrt(5) * gaps
    k = 64 * (1 + t + t**2 / 3) * np.exp(-t) + 4 + 16 * points @ points.T + 4 * effects @ effects.T
    return learned, rows, ran, k


def test_the_chance_of_running_is_laplace_s_approximation():
    learned, rows, ran, k = told(14)
    assert learned.failed
    every = learned.features(ENCODING.rows(CODES))
    learned.watch(every)
    learned.fit()
    f = learned._logit
    p = 1 / (1 + np.exp(-f))
    pull = ran - p
    assert f == pytest.approx(1 + k[np.ix_(rows, rows)] @ pull, abs=0.02)  # the mode: f = mean + K ∇ log p(y | f)
    weights = np.diag(1 / (p * (1 - p)))
    logit = 1 + k[:, rows] @ pull
    variance = np.diag(k) - np.einsum(
        "ij,jk,ik->i", k[:, rows], np.linalg.inv(k[np.ix_(rows, rows)] + weights), k[:, rows]
    )
    expected = 1 / (1 + np.exp(-logit / np.sqrt(1 + math.pi / 8 * variance)))
    assert learned.chance(np.ones(24)) == pytest.approx(expected, abs=5e-3)
    # Fitted again it stays there; turned, it speaks of the same rows in another order.
    learned.fit()
    learned.turn(np.array([4, 7]), learned.features(ENCODING.rows(CODES[[0, 9]])))
    assert learned.chance(np.ones(4)) == pytest.approx(expected[[4, 7, 0, 9]], abs=5e-3)


def test_before_anything_fails_everything_runs():
    learned = Feasibility(ENCODING)
    assert not learned.failed
    assert learned.chance(np.ones(3)).tolist() == [1, 1, 1]
    learned.watch(learned.features(ENCODING.rows(CODES[:3])))
    learned.tell(learned.features(ENCODING.rows(CODES[:2])), np.array([True, True]))
    assert not learned.failed
    learned.turn(np.array([1]), learned.features(ENCODING.rows(CODES[4:5])))
    assert learned.chance(np.ones(2)).tolist() == [1, 1]
    assert learned._logit.tolist() == [1.0, 1.0]


def test_what_simulators_foresee_is_a_slope_more():
    learned = Feasibility(ENCODING)
    hints = np.array([[1.0], [0.5]])
    plain, hinted = learned.features(ENCODING.rows(CODES[:2])), learned.features(ENCODING.rows(CODES[:2]), hints)
    assert hinted[1][:, :-1].tolist() == plain[1].tolist()
    assert hinted[1][:, -1].tolist() == [4.0, 2.0]
    assert plain[1][:, 0].tolist() == [2.0, 2.0]
    wide = Feasibility(Encoding([knob(f"k{i}", 0, 1) for i in range(9)], np.array([[0] * 9, [1] * 9])))
    assert wide._length == pytest.approx(2.0 * 1.5)


def test_of_many_only_those_that_matter_are_averaged(monkeypatch):
    learned, rows, ran, k = told(14)
    learned.watch(learned.features(ENCODING.rows(CODES)))
    learned.fit()
    whole = learned.chance(np.ones(24))
    monkeypatch.setattr(feasibility, "_AVERAGED", 24)  # as many as there are
    assert learned.chance(np.ones(24)).tolist() == whole.tolist()
    monkeypatch.setattr(feasibility, "_AVERAGED", 3)
    importance = np.zeros(24)
    importance[[2, 8, 23]] = 1.0
    found = learned.chance(importance)
    pull = ran - 1 / (1 + np.exp(-learned._logit))
    plain = 1 / (1 + np.exp(-(1 + k[:, rows] @ pull)))
    plain[[2, 8, 23]] = whole[[2, 8, 23]]
    assert found == pytest.approx(plain, abs=5e-3)


def test_of_many_rows_those_nearest_to_the_boundary_are_kept(monkeypatch):
    learned, rows, ran, _ = told(14)
    learned.watch(learned.features(ENCODING.rows(CODES)))
    learned.fit()
    learned.chance(np.ones(24))
    monkeypatch.setattr(feasibility, "_HELD", 10)  # up to 13 are kept whole
    logit = learned._logit.copy()
    kept = np.sort(np.argsort(np.abs(logit), kind="stable")[:10])
    learned.fit()
    assert learned._ran.tolist() == ran[kept].tolist()
    assert len(learned._across) == len(kept)
    fresh = Feasibility(ENCODING)
    fresh.tell(fresh.features(ENCODING.rows(CODES[rows[kept]])), ran[kept])
    fresh.watch(fresh.features(ENCODING.rows(CODES)))
    fresh.fit()
    assert learned.chance(np.ones(24)) == pytest.approx(fresh.chance(np.ones(24)), abs=5e-3)
    few = Feasibility(ENCODING)
    few.tell(few.features(ENCODING.rows(CODES[rows[:13]])), ran[:13])
    few.fit()
    assert len(few._ran) == 13
