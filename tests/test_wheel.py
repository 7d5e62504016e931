"""The wheel carries what it needs: installed into an empty folder it works from another one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    subprocess.run([*pip, str(folder), str(ROOT)], check=True, capture_output=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Runs `autoscout` of the wheel, in an empty folder."""
    site, empty = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("empty")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(site)]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True)
    environment = os.environ | {"PYTHONPATH": str(site), "XDG_DATA_HOME": str(empty / "data")}

    def run(*words: str) -> str:
        command = [sys.executable, str(site / "bin" / "autoscout"), *words]
        ended = subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    where = "import autoscout.job.shipped as shipped; print(shipped.folder())"
    said = subprocess.run([sys.executable, "-c", where], cwd=empty, env=environment, capture_output=True, text=True)
    assert said.stdout.strip() == str(site / "autoscout" / "shipped")
    return run


def test_it_is_small(wheel):
    assert wheel.stat().st_size < 5e6


def test_it_shows_the_recording_that_comes_with_it(installed):
    shown = installed("watch", "--plain", "tiny-moe-session")
    assert "session tiny-moe-cpu" in shown
    assert "faster than" in shown


def test_it_knows_its_jobs_by_name(installed):
    assert "valid configurations" in installed("space", "llama-3.2-3b")
    assert "step_time_s" in installed("predict", "llama-3.2-3b")


def test_it_tunes_a_job_that_comes_with_it(installed):
    assert "best" in installed("tune", "smallest-cpu-replay", "--no-tui")
