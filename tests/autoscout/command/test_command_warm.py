"""A script that is started warm runs as by its own interpreter, and nothing of it stays."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest
from asking import until, with_variable
from click.testing import CliRunner

from autoscout.line.launch_line import Line
from autoscout.running import supervised, warm_run
from autoscout.targets.command.profiler import CommandProfiler
from autoscout.targets.jobs import load_job
from kb import store
from kb.records import AutoscoutError, Configuration
from tui.cli import cli

C = Configuration({"mbs": 2, "workers": 2, "fast": True})
WARM = (("-S trainer.py", "trainer.py"), ("measure_s = 0.4", 'measure_s = 0.4\nlauncher = "warm"'))
WHAT_IT_SEES = """
import multiprocessing, os, pickle, random, signal, sys, threading
import numpy, warm_beside
class Mine: pass
assert pickle.loads(pickle.dumps(Mine())).__class__ is Mine
print("argv", sys.argv, "name", __name__, __file__, "beside", warm_beside.LOADED_BY == os.getpid())
print("cwd", os.getcwd(), "path", sys.path[0], "variable", os.environ.get("ONE"), os.environ.get("TWO"))
print("term", signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGPIPE))
print("threads", threading.active_count(), threading.current_thread() is threading.main_thread(), sys.stdin.read())
print("session", os.getsid(0) == os.getpid(), "files", len(os.listdir("/proc/self/fd")) < 12)
print("drawn", random.random(), numpy.random.random())
import atexit; atexit.register(print, "goodbye")
threading.Timer(0.05, print, ["a thread"]).start()
sys.exit(7)
"""


@pytest.fixture
def warm(write):
    with contextlib.closing(CommandProfiler(load_job(write(*WARM)))) as profiler:
        yield profiler


def ended(profiler, how):
    launch = msgspec.structs.replace(profiler._job.launch, environment={"END": how})
    return CommandProfiler(msgspec.structs.replace(profiler._job, launch=launch))


def test_many_runs_are_forked_from_one_interpreter(warm, tmp_path):
    found = [warm.run(C, "c", tmp_path / f"e{i}") for i in range(3)]
    assert {m.status for m in found} == {"ok"}, found[0].evidence
    assert all(m.losses[:3] == [6.0, 5.99, 5.98] for m in found)
    first = warm._warm._process.pid
    assert warm.run(Configuration({"mbs": 4, "workers": 0, "fast": False}), "d", tmp_path / "d").status == "ok"
    assert warm._warm._process.pid == first
    warm.close()
    assert not Path(f"/proc/{first}").exists()


def test_an_interpreter_is_found_from_where_we_stand(write, tmp_path, monkeypatch):
    """Not from the command's folder; `launch.python` is a path as the person has it."""
    (tmp_path / "env").symlink_to(Path(sys.executable).parent)
    monkeypatch.chdir(tmp_path)
    path = write(*WARM, ("measure_s = 0.4", 'python = "env/python"\nmeasure_s = 0.4'))
    with contextlib.closing(CommandProfiler(load_job(path))) as profiler:
        assert profiler.run(C, "c", tmp_path / "e").status == "ok"


def test_the_rounds_at_the_end_are_started_as_the_person_does(warm, tmp_path):
    warm.confirming(True)
    assert warm.run(C, "c", tmp_path / "e").status == "ok"
    assert warm._warm._process is None


def test_a_script_sees_what_it_sees_when_it_is_started_itself(tmp_path, monkeypatch):
    (tmp_path / "sees.py").write_text(WHAT_IT_SEES)
    (tmp_path / "warm_beside.py").write_text("import os\nLOADED_BY = os.getpid()")
    monkeypatch.setenv("TWO", "2")
    words = [sys.executable, "sees.py", "--a", "b c"]
    seen = []
    with contextlib.closing(warm_run.WarmScript()) as script:
        for begin in (None, script.begin, script.begin):
            environment = {**os.environ, "PYTHONUNBUFFERED": "1", "ONE": "1"}
            if begin:
                script.get_ready(sys.executable, Line((*words,)), environment, tmp_path, lambda: False)
            run = supervised.run(
                words, environment, tmp_path, tmp_path, 60, lambda: False, lambda _: None, lambda: "", begin=begin
            )
            log = (tmp_path / "output.log").read_text()
            assert run.code == 7, log
            seen.append([line for line in log.splitlines() if not line.startswith("drawn")])
            seen.append(log.partition("drawn ")[2].partition("\n")[0])
    plain, _, first, one, second, two = seen
    assert first == second == plain
    assert len(plain) == 7
    assert not set(one.split()) & set(two.split())


@pytest.mark.parametrize(
    ("how", "status", "evidence"),
    [
        ("crash", "invalid", "exit code 1: ValueError: hidden 7 is not a multiple of heads 2"),
        ("oom", "oom", "CUDA out of memory. Tried to allocate"),
        ("nan", "wrong", "loss is not finite from iteration 3 on"),
        ("talks", "ok", ""),
        ("deaf", "ok", ""),
    ],
)
def test_ends_are_told_as_of_any_run(warm, tmp_path, how, status, evidence):
    with contextlib.closing(ended(warm, how)) as profiler:
        found = profiler.run(C, "c", tmp_path / "e")
        assert (found.status, evidence in found.evidence) == (status, True), found.evidence


def test_a_killed_autoscout_leaves_nothing_running(warm, tmp_path):
    script = (
        "from pathlib import Path\n"
        "from autoscout.targets.jobs import load_job\n"
        "from autoscout.targets.command.profiler import CommandProfiler\n"
        "from kb.records import Configuration\n"
        f"job = load_job('{tmp_path}/job.toml')\n"
        f"CommandProfiler(job).run(Configuration({dict(C.knobs)!r}), 'c', Path('{tmp_path}/e'))\n"
    )
    mark = f"MARK{os.getpid()}"
    variables = {**os.environ, "MARK": mark, "END": "mute"}  # what prints nothing is not ended as known well enough
    process = subprocess.Popen([sys.executable, "-c", script], env=variables, stderr=subprocess.DEVNULL)
    until(lambda: len(with_variable(mark)) >= 4)  # ours, the warm interpreter, what watches, the script
    process.kill()
    process.wait()
    until(lambda: not with_variable(mark))


def test_a_session_searches_warm_and_ends_with_the_persons_own_starts(write, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # a lock of our own on the machine
    kb = tmp_path / "kb" / "kb.duckdb"
    job = write(*WARM, ("profiles = 6", "profiles = 4"))
    done = CliRunner().invoke(cli, ["tune", str(job), "--kb", str(kb), "--no-tui", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["best"]["configuration"]
    found = [m for _, m in store.measurements(kb, job=load_job(job).id, short=True)]
    assert {m.status for m in found} == {"ok"}
    assert {m.environment["launcher"] for m in found} == {"warm", "auto"}


def test_what_cannot_be_started_warm_says_so(write, tmp_path):
    for command, said in (
        (
            "bash run.sh",
            "only `python script.py …`, `python -m module …` and `torchrun …` can be started warm, not bash",
        ),
        (f"{sys.executable} -S trainer.py", "can be started warm"),
        ("python trainer.py | tee log", "a command that needs a shell"),
    ):
        with pytest.raises(AutoscoutError, match=r"launch\.launcher") as refused:
            load_job(write(WARM[1], (f"{sys.executable} -S trainer.py --mbs 2", f"{command} --mbs {{mbs}}")))
        assert said in str(refused.value)


def test_an_interpreter_that_dies_is_a_failure_that_says_so(warm, tmp_path):
    assert warm.run(C, "c", tmp_path / "e").status == "ok"
    warm._warm._process.kill()
    warm._warm._process.wait()
    assert warm.run(C, "c", tmp_path / "e").status == "ok"  # another is started
