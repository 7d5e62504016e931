"""Finds what the home screen lists: a knowledge base's sessions, and job files in nearby folders."""

import contextlib
import tomllib
from pathlib import Path

import msgspec

from autoscout.job import shipped
from kb import journal as journals
from kb.records import AutoscoutError
from kb.store import is_running, sessions_folder
from tui.session.headlines import gate_words, shown
from tui.session.state import State, fold
from tui.text import metric

_MOST = 200  # largest number of listed sessions
_TAIL = 30_000  # bytes read from the end of a journal to find its result
_FOLDERS = (".", "jobs", "fixtures/jobs")  # folders searched for job files


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """A session as text. `state`: running, or how it ended; `best`: its best value, "" if there is none yet; `gain`:
    over the default, "" if unknown."""

    session: str
    job: str
    alive: bool
    state: str
    experiments: str
    best: str
    gain: str = ""


class JobFile(msgspec.Struct, frozen=True, kw_only=True):
    """A job file. `given`: the argument for `autoscout tune` (a path, or the name of a shipped job); `ours`: whether it
    is shipped with AutoScout."""

    given: str
    about: str
    ours: bool


class SessionsOfHouse:
    """The sessions of one knowledge base. Their states are cached until their journals grow."""

    def __init__(self, kb: Path) -> None:
        self.folder = sessions_folder(kb)
        self._read: dict[Path, tuple[tuple[int, bool], Seen]] = {}

    def look(self) -> list[Seen]:
        """All sessions, running ones first, then the newest."""
        found = []
        paths = list(self.folder.glob("*/journal.jsonl")) if self.folder.is_dir() else []
        for path in sorted(paths, key=_changed, reverse=True)[:_MOST]:
            with contextlib.suppress(OSError, AutoscoutError):
                mark = (path.stat().st_size, is_running(path.parent))
                if path not in self._read or self._read[path][0] != mark:
                    self._read[path] = mark, _seen(path, mark[1])
                found.append(self._read[path][1])
        return sorted(found, key=lambda s: not s.alive)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _seen(path: Path, alive: bool) -> Seen:
    state = _folded(path, whole=alive)
    if state.job is None:
        return Seen(session=path.parent.name, job="?", alive=alive, state="starts" if alive else "empty",
                    experiments="", best="")  # fmt: skip
    best = metric(state.job, state.best_value) if state.best_value is not None else ""
    gain = shown(state.gain, state.confirmed.low if state.confirmed else None) if best else ""
    if state.gated is not None:
        how, count, gain, best = f"gate: {gate_words(state.gated)}", f"{len(state.runs)}", "", ""
    elif state.ended is not None:
        reason = state.ended.reason
        alone = reason in ("interrupted", "failed", "profiled")
        how, count = reason if alone else f"ended: {reason}", f"{state.ended.experiments}"
    else:
        how = ("paused" if state.paused else "runs") if alive else "broke off"
        count = f"{state.searched}/{state.job.budget.profiles}" if alive else ""
    return Seen(
        session=path.parent.name, job=state.job.name, alive=alive, state=how, experiments=count, best=best, gain=gain
    )


def _folded(path: Path, whole: bool) -> State:
    """A session's state from its journal. Unless `whole`, only the start and the end of a long journal are read."""
    if whole or path.stat().st_size <= 2 * _TAIL:
        return fold(journals.events(path, plain=True))
    state = State()
    first, behind = next(journals.read(path, plain=True))
    state.apply(first)
    size = path.stat().st_size
    with open(path, "rb") as file:
        file.seek(max(behind, size - _TAIL))
        at = file.tell() + len(file.readline()) if file.tell() > behind else behind
    for event, _ in journals.read(path, at, plain=True):
        state.apply(event)
    return state


def job_files(folder: Path) -> list[JobFile]:
    """Job files in and near `folder`, then those shipped with AutoScout, beginning with jobs for CPUs."""
    found = []
    for place in _FOLDERS:
        for path in sorted((folder / place).glob("*.toml"))[:100]:
            if (about := _about(path)) and not path.is_relative_to(shipped.folder()):
                found.append(JobFile(given=str(path.relative_to(folder)), about=about, ours=False))
    ours = [(name, shipped.folder() / "jobs" / f"{name}.toml") for name in shipped.jobs()]
    shown = [JobFile(given=name, about=_about(path), ours=True) for name, path in ours]
    return found + sorted(shown, key=lambda job: not job.about.endswith("×cpu"))


def _about(path: Path) -> str:
    """A one-line summary of the file's job; "" if it is not a job file."""
    try:
        job = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    if not isinstance(job.get("name"), str) or not isinstance(job.get("cluster", {}), dict):
        return ""
    if "target" not in job and "task" not in job:
        return ""
    nodes = job.get("cluster", {}).get("nodes", [])
    devices = [f"{n.get('count')}×{n.get('device')}" for n in nodes if isinstance(n, dict)]
    return f"{job.get('task', 'pretrain')}, {job.get('target', '')}, {' + '.join(devices[:4])}".rstrip(", ")
