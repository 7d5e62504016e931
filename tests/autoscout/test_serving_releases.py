"""What releases of engines do differently, beside public runs that docs/lab/simulators-serving.md names."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoscout.simulate.serving.fluid import fluid
from autoscout.simulate.serving.serving_device import device
from autoscout.simulate.serving.setup import Setup, setup
from autoscout.simulate.serving.simulator import ServingSimulator, exactly
from autoscout.simulate.serving.steps import decode_context_s, host_s, launches_s
from autoscout.simulate.validation.serving_tables import columns_of_rows
from tests.tools.published_serving import predicted
from tests.tools.published_serving_overview import rows_of
from tests.tools.published_serving_pages import told_runner

NIM = {"model": "llama-3-8b", "gpu": "A100-80GB", "framework": "TensorRT-LLM", "version": "0.10", "dtype": "bf16"}
NIM |= {"concurrency": 1, "requests": 10, "length_spread": 0, "max_num_batched_tokens": 32768}


def columns_of(**row: Any) -> dict[str, np.ndarray]:
    return columns_of_rows([{**NIM, "input_len": 200, "output_len": 200, **row}])[0]


def of(**row: Any) -> Setup:
    columns = columns_of(**row)
    return setup(columns, device(str(columns["gpu"][0])), 1)


def slope(s: Setup, seqs: float) -> float:
    return float(decode_context_s(s.engine, seqs)[0])


@pytest.mark.parametrize(
    ("row", "short", "long"),
    [
        ({}, 12.08, 14.87),
        ({"tp": 2}, 8.179, 10.99),
        ({"gpu": "H100", "quantization": "fp8", "kv_dtype": "fp8"}, 5.115, 7.47),
        ({"model": "llama-3-70b", "tp": 4}, 29.86, 36.8),
    ],
)
def test_a_long_context_of_one_user_slows_tensorrt_llm_of_2024(row: dict[str, Any], short: float, long: float) -> None:
    """NIM's TPOT of one user, 200 and 200 tokens, 7,000 and 1,000: 2.8 ms more with one GPU and with two, where all
    multiprocessors would read the cache in 0.6 and 0.3."""
    for lengths, measured in (((200, 200), short), ((7000, 1000), long)):
        columns = columns_of(**row, input_len=lengths[0], output_len=lengths[1])
        s = setup(columns, device(str(columns["gpu"][0])), 1)
        assert exactly(columns, s, 0)["tpot_mean_ms"] == pytest.approx(measured, rel=0.05)
        assert fluid(s)["tpot_mean_ms"][0] == pytest.approx(measured, rel=0.1)


def test_blocks_that_go_through_keys_share_the_multiprocessors() -> None:
    old, new = of(), of(version="0.17")
    one = 32 * 0.0125e-6
    assert [slope(old, n) for n in (1, 3)] == pytest.approx([one, one / 3])
    assert slope(old, 4) == pytest.approx(2 * one / 4)  # 128 blocks on 108 multiprocessors
    assert slope(new, 1) < slope(old, 1) / 3
    eight = of(model="llama-3-70b", tp=4)  # eight query heads share keys, and 14 requests fill the device
    assert slope(eight, 13) > slope(eight, 14) == slope(of(model="llama-3-70b", tp=4, version="0.17"), 14)


def test_tensorrt_llm_of_2024_works_between_steps() -> None:
    old, new = of(), of(version="0.17")
    assert host_s(old.engine, np.array([10.0]))[0] == pytest.approx(0.7 * 1.435e-3 + 0.3 * 10 * 0.1134e-3)
    assert host_s(new.engine, np.array([10.0]))[0] == pytest.approx(0.1 * 1.435e-3 + 0.01 * 10 * 0.1134e-3)


def test_the_device_waits_for_tensorrt_llm_whatever_it_is_written_in(tmp_path: Path) -> None:
    """Qwen3-30B-A3B in its overview of 1.2, on B200: 2,048 requests at once get 26,971 tokens/s; 58 % more, if it did
    not."""
    assert [of(version=version).engine.overlap[0] for version in ("0.8", "0.17", "1.0", "1.2")] == [False] * 4
    assert of(framework="vLLM", version="0.14").engine.overlap[0]
    page = "# Qwen3 30B A3B\n| Sequence Length | B200<br/>TP1 (FP4) |\n| 1000/1000 | 26,971 |\n"
    (tmp_path / "overview.md").write_text(page)
    (row,) = rows_of(tmp_path / "overview.md")
    ((told, _),) = predicted(row).values()
    assert told == pytest.approx(26971, rel=0.15)


def test_tensorrt_llm_keeps_all_keys_of_layers_with_windows() -> None:
    """gpt-oss-120b in its overview of 1.2: half of what vLLM's cache holds; 1,024 and 8,192 tokens were predicted 38 %
    too fast on H200."""

    def tokens(framework: str) -> float:
        row = {"model": "gpt-oss-120b", "gpu": "H200", "quantization": "mxfp4", "input_len": 1024, "output_len": 8192}
        return float(of(**row, framework=framework, version="1.2").memory.kv_tokens[0])

    assert tokens("TensorRT-LLM") == pytest.approx(0.55 * tokens("vLLM"), rel=0.15)


def test_the_policy_that_stops_requests_keeps_no_room_for_their_answers() -> None:
    assert (of(version="0.17").reserved[0], of(version="0.17", evicts=1).reserved[0]) == (1, 0)


def test_several_steps_at_once_are_of_version_0_whose_host_then_sees_fewer() -> None:
    """AMD's runs of Llama-2-70B in MLPerf Inference: vLLM 0.9 with num_scheduler_steps = 11."""

    def work(**own: Any) -> tuple[int, float]:
        s = of(framework="vLLM", version="0.9.0", **own)
        return int(s.version[0]), float(host_s(s.engine, np.array([100.0]))[0])

    (new, _), (first, whole) = work(), work(scheduler_steps=2)
    assert (new, first) == (1, 0)
    assert work(num_scheduler_steps=8) == (0, pytest.approx(whole / 4))


def test_version_0_mixes_prompts_with_decodes_where_it_takes_them_in_chunks() -> None:
    prompts_first, mixed = (of(framework="vLLM", version="0.6.5", chunked_prefill=on) for on in (0, 1))
    assert (prompts_first.version[0], mixed.version[0]) == (0, 1)
    assert (mixed.engine.overlap[0], mixed.engine.step[0]) == (False, prompts_first.engine.step[0])


def test_late_releases_of_version_0_do_less_for_a_batch_that_nobody_reads_token_by_token() -> None:
    def work(version: str, **load: Any) -> float:
        s = of(framework="vLLM", version=version, **{"concurrency": "", **load})
        return float(host_s(s.engine, np.array([100.0]))[0] - host_s(s.engine, np.array([0.0]))[0])

    assert work("0.7.3", batch=100) == pytest.approx(0.55 * work("0.5", batch=100))
    assert work("0.7.3", concurrency=100) == work("0.5", concurrency=100)
    assert work("0.8", batch=100) < work("0.7.3", batch=100) / 3


def test_products_of_quantized_weights_take_the_host_longer_without_graphs() -> None:
    """Llama-3.1-8B on A100 with eight users, `enforce_eager`: 496 tokens/s in W8A16 and 400 in W8A8 (AccelMark), where
    627 were predicted for both."""

    def launched(quantization: str, eager: int = 1) -> float:
        s = of(framework="vLLM", version="0.20", quantization=quantization, eager=eager)
        return float(launches_s(s.engine)[0]) * 1e3

    assert launched("none") == launched("w8a8", eager=0) == pytest.approx(32 * 10 * 39.12e-3)
    assert launched("w8a16") == pytest.approx(8 / 0.496, rel=0.05)
    assert launched("w8a8") == pytest.approx(8 / 0.3997, rel=0.05)


def test_amd_s_norms_quantize_without_kernels_of_their_own() -> None:
    """Llama-2-70B in FP8 without graphs, tens of sequences: 32 and 35 ms a token on MI300X and MI325X (MLPerf)."""
    row = {"model": "llama-2-70b", "quantization": "fp8", "eager": 1, "framework": "vLLM", "version": "0.6.5"}
    s = setup(columns_of(**row, gpu="mi300x"), device("mi300x"), 1)
    assert float(launches_s(s.engine)[0]) * 1e3 == pytest.approx(32, rel=0.05)


def test_a_result_says_what_its_runner_was_told() -> None:
    told = {"enforce_eager": True, "max_num_seqs": 512, "gpu_memory_utilization": 0.9}
    assert told_runner({"task": {"extra_config": told}}) == {"eager": 1.0, "gpu_memory_utilization": 0.9}
    assert told_runner({"task": {"extra_config": None}}) == told_runner({"task": {}}) == {}


def test_vllm_0_11_goes_through_the_chat_template_of_each_request() -> None:
    """Qwen3-32B on A100, a thousand requests of 128 and 4 tokens at once: 31.2 s to the mean first token, 20.9 said."""
    row = {"model": "qwen3-32b", "framework": "vLLM", "rate": 1e5, "requests": 1000, "input_len": 128, "output_len": 4}
    row |= {"concurrency": "", "max_num_batched_tokens": ""}

    def first_token_s(version: str, **own: Any) -> float:
        columns = columns_of(**{**row, **own, "version": version})
        return exactly(columns, setup(columns, device("a100"), 1), 0)["ttft_mean_ms"] / 1e3

    assert first_token_s("0.11.0") == pytest.approx(31.2, rel=0.1)
    assert first_token_s("0.10.0") == pytest.approx(first_token_s("0.12.0"), rel=0.01)
    assert first_token_s("0.12.0") < 25
    gpt_oss = {"model": "gpt-oss-20b", "quantization": "mxfp4"}
    assert first_token_s("0.11.0", **gpt_oss) == first_token_s("0.10.0", **gpt_oss)  # it has no such template


def test_a_generated_token_of_deepseek_takes_what_its_small_kernels_take() -> None:
    """DeepSeek-R1 in vLLM 0.11 on eight H200, four users: 19.4 ms a token, 13.3 were said."""
    row = {"model": "deepseek-r1", "gpu": "H200", "tp": 8, "quantization": "fp8_block", "framework": "vLLM"}
    columns = columns_of(**row, version="0.11.0", concurrency=4, requests=40, max_num_batched_tokens="")
    told = exactly(columns, setup(columns, device("h200"), 1), 0)
    assert told["tpot_mean_ms"] == pytest.approx(19.4, rel=0.05)


def test_mxfp4_in_other_engines_than_vllm_is_hardly_known() -> None:
    def error(framework: str, quantization: str, **row: str) -> float:
        columns = columns_of(model="gpt-oss-120b", gpu="H100", framework=framework, quantization=quantization, **row)
        return float(ServingSimulator("tpot_mean_ms").predict({**columns, "requests": np.array([4.0])}).error[0])

    assert error("SGLang", "mxfp4") > 1.3 > error("SGLang", "fp8") > error("vLLM", "mxfp4")
    assert error("TensorRT-LLM", "mxfp4", version="1.0") > 1.3 > 0.4 > error("TensorRT-LLM", "mxfp4", version="1.2")
