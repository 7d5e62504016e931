"""Limits for AI agents that use `autoscout mcp`: one folder's jobs, a daily device time, and a log of all calls."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from autoscout.job.duration import seconds
from autoscout.targets.jobs import load_job
from kb import dates, door, lock, secrets, store
from kb import journal as journals
from kb.records import AutoscoutError, Job

_DAY_S = 86_400.0
_LONGEST = 2_000  # largest number of characters of a call's arguments in the log
_BEGINS = "begins"  # JSON key that only log lines about new sessions have; its value is the session


class AgentLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`folder`: contains the job files that agents may use; `device_s`: limit on the device-seconds of all sessions
    that agents begin within a day, on any server; 0: no session. As with `autoscout tune --device-time`, a session's
    final rounds, in which the finalists are measured again, may exceed its limit; later sessions then get less."""

    folder: Path
    kb: Path
    device_s: float = 0.0

    def inside(self, given: str) -> Path:
        """The path of a file in the folder. Errors: AutoscoutError (exit 2) if it is outside the folder, also through
        symbolic links."""
        path = (self.folder / given).resolve()
        if "\0" in given or not path.is_relative_to(self.folder.resolve()):
            raise AutoscoutError(f"{door.shown(given)} is not in this server's job folder", 2)
        return path

    def jobs(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("*.toml"))

    def job(self, given: str) -> tuple[Path, Job]:
        """A job file in the folder. Errors: AutoscoutError (exit 2) if it is not in the folder, or not a job."""
        path = self.inside(given)
        if not path.is_file():
            raise AutoscoutError(
                f"{door.shown(given)}: no such job file here; the job files are: {', '.join(self.jobs()) or 'none'}", 2
            )
        return path, load_job(path)

    def own(self, session: str) -> Path:
        """The session's folder. Errors: AutoscoutError (exit 2) if its job is not in the job folder `folder`."""
        door.name(session, "session")
        folder, of = store.journalled(self.kb, session), store.session_started(self.kb, session).job.id
        for each in self.jobs():
            try:
                if self.job(each)[1].id == of:
                    return folder
            except AutoscoutError:  # not a valid job file
                continue
        raise AutoscoutError(f"session {session} belongs to a job that is not in this server's job folder", 2)

    def reserved(self, session: str, asked: str) -> float:
        """Reserves device-seconds for a new session, and returns their number: `asked`, but not more than what is left
        of the daily limit. Errors: AutoscoutError (exit 1) if nothing is left."""
        with lock.exclusive(self.kb.parent / "agents.lock"):
            left = self.device_s - self._spent()
            if left < 1:
                how = "ask the person who runs `autoscout mcp` for more --device-time"
                what = "have used all their device-seconds today" if self.device_s else "may not begin sessions"
                raise AutoscoutError(f"this server's agents {what}; {how}", 1)
            device_s = min(left, seconds(asked))
            self.write({_BEGINS: session, "device_s": device_s})
            return device_s

    def begun_by_agents(self, session: str) -> Path:
        """The folder of a session. Errors: AutoscoutError (exit 2) unless an agent began it within the last day."""
        if session not in {line[_BEGINS] for line in self._today()}:
            raise AutoscoutError(
                f"{session} was not begun by an agent in the last 24 hours; only a person may steer or end it", 2
            )
        return store.journalled(self.kb, session)

    def _today(self) -> Iterator[dict[str, Any]]:
        path = self.kb.parent / "agents.jsonl"
        for line in path.read_bytes().splitlines() if path.exists() else []:
            try:
                found = json.loads(line)
            except ValueError:  # an incomplete line, written when the disk was full
                continue
            if isinstance(found, dict) and _BEGINS in found and found["at"] > dates.now() - _DAY_S:
                yield found

    def _spent(self) -> float:
        """Device-seconds that today's ended sessions used, plus those that are reserved for running ones."""
        spent = 0.0
        for line in self._today():
            folder = store.session_folder(self.kb, line[_BEGINS])
            path = folder / "journal.jsonl"
            events = journals.events(path) if path.is_file() else []
            took = sum(e.measurement.device_s for e in events if isinstance(e, journals.ExperimentEnded))
            ended = bool(events) and not store.is_running(folder)
            spent += took if ended else max(took, line["device_s"])
        return spent

    def write(self, line: dict[str, Any]) -> None:
        """Appends a line to agents.jsonl next to the knowledge base, without secrets."""
        text = door.plain(json.dumps(secrets.without({"at": dates.now(), **line}), default=str))
        path = self.kb.parent / "agents.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")


def shortened(arguments: dict[str, Any]) -> Any:
    """Arguments of a call, shortened for the log."""
    text = json.dumps(arguments, default=str)
    return arguments if len(text) <= _LONGEST else text[:_LONGEST] + "…"
