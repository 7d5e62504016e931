"""Ranks beside each other: warm-up, how long to measure, and which one is slow."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from landscape import measured, space_of

from autoscout.running import ranks
from autoscout.running.worker import ending

SPACE = space_of("tiny-gpt-cpu")


def ran(seconds, asked=1, iterations=10, measure_s=100.0):
    """(warm-up, measured) of a run whose iterations take `seconds`, as the worker decides."""
    warmup, found = [], []
    for s in seconds:
        if len(warmup) < asked:
            warmup.append(s)
            continue
        found.append(s)
        if ending.still_warm(found, len(warmup), asked):
            warmup.append(found.pop(0))
        if ending.enough(found, iterations, measure_s):
            break
    return warmup, found


def test_warm_up_lasts_while_times_fall():
    warmup, found = ran([9.0, 4.0, 2.0, *[1.0, 1.1, 0.9, 1.05] * 5])
    assert warmup == [9.0, 4.0, 2.0]
    assert len(found) == 10
    assert ran([1.0] * 20)[0] == [1.0]


def test_what_falls_for_ever_is_measured_all_the_same():
    warmup, found = ran([0.8**i for i in range(40)])
    assert len(warmup) == 6
    assert len(found) == 10


def test_a_quiet_run_is_known_after_few_iterations_and_a_slow_one_ends_with_its_time():
    rng = np.random.default_rng(0)
    assert len(ran(list(np.exp(0.002 * rng.standard_normal(50))))[1]) == 4
    assert len(ran(list(np.exp(0.1 * rng.standard_normal(50))))[1]) == 10
    assert len(ran([5.0] * 50, measure_s=1.0)[1]) == 2
    assert len(ran([1.0] * 50, iterations=20)[1]) == 20  # asked for


@given(st.lists(st.floats(1e-3, 1e3), min_size=40, max_size=40), st.integers(0, 3), st.integers(2, 12))
def test_every_run_ends(seconds, asked, iterations):
    _, found = ran(seconds, asked, iterations)
    assert 2 <= len(found) <= iterations


@given(st.lists(st.floats(1e-3, 1e3), min_size=12, max_size=40), st.integers(0, 3))
def test_of_a_whole_run_the_same_is_warm_up(seconds, asked):
    assert ending.warm_up(seconds, asked) == len(ran(seconds, asked)[0])
    assert ending.warm_up(seconds[: asked + 2], asked) == asked  # two are measured at least


def of(alone, kinds=("cpu",) * 4):
    devices = [f"node1:{kind}:{i}" for i, kind in enumerate(kinds)]
    m = measured(SPACE, SPACE.reference)
    return msgspec.structs.replace(m, per_rank={"alone_s": alone}, rank_devices=devices)


def test_the_rank_that_is_slowed_is_named():
    found = ranks.slowest(of([0.010, 0.011, 0.030, 0.010]))
    assert found is not None
    assert (found.rank, found.times) == (2, pytest.approx(3.0))
    assert "rank 2 (node1:cpu:2), 3.00×" in found.sentence
    assert ranks.slowed(of([0.010, 0.011, 0.030, 0.010])) == found.sentence


def test_a_slower_kind_of_device_is_named_but_is_not_slowed_and_one_that_is_slower_than_its_kind_comes_first():
    kinds = ("A100", "A100", "A40", "A40")
    found = ranks.slowest(of([0.010, 0.010, 0.020, 0.021], kinds))
    assert found is not None
    assert found.rank == 3
    assert ranks.slowed(of([0.010, 0.010, 0.020, 0.021], kinds)) == ""
    throttled = ranks.slowest(of([0.010, 0.016, 0.020, 0.021], kinds))
    assert throttled is not None
    assert throttled.rank == 1


def test_without_ranks_that_say_it_nobody_is_named():
    assert ranks.slowest(of([])) is None
    assert ranks.slowest(of([0.1])) is None
    assert ranks.slowed(of([0.1, 0.1])) == ""
