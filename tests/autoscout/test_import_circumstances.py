"""A result of another load, model or length, or of requests that failed, is no measurement of the job."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from imported import bring_in

from autoscout.importing.bring_in import Done
from autoscout.importing.circumstances import another_job, lengths_of, size_stated
from autoscout.job.presets import models
from autoscout.targets.jobs import load_job
from kb import query, store
from kb.records import AutoscoutError, Cluster, Job, Model, Node, Objective, Traffic
from kb.sizes import parameters

JOB = Job(
    name="chat",
    target="vllm",
    task="serve",
    model=Model(layers=4, hidden=256, heads=4, vocab=2048),
    traffic=Traffic(concurrency=8, input_len=64, output_len=16, requests=24),
    cluster=Cluster(nodes=[Node(device="cpu", count=1)]),
    objective=Objective(maximize="output_tokens_per_s"),
)
AT_RATE = msgspec.structs.replace(JOB, traffic=Traffic(rate=4.0, input_len=64, output_len=16, requests=24))
# What `vllm bench serve --save-result` 0.32.0 writes, without most percentiles.
RESULT: dict[str, Any] = {
    "date": "20260301-101500",
    "backend": "vllm",
    "model_id": "m",
    "num_prompts": 24,
    "request_rate": "inf",
    "burstiness": 1.0,
    "max_concurrency": 8,
    "duration": 2.0,
    "completed": 24,
    "failed": 0,
    "total_input_tokens": 24 * 64,
    "total_output_tokens": 24 * 16,
    "request_throughput": 12.0,
    "output_throughput": 192.0,
    "mean_ttft_ms": 10.0,
    "max_num_seqs": "64",
}


def brought(folder: Path, job: Job, **changed: Any) -> Done:
    path = folder / "result.json"
    path.write_text(json.dumps({**RESULT, **changed}))
    return bring_in(folder / "kb.duckdb", path, job, [], [], [])


def test_a_result_with_failed_requests_is_a_failure_and_never_the_best(tmp_path: Path):
    brought(tmp_path, JOB)
    done = brought(tmp_path, JOB, completed=4, failed=20, output_throughput=500.0, max_num_seqs="128")
    assert done.good == 1
    ok, failed = (m for _, m in store.measurements(tmp_path / "kb.duckdb"))
    assert (ok.status, ok.metrics["output_tokens_per_s"]) == ("ok", 192.0)
    assert (failed.status, failed.evidence) == ("error", "20 of 24 requests failed")
    assert not {"output_tokens_per_s", "ttft_mean_ms"} & failed.metrics.keys()
    [best] = query.run(tmp_path / "kb.duckdb", "SELECT configuration FROM best").rows
    assert best == (json.dumps(ok.configuration.knobs, separators=(",", ":")),)


@pytest.mark.parametrize(
    ("changed", "evidence"),
    [
        ({"completed": 0, "failed": 24}, "24 of 24 requests failed"),
        ({"completed": 23, "failed": None}, "1 of 24 requests failed"),
        ({"completed": 0, "failed": 0, "num_prompts": 0}, "no request was completed"),
    ],
)
def test_failures_are_counted_as_the_file_says(tmp_path: Path, changed: dict[str, Any], evidence: str):
    brought(tmp_path, JOB, **changed)
    [(_, row)] = store.measurements(tmp_path / "kb.duckdb")
    assert (row.status, row.evidence) == ("error", evidence)


@pytest.mark.parametrize(
    ("job", "changed", "sentence"),
    [
        (JOB, {"max_concurrency": None}, "with all requests at once, but the job has at most 8 requests at a time"),
        (JOB, {"max_concurrency": 4}, "with at most 4 requests at a time, but the job has at most 8"),
        (JOB, {"request_rate": 2.0}, "with 2 requests/s and at most 8 requests at a time, but the job has at most 8"),
        (JOB, {"ramp_up_strategy": "linear"}, r"ramped up \(linear\), but the job has at most 8"),
        (AT_RATE, {}, "with at most 8 requests at a time, but the job has 4 requests/s"),
        (AT_RATE, {"max_concurrency": None}, "with all requests at once, but the job has 4 requests/s"),
        (
            AT_RATE,
            {"request_rate": 4.0, "max_concurrency": 2},
            "4 requests/s and at most 2 .* the job has 4 requests/s",
        ),
        (AT_RATE, {"request_rate": 5.0, "max_concurrency": None}, "with 5 requests/s, but the job has 4 requests/s"),
        (
            AT_RATE,
            {"request_rate": 4.0, "max_concurrency": None, "burstiness": 0.5},
            r"4 requests/s \(burstiness 0.5\)",
        ),
        (JOB, {"model_id": "meta-llama/Llama-3.1-70B"}, "80 layers of 8,192.* has 4 layers of 256"),
        (
            JOB,
            {"model_id": "acme/Novel-70B-Chat"},
            "the result is of model acme/Novel-70B-Chat, but the job's model has 0.00",
        ),
        (JOB, {"total_input_tokens": 24 * 4000}, "has 4,000 input tokens per request, but the job has 64"),
        (JOB, {"total_output_tokens": 24 * 9}, "has 9 output tokens per request, but the job has 16"),
        (JOB, {"total_output_tokens": 24 * 2000}, "has 2,000 output tokens per request, but the job has 16"),
    ],
)
def test_another_load_model_or_length_is_refused_with_both_values(
    tmp_path: Path, job: Job, changed: dict[str, Any], sentence: str
):
    with pytest.raises(AutoscoutError, match=sentence):
        brought(tmp_path, job, **changed)
    assert not (tmp_path / "kb.duckdb").exists()


def test_the_job_s_own_load_comes_in(tmp_path: Path):
    assert brought(tmp_path, AT_RATE, request_rate=4.0, max_concurrency=None).good == 1
    assert brought(tmp_path, AT_RATE, request_rate="4.0", max_concurrency=24).good == 1  # which nothing waits for
    assert brought(tmp_path, JOB, num_prompts=8, completed=8, total_input_tokens=512, total_output_tokens=128).good == 1


def test_drawn_lengths_may_miss_their_mean_by_as_much_as_chance_makes_them():
    traffic = Traffic(concurrency=8, input_len=[10, 1000], output_len=16)
    job = msgspec.structs.replace(JOB, traffic=traffic)
    said = {"concurrency": 8, "completed": 9, "input_tokens": 700}
    assert another_job(said, job, lengths_of(traffic)) == ""
    assert "has 700 input tokens" in another_job({**said, "completed": 1000}, job, lengths_of(traffic))


def test_a_result_without_a_load_is_refused(tmp_path: Path):
    without = {k: v for k, v in RESULT.items() if k not in ("request_rate", "max_concurrency", "burstiness")}
    (tmp_path / "result.json").write_text(json.dumps(without))
    with pytest.raises(AutoscoutError, match="does not state its load, but the job has at most 8 requests at a time"):
        bring_in(tmp_path / "kb.duckdb", tmp_path / "result.json", JOB, [], [], [])


@pytest.mark.parametrize("name", [name for name in models() if size_stated(name)])
def test_names_state_sizes_to_a_factor_of_two(name: str):
    assert 0.5 <= parameters(msgspec.convert(models()[name], Model)) / size_stated(name) <= 2


def test_a_table_s_columns_that_say_a_load_or_a_size_are_held_against_the_job(tmp_path: Path):
    """A sweep over concurrency was taken for a job of one; a column that is left out on purpose says nothing."""
    path = tmp_path / "sweep.csv"
    path.write_text("max_num_seqs,concurrency,isl,output_tokens_per_s\n64,8,64,100\n64,64,64,900\n64,8,512,90\n")
    done = bring_in(tmp_path / "kb.duckdb", path, JOB, [], [], [])
    assert [bad.reason for bad in done.bad] == [
        "the result was measured with at most 64 requests at a time, but the job has at most 8 requests at a time",
        "the result has 512 input tokens per request, but the job has 64",
    ]
    assert bring_in(tmp_path / "kb.duckdb", path, JOB, ["concurrency=-", "isl=-"], [], [], dry_run=True).good == 3
    path.write_text("max_num_seqs,output_tokens_per_s,model\n64,100,acme/Novel-70B\n64,90,tiny\n")
    done = bring_in(tmp_path / "kb.duckdb", path, JOB, [], [], [])
    assert [bad.where for bad in done.bad] == ["line 2"]


@pytest.mark.parametrize("columns", ["failed,completed\n64,100,20,4", "num_prompts,completed\n64,100,24,4"])
def test_a_row_of_a_table_whose_requests_failed_is_a_failure(tmp_path: Path, columns: str):
    """It came in as a measurement, and the fastest: only requests that succeed are timed."""
    path = tmp_path / "t.csv"
    path.write_text(f"max_num_seqs,output_tokens_per_s,{columns}\n")
    [row] = bring_in(tmp_path / "kb.duckdb", path, JOB, [], [], [], dry_run=True).shown
    assert (row.status, row.evidence, row.metrics) == ("error", "20 of 24 requests failed", {})


@pytest.mark.parametrize(
    ("column", "same", "other", "reason"),
    [
        ("gpus", 2, 8, "its devices is 8, not 2"),
        ("world_size", 2, 8, "its devices is 8, not 2"),
        ("num_layers", 4, 8, "its layers is 8, not 4"),
        ("hidden_size", 64, 128, "its hidden is 128, not 64"),
        ("seqlen", 64, 128, "its seq_len is 128, not 64"),
    ],
)
def test_a_training_row_of_another_size_is_refused(tmp_path: Path, column: str, same: int, other: int, reason: str):
    """A run on eight GPUs became a measurement of a job on two."""
    path = tmp_path / "t.csv"
    path.write_text(f"mbs,tp,step_time_s,{column}\n1,2,1,{same}\n1,2,1,{other}\n")
    job = load_job(Path("fixtures/jobs/smallest-cpu.toml"))
    done = bring_in(tmp_path / "kb.duckdb", path, job, [], [], [], dry_run=True)
    assert [(bad.where, bad.reason) for bad in done.bad] == [("line 3", f"the result is of a different job: {reason}")]


def test_devices_beside_nodes_may_be_those_of_a_node(tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_text("mbs,tp,step_time_s,gpus,nodes\n1,2,1,1,2\n")
    job = load_job(Path("fixtures/jobs/smallest-cpu.toml"))
    assert bring_in(tmp_path / "kb.duckdb", path, job, [], [], [], dry_run=True).good == 1
