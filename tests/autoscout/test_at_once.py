"""`gate --at-once`: both sides run at the same time, and exchange the halves of the machine."""

import collections
import json
import os
import signal
import statistics
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import verbs
from asking import until

from autoscout.running.cluster.devices import SEPARATOR
from autoscout.targets.jobs import load_job
from autoscout.tuning.at_once import halves
from kb.records import AutoscoutError, Job, MetricSource, Node

SCRIPT = """
import json, os, time
for i in range(1000):
    began = time.perf_counter()
    while time.perf_counter() < began + 0.03:
        pass
    with open("seen", "a") as file:
        file.write(json.dumps([os.getpid(), time.monotonic(), sorted(os.sched_getaffinity(0))]) + "\\n")
    print(f"loss {1 / (i + 1):.4f} | {1000 * (time.perf_counter() - began):.4f} ms", flush=True)
"""
JOB = """
name = "busy"
target = "command"
[cluster]
nodes = [{ device = "cpu", count = 1 }]
[objective]
minimize = "step_time_s"
[launch]
iterations = 20
command = "python3 -S -E train.py"
[launch.metrics]
step_time_ms = 'loss [\\d.]+ \\| ([\\d.]+) ms'
loss = 'loss ([\\d.]+)'
[space]
knob = [{ name = "mbs", values = [1, 2], sets = "--mbs" }]
"""
two = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU has no halves")


@pytest.fixture
def job(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT.replace('"seen"', repr(str(tmp_path / "seen"))))
    (tmp_path / "job.toml").write_text(JOB)
    return tmp_path / "job.toml"


def changed(job: Job, **changes: object) -> Job:
    return msgspec.structs.replace(job, **changes)


@two
def test_the_halves_share_no_cpu(job):
    one, other = halves(load_job(job), {})
    assert not set(one.cpus) & set(other.cpus)
    assert {*one.cpus, *other.cpus} == os.sched_getaffinity(0)


def test_a_job_that_needs_more_than_half_of_the_machine_is_refused(job):
    text = job.read_text().replace("count = 1", f"count = {len(os.sched_getaffinity(0))}")
    job.write_text(text)
    done = verbs.run("gate", "", "", "--job", job, "--at-once", "--kb", job.parent / "kb.duckdb")
    assert done.returncode == 2
    assert "runs each side on half of the machine" in done.stderr


@two
def test_gpus_are_divided(job):
    found = load_job(job)
    four = changed(found, cluster=msgspec.structs.replace(found.cluster, nodes=[Node(device="a100", count=2)]))
    gpus = {"gpus": SEPARATOR.join(["NVIDIA A100-SXM4-80GB"] * 4)}
    assert [half.gpus for half in halves(four, gpus)] == [[0, 1], [2, 3]]
    with pytest.raises(AutoscoutError, match="needs 2"):
        halves(four, {"gpus": "NVIDIA A100-SXM4-80GB"})


@pytest.mark.parametrize(
    ("launch", "why"),
    [
        ({"command": "numactl -C 0 python3 train.py"}, "numactl decides where"),
        ({"command_prefix": ["/usr/bin/docker", "exec", "box"]}, "docker decides where"),
        ({"environment": {"CUDA_VISIBLE_DEVICES": "3"}}, "CUDA_VISIBLE_DEVICES=3"),
        ({"metrics": {"step_time_s": MetricSource(file="log.txt", pattern="(1)")}}, "use {folder} in its name"),
        ({"kv_folder": "/cache"}, "launch.kv_folder"),
    ],
)
def test_what_cannot_be_divided_is_refused(job, launch, why):
    found = load_job(job)
    with pytest.raises(AutoscoutError, match=why):
        halves(changed(found, launch=msgspec.structs.replace(found.launch, **launch)), {})


def test_a_recorded_job_needs_no_halves():
    done = verbs.run("gate", "smallest-cpu-replay", "smallest-cpu-replay", "--at-once", "--pairs", "4")
    assert done.returncode in (0, 4), done.stderr


@two
def test_both_sides_run_at_the_same_time_on_halves_that_they_exchange(job):
    done = verbs.run("gate", "", "", "--job", job, "--at-once", "--pairs", "4", "--kb", job.parent / "kb.duckdb")
    assert done.returncode in (0, 4), done.stderr  # equal sides are not worse
    runs = own(job.parent / "seen")
    assert len(runs) == 10  # the first runs and four pairs
    pairs = sorted(runs.values())
    apart = []
    for a, b in zip(pairs[::2], pairs[1::2], strict=True):
        assert a[-1][0] > b[0][0], "the second begins before the first ends"
        for seen in (a, b):
            assert len({cpus for _, cpus in seen}) == 2, "each is on both halves"
        for at, cpus in a:
            there = min(b, key=lambda each, at=at: abs(each[0] - at))[1]
            apart.append(not set(cpus) & set(there))
    assert statistics.mean(apart) > 0.7  # the others were seen before and after an exchange


@two
def test_an_interrupted_one_leaves_nothing_running(job):
    seen = job.parent / "seen"
    words = ["gate", "", "", "--job", str(job), "--at-once", "--kb", str(job.parent / "kb.duckdb")]
    shown = subprocess.Popen([sys.executable, "-m", "tui.cli", *words], stderr=subprocess.PIPE, text=True)
    until(lambda: seen.exists() and len(own(seen)) >= 2)
    for _ in range(2):
        shown.send_signal(signal.SIGINT)
    _, printed = shown.communicate(timeout=120)
    assert shown.returncode == 130, printed
    assert not any(Path(f"/proc/{process}").exists() for process in own(seen))


def own(seen: Path) -> dict[int, list[tuple[float, tuple[int, ...]]]]:
    """Process → (time, CPUs) of each of its iterations."""
    runs = collections.defaultdict(list)
    for line in seen.read_text().splitlines():
        process, at, cpus = json.loads(line)
        runs[process].append((at, tuple(cpus)))
    return runs
