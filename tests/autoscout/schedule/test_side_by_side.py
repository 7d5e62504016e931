"""Experiments of one session side by side: on devices of their own, told in the journal's order, and so resumed."""

import json
import os
import shutil
import sys
from pathlib import Path

import msgspec
import pytest

from autoscout.running.cluster import slots
from autoscout.running.cluster.placement import Device, Host, Placement
from autoscout.targets.command.exported import exported
from autoscout.targets.jobs import JobSpace, load_job, profiler_of
from autoscout.tuning import session
from autoscout.tuning.lanes import Lanes, hosts_of
from autoscout.tuning.loop import Interrupted, Stop
from autoscout.tuning.session import SessionOptions
from kb import journal, store
from kb.journal import Confirmed, ExperimentEnded, ExperimentStarted, Neighbours
from kb.records import AutoscoutError, Configuration

SCRIPT = (
    "import sys; a, b = map(int, sys.argv[1:]); t = 10 * (1 + abs(a - 4)) + b; print(f'step time (ms): {t}\\n' * 4)"
)
JOB = f"""
name = "beside"
target = "command"
[cluster]
nodes = [{{ device = "cpu", count = 1 }}]
together = 2
[objective]
minimize = "step_time_s"
[budget]
profiles = 5
[launch]
command = "{sys.executable} -I -S work.py {{a}} {{b}}"
path = "FOLDER"
iterations = 2
repeats = 1
end_early = false
[launch.metrics]
step_time_ms = 'step time \\(ms\\): ([\\d.]+)'
[space]
knob = [{{ name = "a", values = [1, 2, 4, 8] }}, {{ name = "b", values = [1, 2, 3] }}]
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # nobody else's devices
    (tmp_path / "work.py").write_text(SCRIPT)
    (tmp_path / "job.toml").write_text(JOB.replace("FOLDER", str(tmp_path)))
    return load_job(tmp_path / "job.toml")


def tuned(job, kb: Path, stop: Stop | None = None, on_event=lambda event: None):
    notes: list[str] = []
    options = SessionOptions(seed=1, warm_start="off")
    session.tune(job, kb, options, on_event, notes.append, stop or Stop(), name="s")
    return notes


def events_of(kb: Path):
    return journal.events(store.session_folder(kb, "s") / "journal.jsonl")


def open_at_once(events) -> int:
    open_ones: dict[int, str] = {}
    most = 0
    for event in events:
        if isinstance(event, ExperimentStarted):
            assert event.placement not in open_ones.values() or event.number in open_ones
            open_ones[event.number] = event.placement
        elif isinstance(event, ExperimentEnded):
            assert event.placement == open_ones.pop(event.number)
        most = max(most, len(open_ones))
    assert not open_ones
    return most


def test_two_at_once_and_the_reference_alone_first(job, tmp_path):
    notes = tuned(job, tmp_path / "kb.duckdb")
    events = events_of(tmp_path / "kb.duckdb")
    assert open_at_once(events) == 2
    first = [e for e in events if isinstance(e, ExperimentStarted | ExperimentEnded)][:2]
    assert [type(e) for e in first] == [ExperimentStarted, ExperimentEnded]
    assert any("2 experiments at once on 1 host (cluster.together = 2)" in note for note in notes)
    assert any(isinstance(e, Confirmed) for e in events)
    rows = store.measurements(tmp_path / "kb.duckdb", job=job.id)
    assert len(rows) == sum(isinstance(e, ExperimentEnded) for e in events)


def test_a_session_killed_with_two_in_flight_goes_on_where_it_was(job, tmp_path):
    """The journal as a kill leaves it: cut where two have started and not ended."""
    kb = tmp_path / "kb.duckdb"
    tuned(job, kb)
    path = store.session_folder(kb, "s") / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    started = [i for i, line in enumerate(lines) if b'"experiment_started"' in line]
    path.write_bytes(b"".join(lines[: started[2] + 1]))  # 1 has ended, 2 and 3 run
    before = events_of(kb)
    shutil.rmtree(path.parent / "experiments" / "0002")  # the other one had finished: it is taken as it lies there
    notes: list[str] = []
    session.resume("s", kb, lambda event: None, notes.append, Stop())
    events = events_of(kb)
    assert events[: len(before)] == before
    ended = [e.number for e in events if isinstance(e, ExperimentEnded)]
    begun = [e.number for e in events if isinstance(e, ExperimentStarted)]
    assert sorted(ended) == begun == list(range(1, len(begun) + 1))  # each once
    assert open_at_once(events) == 2
    session.resume("s", kb, lambda event: None, notes.append, Stop())  # nothing is left to run, in the same order
    assert [e.number for e in events_of(kb) if isinstance(e, ExperimentStarted)] == begun


def test_asked_to_stop_it_ends_what_runs_and_keeps_it(job, tmp_path):
    kb, stop = tmp_path / "kb.duckdb", Stop()

    def on_event(event):
        if isinstance(event, ExperimentStarted) and event.number == 3:
            stop.ask()

    with pytest.raises(Interrupted):
        tuned(job, kb, stop, on_event)
    events = events_of(kb)
    assert [e.number for e in events if isinstance(e, ExperimentStarted)] == [1, 2, 3]
    assert sorted(e.number for e in events if isinstance(e, ExperimentEnded)) == [1, 2, 3]


def lanes(job_file: Path) -> Lanes:
    job = load_job(job_file)
    return Lanes(job, profiler_of(job), lambda note: None)


def test_a_host_is_one_experiments_until_it_is_measured_or_the_job_says_otherwise(job, tmp_path):
    (tmp_path / "hosts").write_text("n1 slots=4\nn2 slots=2\n")
    text = (tmp_path / "job.toml").read_text()
    path = tmp_path / "job2.toml"
    path.write_text(text.replace("together = 2", 'hosts = "hosts"'))
    alone = lanes(path)
    assert alone.most == 2
    assert (
        "2 experiments at once on 2 hosts (4 fit on a host; after the reference's run, a test shows" in alone.decision
    )
    path.write_text(text.replace("together = 2", 'hosts = "hosts"\ntogether = 5'))
    assert lanes(path).most == 5
    assert {d.group for h in hosts_of(load_job(path)) for d in h.devices} == {""}


def test_a_job_that_no_hosts_can_hold_is_refused(job, tmp_path):
    (tmp_path / "hosts").write_text("n1 slots=1\nn2 slots=2\n")
    path = tmp_path / "job2.toml"
    text = (tmp_path / "job.toml").read_text().replace("count = 1", "count = 4")
    path.write_text(text.replace("together = 2", 'hosts = "hosts"'))
    with pytest.raises(AutoscoutError, match="needs 4"):
        lanes(path)


DRIVER = """#!/bin/sh
case "$1" in --query-gpu=index,uuid,name,memory.used,memory.total)
for i in 0 1 2 3 4 5 6 7; do echo "$i, GPU-$i, NVIDIA A100-SXM4-80GB, 0, 81920"; done;; esac
"""


def test_a_session_takes_the_gpus_that_another_left(tmp_path, monkeypatch):
    """A driver of eight GPUs, of which four are another session's."""
    (tmp_path / "nvidia-smi").write_text(DRIVER)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "work.py").write_text(
        f"import os; open('{tmp_path}/seen', 'a').write(os.environ['CUDA_VISIBLE_DEVICES'] + '\\n')\n{SCRIPT}"
    )
    text = (
        JOB.replace("FOLDER", str(tmp_path))
        .replace("together = 2", "")
        .replace('"cpu", count = 1', '"a100", count = 4')
    )
    (tmp_path / "job.toml").write_text(text)
    kb = tmp_path / "kb.duckdb"
    others = slots.Some([f"GPU-{index}" for index in range(8)], 4)
    with slots.machine(lambda: None, lambda: False, some=others) as ours:
        assert ours
        session.profile_one(load_job(tmp_path / "job.toml"), kb, ["a=4", "b=1"], lambda note: None, Stop())
    session.profile_one(load_job(tmp_path / "job.toml"), kb, ["a=4", "b=2"], lambda note: None, Stop())
    assert (tmp_path / "seen").read_text().split() == ["4,5,6,7", "0,1,2,3"]


KINDS = """
[cluster]
nodes = [{ device = "cpu", count = 1 }, { device = "cpu-slow", count = 1 }]
hosts = "hosts"
"""


@pytest.fixture
def two_kinds(job, tmp_path):
    """On two hosts that are this machine, one of each kind; each experiment takes 0.2 s."""
    script = SCRIPT.replace("a, b = map(int, sys.argv[1:])", "a, b = map(int, sys.argv[1:3])")
    (tmp_path / "work.py").write_text("import time; time.sleep(0.2)\n" + script)
    (tmp_path / "hosts").write_text(f"localhost slots=1\n{os.uname().nodename} slots=1\n")
    text = JOB.replace("FOLDER", str(tmp_path))
    text = text.replace("{a} {b}", "{a} {b} {nodes} {node} {head} {ranks}").replace("profiles = 5", "profiles = 12")
    text = text.replace('[cluster]\nnodes = [{ device = "cpu", count = 1 }]\ntogether = 2\n', KINDS)
    (tmp_path / "kinds.toml").write_text(text.replace('name = "b"', 'by_kind = true, name = "b"'))
    return load_job(tmp_path / "kinds.toml")


def test_an_experiment_on_one_kind_of_device_leaves_the_others_free(two_kinds, tmp_path):
    """Also in the order in which a session goes on, cut where two run on hosts of different kinds."""
    kb = tmp_path / "kb.duckdb"
    notes = tuned(two_kinds, kb)
    events = events_of(kb)
    kinds = {}
    for event in events:
        if isinstance(event, ExperimentStarted):
            knobs = event.configuration.knobs
            used = [host.partition(":")[0] for host in event.placement.split()]
            assert used == [n for n, k in (("localhost", "cpu"), (os.uname().nodename, "cpu_slow")) if knobs[k]]
            kinds[event.number] = len(used)
            assert ("b_cpu" in knobs, "b_cpu_slow" in knobs) == (knobs["cpu"] == 1, knobs["cpu_slow"] == 1)
        elif isinstance(event, ExperimentEnded):
            knobs = {name: int(value) for name, value in event.measurement.configuration.knobs.items()}
            of_first = knobs["b_cpu"] if knobs["cpu"] else knobs["b_cpu_slow"]
            told = (10 * (1 + abs(knobs["a"] - 4)) + of_first) / 1000
            assert event.measurement.metrics["step_time_s"] == pytest.approx(told)
    assert set(kinds.values()) == {1, 2}
    assert open_at_once(events) == 2
    assert any("2 experiments at once on 2 hosts" in note for note in notes)

    path = store.session_folder(kb, "s") / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    open_ones, cut = 0, 0
    for i, event in enumerate(events):
        open_ones += isinstance(event, ExperimentStarted) - isinstance(event, ExperimentEnded)
        cut = i + 1 if open_ones == 2 else cut
    path.write_bytes(b"".join(lines[:cut]))
    session.resume("s", kb, lambda event: None, lambda note: None, Stop())
    again = events_of(kb)
    assert again[:cut] == events[:cut]
    assert open_at_once(again) == 2


def test_a_knob_by_kind_is_told_to_each_host_and_exported(two_kinds, tmp_path):
    """Shares of the batch by kind: what the slower devices do is less."""
    space = JobSpace.of_job(two_kinds)
    both = Configuration({"cpu": 1, "cpu_slow": 1, "a": 4, "b_cpu": 3, "b_cpu_slow": 1})
    assert space.is_valid(both)
    kb = tmp_path / "kb.duckdb"
    told = ["cpu=1", "cpu_slow=1", "a=4", "b_cpu=3", "b_cpu_slow=1"]
    assert session.profile_one(two_kinds, kb, told, lambda note: None, Stop()).status == "ok"
    folder = next((tmp_path / "sessions").glob("*/experiments/*"))
    spec = json.loads((folder / "hosts.json").read_text())
    assert spec["by_kind"] == {"cpu": {"@b@": "3"}, "cpu-slow": {"@b@": "1"}}
    words = exported(two_kinds, both)
    assert "B" in words.program
    assert words.devices == [1, 1]
    assert "B: on each host the value for its kind of device: 3 on cpu, 1 on cpu-slow" in words.missing
    alone = exported(two_kinds, Configuration({"cpu": 0, "cpu_slow": 1, "a": 4, "b_cpu_slow": 2}))
    assert alone.devices == [1]


def test_a_knob_by_kind_that_nobody_can_be_told_is_refused(two_kinds):
    here = msgspec.structs.replace(two_kinds, cluster=msgspec.structs.replace(two_kinds.cluster, hosts=""))
    with pytest.raises(AutoscoutError, match="knob 'b': by_kind is for numbers and names"):
        JobSpace.of_job(here)


def test_a_host_that_is_lost_twice_is_said_to_be_used_no_more_and_its_experiments_run_elsewhere(two_kinds, tmp_path):
    (tmp_path / "hosts").write_text(f"nowhere slots=1\nlocalhost slots=1\n{os.uname().nodename} slots=1\n")
    text = (tmp_path / "kinds.toml").read_text().replace('"cpu-slow"', '"cpu"').replace("by_kind = true, ", "")
    path = tmp_path / "three.toml"
    path.write_text(text.replace(', { device = "cpu", count = 1 }]', "]").replace("profiles = 12", "profiles = 6"))
    notes = tuned(load_job(path), tmp_path / "kb.duckdb")
    events = events_of(tmp_path / "kb.duckdb")
    assert [note for note in notes if "no longer used" in note] == ["nowhere was lost 2 times and is no longer used"]
    ended = [e for e in events if isinstance(e, ExperimentEnded)]
    lost = [e for e in ended if e.measurement.status == "infrastructure"]
    assert [e.placement for e in lost] == ["nowhere:0", "nowhere:0"]
    assert all("no host of this name is known" in e.measurement.evidence for e in lost)
    well = {e.measurement.configuration.id for e in ended if e.measurement.status == "ok"}
    assert {e.measurement.configuration.id for e in lost} <= well
    assert len(well) == 6


@pytest.mark.parametrize("busy", [True, pytest.param(False, marks=pytest.mark.thorough)], ids=["disturbed", "idle"])
def test_whether_neighbours_disturb_is_measured_once_and_known_to_the_next_session(job, tmp_path, busy):
    """Three places on one host; the disturbed work takes three times as long where three run beside each other."""
    (tmp_path / "hosts").write_text(f"{os.uname().nodename} slots=3\n")
    running = "any(not os.path.exists(f'{d}/measured.json') for d in glob.glob('sessions/s/neighbours/*'))"
    (tmp_path / "work.py").write_text(
        "import glob, os, sys, time; a, b = map(int, sys.argv[1:3])\n"
        f"t = (10 * (1 + abs(a - 4)) + b) * (3 if {busy} and {running} else 1)\n"
        "time.sleep(0.3); print(f'step time (ms): {t}\\n' * 4)\n"
    )
    path = tmp_path / "job2.toml"
    text = (tmp_path / "job.toml").read_text().replace("together = 2", 'hosts = "hosts"')
    path.write_text(text.replace("{a} {b}", "{a} {b} {nodes} {node} {head} {ranks}"))
    job2, kb = load_job(path), tmp_path / "kb.duckdb"
    notes = tuned(job2, kb)
    events = events_of(kb)
    (found,) = [e for e in events if isinstance(e, Neighbours)]
    assert (found.shape, len(found.beside), found.allowed) == ("1 of 3 cpu", 3, not busy)
    assert open_at_once(events) == (1 if busy else 3)
    assert any("3 experiments on one host take" in note for note in notes)
    assert sum(isinstance(e, ExperimentEnded) for e in events) == len(store.measurements(kb, job=job2.id))

    session.resume("s", kb, lambda event: None, lambda note: None, Stop())  # nothing is measured again
    assert events_of(kb)[: len(events)] == events
    assert sum(isinstance(e, ExperimentEnded | Neighbours) for e in events_of(kb)[len(events) :]) == 0
    small, again = msgspec.structs.replace(job2, budget=msgspec.structs.replace(job2.budget, profiles=2)), []
    session.tune(
        small, kb, SessionOptions(seed=2, warm_start="off"), lambda event: None, again.append, Stop(), name="t"
    )
    assert any("as s measured" in note for note in again)
    later = journal.events(store.session_folder(kb, "t") / "journal.jsonl")
    assert [e.known_from for e in later if isinstance(e, Neighbours)] == ["s"]


def test_a_host_that_is_not_used_any_more_does_not_come_back_once_hosts_are_shared(job, tmp_path):
    (tmp_path / "hosts").write_text("n1 slots=4\nn2 slots=2\n")
    path = tmp_path / "job2.toml"
    path.write_text((tmp_path / "job.toml").read_text().replace("together = 2", 'hosts = "hosts"'))
    some = lanes(path)
    for _ in range(2):
        some._blame(Placement((Host("n2", (Device("0"),)),)), "n2: it is gone")
    for allowed in (True, False):
        some.share(allowed)
        assert {host for host, _ in some.scheduler.free} == {"n1"}
