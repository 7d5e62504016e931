"""Times the screens on a journal of a million events, and on one that grows by 1,000 events per second: opening,
memory, and delay of keys. CPU seconds of this machine; for keys, of the screens' thread until the first frame.

PYTHONPATH=. python tests/tools/tui_growth.py [EVENTS]
"""

import asyncio
import gc
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1] / "tui"))
from tui_samples import (  # type: ignore[import-not-found] - found by the line above
    configuration,
    decided,
    experiment,
    measured,
    started,
)

from kb.journal import Rewarded
from tests.tools.tui_speed import keys
from tui.app import SessionApp
from tui.session.follow import Follower

EVENTS = 1_000_000
A_SECOND = 1000  # new events per second
SECONDS = 10
KEYS = "1 2 3 4 5 k b slash o o m escape 6 8 9 question_mark escape t t t 1".split()  # noqa: SIM905 - keys, in this order


def events(step: int) -> bytes:
    """Four journal lines: a decision, an experiment's start and end (one in ten out of memory), its reward."""
    at = 1_700_000_000.0 + 15 * step
    c = configuration(pp=1 + step % 8, tp=1 + step % 4, mbs=step)
    failed = step % 10 == 0
    m = measured(c, 1 + (step * 7919 % 1000) / 1000, "oom" if failed else "ok", evidence="79 GiB" if failed else "")
    arms = {"SPARSE": [float(step), 0.1], "DENSE": [float(step), 0.2]}
    reward = Rewarded(
        step=step, costs=[1.0, 0.9, 1.1, 0.8], delta_sparse=0.1, delta_dense=0.1, interaction=0.0, arms=arms, at=at
    )
    arm = "SPARSE" if step % 3 else "DENSE"
    written = [decided(step, arm, c, at, ucb_SPARSE=0.3, ucb_DENSE=0.2), *experiment(step, m, at), reward]
    return b"".join(msgspec.json.encode(event) + b"\n" for event in written)


def write(journal: Path, steps: int) -> None:
    with open(journal, "wb") as file:
        file.write(msgspec.json.encode(started()) + b"\n")
        for step in range(1, steps + 1):
            file.write(events(step))


def growing(journal: Path, first: int, stop: threading.Event) -> Iterator[int]:
    """Appends A_SECOND events per second; yields their number every tenth of a second."""
    step, began, count = first, time.monotonic(), 0
    with open(journal, "ab", buffering=0) as file:
        while not stop.is_set():
            due = int((time.monotonic() - began) * A_SECOND)
            if count < due:
                more = range(step, step + (due - count + 3) // 4)
                file.write(b"".join(events(s) for s in more))
                step, count = more.stop, count + 4 * len(more)
            yield count
            time.sleep(0.1)


def memory_mib() -> float:
    """Current memory of this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def told(took: dict[str, float]) -> str:
    slowest = sorted(took, key=lambda key: -took[key])
    ms = [f"{key} {1000 * took[key]:.0f}" for key in slowest[:6]]
    return f"{', '.join(ms)}; median {1000 * took[slowest[len(took) // 2]]:.0f}"


async def main(count: int, folder: Path) -> None:
    journal, steps = folder / "journal.jsonl", count // 4
    write(journal, steps)
    gc.collect()
    before = memory_mib()
    app = SessionApp(Follower(journal), folder / "kb.duckdb")
    cpu, wall = time.process_time(), time.perf_counter()
    async with app.run_test(size=(120, 40)) as pilot:
        while not app.session.count:
            await asyncio.sleep(0.01)
        first = time.perf_counter() - wall
        while app.session.count < 4 * steps + 1 or app.session.share < 1.0:
            await asyncio.sleep(0.05)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        print(f"{4 * steps + 1:,} events, {journal.stat().st_size / 2**20:.0f} MiB")
        print(f"first of them seen     {first:.2f} s")
        print(f"all of them read       {cpu:.1f} s of CPU, {wall:.1f} s; keys are answered meanwhile")
        memory = memory_mib() - before
        print(f"memory                 {memory:.0f} MiB, {memory * 2**20 / count:.0f} bytes an event")
        await pilot.pause(5.0)
        print(f"a key, ms of CPU       {told(await keys(app, pilot, zip(KEYS, KEYS, strict=True)))}", flush=True)
        stop = threading.Event()
        writer = threading.Thread(target=lambda: [None for _ in growing(journal, steps + 1, stop)])
        cpu, wall, had = time.process_time(), time.perf_counter(), app.session.count
        writer.start()
        await asyncio.sleep(SECONDS)
        share = (time.process_time() - cpu) / (time.perf_counter() - wall)
        rate = (app.session.count - had) / (time.perf_counter() - wall)
        print(f"{A_SECOND:,} events a second  {rate:,.0f} taken in a second, {share:.0%} of a core, writing included")
        print(f"a key then             {told(await keys(app, pilot, zip(KEYS, KEYS, strict=True)))}")
        stop.set()
        writer.join()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else EVENTS, Path(name)))
