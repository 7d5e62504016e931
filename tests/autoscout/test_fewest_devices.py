"""The fewest devices that keep a serving job's limits."""

import msgspec
import pytest

from autoscout.running.cluster.devices import used_nodes
from autoscout.targets.jobs import JobSpace
from autoscout.tuning.best_predicted import ranking
from kb.records import (
    AutoscoutError,
    Cluster,
    Configuration,
    Job,
    Model,
    Node,
    Objective,
    Sessions,
    SpaceLimits,
    Traffic,
)

# A small space: each number of devices is searched, and then again as a job of its own.
FIXED = {
    "chunked_prefill": True,
    "long_prefill": 0,
    "block_size": 16,
    "kv_offload": 0.0,
    "gpu_memory_utilization": 0.92,
}
GRAPHS = {"eager": False, "cudagraph_mode": "FULL_AND_PIECEWISE", "graph_size": 512, "spec": "none"}
LIMITS = ["ttft_p99_ms <= 1000", "tpot_p99_ms <= 25"]


def serving(count: int, objective: Objective) -> Job:
    model = Model(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256, gated=True, norm="rmsnorm")
    return Job(
        name="few",
        task="serve",
        target="vllm",
        model=model,
        traffic=Traffic(rate=12.0, input_len=1000, output_len=200),
        cluster=Cluster(nodes=[Node(device="a100", count=count)]),
        objective=objective,
        space=SpaceLimits(fix={**FIXED, **GRAPHS}),
    )


def test_fewer_devices_than_the_fewest_keep_no_limits() -> None:
    counted = serving(4, Objective(minimize="devices", constraints=LIMITS))
    found = ranking(JobSpace.of_job(counted), counted, None, 4)
    values = [row.value for row in found.best]
    assert values == sorted(values)
    fewest = round(values[0])
    assert 1 < fewest < 4
    assert found.best[0].configuration["a100"] == fewest
    fastest = Objective(maximize="output_tokens_per_s", constraints=LIMITS)
    enough, short = serving(fewest, fastest), serving(fewest - 1, fastest)
    assert ranking(JobSpace.of_job(enough), enough, None, 1).best
    with pytest.raises(AutoscoutError) as refused:
        ranking(JobSpace.of_job(short), short, None, 1)
    assert refused.value.exit_code == 3


def test_the_fewest_devices_of_fleets_that_hold_conversations() -> None:
    """Engines, their tensor parallelism, the router and engines that only read prompts are searched together. One
    device less keeps no limits, however its fleet is laid out."""
    fixed = {**FIXED, **GRAPHS, "pp": 1, "async_scheduling": True, "quantization": "none", "kv_cache_dtype": "auto"}
    limit = {"max_num_seqs": [32, 128], "max_num_batched_tokens": [2048], "router": ["engine", "cache_aware"]}
    space = SpaceLimits(fix=fixed, limit=limit, allow=["router", "prefill"])
    talks = Traffic(rate=18.0, input_len=[100, 500, 2000], output_len=100, requests=80, sessions=Sessions(turns=4))

    def fleet(count: int, objective: Objective) -> Job:
        return msgspec.structs.replace(serving(count, objective), traffic=talks, space=space)

    counted = fleet(4, Objective(minimize="devices", constraints=LIMITS))
    found = ranking(JobSpace.of_job(counted), counted, None, 3)
    fewest = round(found.best[0].value)
    assert 1 < fewest < 4
    short = fleet(fewest - 1, Objective(minimize="ttft_p99_ms", constraints=LIMITS))
    best = ranking(JobSpace.of_job(short), short, None, 1).best
    assert all(row.kept_probability is not None and row.kept_probability < 0.5 for row in best)


def test_a_number_of_devices_that_is_given_is_ranked_as_it_is() -> None:
    counted = serving(4, Objective(minimize="devices", constraints=LIMITS))
    space = JobSpace.of_job(counted)
    fixed = msgspec.structs.replace(counted, space=SpaceLimits(fix={**FIXED, **GRAPHS, "a100": 4}))
    given = ranking(JobSpace.of_job(fixed), fixed, None, 2)
    assert {row.value for row in given.best} == {4.0}
    assert given.searched < space.count


def test_only_a_job_that_counts_devices_may_leave_some() -> None:
    for objective in (Objective(maximize="output_tokens_per_s"), Objective(minimize="ttft_p99_ms")):
        assert "a100" not in JobSpace.of_job(serving(4, objective)).reference.knobs
    limited = Objective(maximize="output_tokens_per_s", constraints=["devices <= 2"])
    assert {k.name for k in JobSpace.of_job(serving(4, limited)).knobs} >= {"a100"}


def test_a_part_of_a_node_is_paid_in_part() -> None:
    job = serving(4, Objective(minimize="devices", constraints=LIMITS))
    node = Node(device="a100", count=4, price_per_hour=8.0)
    job = msgspec.structs.replace(job, cluster=Cluster(nodes=[node, node]))
    used = used_nodes(job, Configuration({"a100": 3}))
    assert [(n.count, n.price_per_hour) for n in used] == [(3, 6.0)]
    assert sum(n.count for n in used_nodes(job, Configuration({"a100": 8}))) == 8
