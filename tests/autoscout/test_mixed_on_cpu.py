"""Two kinds of device for real: CPU ranks of which one is stopped most of the time, and Megatron-core over both."""

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kb.journal import ExperimentEnded, read

pytestmark = [pytest.mark.engine, pytest.mark.thorough]

JOB = """
name = "two-kinds-cpu"
task = "pretrain"
target = "megatron"

[model]
layers = 8
hidden = 192
heads = 8
vocab = 512
dtype = "fp32"

[traffic]
seq_len = 128
global_batch = 8

[cluster]
nodes = [{ device = "cpu", count = 1 }, { device = "cpu-slow", count = 1 }]

[objective]
minimize = "step_time_s"

[budget]
profiles = 2

[launch]
timeout_s = 120
repeats = 2
iterations = 4
launcher = "warm"

[space]
fix = { cpu = 1, cpu_slow = 1, pp = 2, mbs = 1, ar = "none" }
limit = { cpu_slow_layers = [0, 2] }
"""
RUNS_S, STOPPED_S = 0.02, 0.06  # of the slow device: a quarter of the other's speed
LOOKS_S = 0.2


def children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        found.setdefault(parent, []).append(int(stat.parent.name))
    return found


def second_ranks(above: int) -> list[int]:
    """The second of two processes that were forked by one that waits below `above`."""
    tree, level, found = children(), [above], []
    while level:
        level = [child for pid in level for child in tree.get(pid, [])]
        for pid in level:
            forked = sorted(tree.get(pid, []))
            if len(forked) == 2 and all(named(each) == named(pid) for each in forked):
                found.append(forked[1])
    return found


def named(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def slow_down(above: int, over: threading.Event) -> None:
    ranks, looked = [], 0.0
    while not over.wait(RUNS_S):
        if time.monotonic() > looked + LOOKS_S:
            ranks, looked = second_ranks(above), time.monotonic()
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in ranks:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            if ranks and number == signal.SIGSTOP:
                over.wait(STOPPED_S)


def test_stages_balanced_over_unequal_devices_are_measured_faster_than_even_ones(tmp_path):
    (tmp_path / "job.toml").write_text(JOB)
    store = ("--kb", str(tmp_path / "kb.duckdb"))
    tune = [sys.executable, "-m", "tui.cli", "tune", "job.toml", "--no-tui", "--seed", "0", *store]
    path = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "XDG_DATA_HOME": str(tmp_path)}
    session = subprocess.Popen(tune, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    over = threading.Event()
    slower = threading.Thread(target=slow_down, args=(session.pid, over))
    slower.start()
    try:
        said = session.communicate()[0].decode()
    finally:
        over.set()
        slower.join()
        session.kill()
    assert session.returncode == 0, said
    (journal,) = tmp_path.rglob("journal.jsonl")
    measured = [event.measurement for event, _ in read(journal) if isinstance(event, ExperimentEnded)]
    assert all(m.status == "ok" for m in measured), said
    times: dict[int, list[float]] = {0: [], 2: []}
    for m in measured:
        times[int(m.configuration.knobs["cpu_slow_layers"])].append(m.metrics["step_time_s"])
        assert [device.split(":")[1] for device in m.rank_devices] == ["cpu", "cpu-slow"]
        assert {len(m.per_rank[name]) for name in ("step_time_s", "cpu_s", "alone_s", "peak_memory_gib")} == {2}
    assert statistics.median(times[2]) < 0.85 * statistics.median(times[0]), times
