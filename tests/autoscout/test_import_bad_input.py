"""Files that are broken, mixed, still written to, or that contradict themselves: one sentence, no row."""

import json
from pathlib import Path

import pytest
from imported import bring_in

from autoscout.importing.bring_in import ImportOptions, bring_in_all
from autoscout.importing.mapped import keys_by_kind, recognized, rows
from autoscout.importing.spooled import Spool, changed
from autoscout.importing.tool_file import shipped_tools
from autoscout.targets.jobs import load_job
from kb.records import AutoscoutError, Cluster, Job, Model, Node, Objective, Traffic

FILES = Path(__file__).parent / "tool_files"
RESULT = json.loads((FILES / "vllm" / "detailed.json").read_text()) | {"max_num_seqs": 16}
TRAINING = load_job("fixtures/jobs/tiny-gpt-cpu.toml")
JOB = Job(
    name="chat",
    target="vllm",
    task="serve",
    model=Model(layers=4, hidden=256, heads=4, vocab=2048),
    traffic=Traffic(concurrency=2, input_len=64, output_len=16),
    cluster=Cluster(nodes=[Node(device="h100", count=1)]),
    objective=Objective(maximize="output_tokens_per_s"),
)


def refused(path: Path, text: str, sentence: str, job: Job = JOB) -> None:
    path.write_text(text)
    with pytest.raises(AutoscoutError, match=sentence):
        bring_in(path.parent / "kb.duckdb", path, job, [], [], [])
    assert not (path.parent / "kb.duckdb").exists()


def test_half_a_file(tmp_path: Path):
    refused(tmp_path / "r.json", json.dumps(RESULT)[:-40], "is not JSON, or is truncated")


def test_a_key_that_is_there_twice(tmp_path: Path):
    for text in (json.dumps(RESULT), json.dumps(RESULT, indent=1), json.dumps(RESULT, separators=(",", ":"))):
        path = tmp_path / "r.json"
        path.write_text(text)
        assert bring_in(tmp_path / "kb.duckdb", path, JOB, [], [], [], dry_run=True).good == 1
        again = text.rstrip()[:-1] + ', "completed": 8}'
        refused(path, again, "the key completed appears twice")


def test_lines_of_two_versions_and_a_torn_one(tmp_path: Path):
    """An older version says nothing of failures, and null where nothing was asked for."""
    older = {name: value for name, value in RESULT.items() if name not in ("failed", "max_num_seqs", "latencies")}
    lines = [json.dumps(RESULT), json.dumps({**older, "max-num-seqs": "32"}), json.dumps(RESULT)[:90]]
    path = tmp_path / "r.jsonl"
    path.write_text("\n".join(lines))
    done = bring_in(tmp_path / "kb.duckdb", path, JOB, ["max-num-seqs=-"], ["max_num_batched_tokens=2048"], [])
    assert (done.good, done.rows) == (2, 3)
    assert done.bad[0].where == "r.jsonl, line 3"
    assert "is not JSON, or is truncated" in done.bad[0].reason


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"mean_e2el_ms": 0.107}, "ttft_mean_ms 81.625 is more than e2el_mean_ms 0.107; check the units of both"),
        (
            {"mean_e2el_ms": 107583.7},
            "imply .* concurrent requests, but the load has at most 2; check the units",
        ),
        (
            {"mean_e2el_ms": None, "mean_ttft_ms": 0.0816, "mean_tpot_ms": 0.0017},
            "the time of a request .* imply .* concurrent requests, but the load has at most 2; check the units",
        ),
        (
            {"gpu_memory_utilization": "92"},
            "gpu_memory_utilization is 92, but its maximum is 0.95; convert the column if it is in perc",
        ),
        ({"p99_ttft_ms": 0.12}, "ttft_p50_ms 100.286 is more than ttft_p99_ms 0.12"),
        ({"output_throughput": 9e5}, "output_tokens_per_s 900000 is more than total_tokens_per_s 1490.09"),
    ],
)
def test_values_that_contradict_each_other(tmp_path: Path, changes: dict[str, float], sentence: str):
    refused(tmp_path / "r.json", json.dumps({**RESULT, **changes}), sentence)


def test_milliseconds_for_seconds_and_mib_for_gib(tmp_path: Path):
    both = "step_time_s 500 and tokens_per_s 4096 give 2,048,000 tokens a step, but the job has 2,048; check the units"
    refused(tmp_path / "t.csv", "mbs,step_time_s,tokens_per_s\n2,500,4096\n", both, TRAINING)
    memory = "peak_memory_gib is 61440, but a device has 79.*; check its unit"
    refused(tmp_path / "m.csv", "max_num_seqs,output_tokens_per_s,peak_memory_gib\n16,100,61440\n", memory)


def test_a_file_that_is_still_written_to(tmp_path: Path):
    """What was read of it is not kept; once it is written it is."""
    path = tmp_path / "r.json"
    path.write_text(json.dumps(RESULT))
    tools = shipped_tools()
    found = recognized(path, tools, keys_by_kind(tools))
    assert found
    spool = Spool(found[0], path)
    before = changed(path)
    path.write_text(json.dumps(RESULT) + " ")
    spool.add(path, rows(path, found[0], "r.json"), before)
    [row] = spool.source().rows
    assert row.problem == "the file changed while it was being read; import it again when its writer has finished"


def test_three_thousand_lines(tmp_path: Path):
    small = {name: value for name, value in RESULT.items() if not isinstance(value, list)}
    path = tmp_path / "r.jsonl"
    with open(path, "w") as file:
        file.writelines(json.dumps({**small, "duration": i + 1}) + "\n" for i in range(3_000))
    [done] = bring_in_all(tmp_path / "kb.duckdb", path, JOB, ImportOptions(dry_run=True)).imports
    assert (done.good, len(done.shown)) == (3_000, 20)
