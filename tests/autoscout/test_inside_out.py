"""Loops that call a cost function, as coroutines."""

import random
import threading

import numpy as np
import pytest

from autoscout.studies.rivals.inside_out import inside_out


def drawn(measure) -> None:
    for _ in range(3):
        measure(random.randrange(1000) + 1000 * int(np.random.randint(1000)))


def asked(seed: int, between=lambda: None) -> list[int]:
    found = []
    for row in inside_out(drawn, seed):
        found.append(row)
        between()
    return found


def test_what_the_loop_asks_is_yielded_and_what_is_sent_is_what_it_hears():
    heard: list[float | None] = []

    def loop(measure) -> None:
        heard.extend(measure(row) for row in (4, 2, 4))

    search = inside_out(loop, 0)
    assert [next(search), search.send(1.5), search.send(None)] == [4, 2, 4]
    with pytest.raises(StopIteration):
        search.send(0.5)
    assert heard == [1.5, None, 0.5]


def test_a_loop_draws_the_same_with_the_same_seed_whatever_is_drawn_beside_it():
    def noise() -> None:
        random.random()
        np.random.random()

    assert asked(3) == asked(3, noise)
    assert asked(3) != asked(4)


def test_who_draws_beside_a_loop_is_not_disturbed():
    states = []
    for seed in (1, 2):
        random.seed(9)
        np.random.seed(9)
        asked(seed, lambda: states.append((random.random(), np.random.random())))
    assert states[:3] == states[3:]


def test_the_error_of_a_loop_is_raised_where_it_is_asked():
    def loop(measure) -> None:
        raise ValueError(measure(1))

    search = inside_out(loop, 0)
    assert next(search) == 1
    with pytest.raises(ValueError, match=r"2\.5"):
        search.send(2.5)


def test_a_loop_that_nobody_asks_any_more_ends_with_its_thread_even_if_it_survives_exceptions():
    before, ended = threading.active_count(), []

    def loop(measure) -> None:
        try:
            while True:
                try:
                    measure(0)
                except Exception:  # as strategies do that end by an exception of their own
                    continue
        finally:
            ended.append(True)

    closed, dropped = inside_out(loop, 0), inside_out(loop, 0)
    assert next(closed) == next(dropped) == 0
    assert threading.active_count() == before + 2
    closed.close()
    del dropped
    assert ended == [True, True]
    assert threading.active_count() == before
