"""Reads the session's journal and this machine's devices for the screens in threads, because disks may be slow."""

import time
from collections.abc import Callable

from textual.message import Message
from textual.worker import get_current_worker

from autoscout.machine.telemetry import DeviceReading, Meter
from kb.journal import AnyEvent
from kb.records import AutoscoutError
from tui.session.neighbours import NeighbourSessions, look, waiting_orders
from tui.session.watched import Watched

TICK_S = 0.25
_AHEAD = 6000  # largest number of events that are read but not yet applied to the state, to limit memory


class Read(Message):
    """New events of the journal, whether the session's process runs, and the end of the running experiment's log."""

    def __init__(self, alive: bool | None) -> None:
        super().__init__()
        self.events: list[AnyEvent] = []
        self.alive = alive
        self.tail: list[str] = []
        self.problem = ""
        self.words = ""  # the engine's last output, if its session ended without an end event
        self.share = 1.0


class Measured(Message):
    """New readings of this machine's devices, its sessions, and orders that the engine has not read yet."""

    def __init__(self, readings: dict[str, DeviceReading], neighbours: NeighbourSessions, orders: list[str]) -> None:
        super().__init__()
        self.readings, self.neighbours, self.orders = readings, neighbours, orders


def follow(session: Watched, post: Callable[[Message], object]) -> None:
    """Reads the journal repeatedly and posts new events."""
    worker, previous, given = get_current_worker(), None, 0
    while not worker.is_cancelled:
        if given - session.count > _AHEAD:
            time.sleep(0.01)
            continue
        read = _read(session)
        given += len(read.events)
        if read.events or (read.alive, read.tail, read.problem) != previous:
            previous = read.alive, read.tail, read.problem
            post(read)
        if read.share >= 1.0 or not read.events:
            time.sleep(TICK_S)


def _read(session: Watched) -> Read:
    read = Read(alive=session.alive)
    live, follower = session.live, session.follower
    try:
        read.alive = follower.alive()  # before the following calls, which may fail
        read.events = follower.more()
        read.share = follower.share() if read.events else 1.0
        running = [run for run in list(live.running.values()) if run.folder]
        read.tail = follower.tail(running[-1].folder) if running else []
        if read.alive is False and (live.ended is None or live.ended.reason == "failed"):
            read.words = follower.last_words()
    except (AutoscoutError, OSError) as error:
        read.problem = str(error)
    return read


def measure(session: Watched, post: Callable[[Message], object]) -> None:
    """Reads the devices once a second while the screen that shows them is open."""
    worker, meter = get_current_worker(), Meter()
    while not worker.is_cancelled:
        if session.watching_devices:
            orders = waiting_orders(session.follower.folder, len(session.live.orders)) if session.alive else []
            post(Measured(meter.read(), look(session.kb), orders))
        time.sleep(1.0)
