"""How fast the screens are: first frame, a long session opened, updates, keys; in CPU seconds of this machine.

PYTHONPATH=. python tests/tools/tui_speed.py
"""

import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1] / "tui"))
from tui_samples import (  # type: ignore[import-not-found] - found by the line above
    configuration,
    decided,
    experiment,
    measured,
    running,
    started,
)

from kb.journal import AnyEvent, Rewarded
from tui.app import SessionApp
from tui.session.follow import Follower
from tui.widgets.lazy_table import Rows

STEPS = 5000
EXPERIMENTS = 100_000
LIVE_ROWS = 200


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
    """CPU and wall seconds until everything is folded and drawn."""
    app = SessionApp(Follower(journal), journal.parent / "kb.duckdb")
    cpu, wall = time.process_time(), time.perf_counter()
    async with app.run_test(size=(120, 40)) as pilot:
        while app.session.count < count:
            await asyncio.sleep(0.01)
        await pilot.pause()
        return time.process_time() - cpu, time.perf_counter() - wall


async def updates(folder: Path) -> tuple[float, float]:
    """Share of a core at 4 updates a second over a table of 200 rows, and the median wait for a key under it."""
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


async def browse(journal: Path) -> dict[str, float]:
    """CPU seconds of the longest of some actions on the table of experiments."""
    app = SessionApp(Follower(journal), journal.parent / "kb.duckdb")
    took: dict[str, float] = {}
    async with app.run_test(size=(120, 40)) as pilot:
        cpu = time.process_time()
        await pilot.press("5")
        while len(app.session.live.runs) < EXPERIMENTS or app.session.share < 1.0:
            await asyncio.sleep(0.05)
        took["read while the screen answers"] = time.process_time() - cpu
        await pilot.pause(0.5)

        async def timed(what: str, *keys: str) -> None:
            began = time.process_time()
            await pilot.press(*keys)
            took[what] = max(took.get(what, 0.0), time.process_time() - began)

        for _ in range(20):
            await timed("one row up", "k")
            await timed("one page up", "b")
        await timed("to the first row", "home")
        await timed("to the last row", "end")
        await pilot.press("slash")
        for letter in "oom":
            await timed("one letter of a filter", letter)
        await pilot.pause(0.2)
        found = app.query_one(Rows).row_count
        assert found == EXPERIMENTS // 10, found
    return took


def first_frame(folder: Path) -> float:
    """CPU seconds of a fresh process until the first frame of a running session is drawn."""
    journal = written(folder, running())
    script = f"""
import asyncio, time
from pathlib import Path
from tui.app import SessionApp
from tui.session.follow import Follower
async def main():
    app = SessionApp(Follower(Path({str(journal)!r})), Path("kb"))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
    print(time.process_time())
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(f"first frame                         {first_frame(folder):.2f} s of CPU (goal 0.7)")
        events = long_session(STEPS)
        cpu, wall = asyncio.run(opened(written(folder, events), len(events)))
        print(f"a session of {STEPS} steps opened       {cpu:.2f} s of CPU, {wall:.2f} s (goal 1)")
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"memory then                         {memory:.0f} MiB (goal 150; this script's own events included)")
        share, key = asyncio.run(updates(folder))
        print(f"4 updates a second, {LIVE_ROWS} live rows    {share:.1%} of a core (goal 8 %)")
        print(f"a key under that load               {key * 1000:.0f} ms of CPU (goal 50)")
        print(f"{EXPERIMENTS:,} experiments, CPU of the slowest of each:")
        for what, seconds in asyncio.run(browse(many(folder))).items():
            print(f"  {what:<33} {f'{seconds:.1f} s' if seconds > 1 else f'{seconds * 1000:.0f} ms'}")


if __name__ == "__main__":
    main()
