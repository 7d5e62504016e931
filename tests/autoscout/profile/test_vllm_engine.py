"""The real vLLM on this machine's CPU: both ways to run it, what it refuses, and that nothing of it stays."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from serving_bench import needs_vllm, serving_job

from autoscout.deploy import export
from autoscout.running import equivalence, processes
from autoscout.space.explain import completed
from autoscout.targets.jobs import JobSpace
from autoscout.targets.vllm import check
from autoscout.targets.vllm.measurement import measurement
from autoscout.targets.vllm.profiler import VllmProfiler
from kb.records import AutoscoutError, Cluster, Configuration, Measurement, Node

pytestmark = [pytest.mark.engine, needs_vllm, pytest.mark.timeout(400)]

BASE: dict[str, Any] = {
    "block_size": 32,
    "kv_cache_mib": 16,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 256,
    "eager": True,
}
OWNER = """
import sys
from pathlib import Path
import msgspec
from autoscout.targets.jobs import profiler_of
from kb.records import Configuration, Job
job = msgspec.json.decode(sys.argv[1], type=Job)
print("begun", flush=True)
profiler_of(job).run(Configuration(msgspec.json.decode(sys.argv[3])), "tiny", Path(sys.argv[2]))
"""


class Bench:
    def __init__(self, root: Path) -> None:
        self.root, self.runs = root, 0
        self.profiler = VllmProfiler(serving_job(launcher="warm"))

    def run(self, **knobs: Any) -> Measurement:
        self.runs += 1
        return self.profiler.run(Configuration(BASE | knobs), "tiny", self.root / f"{self.runs:04d}")

    @property
    def folder(self) -> Path:
        return self.root / f"{self.runs:04d}"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("experiments"))
    yield bench
    bench.profiler.close()


def test_an_experiment_measures_what_users_feel(bench: Bench) -> None:
    measured = bench.run()
    assert measured.status == "ok", measured.evidence
    assert len(measured.iterations_s) == 2
    metrics = measured.metrics
    assert 0 < metrics["ttft_p50_ms"] < metrics["e2el_p50_ms"]
    assert metrics["output_tokens_per_s"] == pytest.approx(6 * metrics["requests_per_s"])
    assert metrics["total_tokens_per_s"] == pytest.approx(30 * metrics["requests_per_s"])
    assert metrics["goodput_rps"] == metrics["requests_per_s"]
    assert metrics["kv_cache_tokens"] >= 4 * 32
    assert len(measured.losses) == 4 * 6
    assert (measured.environment["driver"], measured.environment["clock"]) == ("in process", "processor")
    adopted = measurement(bench.folder)
    assert adopted is not None
    assert adopted.metrics == metrics


def test_configurations_that_compute_the_same_answer_the_same(bench: Bench) -> None:
    reference, other = bench.run(), bench.run(block_size=64, max_num_seqs=1, spec="ngram", spec_tokens=2)
    assert equivalence.Answers().compare(reference, other) == ""


def test_the_same_engine_is_not_run_twice(bench: Bench) -> None:
    """cudagraph_mode means nothing where nothing is compiled."""
    first = bench.run(max_num_seqs=2)
    again = bench.run(max_num_seqs=2, cudagraph_mode="PIECEWISE")
    assert "the same engine" in again.evidence
    assert again.metrics == first.metrics
    assert again.configuration.knobs["cudagraph_mode"] == "PIECEWISE"
    assert "the same engine" not in bench.run(max_num_seqs=2).evidence  # a repeat is measured


def test_refusals_are_classes_and_sentences(bench: Bench) -> None:
    refused = bench.run(max_num_seqs=64, max_num_batched_tokens=32)
    assert refused.status == "invalid"
    assert "max_num_batched_tokens (32) must be greater than or equal to max_num_seqs (64)" in refused.evidence
    later = bench.run(block_size=16)
    assert later.status == "invalid"
    assert "when the engine started: No common block size for 16" in later.evidence


def test_interrupting_ends_the_next_experiment_only(bench: Bench) -> None:
    bench.profiler.interrupt()
    assert bench.run().status == "killed"
    assert bench.run().status == "ok"


def test_a_reused_engine_measures_what_a_fresh_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second experiment finds the engine of the first, and its own limits act."""
    monkeypatch.setattr("autoscout.targets.vllm.reuse._TOLERANCE", 9.0)  # other work on the machine changes rates
    profiler = VllmProfiler(serving_job(launcher="reuse"))
    try:
        first = profiler.run(Configuration(BASE), "tiny", tmp_path / "0001")  # checked: a fresh one too
        second = profiler.run(Configuration(BASE | {"max_num_batched_tokens": 16}), "tiny", tmp_path / "0002")
        refused = profiler.run(Configuration(BASE | {"max_num_batched_tokens": 2}), "tiny", tmp_path / "0003")
        after = profiler.run(Configuration(BASE), "tiny", tmp_path / "0004")
    finally:
        profiler.close()
    assert [m.status for m in (first, second, refused, after)] == ["ok", "ok", "invalid", "ok"], refused.evidence
    assert (tmp_path / "0001" / "fresh" / "rank-0.json").is_file()
    assert "Loading safetensors" in (tmp_path / "0001" / "rank-0.log").read_text()
    assert "Loading safetensors" not in (tmp_path / "0002" / "rank-0.log").read_text()
    assert (
        json.loads((tmp_path / "0002" / "effective.json").read_bytes())["values"]["scheduler.max_num_batched_tokens"]
        == 16
    )
    assert equivalence.Answers().compare(first, second) == ""
    assert second.environment["driver"] == "in process, reused"


def left_in_shared_memory(before: set[Path]) -> set[Path]:
    """New files there that no process uses: others on this machine have theirs."""
    deadline = time.monotonic() + 20
    while True:
        used = processes.shared_memory({int(p.name): "" for p in Path("/proc").iterdir() if p.name.isdigit()})
        left = set(Path("/dev/shm").iterdir()) - before - used
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.5)


def test_a_server_measures_the_same_things_and_leaves_nothing(tmp_path: Path) -> None:
    before = set(Path("/dev/shm").iterdir())
    profiler = VllmProfiler(serving_job(launcher="serve"))
    measured = profiler.run(Configuration(BASE), "tiny", tmp_path / "0001")
    assert measured.status == "ok", measured.evidence
    assert (measured.environment["driver"], measured.environment["clock"]) == ("http", "wall")
    assert len(measured.losses) == 4 * 6
    assert measured.metrics["output_tokens_per_s"] == pytest.approx(6 * measured.metrics["requests_per_s"])
    assert json.loads((tmp_path / "0001" / "effective.json").read_bytes())["values"]["scheduler.max_num_seqs"] == 4
    assert left_in_shared_memory(before) == set()
    refused = profiler.run(Configuration(BASE | {"max_num_batched_tokens": 2}), "tiny", tmp_path / "0002")
    assert refused.status == "invalid", refused.evidence
    assert "must be greater than or equal to max_num_seqs" in refused.evidence


def test_two_engines_behind_one_server_answer_like_one(bench: Bench, tmp_path: Path) -> None:
    """Data parallel on two CPU ranks: `vllm serve` starts both engines and shares the requests among them."""
    job = msgspec.structs.replace(serving_job(), cluster=Cluster(nodes=[Node(device="cpu", count=2)]))
    space = JobSpace.of_job(job)
    two = completed(space, {**BASE, "tp": 1, "dp": 2}, space.reference)
    profiler = VllmProfiler(job)
    measured = profiler.run(two, "tiny", tmp_path / "0001")
    assert measured.status == "ok", measured.evidence
    values = json.loads((tmp_path / "0001" / "effective.json").read_bytes())["values"]
    assert values["parallel.data_parallel_size"] == 2
    assert equivalence.Answers().compare(bench.run(), measured) == ""
    answered = measured.metrics["output_tokens_per_s"]
    assert measured.metrics["output_tokens_per_s_per_gpu"] == pytest.approx(answered / 2)


@pytest.mark.parametrize("form", ["command", "yaml"])
def test_what_is_exported_starts_and_answers(form: str) -> None:
    job = serving_job()
    assert check.check(job, export.launch(job, Configuration(BASE), "tiny", "measured"), form) > 0


def test_an_export_that_does_not_start_says_why() -> None:
    """As of a vLLM that has no such flag any more."""
    job = serving_job()
    found = export.launch(job, Configuration(BASE), "tiny", "measured")
    found = msgspec.structs.replace(found, arguments={**found.arguments, "--swap-space": 4})
    with pytest.raises(AutoscoutError, match="does not start: unrecognized arguments: --swap-space 4") as told:
        check.check(job, found, "command")
    assert told.value.exit_code == 1


@pytest.mark.parametrize("launcher", ["warm", "serve"])
def test_nothing_survives_its_owner(launcher: str, tmp_path: Path) -> None:
    job = msgspec.json.encode(serving_job(launcher=launcher, measure_s=60.0, iterations=1000)).decode()
    command = [sys.executable, "-c", OWNER, job, str(tmp_path / "0001"), json.dumps(BASE)]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    log = tmp_path / "0001" / ("rank-0.log" if launcher == "warm" else "launcher.log")
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and not (log.is_file() and b"Loading safetensors" in log.read_bytes()):
        time.sleep(0.2)
    family = [psutil.Process(pid) for pid in processes.family(owner.pid)]
    family += psutil.Process(owner.pid).children(recursive=True)
    assert len({p.pid for p in family}) >= 3, log.read_text() if log.is_file() else "never started"
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    _, alive = psutil.wait_procs([p for p in set(family) if p.pid != owner.pid], timeout=1800)
    assert [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []
