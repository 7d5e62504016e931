"""Real ranks beside each other: one that is slowed is named, though all of them wait for it."""

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from profile_bench import Bench, tiny_job

from autoscout.running import ranks
from kb.records import Measurement
from tui.draw.rank_table import rank_rows

pytestmark = pytest.mark.engine


@contextlib.contextmanager
def slowed(folder: Path, rank: int) -> Iterator[None]:
    """Stops that rank's process nine tenths of the time, once it runs, as a processor that others use would.

    Between two stops it runs for less than it works alone (3 ms): that work begins where a stop ends, since the others
    were waited for, and would else be over before the next stop, in every iteration."""
    over, lengths = threading.Event(), random.Random(0)

    def slow() -> None:
        pids: list[int] = []
        while not over.wait(lengths.uniform(0.0005, 0.003)):
            tell(pids, signal.SIGSTOP)
            pids = writers(folder, f"rank-{rank}.log")
            time.sleep(lengths.uniform(0.01, 0.03))
            tell(pids, signal.SIGCONT)

    thread = threading.Thread(target=slow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def tell(pids: list[int], what: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, what)


def writers(folder: Path, name: str) -> list[int]:
    """Processes whose output goes to that file of an experiment below `folder`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            log = Path(os.readlink(process / "fd" / "1"))
            if log.name == name and folder in log.parents:
                found.append(int(process.name))
    return found


def beside_a_slowed_rank(bench: Bench, more: int = 2) -> Measurement:
    """The first run that tells it apart, of three: where others use the cores too, any rank may have waited longest."""
    with slowed(bench.root, 1):
        measured = bench.run(tiny_job(iterations=30, timeout_s=300), dp=4)
    found = ranks.slowest(measured)
    told = found is not None and found.rank == 1 and found.times > 1.3
    return measured if told or not more else beside_a_slowed_rank(bench, more - 1)


def test_every_rank_says_what_it_did_and_the_one_that_is_slowed_is_named(bench: Bench) -> None:
    measured = beside_a_slowed_rank(bench)
    assert measured.status == "ok", measured.evidence
    assert {len(values) for values in measured.per_rank.values()} == {4}
    assert {"step_time_s", "alone_s", "cpu_s", "peak_memory_gib"} <= set(measured.per_rank)
    assert [device.split(":")[1:] for device in measured.rank_devices] == [["cpu", str(rank)] for rank in range(4)]
    found = ranks.slowest(measured)
    assert found is not None
    assert found.rank == 1
    assert found.times > 1.3
    steps = measured.per_rank["step_time_s"]
    assert max(steps) < found.times * min(steps)  # by their steps one would know less: all wait for it
    screen = rank_rows(measured, 100, 12, True).plain
    print(screen)
    assert "slowest: rank 1 (" in screen
    assert [line.split()[1] for line in screen.splitlines() if line.startswith(">")] == ["1"]


def test_a_step_is_the_sum_of_its_parts_and_the_exchange_between_replicas_is_one(bench: Bench) -> None:
    job = tiny_job(iterations=8, timeout_s=300)
    replicas, alone = bench.run(job, dp=4, mbs=2), bench.run(job, pp=4, dp=1, mbs=2)
    for measured in (replicas, alone):
        parts = [measured.metrics[name] for name in ("forward_backward_s", "gradients_s", "optimizer_s")]
        assert min(parts) > 0
        assert 0.5 < sum(parts) / measured.metrics["step_time_s"] < 1.5  # medians of their own, by the ranks' mean
    share = [m.metrics["gradients_s"] / m.metrics["step_time_s"] for m in (replicas, alone)]
    assert share[0] > share[1], "only replicas exchange gradients"
