"""The session that the screens show: its present or an earlier state, and information that is not in its journal.

It is plain data without Textual, which the app updates and the screens draw. Events are applied to the state and not
stored; an earlier state is computed again from the journal.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from autoscout.machine.telemetry import DeviceReading
from kb import journal as journals
from kb.journal import AnyEvent, FidelitySwitched, Steered
from kb.store import default_path
from tui.session.follow import Follower
from tui.session.neighbours import NeighbourSessions
from tui.session.remote import Remote
from tui.session.standing import Standing, standing
from tui.session.state import State

_KEPT_READINGS = 600
_SLICE_S = 0.03  # how long events are applied before keys are handled, in seconds


class Watched:
    def __init__(self, follower: Follower | Remote, kb: Path, ascii_only: bool) -> None:
        self.follower = follower
        self.kb = kb
        self.ascii_only = ascii_only
        self.count = 0  # number of events so far
        self.switched_at: int | None = None  # number of the event of the first fidelity switch
        self.live = State()
        self.past: State | None = None  # an earlier state, shown instead of `live`
        self._folding: State | None = None  # becomes `past` once `cursor` events have been applied to it
        self.cursor = 0  # number of events to apply to the earlier state
        self.folded = 0  # number of events applied to it so far
        self._offset = 0  # offset in the journal after these events
        self.playing = False
        self.alive: bool | None = None  # whether the session's process is running; None for a recording
        self.share = 1.0  # share of the journal that has been read
        self.problem = ""  # why the journal cannot be read
        self.words = ""  # the engine's last message, if the session ended without an end event
        self.tail: list[str] = []  # the end of the running experiment's log
        self.marked: list[str] = []  # ids of configurations to compare
        self.watching_devices = False
        self.elsewhere = isinstance(follower, Remote)  # whether the session runs on another host
        self.readings: dict[str, list[DeviceReading]] = {}
        self.neighbours = NeighbourSessions()
        self.orders: list[str] = []  # orders that the engine has not read yet
        self._kb_hint = "" if kb == default_path() else str(kb)

    @property
    def state(self) -> State:
        return self.live if self.past is None else self.past

    @property
    def standing(self) -> Standing:
        alive = self.alive if self.past is None else None
        return standing(self.state, alive, self.share, self.words, self._kb_hint)

    @property
    def replaying(self) -> bool:
        """Whether an earlier state is shown or being computed."""
        return self._folding is not None

    def take(self, events: Sequence[AnyEvent]) -> list[Steered]:
        """Applies new events; returns the orders that the engine has processed since the last call."""
        at_start = not self.count or self.share < 1.0
        for event in events:
            self.live.apply(event)
            self.count += 1
            if self.switched_at is None and isinstance(event, FidelitySwitched):
                self.switched_at = self.count
        return [] if at_start else [event for event in events if isinstance(event, Steered)]

    def measured(self, readings: dict[str, DeviceReading]) -> None:
        for name, reading in readings.items():
            history = self.readings.setdefault(name, [])
            history.append(reading)
            del history[:-_KEPT_READINGS]

    def mark(self, key: str) -> None:
        self.marked = [k for k in self.marked if k != key] if key in self.marked else [*self.marked, key]

    # ---- the time cursor ---------------------------------------------------------------------------------

    def go(self, at: int) -> None:
        """Requests the state after `at` events, which `catch_up` computes. If this is the end of a session that is
        running or being played, the live state is shown."""
        at = max(0, min(self.count, at))
        if at == self.count and (self.alive or self.playing):
            self.go_live()
            return
        if self._folding is None or at < self.folded:
            self._folding, self.folded, self._offset = State(), 0, 0
        self.cursor = at

    def catch_up(self) -> bool:
        """Applies events for at most `_SLICE_S`; returns whether the state is complete. Errors: AutoscoutError."""
        if self._folding is None:
            return True
        until = time.perf_counter() + _SLICE_S
        for event, after in journals.read(self.follower.path, self._offset, plain=True):
            if self.folded >= self.cursor or time.perf_counter() > until:
                break
            self._folding.apply(event)
            self._offset = after
            self.folded += 1
        else:
            self.cursor = min(self.cursor, self.folded)  # the file was truncated
        if self.folded < self.cursor:
            return False
        self.past = self._folding
        return True

    def go_live(self) -> None:
        self.past, self._folding, self.playing = None, None, False
