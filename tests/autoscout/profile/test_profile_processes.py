"""Ending a process means that nothing of its family holds memory any more."""

import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from autoscout.running import processes

# A process whose child leads its own session and holds 400 MB, which the kernel does not free at once.
PARENT = """
import subprocess, sys, time
child = "memory = bytearray(b'x') * 400_000_000; print('holds', flush=True); import time; time.sleep(600)"
process = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE, start_new_session=%s)
process.stdout.readline()
print(process.pid, flush=True)
time.sleep(%d)
"""


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes_started: list[subprocess.Popen[bytes]] = []
    yield processes_started
    for process in processes_started:
        processes.end(process, 0.0)
        assert process.stdout is not None
        process.stdout.close()


def parent(
    started: list[subprocess.Popen[bytes]], own_session: bool, lasts_s: int
) -> tuple[subprocess.Popen[bytes], psutil.Process]:
    command = [sys.executable, "-c", PARENT % (own_session, lasts_s)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    started.append(process)
    assert process.stdout is not None
    return process, psutil.Process(int(process.stdout.readline()))


def holds_memory(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_end_waits_for_grandchildren(started: list[subprocess.Popen[bytes]]) -> None:
    process, child = parent(started, own_session=True, lasts_s=600)
    assert holds_memory(child)
    processes.end(process, 0.0)
    assert not holds_memory(child)
    assert process.returncode is not None


def test_end_finds_what_a_dead_process_left_in_its_session(started: list[subprocess.Popen[bytes]]) -> None:
    process, child = parent(started, own_session=False, lasts_s=0)
    process.wait()
    assert holds_memory(child)
    processes.end(process, 0.0)
    assert not holds_memory(child)


def test_end_ends_what_was_seen_of_a_dead_process(started: list[subprocess.Popen[bytes]]) -> None:
    process, child = parent(started, own_session=True, lasts_s=600)
    seen = processes.family(process.pid)
    process.kill()
    process.wait()
    assert holds_memory(child)
    processes.end(process, 0.0, seen)
    assert not holds_memory(child)
