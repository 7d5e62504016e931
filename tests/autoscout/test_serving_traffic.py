"""What asks a simulated server, and what others measured of theirs: traces, lengths, tables."""

from pathlib import Path

import numpy as np
import pytest
from test_serving_sim import exact

from autoscout.job import requests as load
from autoscout.simulate.serving.simulator import ServingSimulator
from autoscout.simulate.validation.serving_tables import columns_of_rows, device_name
from kb.records import AutoscoutError, Traffic

MEASURED = Path("../shared/data/validation/serve_end_to_end.csv.gz")


def test_arrivals_and_lengths(tmp_path):
    rng = np.random.default_rng(0)
    arrivals = load.poisson(5.0, 500, rng)
    assert arrivals[0] == 0
    assert arrivals[-1] == pytest.approx(499 / 5)
    lengths = load.drawn([10, 20, 100], 4000, rng)
    assert lengths.min() >= 10
    assert lengths.max() <= 100
    assert np.quantile(lengths, 0.5) == pytest.approx(20, abs=2)
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n5,10,3\n2,20,4\n")
    recorded = load.of_traffic(Traffic(trace=str(trace)))
    assert recorded.arrival_s.tolist() == [0.0, 3.0]
    assert recorded.input_len.tolist() == [20, 10]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("arrival_s,input_tokens\n1,2\n", "no column output_tokens"),
        ("arrival_s,input_tokens,output_tokens\n1,-2,3\n", "line 2: arrival_s 1, input_tokens -2 and output_tokens 3"),
        ("arrival_s,input_tokens,output_tokens\n1,x,3\n", "line 2: could not convert"),
        ("arrival_s,input_tokens,output_tokens\n", "no requests"),
        ("input_tokens,output_tokens\n1,3\n", "no column arrival_s"),
    ],
)
def test_a_wrong_trace_is_one_sentence(tmp_path, text, sentence):
    trace = tmp_path / "trace.csv"
    trace.write_text(text)
    with pytest.raises(AutoscoutError, match=sentence) as raised:
        load.of_traffic(Traffic(trace=str(trace)))
    assert raised.value.exit_code == 2


def test_tables_long_and_wide_become_the_same_columns():
    run = {"gpu": "NVIDIA A100-SXM4-40GB", "model": "meta-llama/Meta-Llama-3-8B", "tp": 2, "input_len": 128}
    run |= {"output_len": 64, "concurrency_or_batch": 16, "framework": "vLLM", "version": "0.9.1"}
    long = [{**run, "metric": "ttft", "value": 0.05, "unit": "s"}, {**run, "metric": "tpot", "value": 9, "unit": "ms"}]
    columns, measured = columns_of_rows([*long, {**run, "metric": "ttft", "value": 1, "unit": "s", "status": "oom"}])
    wide, same = columns_of_rows([{**run, "ttft_ms": 50, "tpot_mean_ms": 9, "throughput_total_tokens": None}])
    for metric, value in (("ttft_mean_ms", 50), ("tpot_mean_ms", 9)):
        assert measured[metric].tolist() == same[metric].tolist() == [value]
    for name in ("layers", "kv_heads", "vocab", "tp", "batch", "gpu", "version", "why_not"):
        assert columns[name].tolist() == wide[name].tolist()
    assert columns["gpu"].tolist() == ["a100-40g"]
    assert columns["version"].tolist() == ["0.9.1"]
    assert columns["why_not"].tolist() == [""]
    unknown, _ = columns_of_rows([{**run, "model": "somebody/else", "ttft_ms": 1}])
    assert "somebody/else is not known" in unknown["why_not"][0]
    assert device_name("A100 (no size; the paper lists 40GB)") == "a100-40g"
    assert device_name("A100-SXM-80GB") == "a100"
    assert device_name("abacus") == ""


@pytest.mark.skipif(not MEASURED.exists(), reason="needs the measured tables in ../shared/data")
def test_vllm_on_a100_is_predicted_without_having_seen_it():
    """Constants come from single kernels; no row of this table had a part in them."""
    import duckdb

    found = duckdb.sql(
        f"SELECT * FROM read_csv('{MEASURED}', sample_size=-1) WHERE framework = 'vLLM' AND gpu LIKE 'A100%'"
    )
    rows = [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]
    columns, measured = columns_of_rows(rows)
    for metric, limit in (("e2el_mean_ms", 0.10), ("total_tokens_per_s", 0.12)):
        prediction = ServingSimulator(metric).predict(columns)
        known = np.isfinite(prediction.value) & (columns["why_not"] == "")
        ratio = prediction.value[known] / measured[metric][known]
        assert known.sum() >= 300
        assert np.mean(np.abs(ratio - 1)) <= limit
        inside = np.mean(np.abs(np.log(ratio)) <= 1.645 * prediction.error[known])
        assert 0.85 <= inside <= 0.95
        alone = columns["batch"][known] == 1  # all of it is decoding, so this is the time per token
        assert np.mean(np.abs(ratio[alone] - 1)) <= 0.10


def test_a_benchmark_that_only_times_batches_is_predicted_as_one():
    run = {"batch": 64.0, "input_len": 2000.0, "output_len": 50.0}
    each, timed = exact(**run), exact(**run, batch_timed=True)
    assert timed["ttft_mean_ms"] > 1.3 * each["ttft_mean_ms"]  # the last one's
    assert timed["ttft_mean_ms"] + 49 * timed["tpot_mean_ms"] == pytest.approx(timed["e2el_mean_ms"])
    assert timed["e2el_mean_ms"] == each["e2el_mean_ms"]
