"""Ranks that stay for the next experiment: the same process for the same key, another one when it died."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from serving_bench import serving_job

from autoscout.running.warm_launcher import WarmRunner

WORKER = """
import json, os, time
from pathlib import Path

def load(device): pass

def run_and_exit(experiment):
    (experiment.parent / "pid").write_text(str(os.getpid()))
    os._exit(0)

def stay(connection):
    with os.fdopen(os.dup(connection)) as paths:
        for path in paths:
            experiment = Path(path.strip())
            (experiment.parent / "pid").write_text(str(os.getpid()))
            how = json.loads(experiment.read_text())["how"]
            if how == "dies":
                os._exit(7)
            if how == "hangs":
                time.sleep(600)
            os.write(connection, b"0\\n")
"""


@pytest.fixture
def warm(tmp_path: Path) -> Iterator[WarmRunner]:
    (tmp_path / "worker.py").write_text(WORKER)
    launcher = WarmRunner(serving_job(python=sys.executable), tmp_path / "worker.py", {})
    launcher.start(lambda: False)
    yield launcher
    launcher.close()


def run(
    warm: WarmRunner, folder: Path, keep: str, how: str = "works", timeout_s: float = 300.0
) -> tuple[int, dict[int, int]]:
    """(process id of the rank, exit codes)"""
    folder.mkdir()
    (folder / "experiment.json").write_text(json.dumps({"how": how}))
    outcome = warm.run(folder / "experiment.json", 1, timeout_s, lambda: False, keep)
    assert outcome.timed_out == (how == "hangs")
    return int((folder / "pid").read_text()), outcome.codes


def test_the_same_key_finds_the_same_process(warm: WarmRunner, tmp_path: Path) -> None:
    one, codes = run(warm, tmp_path / "1", "a")
    assert codes == {0: 0}
    fresh, _ = run(warm, tmp_path / "2", "")  # a check in between does not end it
    again, _ = run(warm, tmp_path / "3", "a")
    other, _ = run(warm, tmp_path / "4", "b")
    assert (one == again, len({one, fresh, other})) == (True, 3)
    assert not psutil.pid_exists(one)  # only one stays


def test_one_that_dies_or_hangs_is_replaced(warm: WarmRunner, tmp_path: Path) -> None:
    one, codes = run(warm, tmp_path / "1", "a", "dies")
    assert codes == {0: 7}
    two, codes = run(warm, tmp_path / "2", "a")
    assert (codes, one != two) == ({0: 0}, True)
    assert run(warm, tmp_path / "3", "a", "hangs", timeout_s=1.0) == (two, {})
    three, codes = run(warm, tmp_path / "4", "a")
    assert (codes, three != two) == ({0: 0}, True)
    warm.close()
    assert not psutil.pid_exists(three) or psutil.Process(three).status() == psutil.STATUS_ZOMBIE
