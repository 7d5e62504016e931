"""Every way to fail, with real processes: its class, its root cause, and nothing left running."""

import contextlib
import ctypes
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from asking import until
from cases import few
from profile_bench import Bench, configuration, tiny_job

from autoscout.running.torchrun import Torchrun
from autoscout.targets.jobs import profiler_of
from autoscout.targets.megatron.profiler import RANK
from kb.records import AutoscoutError, Job, Measurement

pytestmark = pytest.mark.engine

TINY = tiny_job()
ENDLESS: dict[str, Any] = {"iterations": 10**6, "measure_s": 1e6}
_PR_SET_CHILD_SUBREAPER = 36


def ranks() -> list[psutil.Process]:
    """Our descendants, orphans included, other than warm processes that wait for work."""
    own = [child.pid for child in psutil.Process().children() if "zygote.py" in " ".join(cmdline(child))]
    return [child for child in psutil.Process().children(recursive=True) if child.pid not in own]


def cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.fixture(autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans become visible as our children
    yield
    until(lambda: not [rank for rank in ranks() if rank.status() != psutil.STATUS_ZOMBIE])
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.fixture
def interpreter(tmp_path: Path) -> Callable[[str], str]:
    """Writes a Python interpreter that does `shell` instead of starting torchrun; returns its path."""

    def write(shell: str) -> str:
        path = tmp_path / "python"
        otherwise = f'exec {sys.executable} "$@"'
        path.write_text(f'#!/bin/sh\ncase "$*" in\n*torch.distributed.run*)\n{shell}\n;;\n*) {otherwise} ;;\nesac\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return write


def in_background(bench: Bench, job: Job, **knobs: Any) -> tuple[threading.Thread, list[Measurement]]:
    """Starts an experiment in a thread and waits until its ranks train."""
    answers: list[Measurement] = []
    folder = bench.folder()
    profiler = bench.profiler(job)

    def run() -> None:
        answers.append(profiler.run(configuration(**knobs), "tiny", folder))

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: len(list(folder.glob("rank-*.log"))) == 2)
    time.sleep(0.5)
    return thread, answers


@pytest.mark.parametrize(
    ("knobs", "expected"),
    [
        ({"tp": 3}, "phase config: ValueError: num_attention_heads (4) must be a multiple of tensor"),
        ({"mbs": 3}, "phase config: ValueError: global batch size (8) is not divisible by micro batch size"),
        ({"vpp": 2}, "phase groups: RuntimeError: pipeline-model-parallel size should be greater than 1"),
        ({"pp": 3}, "phase build: AssertionError: num_layers"),
        ({"tp": 2, "sp": True, "tp_comm_overlap": True}, "needs Transformer Engine"),
    ],
    ids=["config", "batch", "groups", "build", "transformer-engine"],
)
def test_what_megatron_refuses_is_invalid(bench: Bench, knobs: dict[str, Any], expected: str) -> None:
    measured = bench.run(TINY, **knobs)
    assert measured.status == "invalid"
    assert expected in measured.evidence
    assert measured.cost_s > 0
    assert not measured.losses


def test_a_configuration_without_micro_batch_size_is_no_experiment(bench: Bench) -> None:
    with pytest.raises(AutoscoutError, match="mbs"):
        profiler_of(TINY).run(type(configuration())({"tp": 2}), "tiny", bench.folder())


def test_memory_that_cannot_be_had_is_oom(bench: Bench) -> None:
    measured = bench.run(tiny_job(vocab=2**40))  # more than a process can address
    assert measured.status == "oom"
    assert "rank 0 failed in phase build" in measured.evidence


def test_a_slow_experiment_is_a_timeout(bench: Bench) -> None:
    measured = bench.run(tiny_job(timeout_s=3.0, **ENDLESS), tp=2)
    assert measured.status == "timeout"
    assert "no result after 3 s" in measured.evidence


def test_a_rank_killed_from_outside_is_killed(bench: Bench) -> None:
    thread, answers = in_background(bench, tiny_job(**ENDLESS), tp=2)
    ranks()[0].send_signal(signal.SIGKILL)
    thread.join()
    assert answers[0].status == "killed"
    assert "SIGKILL" in answers[0].evidence


def test_a_killed_warm_process_is_replaced(bench: Bench) -> None:
    job = tiny_job(**ENDLESS)
    thread, answers = in_background(bench, job, tp=2)
    os.kill(ranks()[0].ppid(), signal.SIGKILL)
    thread.join()
    assert answers[0].status == "killed"
    thread, answers = in_background(bench, job, tp=2)
    bench.profiler(job).interrupt()
    thread.join()
    assert answers[0].status == "killed"


@pytest.mark.parametrize("launcher", few(["warm", "torchrun"], 1))
def test_interrupt_ends_the_experiment_and_only_that(bench: Bench, launcher: str) -> None:
    job = tiny_job(launcher=launcher, **ENDLESS)
    for _ in range(2):
        thread, answers = in_background(bench, job, tp=2)
        bench.profiler(job).interrupt()
        thread.join()
        assert answers[0].status == "killed"
        assert "AutoScout stopped the run" in answers[0].evidence


@pytest.mark.parametrize("launcher", few(["warm", "torchrun"], 1))
def test_an_interrupt_before_the_experiment_ends_it_at_once(bench: Bench, launcher: str) -> None:
    endless, short = tiny_job(launcher=launcher, timeout_s=600.0, **ENDLESS), tiny_job(launcher=launcher)
    bench.profiler(endless).interrupt()
    folder = bench.folder()
    answer = bench.profiler(endless).run(configuration(), "tiny", folder)
    assert answer.status == "killed"
    assert "AutoScout stopped the run" in answer.evidence
    assert not list(folder.glob("rank-*"))
    assert bench.run(short).status == "ok"


def test_an_interrupt_while_the_warm_process_starts(bench: Bench) -> None:
    profiler = profiler_of(tiny_job(**ENDLESS))
    profiler.environment()
    answers: list[Measurement] = []
    thread = threading.Thread(target=lambda: answers.append(profiler.run(configuration(), "tiny", bench.folder())))
    thread.start()
    until(lambda: any("zygote.py" in " ".join(cmdline(child)) for child in psutil.Process().children()))
    profiler.interrupt()
    thread.join()
    assert answers[0].status == "killed"
    profiler.interrupt()
    assert profiler.run(configuration(), "tiny", bench.folder()).status == "killed"
    profiler.close()


def test_nothing_is_left_of_what_ranks_of_a_killed_torchrun_started(bench: Bench, tmp_path: Path) -> None:
    helper = """
        import os, subprocess
        if "RANK" in os.environ:
            subprocess.Popen(["sleep", "601"], start_new_session=True)
    """
    (tmp_path / "sitecustomize.py").write_text("\n".join(line[8:] for line in helper.splitlines()))
    prefix = ["env", f"PYTHONPATH={tmp_path}"]
    job = tiny_job(launcher="torchrun", command_prefix=prefix, timeout_s=600.0, **ENDLESS)
    thread, answers = in_background(bench, job, tp=2)
    until(lambda: sum(cmdline(process) == ["sleep", "601"] for process in ranks()) == 2)
    time.sleep(3.0)  # AutoScout looks once a second for what there is
    next(child for child in psutil.Process().children() if "torch.distributed.run" in cmdline(child)).kill()
    thread.join()
    assert answers[0].status == "killed"
    assert not [process for process in ranks() if process.status() != psutil.STATUS_ZOMBIE]


def test_a_rank_log_that_cannot_be_written_is_one_sentence(bench: Bench, interpreter: Callable[[str], str]) -> None:
    folder = bench.folder()
    python = interpreter(f'mkdir "{folder}/rank-1.log"; exec {sys.executable} "$@"')
    with pytest.raises(AutoscoutError, match="the ranks cannot write to this folder"):
        bench.profiler(tiny_job(python=python, launcher="torchrun")).run(configuration(tp=2), "tiny", folder)


def test_a_launcher_log_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "launcher.log").mkdir()
    with pytest.raises(AutoscoutError, match="cannot write the experiment's files"):
        Torchrun(TINY, RANK).run(tmp_path / "experiment.json", 2, 10.0, lambda: False)


def test_torchrun_reports_the_root_cause(bench: Bench, tmp_path: Path) -> None:
    fault = """
        import os, sys, time
        plain = time.perf_counter
        def perf_counter():
            if sys._getframe(1).f_code.co_name == "_iteration" and os.environ.get("RANK") == "1":
                raise OSError("injected fault")
            return plain()
        time.perf_counter = perf_counter
    """
    (tmp_path / "sitecustomize.py").write_text("\n".join(line[8:] for line in fault.splitlines()))
    job = tiny_job(launcher="torchrun", command_prefix=["env", f"PYTHONPATH={tmp_path}"])
    measured = bench.run(job, tp=2)
    assert measured.status == "error"
    assert "rank 1 failed in phase train: OSError: injected fault" in measured.evidence


def test_a_hung_collective_is_named_and_who_did_not_join(bench: Bench, tmp_path: Path) -> None:
    fault = """
        import os, sys, time
        plain = time.perf_counter
        def perf_counter():
            if sys._getframe(1).f_code.co_name == "_iteration" and os.environ.get("RANK") == "1":
                time.sleep(600)
            return plain()
        time.perf_counter = perf_counter
    """
    (tmp_path / "sitecustomize.py").write_text("\n".join(line[8:] for line in fault.splitlines()))
    job = tiny_job(launcher="warm", command_prefix=["env", f"PYTHONPATH={tmp_path}"], timeout_s=30.0)
    with contextlib.closing(profiler_of(job)) as profiler:  # whose collectives give up after half of that
        measured = profiler.run(configuration(tp=2), "tiny", bench.folder())
    assert measured.status == "timeout"
    assert "hung: rank 0 waited in it; rank 1 did not join" in measured.evidence


def test_torchrun_reports_a_killed_rank(bench: Bench) -> None:
    thread, answers = in_background(bench, tiny_job(launcher="torchrun", **ENDLESS), tp=2)
    next(rank for rank in ranks() if "--leash" in cmdline(rank) and rank.children() == []).kill()
    thread.join()
    assert answers[0].status == "killed"
    assert "SIGKILL" in answers[0].evidence


@pytest.mark.parametrize(
    ("shell", "status", "expected"),
    [
        (
            "echo 'lorem ipsum'; exit 3",
            "error",
            "exit code 3, but the ranks left no result; its output ends: lorem ipsum",
        ),
        ("exit 0", "error", "exit code 0, but the ranks left no result"),
        ("kill -9 $$", "killed", "the launcher was killed from outside with SIGKILL"),
        ("kill -11 $$", "error", "the launcher crashed with SIGSEGV"),
        ("sleep 600 & sleep 600", "timeout", "no result after 3 s"),
    ],
    ids=["garbage", "nothing", "killed", "crash", "hang"],
)
def test_interpreters_that_misbehave(
    bench: Bench, interpreter: Callable[[str], str], shell: str, status: str, expected: str
) -> None:
    limit_s = 3.0 if status == "timeout" else 300.0
    measured = bench.run(tiny_job(python=interpreter(shell), launcher="torchrun", timeout_s=limit_s), dp=2)
    assert (measured.status, expected in measured.evidence) == (status, True), measured.evidence


def test_an_interpreter_without_torch_is_no_fact_about_a_configuration(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    path.chmod(0o755)
    job = tiny_job(python=str(path))
    measured = bench.run(job)
    assert measured.status == "infrastructure"
    assert "has no torch" in measured.evidence
    with pytest.raises(AutoscoutError, match="has no torch"):
        bench.profiler(job).environment()


@pytest.mark.parametrize("python", ["/no/such/python", "/bin/echo"])
def test_what_is_no_interpreter_is_no_fact_about_a_configuration(bench: Bench, python: str) -> None:
    assert bench.run(tiny_job(python=python)).status == "infrastructure"


def test_evidence_points_to_the_full_log(bench: Bench) -> None:
    measured = bench.run(TINY, tp=3)
    log = Path(measured.evidence.rsplit("(log: ", 1)[1].rstrip(")"))
    assert "Traceback" in log.read_text()
    assert os.fspath(log).startswith(os.fspath(bench.root))
