"""A search that exists only as a loop that calls a cost function, turned inside out: a coroutine that yields what the
loop wants to know.

The loop runs in a thread of its own, and only one of the two runs at a time. Python's and NumPy's global generators of
random numbers are the loop's while it runs, from a seed, and what they were before while it waits: a loop that draws
from them does the same with the same seed, and disturbs nobody else.
"""

import random
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

import numpy as np

from autoscout.search.sequential import Search

Measure = Callable[[int], float | None]  # a row → what it costs (None: failed)


class _Ended(BaseException):
    """Raised in a loop that nobody will answer any more; no Exception, so that its own handlers let it pass."""


def inside_out(loop: Callable[[Measure], None], seed: int) -> Search:
    """Ends when the loop ends, with the loop's error if there is one; closed, it ends the loop."""
    asked: SimpleQueue[int | None] = SimpleQueue()  # None: the loop is over
    told: SimpleQueue[float | type[_Ended] | None] = SimpleQueue()
    errors: list[BaseException] = []

    def measure(row: int) -> float | None:
        asked.put(row)
        found = told.get()
        if isinstance(found, type):
            raise found
        return found

    def whole() -> None:
        try:
            loop(measure)
        except BaseException as error:  # raised again where the rows are asked for
            errors.append(error)
        asked.put(None)

    thread = threading.Thread(target=whole, daemon=True)
    lent, go_on = _Lent(seed), thread.start
    try:
        while True:
            with lent:
                go_on()
                row = asked.get()
            if row is None:
                break
            go_on = partial(told.put, (yield row))
    finally:
        told.put(_Ended)
        thread.join()
    if errors:
        raise errors[0]


class _Lent:
    """The global generators of random numbers, lent to one who has a state of his own."""

    def __init__(self, seed: int) -> None:
        self._state = random.Random(seed).getstate(), np.random.RandomState(seed).get_state()

    def __enter__(self) -> None:
        self._swap()

    def __exit__(self, *_: object) -> None:
        self._swap()

    def _swap(self) -> None:
        theirs = random.getstate(), np.random.get_state()
        random.setstate(self._state[0])
        np.random.set_state(self._state[1])
        self._state = theirs
