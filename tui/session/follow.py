"""Follows a session on this machine: new events of its journal, and whether its process is still running."""

from pathlib import Path

from kb import journal as journals
from kb import lock
from kb.journal import AnyEvent
from kb.orders import Order, give
from kb.records import AutoscoutError, Job
from tui.hygiene import plain

_AT_ONCE = 2000  # number of events that are read at once, so that the screen stays responsive


class Follower:
    """Reads a journal incrementally: that of a session's folder, or a single file (a recording)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = path.parent
        self.offset = 0

    def more(self) -> list[AnyEvent]:
        """Events since the last call, at most `_AT_ONCE`. Errors: AutoscoutError for a line that is not an event."""
        found: list[AnyEvent] = []
        if not self.path.exists() or self.path.stat().st_size == self.offset:
            return found
        try:
            for event, offset in journals.read(self.path, self.offset, plain=True):
                found.append(event)
                self.offset = offset
                if len(found) == _AT_ONCE:
                    break
        except AutoscoutError:
            if not found:  # events before a damaged line are returned first, and the next call raises
                raise
        return found

    def share(self) -> float:
        """Share of the journal that has been read, in [0, 1]."""
        try:
            size = self.path.stat().st_size
        except OSError:
            return 1.0
        return self.offset / size if size else 1.0

    def everything(self) -> list[AnyEvent]:
        found: list[AnyEvent] = []
        while more := self.more():
            found += more
        return found

    def alive(self) -> bool | None:
        """Whether the session's process is running; None for a recording."""
        owner = self.folder / "owner.lock"
        return lock.is_held(owner) if owner.exists() else None

    def over(self) -> bool:
        """Whether the session has ended, so that no more events will follow."""
        return not self.alive()

    def tail(self, folder: str, lines: int = 30) -> list[str]:
        """The last lines of an experiment's newest log."""
        logs = [p for p in (self.folder / folder).glob("*.log") if p.stat().st_size]
        if not folder or not logs:
            return []
        newest = max(logs, key=lambda p: p.stat().st_mtime)
        with open(newest, "rb") as file:
            file.seek(max(0, newest.stat().st_size - 200 * lines))
            text = plain(file.read().decode(errors="replace"))
        return [line for line in text.splitlines() if line.strip()][-lines:]

    def give(self, order: Order) -> None:
        """Gives an order to the engine. Errors: AutoscoutError."""
        give(self.folder, order)

    def last_words(self) -> str:
        """The last line of the engine's log; "" if the engine ran in a terminal."""
        log = self.folder / "engine.log"
        lines = plain(log.read_text(errors="replace")).strip().splitlines() if log.exists() else []
        return lines[-1].removeprefix("autoscout: ") if lines else ""


def job_of(kb: Path, what: str) -> Job:
    """The job of a session or of a recorded journal. Errors: AutoscoutError."""
    path = journal_of(kb, what)
    first = next((event for event, _ in journals.read(path, plain=True)), None)
    if not isinstance(first, journals.SessionStarted):
        raise AutoscoutError(f"{path}: the file contains no session; name a journal.jsonl that AutoScout wrote", 2)
    return first.job


def journal_of(kb: Path, what: str) -> Path:
    """The path of a journal. `what`: a session's name, a journal's path, or a recording that is shipped with AutoScout.
    Errors: AutoscoutError."""
    if what.endswith(".jsonl"):
        return Path(what)
    from autoscout.job import shipped
    from kb.store import journalled, session_folder

    path = session_folder(kb, what) / "journal.jsonl"
    recorded = shipped.folder() / "recorded" / f"{what}.jsonl"
    if not path.is_file() and recorded.is_file():
        return recorded
    return journalled(kb, what) / "journal.jsonl"
