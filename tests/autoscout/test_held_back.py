"""Engines that take no prompts in most steps (serving/held_back.py)."""

from typing import Any

import numpy as np
import pytest

from autoscout.job.requests import Requests
from autoscout.simulate.serving.engine_run import EngineRun
from autoscout.simulate.serving.events import simulate
from autoscout.simulate.serving.fluid import fluid
from autoscout.simulate.serving.held_back import EngineLimits, Turns
from autoscout.simulate.serving.serving_device import device
from autoscout.simulate.serving.setup import READ, Setup, setup
from autoscout.simulate.serving.simulator import exactly

LLAMA: dict[str, Any] = {
    **{"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "ffn": 14336, "vocab": 128256},
    **{"gated": True, "tied": False, "dtype": "bfloat16", "input_len": 1000.0, "output_len": 300.0, "requests": 800.0},
    "scheduler_v0": True,
}
MIXTURE: dict[str, Any] = {
    **{"layers": 48, "hidden": 2048, "heads": 32, "kv_heads": 4, "head_dim": 128, "ffn": 6144, "expert_ffn": 768},
    **{"experts": 128, "topk": 8, "vocab": 151936, "gated": True, "tied": False, "dtype": "bfloat16", "ep": 1.0},
    **{"framework": "TensorRT-LLM", "dp": np.array([8.0]), "rate": 16.0, "requests": 1600.0},
    **{"input_len": 1000.0, "output_len": 300.0},
}


def served(shape: dict[str, Any], **columns: Any) -> tuple[dict[str, Any], Setup]:
    both = {**shape, **columns}
    return both, setup(both, device("h100"), 1)


def run_of(s: Setup, arrivals: list[float], **limits: Any) -> EngineRun:
    alike = np.full(len(arrivals), 200)
    return simulate(s.engine, EngineLimits(kv_tokens=10**6, **limits), Requests(np.array(arrivals), alike, alike))


def test_prompts_wait_for_the_end_of_the_steps_that_were_scheduled_at_once() -> None:
    _, s = served(LLAMA)
    arrivals = [0.0, *np.linspace(0.1, 1.3, 12).tolist()]
    free, held = (run_of(s, arrivals, version=0, held=n, held_several=n) for n in (0, 8))
    token = float(held.end_s[0] - held.first_s[0]) / 199
    later = held.first_s - free.first_s
    assert later[0] == 0  # nobody was answered
    assert 2 * token < later[1:].mean() < 6 * token


def test_engines_that_balance_prompts_wait_for_each_other() -> None:
    """Of one prompt it is not known that the others have one, too."""
    _, s = served(LLAMA)
    one, two = (run_of(s, [0.0, *[0.2] * n], held=20, held_several=3) for n in (1, 2))
    step = float(one.end_s[0] - one.first_s[0]) / 199
    free = run_of(s, [0.0, 0.2])
    assert 0 <= one.first_s[1] - free.first_s[1] <= 20 * step
    several = run_of(s, [0.0, 0.2 + step, 0.2 + step], held=60, held_several=3)
    single = run_of(s, [0.0, 0.2 + step], held=60, held_several=60)
    assert several.first_s[1] < single.first_s[1]
    assert two.first_s[1] <= one.first_s[1] + step


def test_a_turn_comes_every_so_many_steps_and_ends_with_the_prompts() -> None:
    turns = Turns(EngineLimits(kv_tokens=1, held=5, held_several=2))
    assert turns.left(1) == 0
    turns.read(alone=False)
    assert (turns.left(1), turns.left(2)) == (5, 2)
    turns.passed(3)
    assert (turns.left(1), turns.left(2)) == (2, 0)
    turns.passed(2)
    assert turns.left(1) == 0  # which nobody uses
    turns.passed(1)
    assert turns.left(1) == 4


def test_amd_s_fork_answers_between_two_steps_of_prompts_unless_many_wait() -> None:
    turns = Turns(EngineLimits(kv_tokens=1, version=0, held=9, held_several=9, apart=8))
    turns.read(alone=True)
    assert (turns.left(7), turns.left(8)) == (9, 0)
    turns.passed(4)
    assert (turns.left(7), turns.left(8)) == (5, 5)
    usual = Turns(EngineLimits(kv_tokens=1, version=0, held=9, held_several=9))
    usual.read(alone=True)
    assert usual.left(1) == 0


def test_a_scheduler_that_runs_ahead_takes_what_comes_in_the_step_after_the_next() -> None:
    _, s = served(LLAMA, scheduler_v0=False)
    arrivals = [0.0, 0.2]
    usual, ahead = (run_of(s, arrivals, ahead=which) for which in (False, True))
    step = float(usual.end_s[0] - usual.first_s[0]) / 199
    assert ahead.first_s[0] == usual.first_s[0]  # nothing ran when it came
    assert ahead.first_s[1] - usual.first_s[1] == pytest.approx(step, rel=0.05)
    assert np.ptp(run_of(s, [0.0, 0.0, 0.0], ahead=True).first_s) == 0  # all are there when it begins
    waited = run_of(s, [0.0, 0.0, 0.2], ahead=True, max_seqs=2)
    assert waited.first_s[2] < waited.end_s[0] + 3 * step  # it was seen long before a place was free


def test_schedulers_that_work_beside_the_device_run_ahead() -> None:
    def ahead(framework: str, **columns: Any) -> bool:
        loaded = {"scheduler_v0": framework == "SGLang", "framework": framework, "rate": 1.0, **columns}
        return bool(served(LLAMA, **loaded)[1].ahead[0])

    assert ahead("vLLM")
    assert not ahead("vLLM", async_scheduling=False)  # before 0.14, unless it is asked for
    assert ahead("SGLang", overlap=True)
    assert not ahead("TensorRT-LLM")  # its device waits for Python
    assert not ahead("vLLM", scheduler_v0=True)


def test_amd_s_fork_of_version_1_answers_for_so_many_steps_where_so_many_run() -> None:
    columns = {"scheduler_v0": False, "async_scheduling": False, "decodes_between": 6.0, "decodes_between_from": 2.0}
    _, s = served(LLAMA, **columns)
    assert (s.held[0], s.held_from[0], s.held_several[0]) == (6, 2, 6)
    few, many = ([0.0] * running + [0.3, 0.5] for running in (1, 3))
    step = 0.007
    for arrivals, held in ((few, False), (many, True)):
        free, fork = (run_of(s, arrivals, held=n, held_from=2, held_several=n) for n in (0, 6))
        later = float(fork.first_s[len(arrivals) - 2] - free.first_s[len(arrivals) - 2])
        assert (0 < later < 7 * step) if held else later == 0


def test_what_a_configuration_says_of_it() -> None:
    def held(shape: dict[str, Any], **columns: Any) -> tuple[float, float, float]:
        _, s = served(shape, **columns)
        return float(s.held[0]), float(s.held_several[0]), float(s.apart[0])

    assert held(LLAMA) == (0, 0, 0)
    assert held(LLAMA, num_scheduler_steps=9.0, prompts_apart=8.0) == (9, 9, 8)
    assert held(LLAMA, scheduler_v0=False, scheduler_steps=9.0, prompts_apart=8.0) == (0, 0, 0)
    assert held(MIXTURE, adp_timeout_iters=9.0, adp_wait_iters=3.0) == (8, 3, 0)
    assert held(MIXTURE, adp_timeout_iters=9.0, adp_wait_iters=3.0, dp=1.0) == (0, 0, 0)  # there is nobody to wait for
    assert {"adp_timeout_iters", "adp_wait_iters", "scheduler_steps"} <= {*READ}


@pytest.mark.parametrize(
    ("shape", "columns"),
    [
        (LLAMA, {"scheduler_steps": 8.0, "rate": 4.0}),
        (LLAMA, {"scheduler_steps": 8.0, "rate": 8.0, "prompts_apart": 8.0}),
        (LLAMA, {"scheduler_steps": 8.0, "concurrency": 32.0}),
        (LLAMA, {"scheduler_v0": False, "rate": 8.0}),
        (LLAMA, {"scheduler_v0": False, "rate": 8.0, "decodes_between": 8.0, "decodes_between_from": 16.0}),
        (LLAMA, {"scheduler_v0": False, "concurrency": 32.0, "decodes_between": 4.0}),
        (MIXTURE, {"adp_timeout_iters": 9.0, "adp_wait_iters": 3.0}),
        (MIXTURE, {"adp_timeout_iters": 9.0, "adp_wait_iters": 3.0, "rate": 0.0, "concurrency": 64.0}),
    ],
)
def test_the_fluid_holds_them_back_as_long(shape: dict[str, Any], columns: dict[str, Any]) -> None:
    both, s = served(shape, **columns)
    event, flowing = exactly(both, s, 0), fluid(s)
    assert event["ttft_mean_ms"] == pytest.approx(float(flowing["ttft_mean_ms"][0]), rel=0.3)
    assert event["tpot_mean_ms"] == pytest.approx(float(flowing["tpot_mean_ms"][0]), rel=0.15)


@pytest.mark.parametrize("users", [16.0, 64.0, 256.0])
def test_users_of_engines_that_step_together_get_as_many_tokens_in_the_fluid(users: float) -> None:
    """What their steps wait for was taken for steps with prompts: 28 % fewer tokens, and 16 times as long a TTFT."""
    both, s = served(MIXTURE, rate=0.0, concurrency=users, requests=20 * users)
    event, flowing = exactly(both, s, 0), fluid(s)
    for metric in ("output_tokens_per_s", "ttft_mean_ms", "tpot_mean_ms"):
        assert event[metric] == pytest.approx(float(flowing[metric][0]), rel=0.15)
