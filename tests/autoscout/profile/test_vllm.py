"""Serving jobs without an engine: arguments, launchers, models, processes, and the guard of greedy answers."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest
from serving_bench import serving_job

from autoscout.objective import nearest_miss
from autoscout.profile import guard, runner, serving_keeper, serving_profiler, vllm
from autoscout.rivals.expert import expert_default
from autoscout.space.graph import Space
from kb.records import AutoscoutError, Cluster, Configuration, Measurement, Node, Objective


def test_arguments_are_flags_of_the_server() -> None:
    flags = vllm.flags(
        {
            "max_num_seqs": 8,
            "enforce_eager": True,
            "enable_prefix_caching": False,
            "speculative_config": {"method": "ngram"},
        }
    )
    assert flags == {
        "--max-num-seqs": 8,
        "--enforce-eager": True,
        "--no-enable-prefix-caching": True,
        "--speculative-config": '{"method": "ngram"}',
    }


def test_the_launch_line_is_a_server_with_the_configuration() -> None:
    job = serving_job()
    line = runner.launch_line(job, expert_default(Space.of_job(job)), Path("experiment.json"))
    assert "vllm.entrypoints.cli.main serve MODEL --host 127.0.0.1" in line
    assert "--max-num-batched-tokens" in line


def test_launchers() -> None:
    assert vllm.launcher(serving_job()) == "warm"
    assert vllm.launcher(serving_job(launcher="serve")) == "serve"
    two = msgspec.structs.replace(serving_job(), cluster=Cluster(nodes=[Node(device="a40", count=2)]))
    assert vllm.launcher(two) == "serve"
    forked = msgspec.structs.replace(two, launch=serving_job(launcher="warm").launch)
    with pytest.raises(AutoscoutError, match="one CPU rank only"):
        vllm.launcher(forked)
    with pytest.raises(AutoscoutError, match="torchrun"):
        vllm.launcher(serving_job(launcher="torchrun"))


def test_an_interpreter_without_vllm_is_one_sentence() -> None:
    profiler = serving_profiler.VllmProfiler(serving_job(python=sys.executable))
    with pytest.raises(AutoscoutError, match=r"has no vLLM; `make \.venv-vllm/ready`") as told:
        profiler.environment()
    assert told.value.exit_code == 2
    gone = serving_profiler.VllmProfiler(serving_job(python="/nowhere/python"))
    with pytest.raises(AutoscoutError, match="cannot be run"):
        gone.environment()


def test_a_model_folder_that_is_none_or_another_models(tmp_path: Path) -> None:
    with pytest.raises(AutoscoutError, match="no model folder"):
        serving_profiler.model_of(serving_job(model_path=str(tmp_path)))
    config = vllm.model_config(serving_job())
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_size": 4096}))
    with pytest.raises(AutoscoutError, match=r"hidden_size 4096 \(the job: 128\)"):
        serving_profiler.model_of(serving_job(model_path=str(tmp_path)))
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert serving_profiler.model_of(serving_job(model_path=str(tmp_path))).startswith(tmp_path.name)


# ---- greedy answers ---------------------------------------------------------------------------------------


def answered(tokens: list[float], **knobs: str) -> Measurement:
    return Measurement(configuration=Configuration(dict(knobs)), name="x", context="", status="ok", losses=tokens)


REFERENCE = [float(i) for i in range(40)]


def test_the_same_answers_are_right_and_others_wrong() -> None:
    reference = guard.Reference(guard.kind_of(serving_job()), answered(REFERENCE).configuration.id)
    assert reference.judge(answered(REFERENCE)).status == "ok"
    late = [*REFERENCE[:39], 7.0]
    assert reference.judge(answered(late, spec="ngram")).status == "ok"
    wrong = reference.judge(answered([7.0] * 40, spec="ngram"))
    assert wrong.status == "wrong"
    assert "at least 75% are needed" in wrong.evidence
    assert reference.judge(answered([7.0] * 3, spec="ngram")).status == "wrong"
    assert reference.judge(answered([], spec="ngram")).status == "wrong"


def test_another_number_format_may_answer_otherwise_but_not_from_the_start() -> None:
    turns = [token if i % 10 < 2 else -1.0 for i, token in enumerate(REFERENCE)]
    plain = answered(REFERENCE, kv_cache_dtype="auto")
    assert guard.compare(plain, answered(turns, kv_cache_dtype="auto"), guard.ANSWERS)
    assert not guard.compare(plain, answered(turns, kv_cache_dtype="fp8"), guard.ANSWERS)
    assert guard.compare(plain, answered([-1.0] * 40, kv_cache_dtype="fp8"), guard.ANSWERS)


# ---- the keeper of a server -------------------------------------------------------------------------------

# A server whose worker leads a session of its own, and shares memory with it.
FAMILY = """
import subprocess, sys, time
from multiprocessing import get_context, shared_memory
memory = shared_memory.SharedMemory(create=True, size=4096)
semaphore = get_context("spawn").Semaphore()
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(worker.pid, memory.name, "sem." + semaphore._semlock.name.lstrip("/"), flush=True)
time.sleep(600)
"""


def kept() -> tuple[subprocess.Popen[bytes], psutil.Process, list[Path]]:
    command = [sys.executable, serving_keeper.__file__, sys.executable, "-c", FAMILY]
    keeper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert keeper.stdout is not None
    worker, *names = keeper.stdout.readline().split()
    return keeper, psutil.Process(int(worker)), [Path("/dev/shm") / name.decode() for name in names]


def gone(worker: psutil.Process, shared: list[Path]) -> bool:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if not worker.is_running() and not any(path.exists() for path in shared):
            return True
        time.sleep(0.05)
    return False


def test_nothing_of_a_server_stays_when_its_owner_is_gone() -> None:
    keeper, worker, shared = kept()
    assert all(path.exists() for path in shared)
    assert keeper.stdin is not None
    keeper.stdin.close()  # as the kernel does for a process that was killed
    assert gone(worker, shared)
    keeper.wait(30)


def test_nothing_of_a_server_stays_when_it_dies() -> None:
    keeper, worker, shared = kept()
    server = psutil.Process(keeper.pid).children()[0]
    os.kill(server.pid, signal.SIGKILL)
    assert keeper.wait(30) == 128 + signal.SIGKILL
    assert gone(worker, [])  # which memory the dead one had nobody can be asked any more
    for path in shared:
        path.unlink(missing_ok=True)


# ---- a limit that nothing keeps ---------------------------------------------------------------------------


def test_the_nearest_of_those_that_break_a_limit_is_named() -> None:
    objective = Objective(maximize="output_tokens_per_s", constraints=["ttft_p99_ms <= 100", "requests_per_s >= 10"])

    def ran(name: str, **metrics: float) -> Measurement:
        return Measurement(
            configuration=Configuration({"n": name}), name=name, context="", status="ok", metrics=metrics
        )

    slow = ran("slow", ttft_p99_ms=900.0, requests_per_s=20.0)
    near = ran("near", ttft_p99_ms=130.0, requests_per_s=9.0)
    said = nearest_miss(objective, [slow, near])
    assert said == "The nearest is near: breaks the constraint ttft_p99_ms <= 100: it is 130"
    assert nearest_miss(objective, [ran("good", ttft_p99_ms=50.0, requests_per_s=11.0)]) == ""
