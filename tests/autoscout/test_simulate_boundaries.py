"""What simulators say exactly at a limit and just beyond it: a cache that just holds a request, a budget that is just
kept, a trust that is just lost; and what they take for granted where nothing is said."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from autoscout_stack import bill, designs, offers

from autoscout.simulate.encode import take
from autoscout.simulate.ensemble import MIN_ROWS, Simulators
from autoscout.simulate.serving.fluid import fluid
from autoscout.simulate.serving.serving_device import device
from autoscout.simulate.serving.setup import Setup, setup
from autoscout.simulate.serving.steps import prefill_step_s
from autoscout.targets.jobs import JobSpace, load_job
from kb.records import Traffic

JOBS = Path(__file__).parents[2] / "fixtures" / "jobs"
SMALL: dict[str, Any] = {
    "layers": 8, "hidden": 1024, "heads": 8, "kv_heads": 2, "ffn": 4096, "vocab": 32000, "input_len": 100,
    "output_len": 20,
}  # fmt: skip
DENSE: dict[str, Any] = {
    "layers": 4, "hidden": 256, "heads": 4, "kv_heads": 4, "head_dim": 64, "ffn": 1024, "vocab": 1000, "experts": 0,
    "expert_ffn": 0, "topk": 0, "gated": 1, "serving": 0, "length": 128, "batch": 16, "output": 0, "longest": 128,
    "tokens": 2048,
}  # fmt: skip
LOADS: dict[str, dict[str, Any]] = {
    "batch": {"batch": 4}, "users": {"concurrency": 4}, "arrivals": {"rate": 0.1},
}  # fmt: skip


def served(**more: Any) -> Setup:
    return setup({**SMALL, **more}, device("a100"), 1)


def says(s: Setup, **memory: float) -> bool:
    held = replace(s.memory, **{name: np.array([value]) for name, value in memory.items()})
    return bool(np.isfinite(fluid(replace(s, memory=held))["requests_per_s"][0]))


@pytest.mark.parametrize("load", LOADS)
def test_a_cache_that_just_holds_a_request(load: str):
    """120 tokens, of which a common prefix of two blocks of 16 is there once."""
    s = served(**LOADS[load])
    assert says(s, kv_tokens=120.0)
    assert not says(s, kv_tokens=119.0)
    prefix = served(**LOADS[load], shared_prefix=47, prefix_caching=True)
    assert says(prefix, kv_tokens=120.0)
    assert not says(prefix, kv_tokens=119.0)


def test_whole_prompts_that_just_fit_a_step():
    for load in ("users", "arrivals"):
        assert says(served(**LOADS[load], chunked_prefill=False, max_num_batched_tokens=100))
        assert not says(served(**LOADS[load], chunked_prefill=False, max_num_batched_tokens=99))
        assert says(served(**LOADS[load], chunked_prefill=True, max_num_batched_tokens=99))
    assert not says(served())  # nothing is asked of it


def test_a_traces_own_rate_holds_where_none_is_given(tmp_path: Path):
    """Three requests in two seconds are two gaps of a second."""
    trace = tmp_path / "timed.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,10,1\n0.5,20,2\n2,30,3\n")

    def rate(**more: Any) -> float:
        traffic = Traffic(trace=str(trace), **more)
        return float(setup({**SMALL, "traffic": traffic}, device("a100"), 1).rate[0])

    assert rate() == 1.0
    assert rate(rate=4.0) == 4.0
    assert rate(concurrency=3) == 0.0
    at_once = tmp_path / "at_once.csv"
    at_once.write_text("arrival_s,input_tokens,output_tokens\n0,10,1\n0,20,2\n")
    traffic = Traffic(trace=str(at_once))
    assert setup({**SMALL, "traffic": traffic}, device("a100"), 1).rate.tolist() == [traffic.rate]


def test_one_kind_of_device_is_looked_up_once():
    alike, mixed = bill.of_devices(np.array(["h100", "h100"]), 2), bill.of_devices(np.array(["h100", "a100"]), 2)
    assert {values.shape for values in alike.values()} == {(1,)}
    assert {values.shape for values in mixed.values()} == {(2,)}
    h100, a100 = bill.device("h100"), bill.device("a100")
    assert mixed["usd"].tolist() == [h100.usd, a100.usd]
    assert bill.of_devices("a100", 3)["gib"].tolist() == [a100.gib]
    better = {"h100": msgspec.structs.replace(h100, usd=1.0)}
    assert bill.of_devices("h100", 1, better)["usd"].tolist() == [1.0]


def test_a_budget_that_is_just_kept():
    """Clusters within the budget, to the dollar and the watt; the fastest first, of equals the cheapest."""
    job = load_job(JOBS / "gpt3-175b-stack.toml")
    fixed = {"device": "h100", "npus": 16, "npus_1": 8, "bandwidth_1": 400}
    space = msgspec.structs.replace(job.space, fix=fixed, limit={"bandwidth_2": [25, 100]})
    job = msgspec.structs.replace(job, space=space)
    mix = [(1.0, DENSE)]
    slow, fast = offers.clusters(job)
    assert (slow["npus_2"], slow["bandwidth_2"], fast["bandwidth_2"]) == (2, 25, 100)
    cheap, dear = offers._bills([slow, fast], DENSE)
    assert cheap < dear

    def by_network(cluster: offers.Cluster, layouts: dict[str, np.ndarray]) -> np.ndarray:
        return np.full(len(layouts["tp"]), 1 / float(cluster["bandwidth_2"]))

    def offered(usd: float, watts: float, timed: Any = (by_network,)) -> list[Any]:
        return [o.cluster["bandwidth_2"] for o in offers.offers(job, mix, usd, watts, timed)]

    assert offered(*dear) == [100, 25]
    assert offered(dear[0] - 1, dear[1]) == offered(dear[0], dear[1] - 1e-6) == [25]
    assert offered(*cheap) == [25]
    assert offered(cheap[0] - 1, cheap[1]) == []
    alike = [lambda cluster, layouts: np.ones(len(layouts["tp"]))]
    assert sorted(offered(*dear, ())) == [25, 100]  # by the closed form
    assert offered(*dear, alike) == [25, 100]
    nowhere = [lambda cluster, layouts: np.full(len(layouts["tp"]), np.inf)]
    assert offered(*dear, nowhere) == []


def test_an_engine_has_no_optimizer_and_no_micro_batches():
    """Of all layouts those that shard states, recompute or split a batch are a trainer's alone."""
    asked: dict[str, np.ndarray] = {}

    def timed(cluster: offers.Cluster, layouts: dict[str, np.ndarray]) -> np.ndarray:
        asked.update(layouts)
        return np.ones(len(layouts["tp"]))

    cluster: offers.Cluster = {"device": "h100", "npus": 8, "npus_1": 4, "npus_2": 2}
    trained = {"zero": {0, 1, 3}, "recompute": {False, True}, "mbs": {1, 2, 4}}
    for serving, kept in ((1, {"zero": {0}, "recompute": {False}, "mbs": {1}}), (0, trained)):
        offers._fastest(cluster, {**DENSE, "serving": serving}, bill.device("h100"), timed)
        assert {name: set(asked[name].tolist()) for name in kept} == kept
        assert set((asked["tp"] * asked["sp"] * asked["pp"] * asked["dp"]).tolist()) == {8}


def test_when_prompts_of_a_batch_end():
    """One prompt that takes four steps ends with the last; of three whole prompts, one a step, the mean ends with the
    second: beside one other that decodes, and the last beside two."""
    alone = {"batch": 1, "output_len": 1, "chunked_prefill": True, "max_num_batched_tokens": 25}
    found = fluid(served(**alone))
    assert found["ttft_mean_ms"] == pytest.approx(found["e2el_mean_ms"])
    s = served(batch=3, chunked_prefill=False, max_num_batched_tokens=100)
    once = [float(prefill_step_s(s.engine, 1.0, 100.0, 5050.0, n, n * 100)[0]) for n in (1.0, 2.0)]
    assert fluid(s)["ttft_mean_ms"][0] == pytest.approx(1e3 * sum(once))


def test_designs_in_several_blocks_are_the_designs():
    n = designs._BLOCK + 1
    columns = {
        "dims": 2, "npus_1": np.resize([4, 8], n), "npus_2": 2, "topology": "switch", "algorithm": "ring",
        "bandwidth": 100.0, "device": "h100", "tp": np.resize([1, 2, 4], n), "pp": 1, "dp": 2, "sp": 1, "mbs": 1,
    }  # fmt: skip
    columns = {name: np.asarray(v) if np.ndim(v) else v for name, v in columns.items()}
    whole = designs.evaluate(columns, [(1.0, DENSE)])
    ends = np.array([0, 1, n - 2, n - 1])
    some = designs.evaluate(take(columns, ends), [(1.0, DENSE)])
    assert set(whole) == set(some)
    for name, values in some.items():
        assert len(whole[name]) == n
        assert whole[name][ends] == pytest.approx(np.broadcast_to(values, 4))


def test_simulators_are_doubted_while_rows_are_few_and_errors_large():
    job = load_job(JOBS / "llama-3.2-3b.toml")
    simulators = Simulators(job, JobSpace.of_job(job), [])
    error = simulators.expected_error
    assert simulators.doubtful(error * 0.999)
    assert not simulators.doubtful(error)
    simulators.ensemble.rows = MIN_ROWS - 1
    assert simulators.doubtful(error * 0.999)
    simulators.ensemble.rows = MIN_ROWS
    assert not simulators.doubtful(error * 0.999)
