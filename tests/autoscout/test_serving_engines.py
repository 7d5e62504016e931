"""Engines beside vLLM, versions of vLLM, and the server before them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoscout.job import requests as load
from autoscout.job.requests import Requests
from autoscout.simulate.serving import simulator
from autoscout.simulate.serving.all_reduce import all_reduce_us
from autoscout.simulate.serving.events import simulate
from autoscout.simulate.serving.fluid import fluid
from autoscout.simulate.serving.held_back import EngineLimits
from autoscout.simulate.serving.one_replica import replica_run, through_front_end
from autoscout.simulate.serving.serving_device import device
from autoscout.simulate.serving.setup import Setup, setup
from autoscout.simulate.validation.serving_tables import columns_of_rows, device_name
from tests.tools import published_closed_loops
from tests.tools.published_serving_cookbook import predicted as told_of_cookbook
from tests.tools.published_serving_cookbook import rows_of as of_cookbook
from tests.tools.published_serving_pages import launched, rows_of
from tests.tools.published_serving_rocm import predicted as told_of_amd
from tests.tools.published_serving_rocm import rows_of as of_amd

ROW = {"model": "qwen3-32b", "gpu": "a100", "input_len": 200, "output_len": 200, "concurrency": 4, "dtype": "bf16"}
MANY = {"rate": 1000.0, "requests": 60, "length_spread": 0.0}


def of(**columns: Any) -> Setup:
    table, _ = columns_of_rows([{**ROW, **columns}])
    return setup(table, device("a100"), 1)


def test_an_engine_that_never_stops_a_request_admits_fewer_and_preempts_none():
    engine, limits = of().engine, EngineLimits(1600, 64, 2048)
    requests = load.fixed_batch(8, 100, 200)
    some, all_of_it = (simulate(engine, replace(limits, reserved=share), requests) for share in (0.0, 1.0))
    assert some.preemptions > 0
    assert all_of_it.preemptions == 0
    assert not np.isnan(all_of_it.end_s).any()
    assert all_of_it.first_s.max() > np.sort(all_of_it.end_s)[4]  # 5 of 8 run to their ends first


def test_sglang_reads_prompts_in_chunks_and_keeps_its_share_of_memory_whatever_a_step_needs():
    vllm, sglang = of(version="0.11"), of(framework="SGLang", version="0.5.5")
    assert (vllm.batched_tokens[0], sglang.batched_tokens[0]) == (2048, 8192)
    assert 15_000 < sglang.memory.kv_tokens[0] < vllm.memory.kv_tokens[0]
    longer = of(framework="SGLang", version="0.5.5", chunked_prefill_size=4096, input_len=9000)
    assert longer.memory.kv_tokens[0] == sglang.memory.kv_tokens[0]
    run = replica_run(None, longer, 0)
    assert run is not None
    assert not np.isnan(run.end_s).any()  # prompts longer than a chunk are served


def test_sglang_keeps_beginnings_of_prompts_unless_it_is_told_not_to():
    assert of(framework="SGLang").prefix_caching[0]
    assert not of(framework="SGLang", prefix_caching=0.0).prefix_caching[0]


def test_tensorrt_llm_takes_8192_tokens_a_step_and_is_in_python_since_1_0():
    new, old = (of(framework="TensorRT-LLM", version=version) for version in ("1.2.0rc1", "0.17"))
    assert (new.batched_tokens[0], new.reserved[0]) == (8192, 1.0)
    assert (new.engine.python_host[0], old.engine.python_host[0]) == (1, 0)


def test_tensorrt_llm_reads_prompts_whole_and_without_graphs_unless_it_is_told_to_cut_them():
    """ "The sum of prompt length (9351.0), query length (0) should not exceed max_num_tokens (8192)" (its issue 9277).
    Chunks of 8,192 tokens counted: a prompt of 5,000 waited for 3,192 tokens of another's."""
    stated = {"framework": "TensorRT-LLM", "version": "1.2.0rc1", "input_len": 9000, "max_num_batched_tokens": 8192}
    whole, cut = (of(**stated, chunked_prefill=c) for c in ("", 1))
    assert (whole.chunked[0], cut.chunked[0]) == (False, True)
    assert whole.engine.eager_prompts[0]  # its graphs are of steps that only decode
    assert not of(version="0.11").engine.eager_prompts[0]
    runs = [replica_run(None, s, 0) for s in (whole, cut)]
    assert [bool(np.isfinite(run.end_s).all()) for run in runs if run is not None] == [False, True]
    metrics = [simulator.ServingSimulator(m) for m in ("tpot_mean_ms", "requests_per_s")]
    refused, ran = (
        [
            float(m.predict(columns_of_rows([{**ROW, **stated, "max_num_batched_tokens": step}])[0]).value[0])
            for m in metrics
        ]
        for step in (8192, "")
    )
    assert refused == [np.inf, 0]
    assert np.isfinite(ran[0])  # a row whose table leaves the size of a step out had room for its prompts
    assert ran[1] > 0


NIM = {"model": "llama-3-70b", "gpu": "H100", "tp": 2, "quantization": "fp8", "kv_dtype": "fp8", "length_spread": 0}
NIM |= {"framework": "TensorRT-LLM", "version": "0.17", "input_len": 5000, "output_len": 500}


def waits(row: dict[str, Any], users: int, rounds: int, **own: float) -> float:
    """Times of one user's mean TTFT."""

    def first_token_ms(n: int) -> float:
        table, _ = columns_of_rows([{"dtype": "bf16", **row, "concurrency": n, "requests": rounds * n}])
        table |= {name: np.array([value]) for name, value in own.items()}
        return simulator.exactly(table, setup(table, device(str(table["gpu"][0])), 1), 0)["ttft_mean_ms"]

    return first_token_ms(users) / first_token_ms(1)


@pytest.mark.parametrize(("users", "measured"), [(5, 1.34), (25, 1.69)])
def test_users_who_ask_again_within_a_step_follow_each_other(users: int, measured: float):
    """NIM 1.8, Llama-3.3-70B on two H100. Prompts cut at 8,192 tokens and a front end of two steps made groups of
    users, 3.1 and 4.4 times as late as one."""
    row = {"model": "llama-3-70b", "gpu": "H100", "tp": 2, "quantization": "fp8", "kv_dtype": "fp8"}
    row |= {"framework": "TensorRT-LLM", "version": "0.17", "input_len": 5000, "output_len": 500}
    assert waits({**row, "length_spread": 0}, users, 40) < 1.6 * measured


@pytest.mark.parametrize(("users", "measured"), [(2, 1.50), (5, 4.01), (10, 8.60), (25, 17.6)])
def test_equal_requests_of_a_server_that_takes_many_prompts_a_step_run_in_step(users: int, measured: float):
    """NIM of 2024, Llama-3-8B on one A100, 2,000 and 200 tokens, in steps of 32,768: each round finds the first one
    alone, all others wait for it and for each other."""
    row = {"model": "llama-3-8b", "gpu": "A100-80GB", "framework": "TensorRT-LLM", "version": "0.10"}
    row |= {"input_len": 2000, "output_len": 200, "length_spread": 0, "max_num_batched_tokens": 32768}
    assert waits(row, users, 12, front_end_ms=4.0, request_ms=0.3) == pytest.approx(measured, rel=0.1)


def test_a_step_with_prompts_takes_tensorrt_llm_longer_to_launch():
    """Qwen3-8B on H100, four users in TensorRT-LLM 1.2: 24.4 ms for the 99 % quantile of gaps, 7.4 were predicted."""
    table, _ = columns_of_rows([{**ROW, "model": "qwen3-8b", "framework": "TensorRT-LLM", "version": "1.2.0rc1"}])
    table |= {"requests": np.array([100.0])}
    assert simulator.exactly(table, setup(table, device("h100"), 1), 0)["itl_p99_ms"] == pytest.approx(24.4, rel=0.1)


def test_vllm_overlaps_its_host_since_0_14_or_where_it_is_told_to():
    assert not of(version="0.11.0").engine.overlap[0]
    assert of(version="0.11.0", async_scheduling=1).engine.overlap[0]
    assert of(version="0.14.1").engine.overlap[0]


def test_a_server_adds_its_front_end_to_the_first_token_and_queues_a_thousand_requests():
    table, _ = columns_of_rows([{**ROW, "rate": 0.01, "requests": 3, "concurrency": 0}])
    served, bare = (setup({**table, "front_end_ms": np.array([ms])}, device("a100"), 1) for ms in (50.0, 1e-6))
    runs = [replica_run(None, s, 0) for s in (served, bare)]
    first = [float(np.mean(run.first_s - run.arrival_s)) for run in runs if run is not None]
    assert first[0] - first[1] == pytest.approx(0.05, rel=1e-3)
    many, _ = columns_of_rows([{**ROW, **MANY, "model": "llama-3.2-3b", "concurrency": 0, "output_len": 2}])
    queued = replica_run(None, setup(many, device("h100"), 1), 0)
    assert queued is not None
    assert queued.end_s.max() - queued.arrival_s.min() > 60 * 0.0015


@pytest.mark.parametrize("predict", [simulator.exactly, lambda _, s, i: {k: v[i] for k, v in fluid(s).items()}])
def test_a_user_waits_for_the_front_end_before_the_next_question(predict: Callable[..., dict[str, float]]):
    """It was in the latency of a closed loop and not in its throughput: one user asked more often than answers came."""
    table, _ = columns_of_rows([{**ROW, "concurrency": 1, "output_len": 20}])
    columns = {**table, "front_end_ms": np.array([500.0]), "requests": 200}
    found = predict(columns, setup(columns, device("a100"), 1), 0)
    assert found["requests_per_s"] * found["e2el_mean_ms"] / 1e3 == pytest.approx(1, rel=0.05)


def test_requests_of_many_users_queue_in_the_front_end():
    """Of 100 at once the last reaches the engine after 0.15 s; later ones, which come one by one, wait for no other."""
    table, _ = columns_of_rows([{**ROW, "concurrency": 100, "output_len": 100}])
    run = replica_run(None, setup({**table, "front_end_ms": np.array([1e-6]), "requests": 200}, device("a100"), 1), 0)
    assert run is not None
    assert run.first_s[:100].max() > 0.15
    assert run.arrival_s[:100].max() == 0


def test_an_event_loop_begins_with_all_requests_before_it_goes_on_with_one():
    """Three quarters of 1.5 ms each for 100 at once, then the rest; one by one where they come seldom."""
    at_once, seldom = (Requests(np.arange(100) * gap, np.full(100, 8), np.full(100, 2)) for gap in (0.0, 0.1))
    reached = through_front_end(at_once, 0.0015).arrival_s
    assert (reached[0], reached[-1]) == (pytest.approx(0.1125 + 0.000375), pytest.approx(0.15))
    assert through_front_end(seldom, 0.0015).arrival_s == pytest.approx(seldom.arrival_s + 0.0015)
    assert through_front_end(seldom, 0.0) is seldom


def test_a_fixed_batch_of_an_unnamed_engine_may_be_another_engine_s():
    def error(**of_row: Any) -> float:
        row = {name: value for name, value in ROW.items() if name != "concurrency"} | of_row
        table, _ = columns_of_rows([row])
        return simulator.ServingSimulator("e2el_mean_ms").predict(table).error.item()

    named = error(batch=4, framework="vLLM")
    assert error(batch=4) == pytest.approx(np.hypot(named, 0.2))
    assert error(concurrency=4) == error(concurrency=4, framework="vLLM")


def test_a_fixed_batch_has_no_server():
    offline = of(concurrency=0, batch=8)
    assert (offline.front_end_s[0], offline.request_s[0], offline.reserved[0]) == (0, 0, 0)


@pytest.mark.parametrize("name", ["h100", "a100"])
def test_engines_kernels_and_nccl_agree_on_large_messages(name):
    """Sizes of the engines' table were read as bytes, and are elements of two: it took twice as long as NCCL's."""
    table, eight = device(name).all_reduce, np.array([8.0])
    found = float(all_reduce_us(device(name), eight, np.array([table.bytes[-1]]))[0])
    assert found == pytest.approx(table.gpus_8_us[-1], rel=0.15)


def test_large_messages_go_round_a_ring():
    h100, eight = device("h100"), np.array([8.0])
    sizes = [np.array([float(2**k)]) for k in (14, 26, 28)]
    small, large, larger = (float(all_reduce_us(h100, eight, size)[0]) for size in sizes)
    assert small == pytest.approx(5.168, rel=0.01)  # the engines' own kernel
    assert large < 0.95 * 361.5  # which takes so long for 64 MiB
    assert larger == pytest.approx(4 * large, rel=0.1)


def test_cards_on_pcie_are_no_slower_together_than_two_of_them():
    """64 MiB over eight: 1.5 GB/s were measured on one machine of L40S, whose pairs have 20."""
    size, eight = np.array([2.0**26]), np.array([8.0])
    l40s, gaming = (float(all_reduce_us(device(card), eight, size)[0]) for card in ("l40s", "rtx4090"))
    assert l40s == pytest.approx(1.75 * 2**26 / 20e3, rel=0.02)
    assert gaming == pytest.approx(1.75 * 2**26 / 6e3, rel=0.02)


def test_gaming_devices_are_known_by_what_drivers_call_them():
    assert device_name("NVIDIA GeForce RTX 4090") == "rtx4090"
    assert device_name("NVIDIA GeForce RTX 4090 D") == ""
    assert device_name("NVIDIA A800-SXM4-80GB") == "a800"
    assert device_name("NVIDIA RTX PRO 6000 Blackwell Server Edition") == "rtx-pro-6000"


PAGE = """
- vLLM: v0.11.0
- SGLang: v0.5.5

vLLM
    ```bash
    vllm serve Qwen/Qwen3-32B-FP8 -tp 2 \\
      --max-num-batched-tokens 4096
    ```
    ============ Serving Benchmark Result ============
    Successful requests:                     10
    Total input tokens:                      2000
    Total generated tokens:                  1000
    Mean TTFT (ms):                          12.50
    Mean TPOT (ms):                          8.25
    ==================================================

    # random 4K input
    ============ Serving Benchmark Result ============
    Successful requests:                     10
    Maximum request concurrency:             4
    Total input tokens:                      40000
    Total generated tokens:                  1000
    ==================================================

SGLang
    ```bash
    vllm serve Qwen/Qwen3-32B
    ```
    ============ Serving Benchmark Result ============
    Successful requests:                     10
    ==================================================
"""


def test_a_page_of_benchmarks_becomes_rows_and_reasons(tmp_path: Path):
    page = tmp_path / "performance-lab" / "qwen3-32b" / "h100.md"
    page.parent.mkdir(parents=True)
    page.write_text(PAGE, encoding="utf-8")
    rows, reasons = rows_of(tmp_path)
    assert reasons == {"the heading names another engine than the command": 1}
    first, second = rows
    assert (first["framework"], first["version"], first["quantization"]) == ("vLLM", "0.11.0", "fp8_block")
    assert (first["tp"], first["max_num_batched_tokens"], first["input_len"]) == (2, 4096, 200)
    assert (first["ttft_mean_ms"], first["tpot_mean_ms"], first["random"]) == (12.5, 8.25, False)
    assert (second["concurrency"], second["random"]) == (4, True)


def test_figures_that_stand_on_two_pages_count_once(tmp_path: Path):
    """Eight of GLM-4.5-Air on H100 are those of A100, digit for digit."""
    whole = "8.25\n    Median ITL (ms):  9.1\n    Output token throughput (tok/s): 100.5\n"
    for chip in ("a100", "h100"):
        page = tmp_path / "performance-lab" / "glm-4.5-air" / f"{chip}.md"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(PAGE.replace("8.25\n", whole), encoding="utf-8")
    rows, reasons = rows_of(tmp_path)
    assert [row["page"] for row in rows] == ["glm-4.5-air/a100"] * 2 + ["glm-4.5-air/h100"]
    assert reasons["the figures of another page"] == 1


def test_a_launch_command_says_what_cannot_be_expressed():
    assert launched("trtllm-serve a/b --max_num_tokens=16384") == {"max_num_batched_tokens": 16384}
    assert launched("sglang.launch_server --model a/b --speculative-algorithm EAGLE3") == (
        "speculative decoding whose acceptance is not said"
    )
    assert launched("vllm serve a/b --strange 3") == "--strange"


LOOP = {
    "task_inputs-model": "meta-llama3-8b-instruct", "task_inputs-GPU": "H100_80GB_HBM3", "task_inputs-n_gpus": "2",
    "task_inputs-precision": "fp8", "request_throughput-avg": "4.0", "request_latency-avg": "2010e6",
    "time_to_first_token-avg": "20e6", "output_token_throughput-avg": "800.0", "input_config-concurrency": "50",
    "input_config-synthetic_input_tokens_mean": "200", "input_config-output_tokens_mean": "200",
}  # fmt: skip


def test_a_table_of_closed_loops_becomes_rows_that_are_predicted(tmp_path: Path, monkeypatch, capsys):
    file = tmp_path / "nim.csv"
    file.write_text(f"{','.join(LOOP)}\n{','.join(LOOP.values())}\n", encoding="utf-8")
    (row,) = published_closed_loops.rows_of(file)
    assert (row["name"], row["tp"], row["kv_dtype"], row["requests"]) == ("8b h100 x2 fp8", 2, "fp8", 400)
    assert (row["ttft_mean_ms"], row["tpot_mean_ms"]) == (20, pytest.approx(10))
    assert all(value > 0 for value, _ in published_closed_loops.predicted(row).values())
    monkeypatch.setattr("sys.argv", ["", str(file), "--held-out", "--rows"])
    published_closed_loops.main()
    printed = capsys.readouterr().out
    assert "8b h100 x2 fp8 200/200 c50 ttft_mean_ms 20 " in printed
    assert printed.count("25, 50 users") == len(published_closed_loops.METRICS)
    assert [published_closed_loops.crowd(n) for n in (1, 5, 50, 250)] == ["1", "2 to 10", "25, 50", "100 to 250"]


def test_what_amd_measures_on_eight_mi300x_is_predicted(tmp_path: Path) -> None:
    """One row of each kind of its table for vLLM 0.10; 25 % too fast while its all-reduces took as long as H100's."""
    (tmp_path / "README.md").write_text(
        "| Llama 3.1 405B | FP8 | 8 | 128 | 2048 | 1500 | 1500 | 3867.7 |\n"
        "| Llama 3.1 70B | FP8 | 8 | 1 | 128 | 2048 | 17.236 |\n| | | | 64 | 2048 | 2048 | 35.324 |\n"
    )
    for row in of_amd(tmp_path / "README.md"):
        for metric, (value, _) in told_of_amd(row).items():
            assert value == pytest.approx(row[metric], rel=0.15)


def test_sglang_launches_what_a_mixture_takes_one_by_one(tmp_path: Path) -> None:
    """Of its cookbook: one user of Qwen3-235B and of MiniMax-M2.5 in FP8 on eight B200 waits 99 and 131 ms for the
    first token, 53 and 38 where as few kernels were launched as for a dense model."""
    page = "- Hardware: NVIDIA B200 GPU (8x)\n- sglang version: 0.5.6\n"
    for model, ttft in (("Qwen/Qwen3-235B-A22B", 99.03), ("MiniMaxAI/MiniMax-M2.5", 130.6)):
        page += (
            f"```shell\nsglang serve --model {model} --tp 8\n```\n"
            "```shell\nsglang.bench_serving --dataset-name random\n```\n"
            "```\nServing Benchmark Result\nMax request concurrency: 1\nSuccessful requests: 10\n"
            "Total input tokens: 6101\nTotal generated tokens: 4210\nOutput token throughput (tok/s): 96.65\n"
            f"Mean TTFT (ms): {ttft}\nMean TPOT (ms): 10.12\n```\n"
        )
    (tmp_path / "docs/autoregressive/x").mkdir(parents=True)
    (tmp_path / "docs/autoregressive/x/page.md").write_text(page)
    rows, reasons = of_cookbook(tmp_path)
    assert (len(rows), reasons) == (2, {})
    for row in rows:
        assert told_of_cookbook(row)["ttft_mean_ms"][0] == pytest.approx(row["ttft_mean_ms"], rel=0.06)


@pytest.mark.parametrize(
    ("framework", "version", "tp", "load", "tpot_ms"),
    [
        ("vLLM", "0.11.1", 1, (240, 1747, 8), 5.45),
        ("TensorRT-LLM", "1.2.0", 8, (7373, 922, 8), 2.72),
        ("TensorRT-LLM", "1.2.0", 1, (922, 922, 256), 17.6),
    ],
)
def test_experts_in_mxfp4_start_at_once_on_blackwell(
    framework: str, version: str, tp: int, load: tuple[int, int, int], tpot_ms: float
) -> None:
    """gpt-oss-120b on B200 (ml-energy, InferenceX): a token took 5.8, 4.4 and 20.3 ms with the start of the usual
    experts, and with TensorRT-LLM's host after the device."""
    row = dict(zip(("input_len", "output_len", "concurrency"), load, strict=True))
    row |= {"framework": framework, "version": version, "tp": tp, "model": "gpt-oss-120b", "gpu": "B200"}
    columns, _ = columns_of_rows([row | {"quantization": "mxfp4", "tpot_ms": tpot_ms}])
    said = simulator.ServingSimulator("tpot_mean_ms").predict(columns).value[0]
    assert said == pytest.approx(tpot_ms, rel=0.18)
