"""Interference is seen, recorded, and a disturbed run is repeated."""

import os
import subprocess
import sys
import time

import msgspec
import pytest
from landscape import measured, space_of
from test_session import RECORDED, events_of, replay_job

from autoscout.running import conditions, processes
from autoscout.targets.jobs import load_job
from autoscout.tuning import session
from autoscout.tuning.disturbances import Disturbances
from autoscout.tuning.loop import Stop
from kb import journal as journals
from kb.journal import ExperimentEnded

SPACE = space_of("tiny-gpt-cpu")
BUSY = "import time\nwhile time.process_time() < 1.0: pass"


def run(foreign: float):
    return msgspec.structs.replace(
        measured(SPACE, SPACE.reference), conditions={"foreign_cpu_share": foreign, "steal_share": 0.0}
    )


def test_foreign_cpu_time_is_what_is_not_ours():
    """The same work, once by a child of ours and once by somebody else's."""
    before = processes.cpu_seconds(os.getpid())
    subprocess.run([sys.executable, "-c", BUSY], check=True)
    between = processes.cpu_seconds(os.getpid())
    assert between - before > 0.9  # counted in ticks, not as exactly as the process counts
    start = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {BUSY!r}], stdout=subprocess.DEVNULL)"
    subprocess.run([sys.executable, "-c", start], check=True)
    time.sleep(1.0)
    assert processes.cpu_seconds(os.getpid()) - between < 0.8


def test_the_conditions_of_a_run_are_shares():
    watch, before = conditions.MachineWatch(), conditions.counters().total
    while conditions.counters().total - before < 0.05:  # the kernel counts in ticks of 10 ms
        time.sleep(0.01)
    found = watch.ended()
    assert {"foreign_cpu_share", "steal_share"} <= set(found)
    assert all(0 <= share <= 1 for share in found.values())


SMI = """0, NVIDIA A100-SXM4-80GB, 1410, 64, 350.1, 0x0000000000000004
1, NVIDIA A40, 1200, 88, 250.0, 0x0000000000000040
2, NVIDIA A40, [N/A], 1, 2, 0x0
"""


def test_the_driver_tells_what_slowed_a_gpu():
    rows = conditions.parsed(SMI)
    assert conditions.of_gpus(rows) == {"clock_mhz": 1200, "temperature_c": 88, "power_w": 300.05, "throttled": 1.0}
    assert conditions.of_gpus(rows[:1])["throttled"] == 0.0  # the power cap is how they work
    assert conditions.of_gpus([]) == {}


def test_a_gpu_without_work_tells_nothing_of_the_run():
    """As an H100 told it: its clock is 345 MHz while a run starts, 1980 MHz while it trains."""
    rows = conditions.parsed(
        "0, NVIDIA H100 80GB HBM3, 345, 35, 70.1, 0x0000000000000001\n"
        "0, NVIDIA H100 80GB HBM3, 1980, 51, 590.3, 0x0000000000000000\n"
    )
    assert conditions.of_gpus(rows) == {"clock_mhz": 1980, "temperature_c": 51, "power_w": 590.3, "throttled": 0.0}
    assert conditions.of_gpus(rows[:1])["clock_mhz"] == 345  # nothing else was seen


def test_a_run_that_does_not_report_its_memory_has_the_drivers_word_for_it():
    rows = conditions.parsed("0, NVIDIA H100, 345, 35, 70, 0x1, 612\n0, NVIDIA H100, 1980, 51, 590, 0x0, 45210\n")
    assert [row.memory_gib for row in rows] == [612 / 1024, 45210 / 1024]
    assert conditions.with_peak(run(0.1), rows, 1).metrics["peak_memory_gib"] == (45210 - 612) / 1024
    assert conditions.with_peak(run(0.1), rows[:1], 1) == run(0.1)
    own = msgspec.structs.replace(run(0.1), metrics={"peak_memory_gib": 40.0})
    assert conditions.with_peak(own, rows, 1) == own
    assert conditions.with_peak(run(0.1), rows, 2) == run(0.1)  # of two, another is elsewhere
    assert conditions.with_peak(run(0.1), conditions.parsed(SMI), 2) == run(0.1)  # an older driver's word
    died = msgspec.structs.replace(run(0.1), status="oom")
    assert conditions.with_peak(died, rows, 1) == died


def test_what_each_device_did_stands_at_its_rank(monkeypatch):
    monkeypatch.setenv("AUTOSCOUT_HOST", "none")
    rows = conditions.parsed(SMI)
    placed = msgspec.structs.replace(run(0.1), rank_devices=[":NVIDIA A40:1", ":NVIDIA A100-SXM4-80GB:0"])
    found = conditions.on_ranks(placed, rows)
    assert found.per_rank["power_w"] == [250.0, 350.1]
    assert found.per_rank["throttled"] == [1.0, 0.0]
    server = conditions.on_ranks(run(0.1), rows)  # says nothing of ranks: one value a GPU
    assert server.rank_devices == [":NVIDIA A100-SXM4-80GB:0", ":NVIDIA A40:1"]
    elsewhere = msgspec.structs.replace(run(0.1), rank_devices=["another:NVIDIA A40:0"])
    assert conditions.on_ranks(elsewhere, rows).per_rank == {}
    assert conditions.on_ranks(run(0.1), []) == run(0.1)


def test_a_run_beyond_what_is_usual_is_repeated_once_and_the_less_disturbed_counts():
    seen = Disturbances()
    for _ in range(4):
        assert not seen.again("search", run(0.1))
    assert not seen.again("search", run(0.2))
    loud, quiet = run(0.8), run(0.1)
    assert seen.again("search", loud)
    assert not seen.again("repeat", quiet)
    assert seen.settled("repeat", quiet) == ("search", quiet)


def test_where_everything_is_always_disturbed_nothing_is_repeated():
    seen = Disturbances()
    assert not any(seen.again("search", run(0.7)) for _ in range(10))


def test_a_disturbed_run_of_a_session_is_kept_repeated_and_does_not_count(tmp_path):
    """The fifth recorded run is said to have been disturbed, and to have taken a tenth of its time."""
    path, told = tmp_path / "disturbed.jsonl", 0
    journal = journals.Journal(path)
    default = next(e.default for e in journals.events(RECORDED) if isinstance(e, journals.SessionStarted))
    once: set[str] = set()
    for event in journals.events(RECORDED):
        if isinstance(event, ExperimentEnded):
            m, told = event.measurement, told + 1
            first = m.configuration.id not in once and m.configuration != default
            once.add(m.configuration.id)
            metrics = {**m.metrics, "step_time_s": 1e-4} if first and told % 4 == 0 else m.metrics
            share = 0.9 if metrics is not m.metrics else 0.05
            m = msgspec.structs.replace(m, metrics=metrics, conditions={"foreign_cpu_share": share})
            event = msgspec.structs.replace(event, measurement=m)
        journal.append(event, sync=False)
    journal.close()
    kb = tmp_path / "kb.duckdb"
    job = load_job(replay_job(tmp_path, path, profiles=8))
    result = session.tune(job, kb, session.SessionOptions(seed=2), lambda e: None, lambda t: None, Stop())
    ended = events_of(kb, result.session, ExperimentEnded)
    repeats = [e for e in ended if e.purpose == "repeat"]
    assert repeats
    for event in repeats:
        before = next(e for e in ended if e.number == event.number - 1)
        assert before.measurement.configuration == event.measurement.configuration
        assert before.measurement.conditions["foreign_cpu_share"] == 0.9
    assert sum(e.purpose == "search" for e in ended) == 8


def test_the_work_of_others_is_what_is_not_ours():
    before = conditions.Counters(total=100.0, busy=50.0, ours=20.0)
    assert conditions.foreign_share(before, conditions.Counters(total=102.0, busy=51.8, ours=20.6)) == pytest.approx(
        0.6
    )
    assert conditions.foreign_share(before, before) == 0
