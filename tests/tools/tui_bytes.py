"""Bytes that the screens send in a pseudo-terminal of 120 by 40: idle, per key, and per screen.

PYTHONPATH=. python tests/tools/tui_bytes.py
"""

import sys
import tempfile
import threading
import time
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1] / "tui"))
from pty_terminal import PtyScreens  # type: ignore[import-not-found] - found by the line above

from kb import journal, lock
from kb.journal import AnyEvent, ExperimentStarted

RECORDED = Path(__file__).parents[2] / "fixtures/recorded"
IDLE_S = 20.0
SCREENS = "234568"
GOALS = {"idle": 1024, "key": 4096, "screen": 24 * 1024}


class Live:
    """A running session: writes `per_second` recorded events with current times."""

    def __init__(self, folder: Path, per_second: float, begin: int) -> None:
        self.path = folder / "journal.jsonl"
        self.events: list[AnyEvent] = journal.events(RECORDED / "tiny-gpt-session.jsonl")
        self.pause, self.shift = 1.0 / per_second, 0.0
        self.shift = time.time() - self.events[begin].at
        self._write(self.events[:begin])
        self.rest = self.events[begin:-1]
        self.over = threading.Event()
        self.lock = lock.exclusive(folder / "owner.lock")

    def __enter__(self) -> Path:
        self.lock.__enter__()
        self.thread = threading.Thread(target=self._go_on)
        self.thread.start()
        return self.path

    def __exit__(self, *args: object) -> None:
        self.over.set()
        self.thread.join()
        self.lock.__exit__(None, None, None)

    def _go_on(self) -> None:
        for event in self.rest:
            if self.over.wait(self.pause):
                return
            self.shift = time.time() - event.at
            self._write([event])
            if isinstance(event, ExperimentStarted):
                self._log(event)

    def _write(self, events: list[AnyEvent]) -> None:
        with open(self.path, "ab") as file:
            for event in events:
                file.write(msgspec.json.encode(msgspec.structs.replace(event, at=event.at + self.shift)) + b"\n")

    def _log(self, event: ExperimentStarted) -> None:
        folder = self.path.parent / (event.folder or "log")
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "rank0.log", "a") as log:
            for i in range(1, 6):
                log.write(
                    f" iteration {i:8}/       5 | elapsed time per iteration (ms): {100 + 7 * i}.{i} | loss: 9.8{i}\n"
                )


def idle(screens: PtyScreens, seconds: float) -> float:
    """Bytes per second without key presses."""
    began = time.monotonic()
    return len(screens.read(seconds)) / (time.monotonic() - began)


def key(screens: PtyScreens, keys: str) -> int:
    screens.press(keys)
    return len(screens.settle(some=True))


def recording() -> dict[str, int]:
    """The maximum bytes of each kind of key in a recorded session, which sends bytes only in response to keys."""
    found: dict[str, int] = {}
    screens = PtyScreens("watch", str(RECORDED / "tiny-gpt-session.jsonl"))
    try:
        screens.shows("experiments")
        screens.settle()
        found["the first screen"] = len(screens.sent)
        for screen in SCREENS:
            found[f"screen {screen}"] = key(screens, screen)
        found["back to screen 1"] = key(screens, "1")
        for what, keys in (
            ("one event back", "["),
            ("20 events back", "{"),
            ("to the switch", "f"),
            ("to the end", "G"),
        ):
            found[f"Tune: {what}"] = key(screens, keys)
        screens.press("5")
        screens.settle()
        for what, keys in (
            ("one row up", "k"),
            ("one page up", "b"),
            ("the first row", "\x1b[H"),
            ("one row down", "j"),
        ):
            found[f"Runs: {what}"] = key(screens, keys)
        screens.press("/")
        screens.settle()
        for letter in "oom":
            found[f"Runs: {letter} of a filter"] = key(screens, letter)
        screens.escape()
        screens.press("2")
        screens.settle()
        found["Arms: one branch down"] = key(screens, "j")
        found["help"] = key(screens, "?")
        found["help closed"] = key(screens, "\x1b")
        found["screen 7"] = key(screens, "7")  # last, because its text box receives all letters
    finally:
        screens.close()
    return found


def home() -> dict[str, float]:
    """The maximum bytes by kind of key, and idle, of Home and a new job on an empty knowledge base."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        screens = PtyScreens(AUTOSCOUT_KB=f"{folder}/kb.duckdb", XDG_STATE_HOME=f"{folder}/state")
        try:
            screens.shows("gpt3-175b-stack")
            screens.settle()
            found["screen Home"] = len(screens.sent)
            for what, keys in (("one job down", "j"), ("the other list", "\t")):
                found[f"Home: {what}"] = key(screens, keys)
            found["help of Home"] = key(screens, "?")
            screens.escape()
            found["idle, Home"] = idle(screens, IDLE_S)
            found["screen of a new job"] = key(screens, "n")
            for what, keys in (("a letter", "m"), ("the next answer", "\t")):
                found[f"a new job: {what}"] = key(screens, keys)
            found["idle, a new job"] = idle(screens, IDLE_S)
        finally:
            screens.close()
    return found


def live(per_second: float) -> dict[str, float]:
    """Bytes per second of a running session by screen, without key presses."""
    found = {}
    with tempfile.TemporaryDirectory() as name, Live(Path(name), per_second, 30) as path:
        screens = PtyScreens("watch", str(path))
        try:
            screens.shows("experiments")
            screens.settle(3.0)
            found["Tune"] = idle(screens, IDLE_S)
            for key_, title in (("2", "Arms"), ("3", "Checks"), ("5", "Runs")):
                screens.press(key_)
                screens.settle(3.0)
                found[title] = idle(screens, IDLE_S)
        finally:
            screens.close()
    return found


def main() -> None:
    over = False
    for what, count in {**recording(), **home()}.items():
        kind = "idle" if what.startswith("idle") else "screen" if "screen" in what or what.startswith("help") else "key"
        over |= count > GOALS[kind]
        unit = "bytes/s" if kind == "idle" else "bytes"
        print(f"{what:<34}{count:>8,.0f} {unit} (goal {GOALS[kind]:,}){'  OVER' if count > GOALS[kind] else ''}")
    for rate in (1.0, 20.0):
        for what, count in live(rate).items():
            over |= count > GOALS["idle"]
            print(
                f"idle, {what}, {f'{rate:g} events/s':<20}{count:>8,.0f} bytes/s (goal {GOALS['idle']:,})"
                f"{'  OVER' if count > GOALS['idle'] else ''}"
            )
    sys.exit(over)


if __name__ == "__main__":
    main()
