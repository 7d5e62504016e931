"""One experiment on a person's own command: what it says is what is measured, and nothing of it stays."""

import os
import statistics
import sys
from pathlib import Path

import msgspec
import pytest
from asking import until, with_variable

from autoscout.running import early
from autoscout.running.supervised import Ended
from autoscout.targets.command.failures import classify
from autoscout.targets.command.losses import LossesIfReported
from autoscout.targets.command.profiler import CommandProfiler
from autoscout.targets.jobs import JobSpace, load_job, target_of
from kb.records import AutoscoutError, Configuration

C = Configuration({"mbs": 2, "workers": 2, "fast": True})


def run(job, tmp_path, configuration=C, bar=None):
    profiler = CommandProfiler(job)
    profiler.aim(bar)
    return profiler.run(configuration, "c", tmp_path / "experiment")


def test_an_endless_script_is_ended_when_enough_is_known(job, tmp_path):
    found = run(job, tmp_path)
    assert found.status == "ok"
    assert found.fidelity == "measured"
    assert found.metrics["step_time_s"] > 0.004
    assert len(found.iterations_s) >= 4
    assert found.losses[:3] == [6.0, 5.99, 5.98]
    assert 0 < found.metrics["start_output_s"] <= found.metrics["start_s"] < found.cost_s
    assert CommandProfiler(job).adopt(tmp_path / "experiment") == found


def test_warm_up_lasts_while_times_fall(ending, tmp_path):
    """Three of its iterations are slower, of which one was expected to be warm-up."""
    found = run(ending("warms"), tmp_path)
    assert found.conditions["warmup_iterations"] == 3.0
    assert max(found.iterations_s) < 1.5 * min(found.iterations_s)
    assert found.metrics["step_time_s"] == pytest.approx(statistics.median(found.iterations_s), rel=1e-6)


def test_a_run_that_cannot_win_is_ended_and_says_so(job, tmp_path):
    full = run(job, tmp_path)
    many = msgspec.structs.replace(job, launch=msgspec.structs.replace(job.launch, iterations=11))  # it wants them all
    short = run(many, tmp_path, bar=early.Bar(full.metrics["step_time_s"] / 3))
    assert (short.status, short.fidelity) == ("ok", "short")
    assert "behind the best after" in short.evidence
    assert short.conditions["doubt"] == short.conditions["width"] / 2 > 0  # both with their width
    assert 0 < full.conditions["width"] < 0.2
    assert "doubt" not in full.conditions
    switched_off = msgspec.structs.replace(job, launch=msgspec.structs.replace(job.launch, end_early=False))
    assert run(switched_off, tmp_path, bar=early.Bar(0.0001)).fidelity == "measured"


@pytest.mark.parametrize(
    ("how", "status", "evidence"),
    [
        ("crash", "invalid", "exit code 1: ValueError: hidden 7 is not a multiple of heads 2"),
        ("oom", "oom", "CUDA out of memory. Tried to allocate"),
        ("silent", "error", "no line matches launch.metrics.step_time_ms; nearest: nothing worth reading: step 1 of 3"),
        ("piped", "error", "exit code 0, but after 2 of 10 iterations it printed: ValueError: the data has ended"),
        ("half", "error", "$AUTOSCOUT_RESULT holds incomplete JSON"),
        ("nan", "wrong", "loss is not finite from iteration 3 on"),
    ],
)
def test_failures_say_what_happened(ending, tmp_path, how, status, evidence):
    found = run(ending(how), tmp_path)
    assert (found.status, evidence in found.evidence) == (status, True), found.evidence


def test_words_of_failure_in_a_run_that_works_are_no_failure(ending, tmp_path):
    assert run(ending("talks"), tmp_path).status == "ok"


def test_silence_until_the_limit_is_a_timeout(ending, tmp_path):
    found = run(ending("mute", timeout_s=1.0), tmp_path)
    assert found.status == "timeout"
    assert "launch.timeout_s is the limit" in found.evidence


def test_what_a_launcher_says_of_being_ended_is_not_what_the_run_said_last(tmp_path):
    log = tmp_path / "output.log"
    log.write_text(
        "loading the data\n"
        "W1122 15:04:00.0 7 torch/distributed/elastic/agent/server/api.py:753] Received 15 death signal\n"
        "W1122 15:04:00.1 7 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 8 closing signal "
        "SIGTERM\nTraceback (most recent call last):\nSignalException: Process 7 got signal: 15\n"
    )
    ended = Ended(code=None, seconds=120.0, first_output_s=1.0, timed_out=True)
    status, evidence = classify(ended, log, [], 120.0, 0, "", False)
    assert status == "timeout"
    assert "its last line: loading the data (log" in evidence


def test_a_daemon_in_a_session_of_its_own_is_ended_too(ending, tmp_path, job):
    marker = Path(job.launch.path) / "daemon.pid"
    try:
        assert run(ending("daemon"), tmp_path).status == "ok"
        assert not Path(f"/proc/{int(marker.read_text())}").exists()
    finally:
        marker.unlink(missing_ok=True)


def test_a_script_that_ignores_the_signal_is_killed(ending, tmp_path):
    assert run(ending("deaf"), tmp_path).status == "ok"
    assert not with_variable(f"AUTOSCOUT_RESULT={tmp_path}")


def test_a_loud_script_leaves_a_small_log(ending, tmp_path):
    found = run(ending("loud"), tmp_path)
    assert found.status == "ok"
    log = tmp_path / "experiment" / "output.log"
    assert log.stat().st_size < 20 * 2**20
    text = log.read_text()
    assert "bytes were not kept" in text
    assert "elapsed time per iteration" in text[-2000:]


@pytest.fixture
def summed_up(write):
    """The job whose metrics are in a file that its script writes at its end, if it ends as it is told."""
    patterns = [line for line in write().read_text().splitlines() if line.startswith(("step_time_ms", "loss"))]
    path = write(*((line, "") for line in patterns), ("step_time_s", "quality"), ("minimize", "maximize"))
    path.write_text(path.read_text().replace("[launch.metrics]", '[launch.metrics]\nquality = { json = "deep.er.1" }'))
    job = load_job(path)

    def told(how: str):
        return msgspec.structs.replace(job, launch=msgspec.structs.replace(job.launch, environment={"END": how}))

    return told


def test_metrics_of_any_name_from_the_result_file(summed_up, tmp_path):
    found = run(summed_up("result"), tmp_path)
    assert found.status == "ok"
    assert found.metrics["quality"] == 2.5
    assert found.metrics["step_time_s"] > 0


def test_a_run_that_aborts_as_it_ends_after_its_summary_is_measured(summed_up, tmp_path):
    found = run(summed_up("aborts"), tmp_path)
    assert (found.status, found.metrics["quality"]) == ("ok", 2.5), found.evidence
    assert (
        "aborted during its exit, after everything was measured: terminate called without an active exception"
        in found.evidence
    )


@pytest.mark.parametrize(
    ("how", "evidence"),
    [
        ("fails and aborts", "SIGABRT: ValueError: no space for the checkpoint"),
        ("aborts before", "SIGABRT: terminate called without an active exception"),
    ],
)
def test_a_run_that_fails_and_aborts_is_a_failure(summed_up, tmp_path, how, evidence):
    found = run(summed_up(how), tmp_path)
    assert (found.status, evidence in found.evidence) == ("error", True), found.evidence


def test_of_a_process_that_a_signal_ended_the_signal_is_named(tmp_path):
    log = tmp_path / "output.log"
    log.write_text("E1125 api.py:1002] failed (exitcode: -11) local_rank: 1 (pid: 309) of binary: python\n======\n")
    status, evidence = classify(Ended(code=1, seconds=9.0, first_output_s=1.0), log, [], 120.0, 0, "", True)
    assert (status, "exit code 1: one of its processes was ended by SIGSEGV" in evidence) == ("error", True), evidence


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (
            "/opt/bin/python: can't open file '/home/me/trian.py': [Errno 2] No such file or directory",
            "can't open file",
        ),
        ("the data folder is empty\n\n======", "the data folder is empty"),
    ],
)
def test_of_a_launcher_that_tells_a_failure_at_length_it_is_said_what_failed(own, said, tmp_path):
    """The last line of torchrun's report was said, which is a line of "="."""
    log = tmp_path / "output.log"
    log.write_text(
        f"{own}\nE1126 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 2) local_rank: 0\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n=====\ntrain.py FAILED\n"
        "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html\n=====\n"
    )
    status, evidence = classify(Ended(code=1, seconds=2.0, first_output_s=1.0), log, [], 120.0, 0, "", False)
    assert (status, f"ended with exit code 1: {said}" in evidence) == ("error", True), evidence


def test_seconds_between_lines_and_another_unit(write, tmp_path):
    lines = write().read_text()
    pattern = next(line for line in lines.splitlines() if line.startswith("step_time_ms"))
    job = load_job(write((pattern, "step_time_s = { between = 'lm loss' }"), ('"step_time_s"', '"step_time_us"')))
    found = run(job, tmp_path)
    assert found.status == "ok"
    assert found.metrics["step_time_us"] == pytest.approx(1e6 * found.metrics["step_time_s"])
    assert len(found.iterations_s) >= 2


def test_losses_alone_are_compared_and_none_are_said_to_be_fine(job, tmp_path):
    check = LossesIfReported(0.02)
    found = run(job, tmp_path)
    other = msgspec.structs.replace(found, losses=[7.0, 7.0, 7.0])
    assert check.compare(found, found) == ""
    assert "losses deviate by 0.17" in check.compare(found, other)
    assert check.compare(found, msgspec.structs.replace(found, losses=[])) == ""


def test_a_killed_autoscout_leaves_nothing_running(job, tmp_path):
    """The supervisor ends the command when we are gone."""
    import subprocess
    import sys

    script = (
        "import sys; from pathlib import Path\n"
        "from autoscout.targets.jobs import load_job\n"
        "from autoscout.targets.command.profiler import CommandProfiler\n"
        "from kb.records import Configuration\n"
        f"job = load_job('{tmp_path}/job.toml')\n"
        "CommandProfiler(job).run(Configuration({'mbs': 4, 'workers': 0, 'fast': False}), 'c', Path(sys.argv[1]))\n"
    )
    (tmp_path / "job.toml").write_text((tmp_path / "job.toml").read_text().replace("measure_s = 0.4", "measure_s = 60"))
    mark = f"MARK{os.getpid()}"
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "e")], env={**os.environ, "END": mark}, stderr=subprocess.DEVNULL
    )
    log = tmp_path / "e" / "output.log"
    until(lambda: log.is_file() and b"elapsed" in log.read_bytes())
    process.kill()
    process.wait()
    until(lambda: not with_variable(mark))


def test_a_command_that_is_not_there_is_bad_input(write):
    job = load_job(write(("command = ", 'command = "trainr --mbs 2" # ')))
    with pytest.raises(AutoscoutError, match="'trainr' cannot be run here"):
        CommandProfiler(job).environment()


def test_programs_of_a_shell_command_tell_its_interpreter_and_are_looked_for(write, tmp_path):
    """`vllm serve … & vllm bench serve …` was measured without vLLM's version, and without vLLM until its limit."""
    script = tmp_path / "serve"
    script.write_text(f"#!{sys.executable}\nprint(1)\n")
    script.chmod(0o755)
    shell = ' --mbs {mbs} {workers} {fast} & until A=1 curll -sf x; do sleep 1; done; if true; then echo 1 | (cat); fi"'
    job = load_job(write(('trainer.py --mbs 2"', f"trainer.py{shell}"), (f"{sys.executable} -S ", f"{script} ")))
    assert CommandProfiler(job).environment()["python"]
    said = target_of(job).notes_on_job(job)
    assert [note for note in said if "cannot be run" in note] == [
        "launch.command: 'curll' cannot be run here; install it, or write its full path"
    ]


def test_an_edited_script_is_another_context(write, tmp_path):
    script = tmp_path / "s.py"
    script.write_text("print(1)")
    job = load_job(write(("trainer.py --mbs 2", f"{script} --mbs 2")))
    before = CommandProfiler(job).environment()["code"]
    script.write_text("print(2)")
    assert CommandProfiler(job).environment()["code"] != before


def test_the_reference_is_the_command_as_it_is_written(job):
    assert JobSpace.of_job(job).reference.knobs == {"mbs": 2, "workers": 0, "fast": False}
