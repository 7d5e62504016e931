"""A target of somebody else's, installed as a wheel, goes through every verb; nothing here was edited for it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest
import verbs

from kb import journal

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).parent / "sample_target" / "autoscout_sort"
JOB = """
name = "sorting"
target = "sort"
objective = { minimize = "sort_time_s" }
budget = { profiles = 4 }
"""
ENTRY_POINTS = """
[autoscout.targets]
sort = autoscout_sort:Sort
[autoscout.simulators]
passes = autoscout_sort.passes:simulators
[autoscout.strategies]
in-order = autoscout_sort.in_order
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """Where pip installed the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    info = "autoscout_sort-1.0.dist-info"
    wheel = folder / "autoscout_sort-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        for path in SOURCE.glob("*.*"):
            file.write(path, f"autoscout_sort/{path.name}")
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: autoscout-sort\nVersion: 1.0\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/entry_points.txt", ENTRY_POINTS)
        file.writestr(f"{info}/RECORD", "")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target"]
    subprocess.run([*pip, str(folder / "site"), str(wheel)], check=True)
    return folder / "site"


@pytest.fixture
def person(installed, tmp_path, monkeypatch):
    """Runs a verb in a folder with the job file; what it printed. `run.start` is the command that is installed."""
    (tmp_path / "job.toml").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    environment = {
        "PYTHONPATH": os.pathsep.join([str(installed), str(ROOT)]),
        "AUTOSCOUT_KB": str(tmp_path / "kb.duckdb"),
    }
    autoscout = [shutil.which("autoscout", path=str(Path(sys.executable).parent)) or "autoscout"]

    def run(*words: str, ends: int = 0) -> str:
        done = verbs.run(*words, **environment)
        assert done.returncode == ends, done.stdout + done.stderr
        return done.stdout + done.stderr

    def start(*words: str) -> subprocess.Popen[str]:
        whole = {**os.environ, **environment}
        return subprocess.Popen([*autoscout, *words], env=whole, stdout=subprocess.PIPE, text=True)

    run.start = start  # type: ignore[attr-defined]
    return run


def test_it_is_tuned_predicted_and_exported_as_it_was_measured(person, tmp_path):
    assert "sorting on the CPU" in person.start("targets").communicate()[0]
    assert "SORT1" in person("explain", "job.toml", "block=4096", "rounds=4", ends=3)
    predicted = person("predict", "job.toml")
    assert "comparisons" in predicted
    assert "passes" in predicted
    person("tune", "job.toml", "--no-tui")
    best = json.loads(person("best", "job.toml", "--json"))
    exported = person("export", best["sessions"][0]).splitlines()
    line = " ".join(" ".join(line.rstrip("\\") for line in exported if not line.startswith("#")).split())
    wanted = best["best"]["configuration"]
    assert all(f"--{knob} {value}" in line for knob, value in wanted.items()), line
    ran = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout)["sort_time_s"] > 0
    assert "sort" in person("sql", "SELECT target, count(*) FROM job GROUP BY 1")


@pytest.mark.thorough
def test_a_strategy_of_the_package_can_be_chosen(person, tmp_path):
    person("tune", "job.toml", "--no-tui", "--strategy", "in-order", "--profiles", "3")
    (path,) = tmp_path.glob("sessions/*/journal.jsonl")
    asked = [e for e in journal.events(path) if isinstance(e, journal.ExperimentEnded) and e.purpose == "search"]
    assert len(asked) == 3


@pytest.mark.thorough
def test_killed_it_goes_on(person, tmp_path):
    running = person.start("tune", "job.toml", "--no-tui")
    threading.Thread(target=running.stdout.read, daemon=True).start()
    found: list[Path] = []
    while running.poll() is None and not any(p.read_text().count("experiment_ended") >= 2 for p in found):
        time.sleep(0.05)
        found = list(tmp_path.glob("sessions/*/journal.jsonl"))
    (path,) = found
    running.send_signal(signal.SIGKILL)
    running.wait()
    before = [e.measurement.at for e in journal.events(path) if isinstance(e, journal.ExperimentEnded)]
    person("tune", "--resume", path.parent.name, "--no-tui")
    after = [e.measurement.at for e in journal.events(path) if isinstance(e, journal.ExperimentEnded)]
    assert after[: len(before)] == before
    assert len(after) > len(before)
    assert isinstance(journal.events(path)[-1], journal.SessionEnded)
