"""Knobs that do nothing: the belief finds them, and the search does not try one configuration with all their values."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import beta
from scipy.stats import norm

from autoscout.search.belief.bending import unbent
from autoscout.search.belief.encoding import Encoding
from autoscout.search.belief.outlook import outlook
from autoscout.search.belief.posterior import Belief, Posterior, Prior, inert_sets
from autoscout.search.belief.prior_means import hypotheses, of_simulator
from autoscout.search.belief.surrogate import Surrogate
from autoscout.search.hyper import DefaultHyper
from autoscout.search.pool import CandidatePool
from autoscout.space.graph import Space
from kb.records import Objective, Value


def test_odds_are_the_share_of_knobs_against_the_mass_beyond_their_lengths():
    off = np.array([0.1, 2.6, -1.0, 2.4, 2.8])
    (larger, odds), (smaller, less) = inert_sets(off)
    assert larger.tolist() == [False, True, False, True, True]
    assert odds == pytest.approx(np.log(beta(4, 7) / beta(1, 10) / np.prod(norm.cdf(-off[larger])) / 20))
    assert smaller.tolist() == [False, False, False, False, True]
    assert less == pytest.approx(np.log(beta(2, 9) / beta(1, 10) / norm.cdf(-2.8) / 20))
    assert not list(inert_sets(np.zeros(12)))  # nothing is known of any
    assert not list(inert_sets(np.array([0.7, 0.7, -3.0])))  # two of three that may have been long by chance


def space(dummies: int) -> tuple[Space, np.ndarray]:
    """Three knobs that interact and so many switches that do nothing: the space, and its true costs."""
    rows: list[dict[str, Value]] = [
        {"a": a, "b": b, "c": c, **{f"d{i}": v for i, v in enumerate(switches)}}
        for a, b, c in itertools.product((1, 2, 4, 8, 16, 32), (1, 2, 3, 4, 5, 6), (1, 2, 4, 8))
        for switches in itertools.product((0, 1), repeat=dummies)
    ]
    names = [f"d{i}" for i in range(dummies)]
    made = Space.from_table(rows, names, ["a", "b", "c"], Objective(minimize="time_s"))
    column = {k.name: np.array(k.values, dtype=float)[made.feasible.codes[:, i]] for i, k in enumerate(made.knobs)}
    a, b, c = np.log2(column["a"]), column["b"], np.log2(column["c"])
    return made, np.exp(0.05 * (a - b / 2) ** 2 + 0.1 * (c - a / 3) ** 2 + 0.3 * ((a + b + c) % 3 == 1))


@pytest.fixture(scope="module")
def believed():
    """A posterior fitted on 160 rows at random, these, and their costs."""
    made, cost = space(6)
    rng = np.random.default_rng(1)
    at = rng.choice(len(cost), 160, replace=False)
    y = np.log(cost[at]) + 0.02 * rng.standard_normal(len(at))
    y = (y - y.mean()) / y.std()
    encoding = Encoding(made.knobs, made.feasible.codes)
    posterior = Posterior(encoding, Prior(), drops_inert=True)
    rows = encoding.rows(made.feasible.codes[at])
    posterior.fit(rows, y, np.zeros((len(at), 0)), np.zeros(0), iterations=90)
    return posterior, rows, y


def test_what_does_nothing_is_found_and_what_acts_is_kept(believed):
    posterior, *_ = believed
    inert = dict(zip(posterior.encoding.names, posterior.inert, strict=True))
    assert [inert[name] for name in "abc"] == [False] * 3
    assert sum(inert[f"d{i}"] for i in range(6)) >= 5  # one may seem to act by chance


def test_a_twin_of_a_measured_row_is_believed_to_be_that_row(believed):
    posterior, rows, y = believed
    first = rows[:1]
    moved = replace(first, points=first.points.copy(), effects=first.effects.copy())
    for axis in np.flatnonzero(posterior.inert):
        points, effects = (posterior.encoding.point_axis == axis, posterior.encoding.effect_axis == axis)
        moved.points[:, points], moved.effects[:, effects] = (
            first.points[:, points][:, ::-1],
            1 - first.effects[:, effects],
        )
    nothing = np.zeros((1, 0)), np.zeros(0)
    one, twin = (posterior.features(each, *nothing) for each in (first, moved))
    np.testing.assert_array_equal(one[0], twin[0])
    np.testing.assert_array_equal(one[1], twin[1])
    belief = Belief(posterior, posterior.features(rows, np.zeros((len(y), 0)), np.zeros(0)), twin)
    assert belief.mean(y)[0] == pytest.approx(belief.fitted(y)[0], abs=1e-3)


def test_a_search_is_promised_nothing_by_twins_of_what_it_measured():
    """Of 80 configurations at random: twins of the best have other settings of the switches."""
    made, cost = space(6)
    cost = np.exp(unbent(0.7 * np.log(cost) / np.log(cost).max()))
    rng = np.random.default_rng(0)
    pool = CandidatePool(made, rng)
    model = Surrogate(pool, Encoding(made.knobs, pool.codes), [], DefaultHyper(), rng)
    for i, row in enumerate(rng.choice(len(cost), 80, replace=False).tolist()):
        model.tell(row, float(cost[row] * np.exp(0.02 * rng.standard_normal())))
        if i % 5 == 4:
            model.update([])
    bent = [member for member in model.active() if member.posterior.drops_inert]
    inert = np.all([member.posterior.inert for member in bent], axis=0)
    assert inert.sum() >= 4  # one or two may seem to act by chance
    acting = [i for i, name in enumerate(model.encoding.names) if not inert[i]]
    model.candidates = np.arange(len(cost))
    for member in model.active():
        member.belief = model.belief_of(member, model.candidates)
    model.chances.watch(model.candidates, model.encoding.rows(made.feasible.codes))
    model.look([])
    best = model.rows[int(np.argmin(model.logs))]
    twins = (made.feasible.codes[:, acting] == made.feasible.codes[best, acting]).all(axis=1)
    twins[list(model.tried)] = False
    assert twins.sum() > 10
    assert model.gain.max() > 0.01
    assert model.gain[twins].max() == 0


def told(means, broken=()):
    """A model of 30 configurations at random, told in order, whose switches are taken for inert; its pool's codes."""
    made, cost = space(2)
    codes, rng = made.feasible.codes, np.random.default_rng(0)
    pool = CandidatePool(made, rng)
    encoding = Encoding(made.knobs, codes)
    model = Surrogate(
        pool, encoding, [h for mean in means(pool, encoding, rng) for h in hypotheses(mean)], DefaultHyper(), rng
    )
    for row in rng.choice(len(cost), 30, replace=False).tolist():
        model.tell(row, float(cost[row]), kept=row not in broken)
    model.update([])
    model.candidates = np.arange(len(cost))
    for member in model.members:
        member.posterior.inert = np.isin(encoding.names, ["d0", "d1"])
    for member in model.active():
        member.belief = model.belief_of(member, model.candidates)
    model.chances.watch(model.candidates, encoding.rows(codes))
    model.look([])
    return model, codes, [i for i, name in enumerate(encoding.names) if name not in ("d0", "d1")]


def twins(codes, acting, model, row):
    alike = (codes[:, acting] == codes[row, acting]).all(axis=1)
    return [i for i in np.flatnonzero(alike) if i not in model.tried]


def test_a_twin_that_a_simulator_predicts_to_be_better_is_worth_an_experiment():
    """What a simulator knows of a knob leaves nothing of it to the residuals, where it is inert."""

    def means(pool, encoding, rng):
        return [of_simulator("s", lambda codes: np.exp(0.2 * codes[:, 0]), pool, encoding, rng)]

    model, codes, acting = told(means)
    best = model.rows[int(np.argmin(np.where(codes[model.rows, 0] == 1, model.logs, np.inf)))]
    better = [i for i in twins(codes, acting, model, best) if codes[i, 0] == 0]
    assert better
    assert model.gain[better].min() > 0


def test_a_twin_of_what_broke_a_constraint_may_keep_it():
    model, codes, acting = told(lambda *_: [])
    best = int(model.rows[int(np.argmin(model.logs))])
    assert model.gain[twins(codes, acting, model, best)].max() == 0
    model, codes, acting = told(lambda *_: [], broken=[best])
    assert model.gain[twins(codes, acting, model, best)].max() > 0


def test_where_only_twins_are_left_nothing_is_expected():
    """Each had luck of its own in the outlook, so that no such session ever settled."""
    model, codes, acting = told(lambda *_: [])
    measured = {tuple(codes[row, acting]) for row in model.rows}
    model.candidates = np.array([i for i in range(len(codes)) if tuple(codes[i, acting]) in measured])
    for member in model.active():
        member.belief = model.belief_of(member, model.candidates)
    model.chances.watch(model.candidates, model.encoding.rows(codes[model.candidates]))
    model.look([])
    assert model.gain.max() == 0
    assert outlook(model, 10, 0.01) == (0.0, 0.0)
