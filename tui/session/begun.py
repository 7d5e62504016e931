"""Starts sessions in the background, and checks whether a session in another process still takes orders."""

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from kb.refusal import AutoscoutError

if TYPE_CHECKING:
    from kb.records import Job

_START_S = 60.0
ANEW = "tune its job again, which reuses what is known"


def start_in_background(arguments: list[str], session: str, kb: Path) -> Path:
    """Starts the engine in a separate process, which continues if the terminal is closed; returns its journal once it
    exists.

    Errors: AutoscoutError with the engine's message if it exits before the journal exists.
    """
    from kb.store import session_folder

    folder = session_folder(kb, session)
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "engine.log"
    with open(log, "ab") as out:
        command = [sys.executable, "-m", "tui.cli", "tune", *arguments, "--no-tui", "--verbose", "--kb", str(kb)]
        engine = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    journal = folder / "journal.jsonl"
    deadline = time.monotonic() + _START_S
    while not (journal.exists() and journal.stat().st_size):
        if engine.poll() is not None:
            said = log.read_text(errors="replace").strip().removeprefix("autoscout: ")
            raise AutoscoutError(
                said or f"AutoScout's tuning process ended with exit code {engine.returncode}", engine.returncode or 1
            )
        if time.monotonic() > deadline:
            waited = f"has not begun the session after {_START_S:.0f} s"
            raise AutoscoutError(f"AutoScout's tuning process ({engine.pid}) {waited}; see {log}")
        time.sleep(0.05)
    return journal


def give_hints(kb: Path, job: "Job", hints: Path) -> str:
    """Gives the proposals in a file (one per line: tp=2 mbs=4 # why) to a session that has not started yet, and returns
    its name. Errors: AutoscoutError (exit 2) with the first invalid line."""
    from autoscout.space.explain import parsed_values
    from autoscout.targets.jobs import JobSpace
    from autoscout.tuning.session import new_id
    from kb.orders import give, parsed
    from kb.store import session_folder

    space, orders = JobSpace.of_job(job), []
    try:
        lines = hints.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise AutoscoutError(f"{hints}: cannot be read as proposals ({error})", 2) from error
    for number, line in enumerate(lines, start=1):
        words, _, why = line.partition("#")
        if words.split():
            try:
                parsed_values(space, words.split())
                orders.append(parsed("propose", words.split(), f"hints {hints.name}", why.strip()))
            except AutoscoutError as error:
                raise AutoscoutError(f"{hints}, line {number}: {error}", 2) from error
    name = new_id(job)
    folder = session_folder(kb, name)
    folder.mkdir(parents=True, exist_ok=True)
    for order in orders:
        give(folder, order)
    return name


def running(kb: Path, session: str) -> Path:
    from kb import store

    folder = store.journalled(kb, session)
    if not store.is_running(folder):
        if _ended(folder):
            raise AutoscoutError(f"session {session} has ended; {ANEW}", 1)
        raise AutoscoutError(f"session {session} is not running; `autoscout tune --resume {session}` continues it", 1)
    return folder


def searched(folder: Path) -> bool:
    """Whether the search of the session has ended."""
    from kb import journal

    return any(isinstance(event, journal.SearchEnded) for event in journal.events(folder / "journal.jsonl"))


def _ended(folder: Path) -> bool:
    """Whether the session ended normally, so that there is nothing to resume."""
    from kb import journal

    told = journal.events(folder / "journal.jsonl")
    last = next((e for e in reversed(told) if isinstance(e, journal.SessionEnded | journal.ExperimentStarted)), None)
    return isinstance(last, journal.SessionEnded) and last.reason not in ("interrupted", "failed")
