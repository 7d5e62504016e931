"""The chance that a configuration qualifies, piece by piece against its definition: how full a memory is, how far a run
is beyond a bound, what a failure out of memory tells, and what a gain counts at that chance."""

import math
from collections.abc import Mapping

import msgspec
import numpy as np
import pytest
from scipy.stats import norm, truncnorm

from autoscout.search.belief import peaks
from autoscout.search.belief.chances import Chances
from autoscout.search.belief.encoding import Encoding
from autoscout.search.belief.foreseen import MEMORY, Foreseen
from autoscout.search.belief.limits import Limits, beyond
from autoscout.search.belief.peaks import PeakBelief, _censored, _features, _of_devices, failed_for_memory, fullness
from autoscout.search.belief.prior_means import Mean
from autoscout.search.pool import CandidatePool
from autoscout.space.graph import Space
from kb.records import Configuration, Measurement, Objective, Status, Value

SPACE = Space.from_table([{"x": x, "y": y} for x in (1, 2, 4, 8) for y in (1, 2, 4, 8)], [], ["x", "y"])
CODES = SPACE.feasible.codes
ENCODING = Encoding(SPACE.knobs, CODES)
ROWS = ENCODING.rows(CODES)
POOL = CandidatePool(SPACE, np.random.default_rng(0))
NOTHING = Foreseen(POOL, {})


def run(peak: float = math.nan, status: Status = "ok", ranks: tuple[float, ...] = (), **metrics: float) -> Measurement:
    knobs: dict[str, Value] = {"big": 2, "small": 1}
    found = metrics if math.isnan(peak) else {**metrics, "peak_memory_gib": peak}
    return Measurement(
        configuration=Configuration(knobs), name="", context="", status=status, metrics=found, rank_memory_gib=[*ranks]
    )


def bounded(*constraints: str, **capacities: float) -> Space:
    space = Space.from_table([{"x": 1}], [], ["x"], Objective(minimize="s", constraints=[*constraints]))
    space.capacities = capacities
    return space


# ---- memory: what a measurement tells -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("peak", "ranks", "share"),
    [
        (30.0, (10.0, 60.0, 39.0), 39 / 40),  # the small device is the third
        (30.0, (72.0, 60.0, 20.0), 0.9),
        (40.0, (), 1.0),  # fits the small one
        (41.0, (), 41 / 80),
        (96.0, (), 1.2),  # of the largest
        (30.0, (10.0, 60.0), 30 / 40),  # ranks of another layout
    ],
)
def test_the_fullest_device_by_its_own_memory(peak, ranks, share):
    assert _of_devices({"big": 80.0, "small": 40.0}, run(peak, ranks=ranks), peak) == pytest.approx(share)


def test_without_capacities_no_share_is_known():
    assert math.isnan(_of_devices({}, run(), 5.0))
    assert math.isnan(_of_devices({}, run(ranks=(1.0,)), 5.0))
    assert _of_devices({"other": 50.0}, run(), 5.0) == 0.1  # a kind that no knob counts is one device


def test_how_full_a_memory_is():
    space = bounded("peak_memory_gib <= 30", "peak_memory_gib >= 4", "peak_memory_gib <= 0", big=80.0)
    room = math.exp(0.03)
    assert fullness(space, run(33.0)) == pytest.approx(math.log(33 / 30))
    assert fullness(bounded(big=80.0), run(33.0)) == pytest.approx(math.log(room * 33 / 80))
    assert fullness(bounded("peak_memory_gib <= 90", big=80.0), run(40.0)) == pytest.approx(math.log(room * 0.5))
    assert fullness(bounded("peak_memory_gib <= 30"), run(15.0)) == pytest.approx(math.log(0.5))
    assert fullness(bounded("peak_memory_gib <= 0.5"), run(0.25)) == pytest.approx(math.log(0.5))
    assert fullness(space, run(status="oom")) == math.inf
    for unknown in (
        fullness(bounded("peak_memory_gib <= 30"), run(status="oom")),
        fullness(bounded("peak_memory_gib >= 4"), run(15.0)),
        fullness(bounded("peak_memory_gib <= 0"), run(15.0)),
        fullness(bounded("s <= 3"), run(15.0)),
        fullness(space, run()),
        fullness(space, run(0.0)),
    ):
        assert math.isnan(unknown)


def test_what_counts_as_a_failure_for_memory():
    space = bounded("peak_memory_gib <= 30", "s <= 3", big=80.0)
    assert failed_for_memory(space, run(status="oom"), math.inf)
    assert failed_for_memory(space, run(31.0, s=1.0), math.log(31 / 30))
    assert not failed_for_memory(space, run(29.0, s=4.0), math.log(29 / 30))
    assert not failed_for_memory(space, run(31.0, "error"), math.log(31 / 30))


# ---- bounds on other metrics ----------------------------------------------------------------------------------------


def test_how_far_a_run_is_beyond_a_bound():
    objective = Objective(minimize="s", constraints=["a <= 10", "b >= 2", "c <= 0", "peak_memory_gib <= 1", "d <= 5"])
    found = beyond(objective, run(9.0, a=5.0, b=4.0, c=1.0, d=math.inf))
    assert found == pytest.approx({"a <= 10": math.log(0.5), "b >= 2": math.log(0.5)})
    found = beyond(objective, run(9.0, a=30.0, b=1e-9, d=0.0))
    assert found == pytest.approx({"a <= 10": 1.5 * math.tanh(math.log(3) / 1.5), "b >= 2": 1.5})
    assert beyond(objective, run(a=10.0, b=2.0)) == {"a <= 10": 0.0, "b >= 2": 0.0}
    assert beyond(objective, run(a=5.0, status="error")) == {}


def test_several_limits_are_kept_together_as_the_product_of_their_chances():
    both, first, second = Limits(ENCODING, NOTHING), Limits(ENCODING, NOTHING), Limits(ENCODING, NOTHING)
    assert not both.reported
    assert both.chance() == 1.0
    y = np.log2(CODES.sum(axis=1) + 1.0) - 1.7
    for row in (0, 5, 6, 10, 15):
        one, encoded = np.array([row]), ROWS[row : row + 1]
        both.tell(one, encoded, {"a <= 1": float(y[row]), "b <= 1": float(-y[row])})
        first.tell(one, encoded, {"a <= 1": float(y[row])})
        second.tell(one, encoded, {"b <= 1": float(-y[row])})
    assert both.reported
    assert both.stale(1.25)
    for limits in (both, first, second):
        limits.fit()
        limits.watch(np.arange(16), ROWS)
    assert not both.stale(1.25)
    product = np.asarray(first.chance()) * second.chance()
    assert both.chance() == pytest.approx(product)
    both.turn(np.array([3, 1]), np.array([5, 6]), ROWS[5:7])
    assert both.chance() == pytest.approx(product[[3, 1, 5, 6]], abs=1e-4)
    both.tell(np.array([1]), ROWS[1:2], {"a <= 1": 0.1})
    assert not both.stale(1.25)  # of the one six, of the other five
    both.tell(np.array([2]), ROWS[2:3], {"a <= 1": 0.1})
    assert both.stale(1.25)


def test_what_simulators_predict_of_a_bound_is_the_mean_of_its_belief():
    """Told five rows, all are known, since the simulator is off by the same everywhere; without one they are not."""
    rng = np.random.default_rng(0)
    y = rng.normal(0.0, 0.6, 16)
    foreseen = Foreseen(POOL, {"a <= 1": lambda codes: y - 0.3})
    known, unknown = Limits(ENCODING, foreseen), Limits(ENCODING, NOTHING)
    for row in (0, 3, 5, 9, 14):
        for limits in (known, unknown):
            limits.tell(np.array([row]), ROWS[row : row + 1], {"a <= 1": float(y[row])})
    right = {}
    for name, limits in {"known": known, "unknown": unknown}.items():
        limits.fit()
        limits.watch(np.arange(16), ROWS)
        right[name] = (np.asarray(limits.chance()) > 0.5) == (y < 0)
    assert right["known"][abs(y) > 0.1].all()
    assert not right["unknown"].all()
    assert foreseen.within(np.arange(16)).tolist() == np.flatnonzero(y - 0.3 <= 0).tolist()
    assert NOTHING.within(np.arange(16)).tolist() == list(range(16))


def test_what_is_foreseen_stays_within_what_tells_something_and_follows_a_pool_that_grows():
    said = np.array([math.nan, math.inf, -math.inf, 0.5, 9.0, *[0.2] * 11])
    asked: list[int] = []

    def predicted(codes: np.ndarray) -> np.ndarray:
        asked.append(len(codes))
        return said[: len(codes)]

    foreseen = Foreseen(POOL, {MEMORY: predicted, "a <= 1": predicted})
    assert foreseen.of(MEMORY, np.arange(5)).tolist() == [0.2, 3.0, -3.0, 0.5, 3.0]
    foreseen.of(MEMORY, np.arange(3))
    assert asked == [16]
    assert foreseen.of("b <= 1", np.arange(3)).tolist() == [0.0, 0.0, 0.0]
    assert foreseen.within(np.arange(5)).tolist() == [2]
    assert Foreseen(POOL, {MEMORY: predicted}).within(np.arange(5)).tolist() == [0, 1, 2, 3, 4]  # no constraint


# ---- memory: what is learned ----------------------------------------------------------------------------------------


def test_a_censored_row_has_the_moments_of_a_truncated_normal():
    for mean, variance in ((-0.5, 0.3), (0.2, 0.1), (-2.0, 0.5)):
        value, vague = (float(v) for v in _censored(mean, variance))
        softened = variance + 0.02**2  # y > 0 up to an error of 0.02
        total = math.sqrt(softened)
        z = mean / total
        ratio = norm.pdf(z) / norm.cdf(z)
        expected = mean + variance * ratio / total
        left = variance - variance**2 * ratio * (z + ratio) / softened
        precision = 1 / variance + 1 / vague
        assert (mean / variance + value / vague) / precision == pytest.approx(expected, rel=1e-6)
        assert 1 / precision == pytest.approx(left, rel=1e-6)
        exact = truncnorm(-mean / math.sqrt(variance), np.inf, loc=mean, scale=math.sqrt(variance))
        assert expected == pytest.approx(exact.mean(), abs=0.01)
    value, vague = (float(v) for v in _censored(5.0, 0.01))
    assert vague == pytest.approx(1e4, rel=1e-6)  # nothing is learned of what was sure
    assert value == pytest.approx(5.0, abs=1e-6)


def prepared(full: Mapping[int, float]) -> PeakBelief:
    memory = PeakBelief(ENCODING)
    for row, y in full.items():
        memory.tell(ROWS[row : row + 1], y)
    return memory


def posterior_of(memory: PeakBelief, rows: list[int], y: np.ndarray, vague: np.ndarray) -> np.ndarray:
    """(16,) P(y < 0), by the textbook, under the memory's own hyper-parameters."""
    features = _features(memory._way.posterior, ROWS)
    k = memory._way.posterior.kernel(features, features)
    noise = memory._way.posterior.theta.noise**2 + 1e-6
    inverse = np.linalg.inv(k[np.ix_(rows, rows)] + np.diag(vague + noise))
    mean = k[:, rows] @ inverse @ y
    left = np.diag(k) - np.einsum("ij,jk,ik->i", k[:, rows], inverse, k[:, rows])
    return norm.cdf(-mean / np.sqrt(left + noise + 0.02**2))


def test_where_all_ran_the_chance_is_the_regression_s():
    memory = prepared({0: -1.0, 3: -0.2, 12: -0.3, 5: -0.6, 10: 0.05})
    assert memory.reported
    assert memory.chance() == 1.0
    memory.fit()
    assert memory.chance() == 1.0
    memory.watch(ROWS)
    expected = posterior_of(memory, [0, 3, 12, 5, 10], np.array([-1.0, -0.2, -0.3, -0.6, 0.05]), np.zeros(5))
    assert memory.chance() == pytest.approx(expected, abs=2e-3)
    memory.tell(ROWS[9:10], -0.1)  # taken in without a fit
    six = np.array([-1.0, -0.2, -0.3, -0.6, 0.05, -0.1])
    assert memory.chance() == pytest.approx(posterior_of(memory, [0, 3, 12, 5, 10, 9], six, np.zeros(6)), abs=2e-3)
    memory.turn(np.array([7]), ROWS[0:2])
    several = posterior_of(memory, [0, 3, 12, 5, 10, 9], six, np.zeros(6))[[7, 0, 1]]
    assert memory.chance() == pytest.approx(several, abs=2e-3)
    memory.watch(ROWS)  # of the rows of the fit alone, and then again of the sixth
    assert memory.chance() == pytest.approx(posterior_of(memory, [0, 3, 12, 5, 10, 9], six, np.zeros(6)), abs=2e-3)


def test_expectation_propagation_ends_where_every_censored_row_has_its_moments():
    memory = prepared({0: -1.0, 5: -0.4, 10: math.inf, 15: math.inf, 3: -0.3, 11: math.inf})
    memory.fit()
    rows, ran = [0, 5, 10, 15, 3, 11], np.array([True, True, False, False, True, False])
    assert memory._values[ran].tolist() == [-1.0, -0.4, -0.3]
    assert memory._way.vague[ran].tolist() == [0.0, 0.0, 0.0]
    features = _features(memory._way.posterior, ROWS)
    k = memory._way.posterior.kernel(features, features)[np.ix_(rows, rows)] + np.eye(6) * memory._way.noise
    inverse = np.linalg.inv(k + np.diag(memory._way.vague))
    left = 1 / np.diag(inverse)
    mean = memory._values - left * (inverse @ memory._values)
    value, vague = _censored(mean[~ran], (left - memory._way.vague)[~ran])
    assert memory._values[~ran] == pytest.approx(value, abs=0.02)
    assert 1 / memory._way.vague[~ran] == pytest.approx(1 / vague, rel=0.05)
    memory.watch(ROWS)
    expected = posterior_of(memory, rows, memory._values, memory._way.vague)
    expected[[10, 15, 11]] = peaks._AGAIN  # themselves
    assert memory.chance() == pytest.approx(expected, abs=2e-3)
    # One more that ran out is taken in as what it moves the belief of it to.
    before = memory._belief
    assert before is not None
    censored = _censored(*before.expected(_features(memory._way.posterior, ROWS[14:15]), memory._values))
    memory.tell(ROWS[14:15], math.inf)
    y, more = np.append(memory._values, float(censored[0])), np.append(memory._way.vague, float(censored[1]))
    expected = posterior_of(memory, [*rows, 14], y, more)
    expected[[10, 15, 11, 14]] = peaks._AGAIN
    assert memory.chance() == pytest.approx(expected, abs=2e-3)


def test_a_first_sweep_stands_alone_and_later_ones_are_damped(monkeypatch):
    """Three tenths of what stood there before are kept, of means and precisions alike."""
    memory = prepared({0: -1.0, 5: -0.4, 10: math.inf})
    rows = ROWS[np.array([0, 5, 10])]
    features = _features(memory._way.posterior, rows)
    k = memory._way.posterior.kernel(features, features) + np.eye(3) * memory._way.noise
    y, vague, kept = np.array([-1.0, -0.4, 0.0]), np.array([0.0, 0.0, 1e4]), 0.0
    for sweeps in (1, 2, 3):
        inverse = np.linalg.inv(k + np.diag(vague))
        left = 1 / inverse[2, 2]
        value, variance = (float(v) for v in _censored(y[2] - left * (inverse @ y)[2], left - vague[2]))
        precision = (1 - kept) / variance + kept / vague[2]
        y[2] = ((1 - kept) * value / variance + kept * y[2] / vague[2]) / precision
        vague[2], kept = 1 / precision, 0.3
        monkeypatch.setattr(peaks, "_SWEEPS", sweeps)
        monkeypatch.setattr(peaks, "_SETTLED", 0.0)
        memory._settle(memory._way, rows)
        assert memory._way.values == pytest.approx(y)
        assert memory._way.vague == pytest.approx(vague)


def test_what_simulators_predict_of_memories_is_heeded_where_it_proves_right_and_else_not():
    rng = np.random.default_rng(0)
    truth = rng.normal(-0.2, 0.5, 16)
    told = [0, 3, 5, 9, 14]
    for predicted, heeded in ((truth + 0.3, True), (rng.permutation(truth), False)):
        memory = PeakBelief(ENCODING, foreseen=True)
        for row in told:
            y = truth[row] if truth[row] < 0 else math.inf
            memory.tell(ROWS[row : row + 1], y, predicted[row])
        memory.fit()
        memory.watch(ROWS, predicted)
        found = np.asarray(memory.chance())
        assert (memory._way.heeds == 1) is heeded
        others = np.setdiff1d(np.flatnonzero(abs(truth) > 0.1), told)
        right = (found[others] > 0.5) == (truth[others] < 0)
        assert right.all() if heeded else not right.all()
        memory.turn(np.array([7]), ROWS[:2], predicted[:2])
        assert memory.chance() == pytest.approx(found[[7, 0, 1]], abs=2e-3)
        memory.tell(ROWS[7:8], truth[7] if truth[7] < 0 else math.inf, predicted[7])
        assert (np.asarray(memory.chance())[0] > 0.5) == (truth[7] < 0)


def test_a_memory_that_was_told_nothing_knows_nothing():
    memory = PeakBelief(ENCODING)
    assert not memory.reported
    assert not memory.stale(1.25)
    memory.fit()
    memory.watch(ROWS)
    memory.turn(np.array([0]), ROWS[:1])
    assert memory.chance() == 1.0
    memory.tell(ROWS[:1], math.inf)
    assert not memory.reported  # it ran out: no peak was reported
    assert memory.stale(1.25)
    memory.fit()
    assert not memory.stale(1.25)


def test_of_very_many_rows_those_nearest_to_the_limit_are_kept(monkeypatch):
    full = {0: -0.1, 1: 0.5, 2: -0.9, 3: math.inf, 4: 0.3, 5: -0.2, 6: 0.05, 7: -0.6}
    memory = prepared(full)
    assert memory._nearest().tolist() == [3, 6, 0, 5, 4, 1, 7, 2]
    monkeypatch.setattr(peaks, "_HELD", 6)
    memory.fit()
    assert memory._full == list(full.values())  # 8 = 6 · 4 / 3 are kept whole
    memory.tell(ROWS[8:9], 0.4)
    memory.fit()
    assert memory._full == [-0.1, math.inf, 0.3, -0.2, 0.05, 0.4]
    assert len(memory._rows) == 6
    assert not memory.stale(1.1)


def test_the_first_fit_may_take_more_steps_than_later_ones(monkeypatch):
    taken: list[int] = []
    memory = prepared({0: -0.1, 5: -0.5})
    fit = memory._way.posterior.fit
    monkeypatch.setattr(memory._way.posterior, "fit", lambda *given: (taken.append(given[5]), fit(*given))[1])
    memory.fit()
    memory.fit()
    many = prepared({row: -0.1 * row for row in range(4)})
    monkeypatch.setattr(peaks, "_FITTED", 3)
    fitted_on: list[int] = []
    fit_many = many._way.posterior.fit
    monkeypatch.setattr(
        many._way.posterior, "fit", lambda *g: (taken.append(g[5]), fitted_on.append(len(g[1])), fit_many(*g))[2]
    )
    many.fit()
    as_many = prepared({row: -0.1 * row for row in range(3)})
    fit_three = as_many._way.posterior.fit
    monkeypatch.setattr(as_many._way.posterior, "fit", lambda *given: (taken.append(given[5]), fit_three(*given))[1])
    as_many.fit()
    assert taken == [30, 10, 10, 30]
    assert fitted_on == [3]


# ---- all together ---------------------------------------------------------------------------------------------------


def foreseeing(fails: dict[int, float], foresees: bool = True) -> Mean:
    said = np.zeros(16, dtype=np.float32)
    said[list(fails)] = list(fails.values())
    return Mean("it", np.zeros((16, 0)), fails=said, foresees=foresees)


def tell(chances: Chances, row: int, ran: bool, full=math.nan, for_memory=False, over: dict | None = None) -> None:
    chances.tell(row, ROWS[row : row + 1], ran, full, for_memory, over or {})


def test_a_predicted_failure_runs_one_time_in_ten_until_experience_says_otherwise():
    rows = np.arange(16)
    chances = Chances(ENCODING, [foreseeing({2: 1.0, 3: 1.0, 4: 0.5}), foreseeing({5: 1.0}, False)], 0.0, NOTHING)
    assert chances.fails == 0.0
    chances.watch(rows, ROWS)
    expected = np.ones(16)
    expected[[2, 3]], expected[4] = 0.1, 1 - 0.5 * 0.9
    assert chances.chance(rows, np.ones(16)) == pytest.approx(expected)
    tell(chances, 2, True)  # ran after all: (1 + 0.5) / (1 + 5)
    expected[[2, 3]], expected[4] = 0.25, 1 - 0.5 * 0.75
    assert chances.chance(rows, np.ones(16)) == pytest.approx(expected)
    tell(chances, 4, True)  # as likely to run as not: says nothing of predicted failures
    assert chances._despite == [0, 1]
    tell(chances, 3, False, full=math.inf, for_memory=True)
    assert chances._despite == [1, 1]
    silent = Chances(ENCODING, [foreseeing({5: 1.0}, False)], 0.0, NOTHING)
    silent.watch(rows, ROWS)
    assert silent.chance(rows, np.ones(16)) == pytest.approx(np.ones(16))
    assert Chances(ENCODING, [Mean("it", np.zeros((16, 0)), foresees=True)], 0.0, NOTHING)._forecast(rows) is None


def test_of_two_forecasts_the_worse_counts_and_both_are_hints():
    chances = Chances(ENCODING, [foreseeing({2: 1.0}), foreseeing({2: 0.5, 3: 0.5})], 0.0, NOTHING)
    forecast, hints = chances._forecast(np.array([2, 3, 4])), chances._hints(np.array([2, 3, 4]))
    assert forecast is not None
    assert forecast.tolist() == [1.0, 0.5, 0.0]
    assert hints is not None
    assert hints.tolist() == [[1.0, 0.5], [0.0, 0.5], [0.0, 0.0]]
    widened = chances._for_memory(np.array([2, 3]), ROWS[2:4])
    assert widened.points.tolist() == ROWS[2:4].points.tolist()
    assert widened.effects.tolist() == np.hstack([ROWS[2:4].effects, [[1.0, 0.5], [0.0, 0.5]]]).tolist()
    plain = Chances(ENCODING, [], 0.0, NOTHING)
    same = ROWS[2:4]
    assert plain._for_memory(np.array([2, 3]), same) is same


def test_what_is_told_goes_to_the_belief_that_it_concerns():
    chances = Chances(ENCODING, [], 0.0, NOTHING)
    tell(chances, 0, True, full=-0.5)
    tell(chances, 1, False, full=math.inf, for_memory=True)  # says nothing of other failures
    tell(chances, 2, False, over={"a <= 1": 0.2})  # broke a bound: it ran
    tell(chances, 3, False, over={"a <= 1": 0.0})  # kept it, and failed otherwise
    tell(chances, 4, False)
    assert chances.memory._full == [-0.5, math.inf]
    assert chances.limits._of["a <= 1"]._full == [0.2, 0.0]
    assert chances.feasibility._ran.tolist() == [True, True, False, False]
    assert chances.stale(1.25)
    chances.fit()
    chances.fit_bounds()
    assert not chances.stale(1.25)
    rows = np.arange(16)
    chances.watch(rows, ROWS)
    found = chances.chance(rows, np.ones(16))
    product = np.asarray(chances.memory.chance()) * chances.limits.chance() * chances.feasibility.chance(np.ones(16))
    assert found == pytest.approx(product)
    assert found.max() < 1.0
    chances.turn(np.array([8, 3]), np.array([0, 15]), ROWS[np.array([0, 15])])
    assert chances.chance(rows[:4], np.ones(4)) == pytest.approx(found[[8, 3, 0, 15]], abs=5e-3)


def test_a_gain_counts_by_the_chance_and_by_the_budget_of_failures():
    gain, runs = np.array([1.0, 2.0, 3.0]), np.array([1.0, 0.8, 0.79])
    plain = Chances(ENCODING, [], 0.0, NOTHING)
    plain.fails = 0.5  # of the space: 0.4 times that may fail, two of ten
    squared = gain * runs**2
    for failed, exponent in ((0, 2), (2, 2), (3, 4), (4, 8), (5, 16), (6, 32), (9, 32)):  # doubled by each one beyond
        assert plain.weighed(gain, runs, tried=10, failed=failed) == pytest.approx(gain * runs**exponent)
    assert plain.weighed(gain, runs, tried=20, failed=5) == pytest.approx(gain * runs**4)
    allowed = Chances(ENCODING, [], 0.3, NOTHING)
    assert allowed.weighed(gain, runs, tried=10, failed=3) == pytest.approx(squared)
    assert allowed.weighed(gain, runs, tried=10, failed=4) == pytest.approx(gain * runs**4)
    # Where runs report their memory, one more may fail, and beyond the budget it must be surer.
    reporting = Chances(ENCODING, [], 0.0, NOTHING)
    reporting.fails = 0.5
    tell(reporting, 0, True, -0.5)
    for failed, exponent in ((3, 2), (4, 4), (5, 8), (8, 64), (11, 512), (15, 512)):
        found = reporting.weighed(gain, runs, tried=10, failed=failed)
        assert found == pytest.approx(gain * runs**exponent, rel=1e-9)
    # Where they report how near they are to another bound, what is less likely to keep it comes last.
    surer = np.array([1.0, 0.95, 0.94])
    careful = gain * surer**6 * [1, 1, 1e-3] + [1e-5, 1e-5, 0]
    for fails, may in ((0.4, 4), (0.1, 1)):
        reporting = Chances(ENCODING, [], 0.0, NOTHING)
        reporting.fails = fails
        tell(reporting, 0, True, math.nan, over={"a <= 1": -0.5})
        assert reporting.weighed(gain, surer, tried=20, failed=may) == pytest.approx(gain * surer**2)
        assert reporting.weighed(gain, surer, tried=20, failed=may + 1) == pytest.approx(careful, rel=1e-9)


def test_the_risk_of_what_is_foreseen_and_of_what_needs_as_much_as_one_that_ran_out():
    y = np.linspace(-0.6, 0.2, 16)
    known = Chances(ENCODING, [], 0.0, Foreseen(POOL, {MEMORY: lambda codes: y[: len(codes)]}))
    rows = np.arange(16)
    expected = -2 * norm.logcdf(-y / 0.12)
    assert known.risk(rows) == pytest.approx(expected)
    known.tell(9, ROWS[rows[9:10]], False, math.inf, True, {})
    known.tell(2, ROWS[rows[2:3]], True, -0.5, False, {})
    assert known.risk(rows) == pytest.approx(expected + np.where(rows >= 9, 1e3, 0.0))
    assert Chances(ENCODING, [], 0.0, NOTHING).risk(rows).tolist() == [0.0] * 16


def test_what_ran_out_of_memory_does_so_again_however_its_batches_are_read():
    """Of two knobs one is of how batches are read: what died with one of its values was tried with the others, too."""
    knobs = [msgspec.structs.replace(k, layer="data", name="workers") if k.name == "y" else k for k in SPACE.knobs]
    encoding = Encoding(knobs, CODES)
    rows, every = encoding.rows(CODES), np.arange(16)
    x = SPACE.feasible.codes[:, [k.name for k in SPACE.knobs].index("x")]
    known = Chances(encoding, [], 0.0, NOTHING)
    known.tell(0, rows[every[:1]], False, math.inf, True, {})
    ran = int(np.flatnonzero(x != x[0])[0])
    known.tell(ran, rows[every[ran : ran + 1]], True, -0.5, False, {})
    known.fit_bounds()
    known.watch(every, rows)
    fits = known.chance(every, np.ones(16))
    assert (fits[x == x[0]] <= 1e-3).all()
    assert (fits[x == x[ran]] > 0.9).all()
