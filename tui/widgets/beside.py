"""Runs slow computations in a thread, so that the screen keeps responding to keys."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from textual.widget import Widget

T = TypeVar("T")
MANY = 5000  # with more experiments, panels are computed in a thread; with fewer it takes only milliseconds
_REST_S = 10.0  # longest pause between two computations in seconds
_ONE_AT_A_TIME = threading.Lock()


class InBackground(Generic[T]):
    """Computes the newest request in a thread, and ignores older ones. After each computation there is a pause of the
    same duration, so that threads use at most half of the time."""

    def __init__(self, widget: Widget, show: Callable[[T], None]) -> None:
        self._widget, self._show = widget, show
        self._next: Callable[[], T] | None = None
        self._busy = False

    def ask(self, compute: Callable[[], T]) -> None:
        self._next = compute
        if not self._busy:
            self._busy = True
            self._widget.run_worker(self._compute, thread=True)

    def _compute(self) -> None:
        compute, self._next = self._next, None
        if compute is None:
            return
        began = time.monotonic()
        with _ONE_AT_A_TIME:
            try:
                found = compute()
            except RuntimeError:  # a new event changed a collection during iteration
                self._next = self._next or compute
                self._widget.call_later(self._rest, 0.1)
                return
        self._widget.call_later(self._answer, found, time.monotonic() - began)

    def _answer(self, found: T, took_s: float) -> None:
        self._show(found)
        self._rest(took_s)

    def _rest(self, seconds: float) -> None:
        self._widget.set_timer(min(seconds, _REST_S), self._go_on)

    def _go_on(self) -> None:
        self._busy = False
        if self._next is not None:
            self.ask(self._next)
