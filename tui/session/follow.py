"""Follows the journal of a session: what is new in it, and whether somebody still writes to it."""

from pathlib import Path

from kb import journal as journals
from kb import lock
from kb.journal import AnyEvent
from kb.orders import Order, give
from kb.records import AutoscoutError, Job
from tui.hygiene import plain

_AT_ONCE = 2000  # events per slice, so that the screen stays responsive


class Follower:
    """Reads one journal forward. `folder` is the session's; a bare journal file is a recording."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = path.parent
        self.offset = 0

    def more(self) -> list[AnyEvent]:
        """Events since the last call, `_AT_ONCE` at most. Errors: AutoscoutError for a line that is no event."""
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
            if not found:  # what stands before a damaged line counts; the next call says what is wrong
                raise
        return found

    def share(self) -> float:
        """How much of the journal was read, in [0, 1]."""
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
        """Whether the process of the session runs; None for a recording, which never had one."""
        owner = self.folder / "owner.lock"
        return lock.is_held(owner) if owner.exists() else None

    def over(self) -> bool:
        """Whether nothing will follow what is there."""
        return not self.alive()

    def tail(self, folder: str, lines: int = 30) -> list[str]:
        """The end of the newest log of an experiment."""
        logs = [p for p in (self.folder / folder).glob("*.log") if p.stat().st_size]
        if not folder or not logs:
            return []
        newest = max(logs, key=lambda p: p.stat().st_mtime)
        with open(newest, "rb") as file:
            file.seek(max(0, newest.stat().st_size - 200 * lines))
            text = plain(file.read().decode(errors="replace"))
        return [line for line in text.splitlines() if line.strip()][-lines:]

    def give(self, order: Order) -> None:
        """To the engine. Errors: AutoscoutError."""
        give(self.folder, order)

    def last_words(self) -> str:
        """What the engine in the background said last; "" for one that ran in a terminal."""
        log = self.folder / "engine.log"
        lines = plain(log.read_text(errors="replace")).strip().splitlines() if log.exists() else []
        return lines[-1].removeprefix("autoscout: ") if lines else ""


def job_of(kb: Path, what: str) -> Job:
    """Of a session by its name, or of a recorded journal. Errors: AutoscoutError."""
    path = journal_of(kb, what)
    first = next((event for event, _ in journals.read(path, plain=True)), None)
    if not isinstance(first, journals.SessionStarted):
        raise AutoscoutError(f"{path}: holds no session", 2)
    return first.job


def journal_of(kb: Path, what: str) -> Path:
    """A session by its name, a recorded journal by its path, or a recording that comes with AutoScout by its name.

    Errors: AutoscoutError."""
    if what.endswith(".jsonl"):
        return Path(what)
    from autoscout.job import shipped
    from kb.store import session_folder

    path = session_folder(kb, what) / "journal.jsonl"
    recorded = shipped.folder() / "recorded" / f"{what}.jsonl"
    if not path.is_file() and recorded.is_file():
        return recorded
    if not path.is_file():
        raise AutoscoutError(f"there is no session {what} beside {kb}; `autoscout sessions` lists them", 2)
    return path
