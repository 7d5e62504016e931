"""Files that tools really wrote, through the verb `import` to the stored row, as SQL shows it, and back to
`predict --against`."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import verbs

from autoscout.importing.tool_file import read_tool
from autoscout.simulate.validation.measured import read
from kb.records import AutoscoutError

FILES = Path(__file__).parent / "tool_files"
SERVE = """name = "chat"
target = "vllm"
task = "serve"
model = {{ layers = 4, hidden = 256, heads = 4, kv_heads = 2, ffn = 688, vocab = 2048, gated = true }}
traffic = {{ {load}, input_len = 64, output_len = 16 }}
cluster = {{ nodes = [{{ device = "h200", count = 1 }}] }}
objective = {{ maximize = "{metric}" }}
"""
TRAIN = """name = "train"
target = "megatron"
task = "pretrain"
model = { layers = 8, hidden = 128, heads = 8, vocab = 2048, dtype = "fp32" }
traffic = { seq_len = 128, global_batch = 16 }
cluster = { nodes = [{ device = "cpu", count = 4 }] }
objective = { minimize = "step_time_s" }
"""
KNOB = ("--set", "max_num_seqs=16")
CLOSED = {"load": "concurrency = 2, requests = 8", "metric": "output_tokens_per_s"}
AT_20 = {"load": "rate = 20.0, requests = 58", "metric": "output_tokens_per_s"}
STATED = (
    "SELECT 'h200' AS gpu, 1 AS gpus, target AS framework, layers, hidden, heads, kv_heads, ffn, vocab, true AS gated, "
    "64 AS input_len, 16 AS output_len, models.concurrency, models.rate, max_num_seqs, status, output_tokens_per_s, "
    "ttft_mean_ms, tpot_mean_ms, runs.e2el_mean_ms FROM runs JOIN models USING (job_id)"
)


def brought(folder: Path, file: str | Path, job: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "job.toml").write_text(job)
    kb = str(folder / "kb.duckdb")
    return verbs.run("import", str(FILES / file), "--job", str(folder / "job.toml"), *options, "--kb", kb)


def stored(folder: Path, query: str) -> list[dict[str, Any]]:
    ran = verbs.run("sql", query, "--format", "json", "--kb", str(folder / "kb.duckdb"))
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.parametrize(
    ("file", "load", "values"),
    [
        (
            "genai-perf/closed",
            CLOSED,
            {"ttft_mean_ms": 26.488857375, "ttft_p99_ms": 39.09792471, "tpot_mean_ms": 7.11160775,
             "e2el_p99_ms": 165.22601272, "output_tokens_per_s": 219.512462, "requests_per_s": 13.719528879},
        ),
        (
            "mlperf-inference/server",
            AT_20,
            {"ttft_mean_ms": 14.366349, "ttft_p50_ms": 10.85004, "tpot_mean_ms": 2.079572, "tpot_p99_ms": 3.173495,
             "e2el_mean_ms": 45.55995, "output_tokens_per_s": 302.041, "requests_per_s": 18.5521},
        ),
        (
            "mlperf-inference/server/mlperf_log_summary.txt",
            AT_20,
            {"ttft_mean_ms": 14.366349, "ttft_p50_ms": 10.85004, "tpot_mean_ms": 2.079572, "tpot_p99_ms": 3.173495,
             "e2el_mean_ms": 45.55995, "output_tokens_per_s": 302.04, "requests_per_s": 18.55},
        ),
        (
            "vllm/v33.json",
            CLOSED,
            {"ttft_mean_ms": 43.356850, "tpot_p50_ms": 3.8540066, "output_tokens_per_s": 306.60696767,
             "requests_per_s": 19.16293548},
        ),
    ],
)  # fmt: skip
def test_a_file_of_a_load_generator_is_stored_and_scored(
    tmp_path: Path, file: str, load: dict[str, str], values: dict[str, float]
):
    assert brought(tmp_path, file, SERVE.format(**load), *KNOB).returncode == 0
    [row] = stored(tmp_path, f"SELECT status, fidelity, purpose, max_num_seqs, {', '.join(values)} FROM runs")
    assert row == {"status": "ok", "fidelity": "measured", "purpose": "import", "max_num_seqs": 16} | {
        name: pytest.approx(value, rel=1e-6) for name, value in values.items()
    }
    kb, table = str(tmp_path / "kb.duckdb"), tmp_path / "back.json"
    assert verbs.run("sql", STATED, "--out", str(table), "--kb", kb).returncode == 0
    ran = verbs.run("predict", "--against", str(table), "--json")
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert report["rows"] == 1
    assert {"output_tokens_per_s", "ttft_mean_ms", "tpot_mean_ms"} <= report["metrics"].keys()
    assert {found.metric: found.values[0] for found in read(table).sets}["ttft_mean_ms"] == pytest.approx(
        values["ttft_mean_ms"], rel=1e-6
    )


def test_other_scenarios_of_loadgen_are_other_loads(tmp_path: Path):
    one = SERVE.format(load="concurrency = 1, requests = 72", metric="requests_per_s")
    assert brought(tmp_path, "mlperf-inference/single", one, *KNOB).returncode == 0
    assert stored(tmp_path, "SELECT requests_per_s FROM runs") == [{"requests_per_s": pytest.approx(23.51, rel=1e-3)}]
    ran = brought(tmp_path, "mlperf-inference/multi", one, *KNOB)
    assert "MultiStream arrivals" in ran.stderr
    everything = SERVE.format(load="concurrency = 66, requests = 66", metric="output_tokens_per_s")
    for file in ("mlperf-inference/offline", "mlperf-inference/offline/mlperf_log_summary.txt"):
        assert brought(tmp_path, file, everything, *KNOB).returncode == 0
    rows = stored(tmp_path, "SELECT output_tokens_per_s FROM runs WHERE output_tokens_per_s IS NOT NULL")
    assert rows == [{"output_tokens_per_s": 14996.2}] * 2
    ran = brought(tmp_path, "mlperf-inference/server", SERVE.format(**CLOSED), *KNOB)
    assert "with 20 requests/s, but the job has at most 2 requests at a time" in ran.stderr


def test_requests_that_failed_come_in_as_failures(tmp_path: Path):
    """Errors do not make a test of loadgen INVALID. GenAI-Perf counts answers without a token in its requests per
    second alone."""
    for file, load in (
        ("genai-perf/empty", CLOSED),
        ("mlperf-inference/errors", AT_20),
        ("mlperf-inference/errors/mlperf_log_summary.txt", AT_20),
    ):
        job = SERVE.format(**load).replace(
            "output_len = 16", "output_len = 9" if "errors" in file else "output_len = 16"
        )
        assert brought(tmp_path, file, job, *KNOB).returncode == 0
    rows = stored(tmp_path, "SELECT status, evidence, output_tokens_per_s AS rate FROM runs ORDER BY evidence")
    assert rows == [
        {"status": "error", "evidence": evidence, "rate": None}
        for evidence in (
            "2 of 8 requests failed",
            "29 of 58 requests failed",
            "29 requests failed",
        )
    ]


def test_times_of_loadgen_are_in_utc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """test_datetime ends with a Z and is local time."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert brought(tmp_path, "mlperf-inference/server", SERVE.format(**AT_20), *KNOB).returncode == 0
    [row] = stored(tmp_path, "SELECT epoch(ended) AS at FROM runs")
    assert row["at"] == pytest.approx(1796086372.83, abs=1e-3)  # 2026-12-01 00:52:52 UTC


def test_an_open_loop_of_genai_perf_is_even(tmp_path: Path):
    ran = brought(tmp_path, "genai-perf/open", SERVE.format(load="rate = 5.0", metric="output_tokens_per_s"), *KNOB)
    assert "with 5 requests/s (even arrivals), but the job has 5 requests/s" in ran.stderr


def test_a_warm_up_of_aiperf_is_no_measurement(tmp_path: Path):
    """Its file states the load of the run that it preceded, and was stored as another measurement of it."""
    ran = brought(tmp_path, "aiperf-warmup", SERVE.format(**CLOSED), *KNOB)
    assert "these are the figures of one phase, such as the warm-up" in ran.stdout
    assert len(stored(tmp_path, "FROM runs")) == 1
    ran = brought(tmp_path, "aiperf-warmup/phases/warmup/profile_export_aiperf.json", SERVE.format(**CLOSED), *KNOB)
    assert (ran.returncode, "these are the figures of one phase" in ran.stderr) == (2, True)


def test_what_aiperf_sums_up_of_several_runs_is_not_read(tmp_path: Path):
    run, kept = tmp_path / "out" / "profile_runs" / "run_0001", FILES / "aiperf-warmup" / "profile_export_aiperf.json"
    run.mkdir(parents=True)
    shutil.copy(kept, run / kept.name)
    (tmp_path / "out" / "aggregate").mkdir()
    (tmp_path / "out" / "aggregate" / "profile_export_aiperf_aggregate.csv").write_text("metric,mean\na,1\n")
    ran = brought(tmp_path, tmp_path / "out", SERVE.format(**CLOSED), *KNOB)
    assert (ran.returncode, "reader csv" in ran.stdout, "not imported" in ran.stdout) == (0, False, False)


def test_mlperf_training(tmp_path: Path):
    """64 samples between two evaluations in 0.412 s, in batches of 16. A run that misses its target is aborted."""
    ran = brought(tmp_path, "mlperf-training", TRAIN)
    assert (ran.returncode, "none.txt: the run has not ended" in ran.stdout) == (0, True)
    rows = stored(tmp_path, "SELECT status, evidence, tp, pp, mbs, step_time_s FROM runs ORDER BY status DESC")
    assert [(row["status"], row["evidence"]) for row in rows] == [
        ("ok", ""),
        ("error", "MLPerf Training reports aborted"),
    ]
    assert (rows[0]["tp"], rows[0]["pp"], rows[0]["mbs"]) == (1, 2, 2)
    assert rows[0]["step_time_s"] == pytest.approx(0.103)


def test_the_lines_of_a_log_may_have_a_prefix_and_block_start_another_meaning(tmp_path: Path):
    """MaxText's block_start has the samples of a block, and schedulers write the rank before each line."""
    lines = (FILES / "mlperf-training" / "success.txt").read_text().splitlines()
    other = [f" 0: {line}".replace('"samples_count": 0}', '"samples_count": 64}') for line in lines]
    (tmp_path / "slurm-1.out").write_text("\n".join(["loading", *other, "done"]))
    assert brought(tmp_path, tmp_path / "slurm-1.out", TRAIN).returncode == 0
    assert stored(tmp_path, "SELECT step_time_s FROM runs") == [{"step_time_s": pytest.approx(0.103)}]


@pytest.mark.parametrize(("pattern", "problem"), [("(a", "not a regular expression"), ("a", "must have one group")])
def test_a_wrong_pattern_in_a_reader_is_named(tmp_path: Path, pattern: str, problem: str):
    path = tmp_path / "x.toml"
    path.write_text(f'tool = "x"\nversions = "1"\nheld = []\n[file]\nkind = "text"\npatterns = {{ a = "{pattern}" }}\n')
    with pytest.raises(AutoscoutError, match=f"file.patterns.a: .*{problem}"):
        read_tool(path)
