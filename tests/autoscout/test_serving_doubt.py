"""How far serving predictions are said to be off (serving/doubt.py)."""

from typing import Any

import numpy as np
import pytest

from autoscout.simulate.hardware.device import hardware
from autoscout.simulate.serving.all_reduce import all_reduce_us
from autoscout.simulate.serving.doubt import at_a_rate
from autoscout.simulate.serving.serving_device import device
from autoscout.simulate.serving.setup import setup
from autoscout.simulate.serving.simulator import ServingSimulator
from autoscout.simulate.serving.steps import decode_parts_s, decode_step_s, launches_s

SMALL: dict[str, Any] = {
    **{"layers": 24, "hidden": 896, "heads": 14, "kv_heads": 2, "head_dim": 64, "ffn": 4864, "vocab": 151936},
    **{"gated": True, "tied": True, "dtype": "bfloat16", "input_len": 100.0, "output_len": 100.0, "requests": 400.0},
}
LARGE: dict[str, Any] = {
    **{"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "ffn": 14336, "vocab": 128256},
    **{"gated": True, "tied": False, "dtype": "bfloat16", "input_len": 500.0, "output_len": 300.0, "requests": 200.0},
}


def error(metric: str, shape: dict[str, Any], gpu: str = "h100", **columns: Any) -> float:
    both = {**shape, "gpu": np.array([gpu]), **columns}
    return float(ServingSimulator(metric).predict(both).error[0])


def test_of_a_short_open_load_much_is_answered_after_the_last_request_has_come() -> None:
    """200 requests at 32 a second end as late as the engine is slow: 3 % were said, 30 were measured."""
    short, long = (
        error("output_tokens_per_s", LARGE, rate=rate, requests=requests)
        for rate, requests in ((12.0, 100.0), (2.0, 4000.0))
    )
    closed = error("output_tokens_per_s", LARGE, concurrency=32.0)
    assert long < 0.04 < short < closed


def test_what_is_answered_is_never_less_sure_than_the_engine() -> None:
    swamped = at_a_rate(np.array([0.2]), {"load": np.array([1e4]), "ending": np.array([0.9])})
    assert swamped == pytest.approx(0.2)


def test_devices_that_talk_through_the_host_are_less_sure_together() -> None:
    one, four = (error("tpot_mean_ms", LARGE, "rtx4090", rate=2.0, tp=tp) for tp in (1.0, 4.0))
    own_links = [error("tpot_mean_ms", LARGE, "h100", rate=2.0, tp=tp) for tp in (1.0, 4.0)]
    assert four > one + 0.03
    assert own_links[1] == pytest.approx(own_links[0], abs=0.02)


def test_a_batch_whose_kernels_are_launched_one_by_one_rests_on_its_host() -> None:
    recorded, launched = (error("e2el_mean_ms", SMALL, "mi300x", batch=8.0, eager=eager) for eager in (0.0, 1.0))
    assert launched > 2 * recorded


def test_engines_are_as_sure_as_their_public_runs() -> None:
    sure = [
        error("tpot_mean_ms", LARGE, rate=2.0, framework=name) for name in ("TensorRT-LLM", "vLLM", "SGLang", "MII")
    ]
    assert sure == sorted(sure)


def test_cards_that_do_not_reach_each_other_s_memory_talk_through_the_host() -> None:
    """Two were as fast as two L40S: 20 GB/s, and as quick as an engine's own kernel."""
    two, message = np.array([2.0]), np.array([8e3, 1e7])
    gaming, card = (all_reduce_us(device(name), two, message) for name in ("rtx4090", "l40s"))
    assert gaming[0] > 2 * card[0]
    assert gaming[1] > 3 * card[1]


def test_tensorrt_llm_knows_sinks_on_rtx_cards_and_vllm_does_not() -> None:
    windows = {**LARGE, "rate": 1.0, "window": 128.0, "windowed_layers": 16.0, "sinks": 1.0}
    speeds = [
        float(setup({**windows, "framework": name}, device("rtx-pro-6000"), 1).engine.prompt_speed[0])
        for name in ("vLLM", "TensorRT-LLM")
    ]
    assert speeds[1] == 4 * speeds[0]


def test_steps_beyond_vllm_s_graphs_are_launched_kernel_by_kernel() -> None:
    columns = {**SMALL, "rate": 1.0, "max_cudagraph_capture_size": 512.0, "async_scheduling": True}
    e = setup(columns, device("h100"), 1).engine
    few, many = np.array([512.0]), np.array([513.0])
    launched = float(launches_s(e)[0])
    assert sum(float(part[0]) for part in decode_parts_s(e, many, many * 10.0).values()) < launched
    assert decode_step_s(e, few, few * 10.0)[0] < launched
    assert decode_step_s(e, many, many * 10.0)[0] >= launched
    other = setup({**columns, "framework": "TensorRT-LLM"}, device("h100"), 1).engine
    assert decode_step_s(other, many, many * 10.0)[0] < float(launches_s(other)[0])


def test_a_device_known_by_its_data_sheet_is_less_sure_than_one_that_was_measured() -> None:
    """A record's `doubt` widens what is predicted of servers, not only of trainers."""
    doubt = hardware("h20").doubt
    like = error("tpot_mean_ms", LARGE, "h20", concurrency=8.0)
    assert doubt > 0.1
    assert like**2 >= error("tpot_mean_ms", LARGE, "h100", concurrency=8.0) ** 2 + 0.9 * doubt**2


def test_a_run_that_read_its_prompts_whole_had_room_for_them_in_a_step() -> None:
    """gpt-oss-120b on B200 with 128 users of 8,192 tokens: 0.64 s measured, 25.7 predicted with a step of 8,192."""
    busy = {"concurrency": 64.0, "input_len": 8192.0, "output_len": 64.0, "framework": "TensorRT-LLM"}
    cramped = {**LARGE, **busy, "gpu": np.array(["b200"])}
    ran = {**cramped, "version": np.array(["1.2.0"])}
    first = [float(ServingSimulator("ttft_mean_ms").predict(columns).value[0]) for columns in (cramped, ran)]
    stated = float(ServingSimulator("ttft_mean_ms").predict({**ran, "max_num_batched_tokens": 8192.0}).value[0])
    assert first[1] < 0.5 * first[0]
    assert stated > first[1]
