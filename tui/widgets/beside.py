"""Runs slow computations in a thread, so that the screen keeps responding to keys."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from textual.widget import Widget

T = TypeVar("T")
MANY = 5000  # fewer experiments than this are summed in milliseconds on the screen thread
_REST_S = 10.0  # longest wait between two computations
_ONE_AT_A_TIME = threading.Lock()


class InBackground(Generic[T]):
    """Computes only the newest request; after each computation, waits as long as it took."""

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
            except RuntimeError:  # an event arrived, and a collection grew during iteration
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
