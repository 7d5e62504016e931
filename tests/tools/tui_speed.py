"""Times the screens in CPU seconds of this machine: first frame, opening a long session, updates, keys.

PYTHONPATH=. python tests/tools/tui_speed.py
"""

import asyncio
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
from textual.pilot import Pilot

sys.path.insert(0, str(Path(__file__).parents[1] / "tui"))
from pty_terminal import PtyScreens  # type: ignore[import-not-found] - found by the line above
from tui_samples import (  # type: ignore[import-not-found] - found by the line above
    configuration,
    decided,
    experiment,
    measured,
    started,
)

from kb.journal import AnyEvent, Rewarded
from tui.app import SessionApp
from tui.session.follow import Follower
from tui.widgets.lazy_table import Rows

STEPS = 5000
EXPERIMENTS = 100_000
LIVE_ROWS = 200
RUNS = 5
RECORDED = "fixtures/recorded/tiny-gpt-session.jsonl"
BARE = """
from textual.app import App
from textual.widgets import Static
class Bare(App):
    def compose(self):
        yield Static("bare")
Bare().run()
"""
_SCREENS = [(f"screen {key}", key) for key in "123456891"]
PRESSED = [
    *_SCREENS,
    ("screen 5", "5"),
    *[("one row up", "k"), ("one page up", "b")] * 5,
    *[("to the first row", "home"), ("to the last row", "end")],
    *[("/", "slash"), ("o of a filter", "o"), ("oo", "o"), ("backspace", "backspace"), ("escape", "escape")],
    *[("t", "t"), ("?", "question_mark"), ("? closed", "escape")] * 3,
    *_SCREENS,
    *[("one event back", "left_square_bracket"), ("to now", "G")],
]


def long_session(steps: int) -> list[AnyEvent]:
    events: list[AnyEvent] = [started()]
    at = 1_700_000_000.0
    for i in range(1, steps + 1):
        c = configuration(pp=1 + i % 8, tp=1 + i % 4, mbs=i)
        events.append(decided(i, "SPARSE" if i % 3 else "DENSE", c, at, ucb_SPARSE=0.3, ucb_DENSE=0.2))
        events += experiment(i, measured(c, 1.0 + (i * 7919 % 1000) / 1000), at)
        arms = {"SPARSE": [float(i), 0.1], "DENSE": [float(i), 0.2]}
        grid = Rewarded(
            step=i, costs=[1.0, 0.9, 1.1, 0.8], delta_sparse=0.1, delta_dense=0.1, interaction=0.0, arms=arms, at=at
        )
        events.append(grid)
        at += 15
    return events


def written(folder: Path, events: list[AnyEvent]) -> Path:
    journal = folder / "journal.jsonl"
    journal.write_bytes(b"".join(msgspec.json.encode(e) + b"\n" for e in events))
    return journal


async def opened(journal: Path, count: int) -> tuple[float, float]:
    """(CPU seconds, wall seconds) until all events are processed and drawn."""
    app = SessionApp(Follower(journal), journal.parent / "kb.duckdb")
    cpu, wall = time.process_time(), time.perf_counter()
    async with app.run_test(size=(120, 40)) as pilot:
        while app.session.count < count:
            await asyncio.sleep(0.01)
        await pilot.pause()
        return time.process_time() - cpu, time.perf_counter() - wall


async def updates(folder: Path) -> tuple[float, float]:
    """(share of a core at 4 updates per second of a table of 200 rows, median delay of a key meanwhile)."""
    events = long_session(LIVE_ROWS)
    journal = written(folder, events)
    more = [msgspec.json.encode(e) + b"\n" for e in long_session(LIVE_ROWS + 200)[len(events) :]]
    app = SessionApp(Follower(journal), folder / "kb.duckdb")
    async with app.run_test(size=(120, 40)) as pilot:
        while app.session.count < len(events):
            await asyncio.sleep(0.01)
        await pilot.press("5")
        await pilot.pause(0.5)
        cpu, wall, waits = time.process_time(), time.perf_counter(), []
        for i in range(40):
            with open(journal, "ab") as file:
                file.write(more[i])
            await asyncio.sleep(0.25)
        share = (time.process_time() - cpu) / (time.perf_counter() - wall)
        for _ in range(20):
            began = time.process_time()
            await pilot.press("j")
            waits.append(time.process_time() - began)
        return share, sorted(waits)[len(waits) // 2]


def many(folder: Path) -> Path:
    """A journal of EXPERIMENTS experiments, one in ten out of memory."""
    journal = folder / "journal.jsonl"
    at = 1_700_000_000.0
    with open(journal, "wb") as file:
        file.write(msgspec.json.encode(started()) + b"\n")
        for i in range(1, EXPERIMENTS + 1):
            c = configuration(pp=1 + i % 8, tp=1 + i % 4, mbs=i)
            failed = i % 10 == 0
            m = measured(
                c, 1.0 + (i * 7919 % 1000) / 1000, "oom" if failed else "ok", evidence="79 GiB" if failed else ""
            )
            for event in experiment(i, m, at):
                file.write(msgspec.json.encode(event) + b"\n")
            at += 15
    return journal


async def keys(app: SessionApp, pilot: Pilot[None], pressed: Iterable[tuple[str, str]]) -> dict[str, float]:
    """The largest CPU seconds of the screens' thread from a key until the next frame, by purpose. `pressed`: (purpose,
    Textual's name of the key)."""
    shown: list[float] = []
    usual = app.post_display_hook

    def hook() -> None:
        shown.append(time.thread_time())
        usual()

    app.post_display_hook = hook
    took: dict[str, float] = {}
    for what, key in pressed:
        shown.clear()
        began = time.thread_time()
        await pilot.press(key)
        if shown:
            took[what] = max(took.get(what, 0.0), shown[0] - began)
        await pilot.pause(0.3)
    return took


async def browse(journal: Path) -> dict[str, float]:
    """The largest CPU seconds of some actions on many experiments, by purpose."""
    app = SessionApp(Follower(journal), journal.parent / "kb.duckdb")
    cpu = time.process_time()
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("5")
        while len(app.session.live.runs) < EXPERIMENTS or app.session.share < 1.0:
            await asyncio.sleep(0.05)
        took = {"read while the screen answers": time.process_time() - cpu}
        await pilot.pause(5.0)
        took |= await keys(app, pilot, PRESSED)
        await pilot.press("5", "slash", *"oom")
        await pilot.pause(2.0)
        found = app.query_one(Rows).row_count
        assert found == EXPERIMENTS // 10, found
    return took


def first_frame(folder: Path, until: str, *arguments: str, program: tuple[str, str] = ("-m", "tui.cli")) -> float:
    """CPU seconds of a process until it shows `until` on a terminal, with cached bytecode: the minimum of RUNS."""
    took: list[float] = []
    for _ in range(RUNS + 1):
        bytecode = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
        screens = PtyScreens(*arguments, program=program, AUTOSCOUT_KB=str(folder / "kb.duckdb"), **bytecode)
        while until.encode() not in screens.sent and screens.process.poll() is None:
            screens.read(0.005)
        took.append(screens.cpu_s())
        screens.process.kill()
        screens.process.wait()
        os.close(screens.ours)
    return min(took[1:])


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bare = first_frame(folder, "bare", program=("-c", BARE))
        ours = first_frame(folder, "re-measured", "watch", RECORDED)
        print(f"first frame of a recorded session   {ours:.2f} s of CPU (goal 0.35; a bare Textual program {bare:.2f})")
        events = long_session(STEPS)
        cpu, wall = asyncio.run(opened(written(folder, events), len(events)))
        print(f"a session of {STEPS} steps opened       {cpu:.2f} s of CPU, {wall:.2f} s (goal 1)")
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"memory then                         {memory:.0f} MiB (goal 150; this script's own events included)")
        share, key = asyncio.run(updates(folder))
        print(f"4 updates a second, {LIVE_ROWS} live rows    {share:.1%} of a core (goal 8 %)")
        print(f"a key under that load               {key * 1000:.0f} ms of CPU (goal 50)")
        print(f"{EXPERIMENTS:,} experiments, CPU until it is shown, of the slowest of each (goal 50 ms):")
        for what, seconds in asyncio.run(browse(many(folder))).items():
            print(f"  {what:<33} {f'{seconds:.1f} s' if seconds > 1 else f'{seconds * 1000:.0f} ms'}")


if __name__ == "__main__":
    main()
