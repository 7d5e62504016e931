"""Resumes a session by making all its decisions again, with the journal's results in place of experiments.

The engine is deterministic, so the decisions must be those that the journal records. The tape checks this event by
event, returns recorded results, and writes new events once all recorded ones have been passed.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

import msgspec

from kb import dates
from kb.journal import (
    Answered,
    AnyEvent,
    Confirmed,
    Decided,
    Event,
    ExperimentEnded,
    ExperimentStarted,
    Journal,
    SessionEnded,
    SessionResumed,
    Simulated,
    Waiting,
    WarmStartWorth,
)
from kb.records import AutoscoutError, Configuration

E = TypeVar("E", bound=Event)
_AGAIN = ("anchor", "repeat", "confirm")  # purposes of re-measurements


class Tape:
    def __init__(self, journal: Journal, past: list[AnyEvent], on_event: Callable[[Event], None]) -> None:
        """`past`: the journal's events so far; `on_event` is called with every new event at once. A verdict that was
        followed by a resume with a longer time limit is skipped, because the final rounds continued then."""
        self._journal = journal
        longer = max((n for n, e in enumerate(past) if isinstance(e, SessionResumed) and e.wall), default=0)
        self._past = deque(
            e
            for n, e in enumerate(past)
            if not isinstance(e, SessionResumed | SessionEnded | Waiting | WarmStartWorth)
            and not (isinstance(e, Confirmed) and n < longer)
        )
        self._on_event = on_event
        self.measured_again = any(isinstance(e, ExperimentStarted) and e.purpose in _AGAIN for e in past)
        self._unwritten: list[Event] = []
        self._began = time.monotonic()
        self._began_at = max(dates.now(), max((e.at for e in past), default=0.0))

    @property
    def replaying(self) -> bool:
        return bool(self._past)

    def now(self) -> float:
        """Unix time, which never decreases: read when the session began or was resumed, then advanced monotonically."""
        return self._began_at + time.monotonic() - self._began

    def next_is(self, kind: type[Event]) -> bool:
        return bool(self._past) and isinstance(self._past[0], kind)

    def emit(self, event: E, *, write: bool = False, sync: bool = False) -> E:
        """Journals a new event, or during replay checks that it is the next recorded event. With `write` all events so
        far are written before this returns, with `sync` they are also on disk; other events may stay in memory, because
        a resumed session can recompute them."""
        if self._past:
            recorded = self._past.popleft()
            if _decision(recorded) != _decision(event):
                raise AutoscoutError(
                    "this session was written by a version of AutoScout that decided differently, so it cannot be "
                    "resumed; start the job anew: finished experiments are then taken from the knowledge base"
                )
            return recorded  # type: ignore[return-value]
        event = msgspec.structs.replace(event, at=self.now())
        self._unwritten.append(event)
        if write or sync:
            written, self._unwritten = self._unwritten, []
            self._journal.append(*written, sync=sync)
        self._on_event(event)
        return event

    def next_is_of(self, arm: str) -> bool:
        """Whether the next recorded event is a decision of this bandit arm."""
        return bool(self._past) and isinstance(found := self._past[0], Decided) and found.arm == arm

    def peek(self, kind: type[E], configuration: Configuration) -> E | None:
        """The next recorded event, without taking it, if it is of this kind and about this configuration."""
        found = self.next_is(kind) and _about(self._past[0]) == configuration.id
        return self._past[0] if found else None  # type: ignore[return-value]

    def ended(self) -> ExperimentEnded | None:
        """The next recorded event, without taking it, if it is the end of an experiment."""
        found = self._past[0] if self._past else None
        return found if isinstance(found, ExperimentEnded) else None

    def recorded(self, kind: type[E], configuration: Configuration | None = None) -> E | None:
        """Takes the next recorded event if it is of this kind (and about this configuration)."""
        if not self.next_is(kind):
            return None
        if configuration is not None and _about(self._past[0]) != configuration.id:
            return None
        return self._past.popleft()  # type: ignore[return-value]


def _about(event: Event) -> str | None:
    if isinstance(event, ExperimentStarted | Simulated):
        return event.configuration.id
    if isinstance(event, ExperimentEnded | Answered):
        return event.measurement.configuration.id
    return None


def _decision(event: Event) -> tuple[object, ...]:
    """The part of an event that must be equal on replay, which excludes times."""
    if isinstance(event, Decided):
        return "decided", event.arm, tuple(c.id for c in event.configurations)
    return type(event).__name__, _about(event)
