"""Small parts of the simulators that search and sessions meet: whether a network decides, encodings of jobs,
capacities, kinds of device by row."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from autoscout.simulate import encode
from autoscout.simulate.hardware.capacity import capacities
from autoscout.simulate.serving.engine_run import EngineRun
from autoscout.simulate.serving.latencies import metrics_of_run, share_within
from autoscout.simulate.training.crossing import network_matters
from autoscout.simulate.training.fleet import depths, devices, fleets
from autoscout.simulate.training.inputs import complete
from autoscout.simulate.training.memory import Memory
from autoscout.simulate.training.step import Training
from autoscout.targets.jobs import load_job
from kb.records import AutoscoutError, Job

JOBS = Path(__file__).parents[2] / "fixtures" / "jobs"
COLUMNS = {
    "layers": 32, "hidden": 4096, "heads": 32, "seq_len": 2048, "global_batch": 64, "gpus": 64, "dp": 64, "mbs": 1,
    "distopt": 1, "gpu": "a100",
}  # fmt: skip


def with_network(job: Job, **network: float) -> Job:
    whole = msgspec.structs.replace(job.cluster.network, **network)
    return msgspec.structs.replace(job, cluster=msgspec.structs.replace(job.cluster, network=whole))


def jobs() -> list[Job]:
    return [load_job(file) for file in sorted(JOBS.glob("*.toml"))]


def test_whether_the_network_decides():
    job = next(j for j in jobs() if j.task != "serve" and j.cluster.nodes[0].device.startswith("a100"))
    slow = network_matters(with_network(job, between_nodes_gbps=40.0), COLUMNS)
    once, twice = (float(Training().predict(COLUMNS | {"node_gb_s": gb_s}).value[0]) for gb_s in (5.0, 10.0))
    assert (
        slow == "the network between nodes (40 Gb/s) limits the speed: twice the bandwidth would shorten the step by "
        f"{1 - twice / once:.0%}"
    )
    assumed = network_matters(with_network(job, between_nodes_gbps=0.0), COLUMNS)
    assert "Gb/s, and limits the speed: twice the bandwidth" in assumed or assumed == ""
    assert network_matters(with_network(job, between_nodes_gbps=4e5), COLUMNS) == ""
    assert network_matters(with_network(job, between_nodes_gbps=40.0), COLUMNS | {"gpu": "nothing known"}) == ""
    assert network_matters(with_network(job, between_nodes_gbps=40.0), COLUMNS | {"gpu": "cpu"}) == ""
    assert network_matters(msgspec.structs.replace(job, task="serve"), COLUMNS) == ""
    counted = {name: v for name, v in COLUMNS.items() if name != "gpu"} | {"a100": 32, "a40": 32}
    two = with_network(job, between_nodes_gbps=40.0, between_kinds_gbps=8.0)
    assert network_matters(two, counted).startswith("the network between nodes (8 Gb/s) limits the speed")
    assert network_matters(two, counted | {"a40": 0}).startswith("the network between nodes (40 Gb/s) limits the speed")
    assert network_matters(two, COLUMNS).startswith("the network between nodes (40 Gb/s)")


def test_kinds_of_device_by_row():
    columns = {"a100": np.array([8.0, 0, 4]), "a40": np.array([0.0, 8, 4]), "a100_layers": np.array([0.0, 0, 9])}
    assert devices({"gpu": np.array(["b", "a", "b"])}, "x") == ["a", "b"]
    assert devices({"tp": 1}, "x") == ["x"]
    found = list(fleets(columns, 3, ""))
    assert [f.rows.tolist() for f in found] == [[0], [1], [2]]
    assert [[hw.name for hw in f.kinds] for f in found][2] == [hw.name for f in found[:2] for hw in f.kinds]
    x = complete({"layers": 20, "hidden": 64, "heads": 4, "seq_len": 8, "pp": 4, "gpus": 8.0} | columns)
    # Two stages of the four lie on each kind; those on the first hold 9 layers each, and (20 − 18) / 2 are left.
    assert [d.tolist() for d in depths(x.take(np.array([2])), found[2].of(np.array([2])))] == [[9], [1]]
    assert [d.tolist() for d in depths(x, found[0])] == [[5, 5, 9]]


def test_missing_columns_are_named():
    with pytest.raises(AutoscoutError, match="an analytic model needs the columns heads, seq_len"):
        complete({"layers": 1, "hidden": 1})
    with pytest.raises(AutoscoutError, match="column ar: 'some' is none of none, no, selective, full"):
        complete({"layers": 1, "hidden": 1, "heads": 1, "seq_len": 1, "ar": "some"})
    assert Memory().applies({"layers": 1}) == "this model needs hidden, heads, seq_len"
    assert Memory().applies(COLUMNS) == ""
    assert Training().applies({"layers": 1}) == "this model needs hidden, heads, seq_len, global_batch"
    assert Training("what").applies(dict.fromkeys(("layers", "hidden", "heads", "seq_len", "global_batch"), 1)) == (
        "no constants for device what"
    )


def test_jobs_as_columns_and_memory_of_their_devices():
    for job in jobs():
        columns, room = encode.of_job(job), capacities(job)
        if job.task == "serve":
            assert columns["traffic"] is job.traffic
            assert room == {}
        assert ("software" in columns) == (job.task != "serve" and job.target != "megatron")
        kinds = {node.device for node in job.cluster.nodes}
        assert ("gpu" in columns) == (len(kinds) == 1)
        assert all(gib > 1 for gib in room.values())
        assert room == {} or len(room) == len(kinds)


def test_a_gate_is_told_by_the_number_of_parameters():
    """10 layers of attention (4 × 100²) with their router, one and a half embeddings (1,000 × 100), and half of a third
    matrix more than two: more than that is a gate."""
    model = {"layers": 10, "hidden": 100, "heads": 10, "seq_len": 8, "ffn": 400, "vocab": 1000}
    dense = 10 * 40_000 + 150_000 + 2.5 * 10 * 100 * 400
    sparse = 10 * (40_000 + 400) + 150_000 + 2.5 * 10 * 100 * 4 * 50
    for more, params in (({}, dense), ({"experts": 4, "expert_ffn": 50}, sparse)):
        assert complete({**model, **more, "params": params}).gated.tolist() == [0]
        assert complete({**model, **more, "params": params + 1}).gated.tolist() == [1]
    assert [complete({**model, "ffn": ffn}).gated.tolist() for ffn in (400, 300, 0)] == [[0], [1], [0]]


def test_latencies_of_two_requests():
    """The first takes 1 s to its first token and 4 s to its end with 4 tokens, the second 1 s to its only one."""
    times = {"arrival_s": np.array([0.0, 3.0, 0.0]), "first_s": np.array([1.0, 4.0, np.nan])}
    lengths = {"output_len": np.array([4, 1, 1]), "input_len": np.array([10, 20, 30])}
    gaps = {"gaps_s": np.array([2.0, 0.5]), "gap_counts": np.array([1, 2]), "preemptions": 3, "steps": 4}
    run = EngineRun(end_s=np.array([4.0, 4.0, np.nan]), **times, **lengths, **gaps)
    found = metrics_of_run(run, 2, {"ttft": 1000.0, "tpot": 1000.0, "e2el": 4000.0})
    assert found["goodput_rps"] == 2 * 2 / 4
    assert metrics_of_run(run, 1, {"e2el": 3999.0})["goodput_rps"] == 1 / 4
    assert (found["ttft_mean_ms"], found["tpot_mean_ms"], found["e2el_mean_ms"]) == (1000, 1000, 2500)
    assert (found["itl_mean_ms"], found["itl_p50_ms"], found["itl_p90_ms"]) == (1000, 500, 2000)
    assert (found["output_tokens_per_s"], found["total_tokens_per_s"], found["preemptions"]) == (2.5, 17.5, 6)


def test_the_share_of_requests_within_a_limit_is_read_between_quantiles():
    quantiles = {"p50": 100.0, "p90": 200.0, "p95": 300.0, "p99": 400.0}
    found = {f"ttft_{p}_ms": np.array([value, 100.0]) for p, value in quantiles.items()}
    found |= {f"tpot_{p}_ms": np.array([10.0, np.nan]) for p in quantiles}
    shares = [share_within(found, {"ttft": limit})[0] for limit in (100.0, 200.0, 300.0, 400.0)]
    assert shares == pytest.approx([0.5, 0.9, 0.95, 0.99])
    assert 0.9 < share_within(found, {"ttft": 250.0})[0] < 0.95
    assert share_within(found, {"ttft": 20.0})[0] < 0.01
    assert share_within(found, {"ttft": 200.0, "tpot": 9.0})[0] < 1e-5
    assert share_within(found, {"ttft": 99.0})[1] < 1e-5 < 0.99 < share_within(found, {"ttft": 101.0})[1]
    assert np.isnan(share_within(found, {"tpot": 9.0})[1])
    assert share_within(found, {}) == 1.0
