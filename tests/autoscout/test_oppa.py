"""OPPA as a rival: what its analytic means are made of, what it draws at random, and what it takes from failures."""

import numpy as np
import pytest

from autoscout.search.sequential import Pool, Sequential
from autoscout.space.graph import Space
from autoscout.studies.rivals.oppa import _in_turn, _Informed, _Mean, _overflows, _promise, _Sizes, oppa
from kb.records import Configuration, Measurement, Objective, Value

ROWS: list[dict[str, Value]] = [
    {"tp": tp, "pp": pp, "dp": 8 // (tp * pp), "mbs": mbs, "vpp": vpp, "flag": flag}
    for tp in (1, 2, 4, 8)
    for pp in (1, 2, 4, 8)
    if tp * pp <= 8
    for mbs in (1, 2, 4)
    for vpp in ((1, 2) if pp > 1 else (1,))
    for flag in (False, True)
]
SPACE = Space.from_table(ROWS, ["tp", "pp", "dp", "flag"], ["mbs", "vpp"], Objective(minimize="s"))
NARROW = Space.from_table(
    ROWS, ["tp", "pp", "dp", "flag"], ["mbs", "vpp"], Objective(minimize="s", constraints=["peak_memory_gib <= 10"])
)


def pool(space: Space = SPACE) -> Pool:
    return Pool(space, Configuration(ROWS[0]))


def row_of(space: Space = SPACE, **knobs: Value) -> int:
    row = space.feasible.index(Configuration({"flag": False, "vpp": 1, **knobs}))
    assert row is not None
    return row


def terms(sizes: _Sizes, row: int, trial: int = 0) -> list[float]:
    mean = sizes.throughput(trial)
    assert mean is not None
    return mean.terms[row].tolist()


def test_time_on_one_host_is_computation_all_reduces_sends_and_a_rest():
    sizes = _Sizes(pool())  # the batch is taken for the largest dp · mbs: 32
    row = row_of(tp=2, pp=2, dp=2, mbs=2, vpp=2)
    assert (sizes.batches[row], sizes.chunks[row], sizes.devices[row], sizes.hosts[row]) == (8, 2, 8, 1)
    assert terms(sizes, row) == [(8 + 1 / 2) / 8, 1.0, 0.5, 8.0, 0.5, 16.0, 1.0]
    flat = row_of(tp=4, pp=1, dp=2, mbs=1)  # without a pipeline the batch is one
    assert terms(sizes, flat) == [1 / 8, 1.0, 0.5, 2.0, 0.75, 1.0, 1.0]
    memory = sizes.memory(0)
    assert memory is not None
    assert memory.terms[row].tolist() == [1 / 4, 1 / 64, 1.0]


def test_between_hosts_collectives_have_coefficients_of_their_own_that_fade():
    sizes = _Sizes(pool())
    sizes.hosts = np.full(len(sizes.tp), 4)  # of two devices
    row = row_of(tp=1, pp=2, dp=4, mbs=2)
    assert sizes.batches[row] == 4
    assert terms(sizes, row) == [
        (4 + 1) / 4, 0.0,  # computation; what communication fades to
        2.0, 0.5, 2.0, 0.5,  # data parallel within a host of two, and between two hosts
        0.0, 0.0, 0.0, 0.0,
        0.0, 8.0,  # sends
    ]  # fmt: skip
    wide = row_of(tp=4, pp=1, dp=2, mbs=1)
    assert terms(sizes, wide)[2:] == [0.0, 0.0, 2.0, 0.125, 0.0, 0.0, 6.0, 0.75, 0.0, 0.0]
    assert terms(sizes, row, 20) == pytest.approx([5 / 4, 1.0, *[0.0] * 10], abs=1e-9)
    assert terms(sizes, row, 30)[:2] == [5 / 4, 1.0]


@pytest.mark.parametrize("capped", [False, True])
def test_a_mean_is_fitted_to_what_was_measured(capped):
    rng = np.random.default_rng(0)
    at = rng.uniform(0.1, 1, (30, 3))
    mean, true = _Mean(at, np.zeros(3), capped), np.log([0.3, 0.5, 0.2])
    rows = np.arange(15)
    found = mean.fitted(rows, mean.at(rows, true), mean.start)
    held_out = np.arange(15, 30)
    assert mean.at(held_out, found) == pytest.approx(mean.at(held_out, true), rel=0.02, abs=0.01)
    values, slopes = mean._values(at, true)
    more = mean._values(at * (1 + 1e-6), true)[0]
    assert (more - values) / (1e-6 * (at @ np.exp(true))) == pytest.approx(slopes, rel=1e-4, abs=1e-6)


def test_an_overflow_never_exceeds_what_a_failure_counts_as():
    mean = _Mean(np.array([[0.5], [1.0], [50.0]]), np.zeros(1), capped=True)
    assert mean.at(np.arange(3), mean.start) == pytest.approx([-0.5, 0.0, 0.2], abs=0.002)


def test_the_first_are_the_reference_and_five_parallelisms_at_random():
    asked: list[Configuration] = []
    chosen = Sequential("oppa", oppa, SPACE, Configuration(ROWS[0]), 3)
    for _ in range(6):
        [c] = chosen.ask()
        asked.append(c)
        chosen.tell([Measurement(configuration=c, name="", context="", status="ok", metrics={"s": 1.0})])
    assert asked[0].knobs == ROWS[0]
    assert len({(c.knobs["tp"], c.knobs["pp"]) for c in asked[1:]}) == 5


def test_each_parallelism_has_its_turn_before_one_comes_again():
    made = pool()
    turns = _in_turn(made, _Sizes(made), np.random.default_rng(0))
    plans = [(k["tp"], k["pp"]) for k in (made.space.feasible.configuration(next(turns)).knobs for _ in range(20))]
    assert len({*plans[:10]}) == len({*plans[10:]}) == 10


def test_memory_is_a_share_beyond_the_limit_and_a_fifth_where_it_is_not_known():
    def overflows(space: Space, *told: tuple[str, dict[str, float]]) -> list[float]:
        made = Sequential("mine", _one_by_one, space, Configuration(ROWS[0]), 0)
        for status, metrics in told:
            [c] = made.ask()
            made.tell([Measurement(configuration=c, name="", context="", status=status, metrics=metrics)])  # type: ignore[arg-type]
        return _overflows(made.pool)[1].tolist()

    peaks = [("ok", {"s": 1.0, "peak_memory_gib": peak}) for peak in (8.0, 12.0)]
    assert overflows(NARROW, *peaks, ("oom", {}), ("error", {})) == pytest.approx([-0.2, 0.2, 0.2, 0.2])
    assert overflows(NARROW, ("ok", {"s": 1.0, "peak_memory_gib": 5.0})) == pytest.approx([-0.5])
    assert overflows(SPACE, ("ok", {"s": 1.0}), ("oom", {})) == [-0.2, 0.2]


def _one_by_one(pool: Pool, rng: np.random.Generator):
    yield from np.flatnonzero(pool.open).tolist()


def test_a_promise_is_the_upper_bound_times_the_chance_to_fit():
    class Said(_Informed):
        def __init__(self, mean: list[float], sd: float) -> None:
            self.said = np.array(mean), np.full(len(mean), sd)

        def predict(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return self.said[0][rows], self.said[1][rows]

    rows = np.array([0, 2])
    speed = Said([1.0, 2.0, 3.0], 0.5)
    assert _promise(speed, None, rows).tolist() == [1.5, 3.5]
    assert _promise(speed, Said([0.0, 0.0, 0.1], 0.1), rows) == pytest.approx([0.75, 3.5 * 0.158655], rel=1e-5)


def test_it_finds_the_best_of_what_its_mean_describes_within_few_trials():
    """Throughput by its own formula, where a flag costs a tenth: the best of 84 within 20 trials."""
    sizes = _Sizes(pool())
    mean = sizes.throughput(0)
    assert mean is not None
    flag = SPACE.feasible.columns(SPACE.feasible.codes)["flag"].astype(float)
    seconds = (1 + 0.1 * flag) / mean.at(np.arange(len(flag)), np.log([0.5, 0.05, 0.3, 0.02, 0.2, 0.01, 0.1]))
    chosen = Sequential("oppa", oppa, SPACE, Configuration(ROWS[0]), 0)
    for _ in range(20):
        [c] = chosen.ask()
        cost = float(seconds[SPACE.feasible.index(c)])
        chosen.tell([Measurement(configuration=c, name="", context="", status="ok", metrics={"s": cost})])
    best = chosen.recommend()
    assert best is not None
    assert seconds[SPACE.feasible.index(best)] == seconds.min()
