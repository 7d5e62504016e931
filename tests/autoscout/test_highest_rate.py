"""The highest rate that keeps limits, as predicted; and what is predicted by device and by dollar."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from autoscout.simulate.serving import highest_rate, simulator
from autoscout.simulate.serving.fluid import fluid
from autoscout.simulate.serving.highest_rate import of_few, of_many, of_one
from autoscout.simulate.serving.one_replica import open_run
from autoscout.simulate.serving.serving_device import device
from autoscout.simulate.serving.setup import Setup, setup
from autoscout.simulate.serving.simulator import EXACT, ServingSimulator, fluid_error
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.targets.vllm import load_plan
from autoscout.tuning.predict import predict
from kb.records import AutoscoutError, Cluster, Configuration, Job, Node, Objective, Sessions, Traffic

LLAMA_3_8B = {
    **{"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "ffn": 14336, "vocab": 128256},
    **{"gated": True, "tied": False, "dtype": "bfloat16", "gpu": "a100"},
}
LENGTHS: dict[str, Any] = {"input_len": [100, 200, 4000], "output_len": [10, 100, 800]}


def served(traffic: Traffic, **columns: Any) -> Setup:
    n = max((np.size(v) for v in columns.values()), default=1)
    return setup({**LLAMA_3_8B, "traffic": traffic, **columns}, device("a100"), n)


def test_a_tighter_limit_or_fewer_devices_leave_a_lower_rate() -> None:
    traffic = Traffic(rate=1.0, input_len=1000, output_len=200)
    s = served(traffic, dp=np.array([1.0, 2.0, 4.0]))
    loose, tight = (of_many(s, {"tpot_p99_ms": bound}) for bound in (40.0, 20.0))
    assert (tight < loose).all()
    assert np.allclose(loose / loose[0], [1, 2, 4], rtol=0.05)
    assert of_many(s, {"ttft_p50_ms": 1.0}).tolist() == [0, 0, 0]  # a prompt takes longer than that


@pytest.mark.parametrize("limits", [{"ttft_mean_ms": 300.0}, {"tpot_p99_ms": 40.0}, {"e2el_p95_ms": 15000.0}])
def test_many_at_once_and_one_by_one_say_nearly_the_same(limits: dict[str, float]) -> None:
    traffic = Traffic(rate=1.0, **LENGTHS)
    s = served(traffic, tp=np.array([1.0, 1.0, 2.0, 4.0]), max_num_seqs=np.array([16.0, 256.0, 64.0, 256.0]))
    many = of_many(s, limits)
    each = [of_one(traffic, s, i, limits, float(many[i])).rate for i in range(len(many))]
    off = np.abs(np.log(many / each))
    assert off.mean() < 1.2 * fluid_error("max_rate_rps")  # of four
    assert off.max() < 0.7


def test_where_the_search_begins_does_not_decide() -> None:
    traffic = Traffic(rate=1.0, input_len=500, output_len=200)
    s = served(traffic)
    found = [of_one(traffic, s, 0, {"tpot_p99_ms": 30.0}, near).rate for near in (0.5, 8.0, 60.0)]
    assert max(found) / min(found) < 1.06


def test_what_comes_to_the_same_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each size of blocks and of the cache was searched anew, in as many loads as engines, in most of a ranking."""
    traffic = Traffic(rate=1.0, input_len=500, output_len=200)
    s = served(
        traffic, dp=2.0, block_size=np.array([16.0, 32.0, 16.0]), gpu_memory_utilization=np.array([0.9, 0.9, 0.8])
    )
    loads: list[float] = []

    def counted(*asked: Any) -> Any:
        loads.append(len(asked[2]))
        return open_run(*asked)

    monkeypatch.setattr(highest_rate, "open_run", counted)
    monkeypatch.setattr(highest_rate, "_FOUND", {})
    found = of_few(traffic, s, {"tpot_p99_ms": 30.0})
    assert found[0] == found[1] == found[2] == of_one(traffic, s, 0, {"tpot_p99_ms": 30.0}, float(found[0])).rate
    assert len(loads) < 40
    small = served(traffic, dp=2.0, max_num_seqs=4.0)
    assert of_few(traffic, small, {"tpot_p99_ms": 30.0})[0] < 0.5 * found[0], "has no room for as many"


def test_an_estimate_is_made_where_a_search_begins_and_where_engines_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each configuration was estimated, though all searches but the first begin at what the one before reached."""
    traffic, limits = Traffic(rate=1.0, input_len=500, output_len=50), {"tpot_p99_ms": 60.0}
    estimated: list[int] = []

    def counted(s: Setup, limits_ms: dict[str, float]) -> np.ndarray:
        estimated.append(len(s.rate))
        return of_many(s, limits_ms)

    monkeypatch.setattr(highest_rate, "of_many", counted)
    monkeypatch.setattr(highest_rate, "_FOUND", {})
    degrees = np.array([1.0, 2.0])
    s = served(traffic, tp=degrees)
    alone = [of_one(traffic, s, i, limits, float(of_many(s, limits)[i])).rate for i in range(2)]
    assert of_few(traffic, s, limits).tolist() == alone
    assert estimated == [1]
    experts = {"experts": 8.0, "topk": 2.0, "expert_ffn": 1024.0, "dp": 2.0}
    assert (of_few(traffic, served(traffic, tp=degrees, **experts), limits) > 0).all()
    assert estimated == [1, 1, 1], "how long engines wait for each other depends on the rate"


def test_one_load_does_not_decide_that_the_queue_grows() -> None:
    """The first draw's requests come in bunches: alone it saturates at three quarters of the rate."""
    traffic = Traffic(rate=1.0, input_len=[500, 2000, 8000], output_len=[5, 20, 100])
    knobs = {"tp": 2.0, "dp": 2.0, "max_num_seqs": 16.0, "max_num_batched_tokens": 2048.0}
    s = setup({**LLAMA_3_8B, "gpu": "h100", "traffic": traffic, **knobs}, device("h100"), 1)
    assert of_one(traffic, s, 0, {"tpot_p99_ms": 60.0}, 39.7).rate > 40


@pytest.mark.parametrize("bound", [{"ttft_p99_ms": 1500.0}, {"tpot_p90_ms": 30.0}])
def test_a_load_that_is_given_up_would_have_broken_the_limits(bound: dict[str, float], monkeypatch: Any) -> None:
    """Rates far too high were simulated until the last of a queue of thousands was answered."""
    traffic = Traffic(rate=1.0, requests=1000, **LENGTHS)
    s = served(traffic, max_num_seqs=64.0)
    given_up = of_one(traffic, s, 0, bound, 20.0)
    monkeypatch.setattr(highest_rate._Engines, "_broken", lambda *_: False)
    to_the_end = of_one(traffic, s, 0, bound, 20.0)
    assert given_up.rate == to_the_end.rate > 0


def test_a_search_that_begins_near_its_end_takes_few_loads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A trace with arrivals of its own was tried three times at a rate, each time the same."""
    (tmp_path / "trace.csv").write_text(
        "arrival_s,input_tokens,output_tokens\n"
        + "".join(f"{i / 4 + i % 3 / 7},{100 + i * 97 % 1500},{10 + i * 31 % 150}\n" for i in range(400))
    )
    traffic = Traffic(trace=str(tmp_path / "trace.csv"), requests=400)
    s = served(traffic)
    loads: list[int] = []

    def counted(*asked: Any) -> Any:
        loads.append(len(asked[2]))
        return open_run(*asked)

    monkeypatch.setattr(highest_rate, "open_run", counted)
    near = float(of_many(s, {"tpot_p99_ms": 60.0})[0])
    found = of_one(traffic, s, 0, {"tpot_p99_ms": 60.0}, near)
    blindly = len(loads)
    again = of_one(traffic, s, 0, {"tpot_p99_ms": 60.0}, near, found.rate)
    assert again.rate == pytest.approx(found.rate)
    assert len(loads) - blindly <= 2 < blindly < 10


def test_rates_that_are_tried_are_the_same_for_all(tmp_path: Path) -> None:
    """They lay around what each was thought to reach, so that two that run alike were told 2 % apart."""
    traffic = Traffic(rate=1.0, **LENGTHS)
    found = [of_one(traffic, served(traffic), 0, {"tpot_p99_ms": 60.0}, near).rate for near in (5.0, 5.05, 9.0)]
    assert found[0] == found[1] == found[2] > 0


def test_few_and_many_at_once_are_bisected_alike() -> None:
    """Of few so many rates at once are tried as take no longer than one."""
    s = served(Traffic(rate=1.0, **LENGTHS), max_num_seqs=np.array([16.0, 256.0] * 40))
    limits = {"ttft_p99_ms": 1000.0, "tpot_p99_ms": 40.0}
    assert of_many(s, limits)[:2] == pytest.approx(of_many(s.of(np.arange(2)), limits), rel=0.03)


def test_no_more_is_answered_than_comes() -> None:
    """Doubt about the engine's speed is doubt about what is answered only where that is less than what comes."""
    errors = []
    for rate in (1.0, 1e6):
        columns = {**LLAMA_3_8B, "traffic": Traffic(rate=rate, input_len=1000, output_len=200)}
        errors.append([float(ServingSimulator(m).predict(columns).error[0]) for m in ("requests_per_s", "tpot_p50_ms")])
    (seldom, slow), (swamped, slow_too) = errors
    assert seldom < 0.05 < 0.15 < swamped
    assert slow == pytest.approx(slow_too)


def test_fewer_users_than_engines_find_nobody_before_them() -> None:
    """Each engine had half a user, and a negative share of others."""
    columns = {**LLAMA_3_8B, "traffic": Traffic(concurrency=1, **LENGTHS), "dp": np.array([1.0, 2.0])}
    found = fluid(setup(columns, device("a100"), 2))
    assert all(np.isfinite(values).all() for values in found.values())
    assert found["tpot_p99_ms"][1] == pytest.approx(found["tpot_p99_ms"][0], rel=0.05)


def test_what_does_not_fit_is_no_warning() -> None:
    columns = {**LLAMA_3_8B, "layers": 320, "traffic": Traffic(rate=1.0, input_len=1000, output_len=200)}
    with np.errstate(invalid="raise"):
        assert ServingSimulator("requests_per_s").predict(columns).value.tolist() == [0.0]


def job_for(objective: Objective, nodes: list[Node], **traffic: Any) -> Job:
    job = load_job(Path("fixtures/jobs/llama-3-8b-serve.toml"))
    traffic = {**LENGTHS, "rate": 2.0, **traffic}
    return msgspec.structs.replace(job, objective=objective, cluster=Cluster(nodes=nodes), traffic=Traffic(**traffic))


@pytest.mark.parametrize(
    "objective",
    [Objective(minimize="usd_per_million_output_tokens"), Objective(maximize="output_tokens_per_s_per_gpu")],
)
def test_what_a_device_and_a_dollar_bring_is_what_a_run_would_report(objective: Objective) -> None:
    """Of a mixed cluster only the nodes that serve count."""
    nodes = [Node(device="a100", count=4, price_per_hour=16.0), Node(device="a40", count=4, price_per_hour=4.0)]
    job = job_for(objective, nodes)
    space = JobSpace.of_job(job)
    knobs = {**space.reference.knobs, "a100": 0, "a40": 4}
    rate = msgspec.structs.replace(job, objective=Objective(maximize="output_tokens_per_s"))
    tokens = predict(JobSpace.of_job(rate), knobs, None).value
    expected = load_plan.per_device({"output_tokens_per_s": tokens}, job, Configuration(knobs))
    metric = job.objective.metric
    assert predict(space, knobs, None).value == pytest.approx(expected[metric])


def rates_of(traffic: Traffic, **columns: Any) -> np.ndarray:
    """The highest rates with a mean TTFT of at most a second, by events (few rows) or by the fluid model (many)."""
    return (
        ServingSimulator("max_rate_rps")
        .predict({**LLAMA_3_8B, "traffic": traffic, "limit_ttft_mean_ms": 1000.0, **columns})
        .value
    )


def test_a_server_for_each_engine_keeps_the_rate_of_the_engines() -> None:
    traffic = Traffic(rate=1.0, **LENGTHS)
    assert rates_of(traffic, dp=np.array([2.0]), router=np.array(["round_robin"])) == pytest.approx(
        rates_of(traffic, dp=np.array([2.0])), rel=0.06
    )


def test_more_readers_raise_the_rate_until_the_others_limit_it() -> None:
    """The highest rate of separate engines for prompts was not predicted."""
    prefill = np.array([1.0, 2.0, 4.0])
    columns = {"prefill": prefill, "prefill_tp": np.ones(3), "dp": np.full(3, 4.0), "tp": np.ones(3)}
    traffic = Traffic(rate=1.0, input_len=4000, output_len=100)
    events = rates_of(traffic, **columns)
    assert events[1] == pytest.approx(2 * events[0], rel=0.15)
    assert events[1] < events[2]
    many = rates_of(traffic, **{name: np.tile(v, EXACT) for name, v in columns.items()})
    assert many[:3] == pytest.approx(events, rel=0.25)
    large = {
        **columns,
        "layers": 80,
        "hidden": 8192,
        "heads": 64,
        "ffn": 28672,
        "dp": np.ones(3),
        "tp": np.full(3, 4.0),
    }
    assert np.isnan(rates_of(traffic, **large)).all()  # no reader holds the model


def test_fleets_in_any_order_have_the_same_rates() -> None:
    """A search began at the rate of the row before it: the second row had 0, which was also kept."""
    traffic = Traffic(rate=1.0, requests=100, input_len=200, output_len=200)
    columns = {"dp": np.array([8.0, 1.0]), "max_num_seqs": np.array([512.0, 1.0])}
    routers = {"router": np.full(2, "round_robin"), "limit_e2el_p50_ms": 30_000.0}
    first, last = rates_of(traffic, **routers, **columns)
    simulator._SIMULATED.clear()
    assert rates_of(traffic, **routers, **{name: v[::-1] for name, v in columns.items()}).tolist() == [last, first]
    assert first > last > 0


def test_a_fleet_that_only_some_requests_fit_has_no_rate() -> None:
    """It ended with a ValueError."""
    traffic = Traffic(rate=1.0, requests=120, input_len=[100, 500, 30_000], output_len=60)
    tight = {"gpu_memory_utilization": np.array([0.22]), "router": np.array(["round_robin"])}
    assert rates_of(traffic, **tight).tolist() == [0.0]


def test_few_fleets_of_conversations_have_the_rate_of_many() -> None:
    """Simulated loads ended before the first conversations did, and kept their limits at ten times the rate."""
    traffic = Traffic(rate=1.0, input_len=800, output_len=60, sessions=Sessions(turns=10, think_s=10.0))
    few, many = (rates_of(traffic, dp=np.ones(n)) for n in (1, EXACT + 1))
    assert few[0] == many[0] > 0


def test_a_router_that_keeps_conversations_on_an_engine_raises_the_rate() -> None:
    traffic = Traffic(
        rate=1.0, input_len=1500, output_len=20, shared_prefix=16, sessions=Sessions(turns=8, think_s=0.1)
    )
    spread, kept = rates_of(traffic, dp=np.full(2, 4.0), router=np.array(["round_robin", "consistent_hash"]))
    assert kept > 1.3 * spread


def test_limits_that_no_rate_keeps_are_not_memory() -> None:
    """It was said not to fit into memory."""
    limited = Objective(maximize="max_rate_rps", constraints=["ttft_p99_ms <= 5"])
    space = JobSpace.of_job(job_for(limited, [Node(device="a100", count=4)]))
    with pytest.raises(AutoscoutError, match="is predicted not to meet ttft_p99_ms <= 5 at any request rate") as told:
        predict(space, {}, None)
    assert told.value.exit_code == 3


def test_the_member_says_what_it_lacks() -> None:
    columns = {**LLAMA_3_8B, "traffic": Traffic(rate=1.0, input_len=100, output_len=100)}
    assert "does not predict cpu_s" in ServingSimulator("cpu_s").applies(columns)
    assert "price of the devices" in ServingSimulator("usd_per_million_output_tokens").applies(columns)
    assert "defined by limits on latencies" in ServingSimulator("max_rate_rps").applies(columns)
    assert ServingSimulator("max_rate_rps").applies({**columns, "limit_ttft_p99_ms": 500.0}) == ""


def test_what_the_load_decides_is_not_foretold_of_a_rate_that_is_searched() -> None:
    """What a token costs at traffic.rate, where the search begins, was held against the bound of the highest rate."""
    bounds = ["ttft_p99_ms <= 1000", "usd_per_million_output_tokens <= 1", "kv_cache_tokens >= 1000"]
    searched = Objective(maximize="max_rate_rps", constraints=bounds)
    space = JobSpace.of_job(job_for(searched, [Node(device="a100", count=4, price_per_hour=16.0)]))
    assert [bound.text for bound in predict(space, {}, None).bounds] == ["kv_cache_tokens >= 1000"]
