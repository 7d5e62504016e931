"""A job that runs trainer.py, the script beside this file."""

import sys
from pathlib import Path

import msgspec
import pytest
from job_files import written

from autoscout.targets.jobs import load_job

HERE = Path(__file__).parent
TEXT = f"""
name = "own"
target = "command"
[objective]
minimize = "step_time_s"
[budget]
profiles = 6
[launch]
path = "{HERE}"
command = "{sys.executable} -S trainer.py --mbs 2"
measure_s = 0.4
timeout_s = 20
repeats = 2
[launch.metrics]
step_time_ms = 'elapsed time per iteration \\(ms\\): ([\\d.]+)'
loss = 'lm loss: ([\\w.+-]+)'
[space]
knob = [
  {{ name = "mbs", values = [1, 2, 4], sets = "--mbs" }},
  {{ name = "workers", values = [0, 2], sets = "--workers" }},
  {{ name = "fast", values = [false, true], sets = "--fast" }},
]
"""


@pytest.fixture
def write(tmp_path):
    """A job file with some texts replaced by others."""

    return lambda *changes, text=TEXT: written(tmp_path, text, *changes)


@pytest.fixture
def job(write):
    return load_job(write())


@pytest.fixture
def ending(job):
    """The job whose script ends as it is told (trainer.py)."""

    def told(how: str, **launch):
        changed = msgspec.structs.replace(job.launch, environment={"END": how}, **launch)
        return msgspec.structs.replace(job, launch=changed)

    return told
