"""What an engine's cache holds of prompts that share beginnings, on the device and on the host."""

import numpy as np
import pytest

from autoscout.job.requests import Requests
from autoscout.job.sessions import talks
from autoscout.simulate.serving.cache_tiers import Tier
from autoscout.simulate.serving.prefix_cache import PrefixCache, SharedPaths
from autoscout.simulate.serving.simulator import ServingSimulator
from autoscout.targets.jobs import JobSpace
from autoscout.targets.target import target_of
from kb.records import Cluster, Job, LaunchSettings, Model, Node, Objective, Sessions, Traffic

SHAPE = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "gated": 1, "vocab": 128256}
LLAMA = Model(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256, gated=True, norm="rmsnorm")
# Conversations of up to 9,000 tokens with 48 users: about 50 GiB, in 8 GiB of a device's memory.
LONG = Traffic(concurrency=48, requests=240, input_len=1500, output_len=60, sessions=Sessions(turns=6, think_s=1.0))


def conversations(turns: int, count: int, shared: int = 0) -> SharedPaths:
    traffic = Traffic(concurrency=1, input_len=100, output_len=20, shared_prefix=shared, sessions=Sessions(turns=turns))
    assert traffic.sessions is not None
    found = talks(traffic, traffic.sessions, count, np.random.default_rng(0))
    return SharedPaths(Requests(np.zeros(len(found)), found.input_len, found.output_len, shared, 1, found))


def test_a_turn_finds_the_turn_before_it_and_its_answer() -> None:
    cache = PrefixCache(conversations(2, 4), 16)
    assert cache.found(0) == (0, 0)
    cache.take(0)
    assert cache.found(1) == (96, 6)  # of 100 tokens, those in whole blocks, which are still held
    cache.give(0, 20)
    assert cache.found(1) == (112, 0)  # of 120


def test_who_ended_first_is_evicted_first_and_its_end_before_its_beginning() -> None:
    cache = PrefixCache(conversations(2, 4), 16)
    for i in (0, 2):
        cache.take(i)
        cache.give(i, 20)
    cache.trim(14)  # 224 of 240 tokens stay: 16 of the 20 of the first answer go
    assert cache.found(1)[0] == 96
    assert cache.found(3)[0] == 112
    cache.trim(7)
    assert (cache.found(1)[0], cache.found(3)[0]) == (0, 112)


def test_blocks_that_two_hold_are_free_when_both_have_ended() -> None:
    cache = PrefixCache(conversations(1, 2, shared=64), 16)
    cache.take(0)
    assert cache.found(1) == (64, 4)
    cache.take(1)
    assert cache.give(0, 0) == 4
    assert cache.give(1, 0) == 0


def forgotten(*rooms: int) -> PrefixCache:
    """A cache with tiers of these sizes, whose device has forgotten three conversations of 112 tokens each."""
    cache = PrefixCache(conversations(2, 6), 16, [Tier(room) for room in rooms])
    for i in (0, 2, 4):
        cache.take(i)
        cache.give(i, 20)
    cache.trim(0)
    assert cache.found(1) == (0, 0)
    return cache


def test_what_the_device_evicted_is_on_the_host_until_that_is_full() -> None:
    assert forgotten(1000).behind(1, 0) == [112]
    assert forgotten(250).behind(1, 0) == [0]
    assert forgotten(250).behind(5, 0) == [112]
    assert not forgotten(15).tiers


def test_files_have_what_the_host_evicted_and_the_host_goes_first() -> None:
    cache = forgotten(300, 10**6)
    # of the first prompt the host has 40 tokens, two whole blocks, and the block that ends in its answer
    assert [cache.behind(i, 0) for i in (1, 3, 5)] == [[48, 64], [112, 0], [112, 0]]
    assert cache.behind(1, 48) == [16, 48]  # the device has the beginning
    assert forgotten(64, 10**6).behind(1, 0) == [0, 64]  # no more than the host's memory has room for


def test_what_is_read_from_files_takes_the_place_of_other_blocks_on_the_host() -> None:
    cache = forgotten(300, 10**6)
    cache.promote(1, 112)
    assert cache.behind(1, 0) == [112, 0]
    here, files = cache.behind(3, 0)
    assert files > 0
    assert here + files == 112


def test_host_memory_shortens_waits_of_conversations_that_the_device_forgot() -> None:
    def ttft(gib: float) -> float:
        tight = {"gpu": "a100", "gpu_memory_utilization": 0.3, "traffic": LONG, "kv_offload": np.array([gib])}
        return float(ServingSimulator("ttft_mean_ms").predict({**SHAPE, **tight}).value[0])

    without, some, much = (ttft(gib) for gib in (0.0, 8.0, 128.0))
    assert much < 0.6 * without
    assert much <= some <= without


def on_line(tier: str) -> Job:
    return Job(
        name="tier",
        task="serve",
        target="vllm",
        model=LLAMA,
        traffic=LONG,
        cluster=Cluster(nodes=[Node(device="h100", count=1)]),
        objective=Objective(minimize="ttft_mean_ms"),
        launch=LaunchSettings(current=f"vllm serve meta-llama/Llama-3.1-8B-Instruct {tier}"),
    )


def test_a_line_with_a_tier_is_read_and_exported_as_it_is() -> None:
    job = on_line("--kv-offloading-size 64")
    current = next(iter(target_of(job).recipes(JobSpace.of_job(job))))
    assert current.knobs["kv_offload"] == 64
    assert float(target_of(job).launch(job, current).arguments["--kv-offloading-size"]) == 64


CONNECTOR = (
    '--kv-transfer-config \'{{"kv_connector":"OffloadingConnector","kv_role":"kv_both",'
    '"kv_connector_extra_config":{{"cpu_bytes_to_use":{}}}}}\''
)


@pytest.mark.parametrize(
    ("tier", "holds"),
    [
        ("--kv-offloading-size 0.001", False),  # a block of 16 tokens takes 2 MiB
        ("--kv-offloading-size 0.002", True),
        ("--kv-offloading-size 0.002 --block-size 32", False),
        ("--kv-offloading-size 0.001 --kv-cache-dtype fp8", True),
        (CONNECTOR.format(1 << 20), False),
        (CONNECTOR.format(1 << 30), True),
    ],
)
def test_a_tier_that_holds_no_block_is_refused_in_a_sentence(tier: str, holds: bool) -> None:
    job = on_line(tier)
    said = [text for text in target_of(job).problems(job) if "of host memory" in text]
    assert bool(said) != holds
