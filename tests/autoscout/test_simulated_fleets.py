"""Prompts that are read by engines of their own: two pools, and the KV cache that crosses between them."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from autoscout.job.requests import Requests
from autoscout.simulate.hardware.device import shipped
from autoscout.simulate.serving.events import simulate
from autoscout.simulate.serving.fleet_run import Fleets, link_of
from autoscout.simulate.serving.held_back import EngineLimits
from autoscout.simulate.serving.serving_device import device
from autoscout.simulate.serving.setup import setup
from autoscout.simulate.serving.simulator import ServingSimulator
from kb.records import Sessions, Traffic

SHAPE = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "gated": 1, "vocab": 128256}
LONG = {"gpu": "a100", "input_len": 4000, "output_len": 100, "requests": 200, "length_spread": 0.3}
APART = {"prefill": 2.0, "prefill_tp": 1.0, "tp": 1.0, "dp": 2.0}
TOGETHER = {"tp": 1.0, "dp": 4.0}


def said(metric: str, **columns: object) -> float:
    return float(ServingSimulator(metric).predict({**SHAPE, **LONG, **columns}).value[0])


def test_the_cache_crosses_a_link_and_each_device_sends_its_part():
    link = shipped("a100").island.send
    for tp in (1, 4):
        e = setup({**SHAPE, **LONG, "tp": tp, "rate": 1.0}, device("a100"), 1).engine
        whole = 4000 * 32 * 2 * (8 / tp) * 128 * 2  # tokens, layers, keys and values, heads, their size, bytes
        wanted = 1e-6 * link.latency_us[0] + whole / (1e9 * link.bus_gb_s[0])
        once, each = link_of(e)
        assert once + 4000 * each == pytest.approx(wanted)


def test_an_idle_pair_takes_a_prompt_a_transfer_and_a_step():
    alone = {"rate": 0.01, "requests": 3, "length_spread": 0.0}
    e = setup({**SHAPE, **LONG, **alone}, device("a100"), 1).engine
    prompt = said("ttft_mean_ms", **alone, **TOGETHER)
    once, each = link_of(e)
    more = said("ttft_mean_ms", **alone, **APART) - prompt - 1e3 * (once + 4000 * each)
    assert 0 < more < 1.5 * said("tpot_mean_ms", **alone, **TOGETHER)
    assert said("tpot_mean_ms", **alone, **APART) == pytest.approx(said("tpot_mean_ms", **alone, **TOGETHER), rel=0.02)


def test_long_prompts_of_others_no_longer_hold_up_answers():
    busy = {"rate": 4.0}
    assert said("itl_p99_ms", **busy, **APART) < 0.3 * said("itl_p99_ms", **busy, **TOGETHER)


def test_too_few_readers_are_a_queue():
    wide = {"prefill": 1.0, "tp": 1.0, "dp": 3.0}
    assert said("ttft_p90_ms", rate=5.0, **wide) > 3 * said("ttft_p90_ms", rate=5.0, **APART)


@pytest.mark.parametrize("users", [4, 48])
def test_users_that_wait_are_as_many_as_are_under_way(users: int):
    columns = {**SHAPE, **LONG, **APART, "concurrency": users}
    run = Fleets(columns, setup(columns, device("a100"), 1)).run(0)
    assert run is not None
    assert not np.isnan(run.end_s).any()
    assert (run.first_s > run.arrival_s).all()
    under_way = float((run.end_s - run.arrival_s).sum()) / (run.arrival_s.max() - run.arrival_s.min())
    assert under_way == pytest.approx(users, rel=0.25)


def test_prompts_whose_caches_have_come_begin_in_turn():
    """As in vLLM's queue of requests that hold blocks."""
    full = {
        "prefill": 2.0,
        "prefill_tp": 2.0,
        "tp": 1.0,
        "dp": 1.0,
        "max_num_seqs": 2.0,
        "max_num_batched_tokens": 8192.0,
    }
    load = {**SHAPE, **LONG, "input_len": 500, "length_spread": 0.0, "rate": 4.0, **full}
    run = Fleets(load, setup(load, device("a100"), 1)).run(0)
    assert run is not None
    assert np.max(run.first_s - run.arrival_s) > 1.0
    assert (np.diff(run.first_s[np.argsort(run.arrival_s)]) >= 0).all()


def test_received_prompts_compute_one_token_and_are_read_again_when_they_lost_their_place():
    e = setup({**SHAPE, **LONG, "rate": 1.0}, device("a100"), 1).engine
    at_once = np.zeros(6), np.full(6, 512), np.full(6, 40)
    roomy, tight = EngineLimits(kv_tokens=8000), EngineLimits(kv_tokens=6 * 530)
    received, read = (simulate(e, roomy, Requests(*at_once, received=r)) for r in (True, False))
    assert received.first_s.max() < 0.4 * read.first_s.max()
    again = simulate(e, tight, Requests(*at_once, received=True))
    assert again.preemptions > 0
    assert not np.isnan(again.end_s).any()
    assert again.end_s.max() > received.end_s.max()


def test_all_are_answered_where_caches_that_arrived_hold_all_blocks():
    """A preempted request waited in front of those that held the blocks, and was then admitted without any."""
    load = Traffic(
        rate=500.0, requests=700, input_len=2200, output_len=100, shared_prefix=2000, sessions=Sessions(groups=24)
    )
    wide = {"prefill": 6.0, "prefill_tp": 1.0, "tp": 1.0, "dp": 1.0, "max_num_seqs": 8.0}
    columns = {**SHAPE, "gpu": "h100", "traffic": load, **wide}
    run = Fleets(columns, setup(columns, device("h100"), 1)).run(0)
    assert run is not None
    assert run.preemptions > 0
    assert not np.isnan(run.end_s).any()


def test_all_that_fit_are_answered_where_prompts_are_shorter_than_the_shared_beginning():
    """They shared a part of a node as if it were whole: blocks were lost, and the simulation did not end."""
    load = Traffic(rate=2.0, requests=150, input_len=[10, 5000], output_len=[1, 60], shared_prefix=1000)
    tight = {"router": np.array(["round_robin"]), "gpu_memory_utilization": 0.215, "kv_offload": np.array([0.05])}
    columns = {**SHAPE, "gpu": "a100", "traffic": load, **tight}
    s = setup(columns, device("a100"), 1)
    run = Fleets(columns, s).run(0)
    assert run is not None
    fit = np.ceil((run.input_len + run.output_len) / 16) <= s.memory.kv_tokens[0] // 16
    assert (np.isnan(run.end_s) == ~fit).all()
    assert fit.any()


def test_what_fits_in_one_pool_only_is_not_served():
    model = {**SHAPE, "layers": 80, "hidden": 8192, "heads": 64, "ffn": 28672, "rate": 0.1}
    small = {"prefill": 4.0, "prefill_tp": 1.0, "tp": 4.0, "dp": 1.0}
    assert said("ttft_mean_ms", **{**model, **small}) == np.inf
    assert said("output_tokens_per_s", **{**model, **small}) == 0.0
    assert 0 < said("ttft_mean_ms", **{**model, **small, "prefill_tp": 4.0}) < np.inf


def test_many_configurations_at_once_are_predicted_like_few():
    """The fluid of two pools, and of users that hold conversations, against the events."""
    few = [(p, dp, seqs) for p in (1.0, 2.0) for dp in (1.0, 2.0, 4.0) for seqs in (8.0, 64.0)]
    prefill, dp, seqs = (np.array(each) for each in zip(*few, strict=True))
    for load, metric in (({"rate": 8.0}, "e2el_mean_ms"), ({"concurrency": 24.0}, "output_tokens_per_s")):
        columns = {**SHAPE, **LONG, **load, "prefill": prefill, "dp": dp, "max_num_seqs": seqs}
        many = {name: np.tile(v, 3) if isinstance(v, np.ndarray) else v for name, v in columns.items()}
        exact, fluid = (ServingSimulator(metric).predict(each).value for each in (columns, many))
        assert np.all(np.isfinite(fluid))
        assert spearmanr(exact, fluid[: len(few)])[0] > 0.85, load


def test_the_error_is_wider():
    errors = [ServingSimulator("ttft_mean_ms").predict({**SHAPE, **LONG, "rate": 1.0, **p}).error for p in (APART, {})]
    assert errors[0] > errors[1]


def test_servers_behind_a_router_share_no_experts():
    """vLLM spreads a mixture's experts over the engines of one server only."""
    mixture = {**SHAPE, "experts": 8.0, "topk": 2.0, "expert_ffn": 14336.0, "rate": 1.0, **LONG}

    def weights(dp: float, router: str) -> float:
        columns = {**mixture, "tp": 2.0, "dp": dp, "router": np.array([router])}
        return float(setup(columns, device("a100"), 1).memory.weights_gib[0])

    whole = weights(1.0, "engine")
    assert weights(4.0, "engine") < 0.5 * whole
    assert weights(4.0, "round_robin") == weights(4.0, "consistent_hash") == whole
