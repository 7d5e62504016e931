"""A gate that an agent asks for: is a session's winner faster than its reference, in a process of its own."""

import fcntl
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from kb.records import AutoscoutError
from tui.agents.allowance import AgentLimits


def begun(limits: AgentLimits, session: str, pairs: int, device_time: str) -> Path:
    """The folder of its session, where `gate.json` will be what `autoscout gate SESSION --json` prints and `gate.log`
    what it says meanwhile. One that runs or has a verdict is not begun again. Errors: AutoscoutError for a session of
    another job, one without a winner (exit 2), or without device time left (exit 1)."""
    from autoscout.tuning.sides import of_session

    folder = limits.own(session)
    with (folder / "gate.lock").open("a") as lock:
        if not _free(lock.fileno()) or _verdict(folder):
            return folder
        job = of_session(limits.kb, session)[0].job
        device_s = limits.reserved(f"gate-of-{session}", device_time or job.budget.device_time)
        command = [sys.executable, "-m", "tui.cli", "gate", session, "--json", "--pairs", str(pairs)]
        command += ["--wall", f"{max(device_s / job.devices, 1):.0f}s", "--kb", str(limits.kb.absolute())]
        with (folder / "gate.json").open("wb") as out, (folder / "gate.log").open("wb") as said:
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=said,
                start_new_session=True,
                pass_fds=[lock.fileno()],  # it holds the lock until it ends, however it does
            )
    return folder


def standing(folder: Path) -> dict[str, Any]:
    """`state`, running or ended; its `lines`; the `verdict`, None while it runs. Errors: AutoscoutError with what it
    said where it ended without one."""
    with (folder / "gate.lock").open("a") as lock:
        over = _free(lock.fileno())
    log = folder / "gate.log"
    said = log.read_text(errors="replace").splitlines() if log.exists() else []
    lines = [line.removeprefix("autoscout: ") for line in said]
    verdict = _verdict(folder) if over else None
    if over and verdict is None:
        raise AutoscoutError(lines[-1] if lines else "the gate was ended from outside")
    return {"state": "ended" if over else "running", "lines": lines, "verdict": verdict}


def waited(folder: Path, seconds: float, progress: Any) -> dict[str, Any]:
    """`standing`, at the latest after so many seconds; tells how many lines there are meanwhile."""
    until, seen = time.monotonic() + seconds, -1
    while True:
        found = standing(folder)
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


def _verdict(folder: Path) -> Any:
    try:
        return json.loads((folder / "gate.json").read_bytes())
    except (OSError, ValueError):
        return None
