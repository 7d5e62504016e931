"""Other activity on this machine: which session uses the devices, and which other sessions run or wait."""

from pathlib import Path

import msgspec

from autoscout.running.cluster.slots import Holder, holder
from kb import journal as journals
from kb import lock
from kb.orders import given
from kb.records import AutoscoutError
from kb.store import is_running, sessions_folder

_TAIL = 20_000  # bytes read from the end of a journal to find its last events


class Neighbour(msgspec.Struct, frozen=True):
    """A running session. `waits_since`: unix time when it began to wait for devices, 0 if it does not wait."""

    session: str
    pid: int
    doing: str
    waits_since: float = 0.0
    waits_for: int = 0  # pid of the process for whose devices it waits


class NeighbourSessions(msgspec.Struct, frozen=True):
    holder: Holder | None = None
    sessions: list[Neighbour] = []


def look(kb: Path) -> NeighbourSessions:
    folder = sessions_folder(kb)
    running = [f for f in sorted(folder.iterdir()) if is_running(f)] if folder.is_dir() else []
    return NeighbourSessions(holder(), [_neighbour(f) for f in running])


def waiting_orders(folder: Path, taken: int) -> list[str]:
    """Orders to a session that its engine has not read yet, as text. `taken`: number of orders that it has read."""
    try:
        orders = given(folder)[taken:]
    except OSError:
        return []
    return [" ".join([order.what, *(f"{n}={v}" for n, v in order.values.items())]) for order in orders]


def _neighbour(folder: Path) -> Neighbour:
    pid = lock.holder(folder / "owner.lock") or 0
    last = _last(folder / "journal.jsonl")
    if isinstance(last, journals.Waiting) and not last.over:
        return Neighbour(folder.name, pid, "waits for the devices", last.at, last.pid)
    if isinstance(last, journals.ExperimentStarted | journals.Waiting):
        name = f"#{last.number} {last.name}" if isinstance(last, journals.ExperimentStarted) else "an experiment"
        return Neighbour(folder.name, pid, f"runs {name}")
    return Neighbour(folder.name, pid, "is computing between two experiments")


def _last(journal: Path) -> journals.AnyEvent | None:
    try:
        size = journal.stat().st_size
        with open(journal, "rb") as file:
            file.seek(max(0, size - _TAIL))
            content = file.read()
        whole = content.rfind(b"\n")
        start = content.rfind(b"\n", 0, whole) + 1
        begin = size - len(content) + start
        found = None
        for event, _ in journals.read(journal, begin, plain=True):
            found = event
        return found
    except (OSError, AutoscoutError):
        return None
