"""One experiment at a time on a machine, whoever runs it."""

import os
import signal
import subprocess
import sys

import msgspec
import pytest

from autoscout.running.cluster import devices, slots
from kb.records import Cluster, Configuration, Job, Node, Objective

HOLD = """
import sys, time
from autoscout.running.cluster import slots
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


SOME = """
import sys, time
from autoscout.running.cluster import slots
taken = []
with slots.machine(lambda: None, lambda: False, some=slots.Some([f"g{i}" for i in range(8)], 4), taken=taken):
    print(*taken, flush=True)
    sys.stdin.read()
"""


def hold_four() -> tuple[subprocess.Popen[str], list[str]]:
    process = subprocess.Popen([sys.executable, "-c", SOME], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().split()


def never() -> bool:
    return False


def test_two_sessions_of_four_gpus_measure_side_by_side_on_a_node_of_eight(own_machine):
    one, first = hold_four()
    two, second = hold_four()
    assert (first, second) == ([f"g{i}" for i in range(4)], [f"g{i}" for i in range(4, 8)])
    waited: list[int] = []

    def let_go():
        waited.append(1)
        one.kill()  # the kernel gives its GPUs back

    taken: list[str] = []
    with slots.machine(let_go, never, some=slots.Some(["g0", "g5"], 1), taken=taken) as ours:
        assert ours
        assert (taken, waited) == (["g0"], [1])
    two.kill()
    one.wait()
    two.wait()


def test_cpu_ranks_have_the_machine_alone(own_machine):
    one, _ = hold_four()
    waited: list[int] = []

    def let_go():
        waited.append(1)
        one.kill()

    with slots.machine(let_go, never) as ours:
        assert ours
        assert waited == [1]
        gave_up = iter([False, True])
        with slots.machine(lambda: None, lambda: next(gave_up), some=slots.Some(["g7"], 1)) as beside:
            assert not beside
    one.wait()


def test_who_waits_is_seen_and_comes_before_who_gave_back(own_machine):
    """One process holds, another waits: the first one cannot have the machine again before the other one had it."""
    order: list[str] = []
    with slots.machine(lambda: None, never) as ours:
        assert ours
        assert not slots.wanted_by_others()
        other = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True)
        while not slots.wanted_by_others():
            assert other.poll() is None

    def other_has_it():
        order.append("ours waits")
        assert other.stdout is not None
        order.append(other.stdout.readline().strip())
        other.kill()

    with slots.machine(other_has_it, never) as ours:
        assert ours
    assert order == ["ours waits", "held True"]
    other.wait()


def test_a_session_sees_only_the_gpus_that_it_got():
    job = Job(
        name="j",
        target="megatron",
        objective=Objective(minimize="step_time_s"),
        cluster=Cluster(nodes=[Node(device="a100", count=4)]),
    )
    seen = ["NVIDIA A100-SXM4-80GB"] * 8
    assert devices.claimable(job, seen) == list(range(8))
    chosen = devices.variables(job, Configuration({}), seen, 4, spare=[4, 5, 6, 7])
    assert chosen == {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}
    mixed = msgspec.structs.replace(job, cluster=Cluster(nodes=[*job.cluster.nodes, Node(device="a40", count=1)]))
    assert devices.claimable(mixed, [*seen, "NVIDIA A40"]) == []
