"""Commands that take long, for agents: each runs in a separate process, which continues if the agent disconnects. A
further call reports its progress."""

import fcntl
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from kb.records import AutoscoutError
from tui.agents.allowance import AgentLimits
from tui.text import error_of


class LongVerb(msgspec.Struct, frozen=True):
    """A command that was started. Its output (--json) is in the folder's file `handle`.json, its messages are in
    `handle`.log, and its process holds the lock `handle`.lock. `kept`: whether later calls get the same answer;
    otherwise the next call after the answer runs the command again."""

    folder: Path
    handle: str
    kept: bool = False

    def path(self, ending: str) -> Path:
        return self.folder / f"{self.handle}.{ending}"


def begin(verb: LongVerb, asked: Callable[[], list[str]]) -> None:
    """Starts a command, unless it is running, or its answer is kept or was not fetched yet. `asked`: its arguments."""
    with verb.path("lock").open("a") as lock:
        if not _free(lock.fileno()) or verb.path("log").exists():
            return
        command = [sys.executable, "-m", "tui.cli", *asked(), "--json"]
        with verb.path("json").open("wb") as out, verb.path("log").open("wb") as said:
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=said,
                start_new_session=True,
                pass_fds=[lock.fileno()],  # so that the process holds the lock until it ends, for whatever reason
            )


def gate_of(limits: AgentLimits, session: str, pairs: int, device_time: str) -> LongVerb:
    """Returns the command that compares a session's winner with its reference (`autoscout gate`), and starts it if
    necessary. Errors: AutoscoutError (exit 2) if the session is of another job or has no winner, (exit 1) if no device
    time is left."""
    from autoscout.tuning.sides import of_session

    def words() -> list[str]:
        job = of_session(limits.kb, session)[0].job
        device_s = limits.reserved(f"gate-of-{session}", device_time or job.budget.device_time)
        wall = f"{max(device_s / job.devices, 1):.0f}s"
        return ["gate", session, "--pairs", str(pairs), "--wall", wall, "--kb", str(limits.kb.absolute())]

    verb = LongVerb(limits.own(session), "gate", kept=True)
    begin(verb, words)
    return verb


def standing(verb: LongVerb) -> dict[str, Any]:
    """The command's `state` (running or ended), its messages (`lines`) and its answer (`printed`, None while it runs).
    Errors: AutoscoutError with its last message if it ended without an answer."""
    with verb.path("lock").open("a") as lock:
        over = _free(lock.fileno())
        log = verb.path("log")
        said = log.read_text(errors="replace") if log.exists() else ""
        lines = [line.removeprefix("autoscout: ") for line in said.splitlines()]
        printed = _printed(verb) if over else None
        if over and not (verb.kept and printed):
            log.unlink(missing_ok=True)
            verb.path("json").unlink(missing_ok=True)
    if over and printed is None:
        raise AutoscoutError(error_of(said) or f"{verb.handle} was killed by another process; call again to restart it")
    return {"state": "ended" if over else "running", "lines": lines, "printed": printed}


def waited(verb: LongVerb, seconds: float, progress: Any) -> dict[str, Any]:
    """Waits until the command has ended, at most `seconds`, and returns `standing`. New messages are passed to
    `progress`."""
    until, seen = time.monotonic() + seconds, -1
    while True:
        found = standing(verb)
        if len(found["lines"]) > seen:
            seen = len(found["lines"])
            progress(seen, None, found["lines"][-1] if found["lines"] else "begun")
        if found["state"] == "ended" or time.monotonic() >= until:
            return found
        time.sleep(0.25)


def _free(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _printed(verb: LongVerb) -> Any:
    try:
        return json.loads(verb.path("json").read_bytes())
    except (OSError, ValueError):
        return None
