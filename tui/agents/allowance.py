"""Limits on what an agent may do: only one folder's jobs, and limited device time per day; every call is logged."""

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
_LONGEST = 2_000  # characters of a call that are logged
_BEGINS = "begins"  # marks a line of the log that begins a session


class AgentLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`device_s`: device-seconds of all sessions that agents begin within a day, whatever server or client begins
    them; 0: none. It counts experiments of the search; the finalists' repetitions do not count, as in `tune`."""

    folder: Path
    kb: Path
    device_s: float = 0.0

    def inside(self, given: str) -> Path:
        """A file of the folder. Errors: AutoscoutError (exit 2) for one that is elsewhere, links followed."""
        path = (self.folder / given).resolve()
        if "\0" in given or not path.is_relative_to(self.folder.resolve()):
            raise AutoscoutError(f"{door.shown(given)} is not in the folder of this server's jobs", 2)
        return path

    def jobs(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("*.toml"))

    def job(self, given: str) -> tuple[Path, Job]:
        """The job of a file. Errors: AutoscoutError (exit 2) for a file that is elsewhere, or is not a job."""
        path = self.inside(given)
        if not path.is_file():
            raise AutoscoutError(
                f"{door.shown(given)}: no such job file here; the job files are: {', '.join(self.jobs()) or 'none'}", 2
            )
        return path, load_job(path)

    def own(self, session: str) -> Path:
        """The folder of a session of one of these jobs. Errors: AutoscoutError (exit 2) for another job's."""
        door.name(session, "session")
        folder, of = store.journalled(self.kb, session), store.session_started(self.kb, session).job.id
        for each in self.jobs():
            try:
                if self.job(each)[1].id == of:
                    return folder
            except AutoscoutError:  # another file, which is not a job of ours
                continue
        raise AutoscoutError(f"session {session} belongs to a job that is not in the folder of this server's jobs", 2)

    def reserved(self, session: str, asked: str) -> float:
        """Reserves device-seconds for a new session: what was asked for, but at most what is left; the session may
        spend that much. Errors: AutoscoutError (exit 1) if nothing is left."""
        with lock.exclusive(self.kb.parent / "agents.lock"):
            left = self.device_s - self._spent()
            if left < 1:
                how = "ask the person who runs `autoscout mcp` for more (--device-time)"
                what = "are used up for today" if self.device_s else "are not granted, so they may begin no session"
                raise AutoscoutError(f"the device-seconds of this server's agents {what}; {how}", 1)
            device_s = min(left, seconds(asked))
            self.write({_BEGINS: session, "device_s": device_s})
            return device_s

    def begun_by_agents(self, session: str) -> Path:
        """The folder of a session that agents began within a day. Errors: AutoscoutError (exit 2) for another one."""
        if session not in {line[_BEGINS] for line in self._today()}:
            raise AutoscoutError(f"{session} was not begun by an agent today; only a person may steer or end it", 2)
        return store.journalled(self.kb, session)

    def _today(self) -> Iterator[dict[str, Any]]:
        path = self.kb.parent / "agents.jsonl"
        for line in path.read_bytes().splitlines() if path.exists() else []:
            try:
                found = json.loads(line)
            except ValueError:  # cut off by a full disk
                continue
            if isinstance(found, dict) and _BEGINS in found and found["at"] > dates.now() - _DAY_S:
                yield found

    def _spent(self) -> float:
        """Device-seconds that ended sessions used, and that are reserved for running ones."""
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
