"""One experiment at a time on a machine, whoever runs it."""

import os
import signal
import subprocess
import sys

import pytest

from autoscout.cluster import slots

HOLD = """
import sys, time
from autoscout.cluster import slots
with slots.machine(lambda: None, lambda: False) as ours:
    print("held", ours, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def own_machine(tmp_path, monkeypatch):
    """A temporary folder of its own, for this process and its children."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def hold() -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held True\n"
    return process


def test_a_free_machine_is_ours_at_once(own_machine):
    waited = []
    with slots.machine(lambda: waited.append(1), lambda: False) as ours:
        assert ours
    assert waited == []


def test_a_held_machine_is_waited_for_and_said_once(own_machine):
    holder = hold()
    waited = []

    def let_go():
        waited.append(1)
        os.kill(holder.pid, signal.SIGKILL)  # the kernel gives the lock back

    with slots.machine(let_go, lambda: False) as ours:
        assert ours
    assert waited == [1]
    holder.wait()


def test_waiting_ends_when_the_person_asks_to_stop(own_machine):
    holder = hold()
    asked = iter([False, False, True])
    with slots.machine(lambda: None, lambda: next(asked)) as ours:
        assert not ours
    holder.kill()
    holder.wait()


def test_who_holds_it_can_be_read_until_it_ends(own_machine):
    assert slots.holder() is None
    with slots.machine(lambda: None, lambda: False, "a-session"):
        held = slots.holder()
        assert held is not None
        assert (held.pid, held.session) == (os.getpid(), "a-session")
    assert slots.holder() is None
    other = hold()
    assert slots.holder() is not None
    other.kill()
    other.wait()
    assert slots.holder() is None
