"""Serving jobs without an engine: arguments, launchers, models, processes, and the guard of greedy answers."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import psutil
import pytest
from serving_bench import serving_job

from autoscout.deploy import export
from autoscout.job.objective import nearest_miss
from autoscout.running import equivalence
from autoscout.running.cluster import gpus
from autoscout.targets.jobs import JobSpace
from autoscout.targets.target import target
from autoscout.targets.vllm import arguments as vllm
from autoscout.targets.vllm import keeper as serving_keeper
from autoscout.targets.vllm import reuse as serving_reuse
from autoscout.targets.vllm.profiler import VllmProfiler
from autoscout.targets.vllm.served_model import model_of
from autoscout.targets.vllm.server import Server
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
    line = target("vllm").probe_line(job, JobSpace.of_job(job).reference, Path("experiment.json"))
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
    assert vllm.launcher(serving_job(launcher="reuse")) == "reuse"


# ---- several GPUs, several nodes --------------------------------------------------------------------------


def spread(nodes: int, **degrees: int) -> dict[str, object]:
    """How vLLM is told to spread an engine over nodes of 8 GPUs."""
    cluster = Cluster(nodes=[Node(device="a100", count=8)] * nodes)
    return vllm.placement(msgspec.structs.replace(serving_job(), cluster=cluster), Configuration(dict(degrees)))


def test_ranks_that_one_node_holds_need_no_ray() -> None:
    assert spread(1, tp=4, pp=2, dp=1) == {}
    assert spread(1, tp=2, pp=1, dp=4) == {}


def test_an_engine_that_spans_nodes_takes_its_workers_from_ray() -> None:
    assert spread(2, tp=8, pp=2, dp=1) == {"distributed_executor_backend": "ray"}
    assert spread(4, tp=8, pp=2, dp=2) == {"distributed_executor_backend": "ray", "data_parallel_backend": "ray"}


def test_engines_on_several_nodes_are_so_many_on_each() -> None:
    assert spread(2, tp=4, pp=1, dp=4) == {"data_parallel_size_local": 2, "data_parallel_backend": "ray"}


def test_the_command_of_a_large_model_says_all_of_it(tmp_path: Path) -> None:
    cluster = Cluster(nodes=[Node(device="h100", count=8)] * 2)
    launch = msgspec.structs.replace(serving_job().launch, python="/opt/vllm/bin/python")
    job = msgspec.structs.replace(serving_job(), cluster=cluster, launch=launch)
    configuration = Configuration({"tp": 8, "pp": 2, "dp": 1, "max_num_seqs": 256})
    line = target("vllm").probe_line(job, configuration, Path("experiment.json"))
    assert "--tensor-parallel-size 8 --pipeline-parallel-size 2 --data-parallel-size 1" in line
    assert line.endswith("--distributed-executor-backend ray")
    found = export.launch(job, configuration, "tp8_pp2", "measured")
    script = tmp_path / "serve.sh"
    script.write_text(export.written(job, found, "slurm"))
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    for words in ("--nodes=2", "--gpus-per-node=8", "ray start --head", 'ray start --address="$RAY_ADDRESS"'):
        assert words in script.read_text()
    assert "a Ray cluster of 2 nodes" in export.written(job, found, "command")


def test_memory_on_gpus_is_that_of_the_fullest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvidia-smi's list, of which two rows are another's."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nprintf '11, GPU-a, 40960\\n12, GPU-b, 20480\\n12, GPU-a, 1024\\n99, GPU-b, 70000\\n'")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert gpus.of_processes({11, 12}) == 41.0
    assert gpus.of_processes({5}) is None


# ---- one engine for several configurations ----------------------------------------------------------------


def test_a_kept_engine_is_made_for_the_largest_values() -> None:
    job = serving_job(launcher="reuse")
    reuse = serving_reuse.Reuse(job)
    default = JobSpace.of_job(job).reference
    few = Configuration(default.knobs | {"max_num_seqs": 2, "max_num_batched_tokens": 64})
    ceiling = reuse.ceiling(few)
    assert ceiling == {"max_num_seqs": 256, "max_num_batched_tokens": 8192}
    shared = [serving_reuse.key(job, c, ceiling) for c in (few, default)]
    assert shared[0] == shared[1]
    other = Configuration(default.knobs | {"block_size": 32})
    assert serving_reuse.key(job, other, ceiling) != shared[0]
    memory = msgspec.structs.replace(job, objective=Objective(minimize="peak_memory_gib"))
    assert serving_reuse.Reuse(memory).ceiling(few) == {}  # that of the larger engine would count
    also = msgspec.structs.replace(job.objective, also=["minimize peak_memory_gib"])
    assert serving_reuse.Reuse(msgspec.structs.replace(job, objective=also)).ceiling(few) == {}


def test_a_disagreement_ends_the_live_change_of_the_knob_that_is_furthest() -> None:
    job = serving_job(launcher="reuse")
    reuse = serving_reuse.Reuse(job)
    c = Configuration({"max_num_seqs": 128, "max_num_batched_tokens": 64})

    def ran(value: float, tokens: list[float]) -> Measurement:
        return Measurement(
            configuration=c, name="x", context="", status="ok", metrics={"output_tokens_per_s": value}, losses=tokens
        )

    assert reuse.disagreement(ran(100.0, REFERENCE), ran(104.0, REFERENCE)) == ""
    said = reuse.disagreement(ran(100.0, REFERENCE), ran(150.0, REFERENCE))
    assert said == (
        "output_tokens_per_s was 100 on a reused engine and 150 on a fresh one; each further value of "
        "max_num_batched_tokens gets a new engine"
    )
    assert reuse.ceiling(c) == {"max_num_seqs": 64}
    assert "greedy answers differ" in reuse.disagreement(ran(100.0, [7.0] * 40), ran(100.0, REFERENCE))
    assert reuse.ceiling(c) == {}
    assert [serving_reuse.Reuse(job).due() for _ in range(2)] == [True, True]
    assert [reuse.due() for _ in range(10)].count(True) == 2


def test_those_that_can_share_an_engine_follow_each_other() -> None:
    a, b, c, d = (
        Configuration({"block_size": block, "max_num_seqs": n}) for block, n in ((32, 1), (64, 1), (32, 2), (64, 4))
    )
    assert serving_reuse.in_turn(serving_job(launcher="reuse"), [a, b, c, d]) == [a, c, b, d]
    assert serving_reuse.in_turn(serving_job(), [a, b, c, d]) == [a, b, c, d]


def test_an_interpreter_without_vllm_is_one_sentence() -> None:
    profiler = VllmProfiler(serving_job(python=sys.executable))
    with pytest.raises(AutoscoutError, match=r"has no vLLM; `make \.venv-vllm/ready`") as told:
        profiler.environment()
    assert told.value.exit_code == 2
    gone = VllmProfiler(serving_job(python="/nowhere/python"))
    with pytest.raises(AutoscoutError, match="cannot be run"):
        gone.environment()


def test_vllm_for_cpus_is_refused_on_gpus(tmp_path: Path) -> None:
    """`check` called a node of 8 H100 ready for a server that would not find them."""
    python = tmp_path / "python"
    found = {"torch": "2.13.0+cpu", "vllm": "0.32.0+cpu", "devices": "1", "gpus": "NVIDIA H100 80GB HBM3"}
    python.write_text(f"#!/bin/sh\necho '{json.dumps(found)}'\n")
    python.chmod(0o755)
    job = serving_job(python=str(python))
    job = msgspec.structs.replace(job, cluster=Cluster(nodes=[Node(device="h100", count=1)]))
    with pytest.raises(AutoscoutError, match=r"vLLM 0\.32\.0\+cpu is a build for CPUs, but the job has 1 h100") as told:
        VllmProfiler(job).environment()
    assert told.value.exit_code == 2


def test_a_model_folder_that_is_none_or_another_models(tmp_path: Path) -> None:
    with pytest.raises(AutoscoutError, match="not a model folder"):
        model_of(serving_job(model_path=str(tmp_path)))
    config = vllm.model_config(serving_job())
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_size": 4096}))
    with pytest.raises(AutoscoutError, match=r"hidden_size 4096 \(the job: 128\)"):
        model_of(serving_job(model_path=str(tmp_path)))
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert model_of(serving_job(model_path=str(tmp_path))).startswith(tmp_path.name)


# ---- greedy answers ---------------------------------------------------------------------------------------


def answered(tokens: list[float], **knobs: str) -> Measurement:
    return Measurement(configuration=Configuration(dict(knobs)), name="x", context="", status="ok", losses=tokens)


REFERENCE = [float(i) for i in range(40)]


def test_the_same_answers_are_right_and_others_wrong() -> None:
    reference = equivalence.Reference(equivalence.Answers(), answered(REFERENCE).configuration.id)
    assert reference.judge(answered(REFERENCE)).status == "ok"
    late = [*REFERENCE[:39], 7.0]
    assert reference.judge(answered(late, spec="ngram")).status == "ok"
    wrong = reference.judge(answered([7.0] * 40, spec="ngram"))
    assert wrong.status == "wrong"
    assert "at least 75% must" in wrong.evidence
    assert reference.judge(answered([7.0] * 3, spec="ngram")).status == "wrong"
    assert reference.judge(answered([], spec="ngram")).status == "wrong"


def test_another_number_format_may_answer_otherwise_but_not_from_the_start() -> None:
    turns = [token if i % 10 < 2 else -1.0 for i, token in enumerate(REFERENCE)]
    plain = answered(REFERENCE, kv_cache_dtype="auto")
    assert equivalence.Answers().compare(plain, answered(turns, kv_cache_dtype="auto"))
    assert not equivalence.Answers().compare(plain, answered(turns, kv_cache_dtype="fp8"))
    assert equivalence.Answers().compare(plain, answered([-1.0] * 40, kv_cache_dtype="fp8"))


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
    deadline = time.monotonic() + 240
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
    keeper.wait(240)


def test_nothing_of_a_server_stays_when_it_dies() -> None:
    keeper, worker, shared = kept()
    server = psutil.Process(keeper.pid).children()[0]
    os.kill(server.pid, signal.SIGKILL)
    assert keeper.wait(240) == 128 + signal.SIGKILL
    assert gone(worker, [])  # which memory the dead one had nobody can be asked any more
    for path in shared:
        path.unlink(missing_ok=True)


def test_an_engine_does_not_stay_when_keeper_and_server_are_killed_at_once(tmp_path: Path) -> None:
    """As `pkill -9 -f vllm` does, which does not match the engines' own titles."""
    stand_in, named = tmp_path / "stand_in.py", tmp_path / "worker"
    stand_in.write_text(FAMILY.replace("print(", f"print(open({str(named)!r}, 'w').write(str(worker.pid)), "))
    job = serving_job(command_prefix=[sys.executable, str(stand_in)])
    experiment = tmp_path / "experiment.json"
    alone = {"arguments": {}, "environment": {}}
    experiment.write_text(json.dumps({"model": "m", "environment": {}, "servers": [alone], "router": []}))
    running = threading.Thread(target=Server(job).run, args=(experiment, 1, 240.0, lambda: False))
    running.start()
    while not named.is_file() or not named.read_text():
        assert running.is_alive()
        time.sleep(0.05)
    time.sleep(1)  # it asks ten times a second whether the server is ready
    worker = psutil.Process(int(named.read_text()))
    server = worker.parent()
    assert server is not None
    keeper = server.parent()
    assert keeper is not None
    for process in (keeper, server):
        with contextlib.suppress(psutil.NoSuchProcess):  # a server is leashed to its keeper
            process.kill()
    running.join(240)
    assert gone(worker, [])


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
    assert said == "The nearest is near: breaks the constraint ttft_p99_ms <= 100: the value is 130"
    assert nearest_miss(objective, [ran("good", ttft_p99_ms=50.0, requests_per_s=11.0)]) == ""
