"""Serving jobs as people write them: what they may ask for, where traces lie, one sentence where they are wrong."""

import gzip
from pathlib import Path

import pytest

from autoscout.job.trace import read_trace
from autoscout.space.attributes import lengths
from autoscout.targets.jobs import load_job
from autoscout.targets.vllm import load_plan
from kb.records import AutoscoutError

JOB = """
name = "served"
task = "serve"
target = "vllm"
[model]
layers = 2
hidden = 128
heads = 4
vocab = 512
[traffic]
{traffic}
[cluster]
nodes = [{node}]
[objective]
{objective}
"""
USUAL = {
    "traffic": "rate = 4.0\ninput_len = 8\noutput_len = 4",
    "node": '{ device = "a100", count = 2 }',
    "objective": 'maximize = "output_tokens_per_s"',
}
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55
"""


def written(folder: Path, **changes: str) -> Path:
    path = folder / "job.toml"
    path.write_text(JOB.format(**(USUAL | changes)))
    return path


def refused(folder: Path, **changes: str) -> str:
    with pytest.raises(AutoscoutError) as told:
        load_job(written(folder, **changes))
    assert told.value.exit_code == 2
    return str(told.value)


def test_dollars_need_a_price(tmp_path: Path) -> None:
    dollars = 'minimize = "usd_per_million_output_tokens"'
    said = refused(tmp_path, objective=dollars)
    assert "the objective is in dollars, but the nodes with a100 have no price" in said
    assert "price_per_hour" in said
    limited = f'{USUAL["objective"]}\nconstraints = ["usd_per_million_output_tokens <= 2"]'
    assert "have no price" in refused(tmp_path, objective=limited)
    job = load_job(written(tmp_path, objective=dollars, node='{ device = "a100", count = 2, price_per_hour = 8.2 }'))
    assert job.cluster.nodes[0].price_per_hour == 8.2
    assert "must not be negative" in refused(tmp_path, node='{ device = "a100", count = 2, price_per_hour = -1.0 }')


def test_the_highest_rate_needs_limits_and_an_open_loop(tmp_path: Path) -> None:
    asked = 'maximize = "max_rate_rps"\n'
    assert "needs limits on latencies" in refused(tmp_path, objective=asked)
    limits = 'constraints = ["ttft_p99_ms <= 500"]'
    users = "concurrency = 4\ninput_len = 8\noutput_len = 4"
    assert "remove traffic.concurrency" in refused(tmp_path, objective=asked + limits, traffic=users)
    job = load_job(written(tmp_path, objective=asked + limits))
    assert load_plan.plan(job)["search"]["limits"] == [["ttft_p99_ms", 500.0]]
    assert load_plan.plan(job)["search"]["start"] == 4.0
    assert "better when it is lower" in refused(tmp_path, objective='maximize = "usd_per_million_output_tokens"')
    assert "better when it is higher" in refused(tmp_path, objective='minimize = "output_tokens_per_s_per_gpu"')


def test_a_trace_lies_where_its_job_file_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "data").mkdir()
    with gzip.open(tmp_path / "data" / "conv.csv.gz", "wt") as file:
        file.write("arrival_s,input_tokens,output_tokens\n0,30,7\n1.5,20,9\n")
    monkeypatch.chdir(tmp_path / "data")
    job = load_job(written(tmp_path / "jobs", traffic='trace = "../data/conv.csv.gz"'))
    assert Path(job.traffic.trace) == tmp_path / "data" / "conv.csv.gz"
    assert lengths(job) == ([30, 20], [7, 9])  # what the space is made for
    assert load_plan.plan(job)["arrival_s"] == [0.0, 1.5]


def test_the_azure_traces_are_read_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "AzureLLMInferenceTrace_conv.csv"
    path.write_text(AZURE)
    arrivals, inputs, outputs = read_trace(path)
    assert arrivals is not None
    assert arrivals.tolist() == pytest.approx([0.0, 4.314579, 4.541877], abs=1e-5)
    assert (inputs.tolist(), outputs.tolist()) == ([374, 396, 879], [44, 109, 55])


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("0,5,5\n1,-3,5\n", "line 3: arrival_s 1, input_tokens -3"),
        ("0,5,five\n", "line 2: could not convert"),
        ("", "the trace has no requests"),
    ],
)
def test_a_trace_that_is_none_is_one_sentence(rows: str, words: str, tmp_path: Path) -> None:
    """Of its space and of its load alike."""
    (tmp_path / "trace.csv").write_text("arrival_s,input_tokens,output_tokens\n" + rows)
    job = load_job(written(tmp_path, traffic='trace = "trace.csv"'))
    for ask in (lengths, load_plan.plan):
        with pytest.raises(AutoscoutError, match=words) as told:
            ask(job)
        assert told.value.exit_code == 2
        assert "\n" not in str(told.value)


@pytest.mark.parametrize("name", ["tiny-llama-serve-cpu", "tiny-llama-azure-cpu", "llama-3.1-8b-serve-azure"])
def test_the_serving_jobs_of_the_repository_load(name: str) -> None:
    job = load_job(f"fixtures/jobs/{name}.toml")
    assert len(load_plan.plan(job)["input_len"]) > 0
