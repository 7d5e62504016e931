"""target = "stack": whole clusters as designs, from a job file to the best, and what is refused."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from autoscout_stack.designs import evaluate
from autoscout_stack.transformer import layout, memory_gib
from autoscout_stack.workloads import workloads
from click.testing import CliRunner

from autoscout.search.strategy import strategy
from autoscout.space.explain import parse
from autoscout.targets.jobs import JobSpace, load_job, profiler_of
from autoscout.targets.target import shipped
from kb.records import DESIGNED, AutoscoutError, Configuration
from tui.cli import cli

JOBS = Path(__file__).parents[2] / "fixtures" / "jobs"
SMALL = """
name = "small"
task = "{task}"
target = "stack"
model = {{ layers = 8, hidden = 1024, heads = 8, vocab = 32000 {model} }}
traffic = {{ {traffic} }}
cluster = {{ nodes = [{{ device = "h100", count = {count} }}] }}
objective = {{ minimize = "latency_s" {objective} }}
budget = {{ profiles = 6 }}
space = {{ {space} }}
"""


@pytest.fixture
def job(tmp_path):
    """Writes a small job file and reads it."""

    def write(space="", task="pretrain", traffic="seq_len = 1024, global_batch = 64", count=64, objective="", model=""):
        path = tmp_path / "small.toml"
        text = SMALL.format(space=space, task=task, traffic=traffic, count=count, objective=objective, model=model)
        path.write_text(text.strip())
        return load_job(path)

    return write


def measured(wanted, codes, space, whole=False):
    return evaluate(space.columns(codes), workloads(wanted), whole)


def test_the_shipped_job_has_more_than_ten_to_the_thirteen_designs_counted_exactly():
    space = JobSpace.load(JOBS / "gpt3-175b-stack.toml")
    assert space.count > 1e13
    assert space.count_is_exact
    codes = space.sample_many(2000, np.random.default_rng(0))
    sizes = space.columns(codes)
    product = np.prod([np.nan_to_num(sizes[f"npus_{i}"], nan=1).astype(int) for i in range(1, 5)], axis=0)
    assert (product == 1024).all()
    assert (measured(space.job, codes, space)["peak_memory_gib"] <= 79.1).all()


def test_memory_as_a_rule_is_the_memory_of_the_model(job):
    wanted = job(model=", ffn = 65536", traffic="seq_len = 32768, global_batch = 64", space="fix = { dims = 1 }")
    space = JobSpace.of_job(wanted)
    free = [rule for rule in space.rules if rule.id != "M1"]
    wide = JobSpace(space.knobs, free, space.attributes, objective=wanted.objective)
    codes = wide.sample_many(3000, np.random.default_rng(0))
    columns, m = wide.columns(codes), workloads(wanted)[0][1]
    fits = memory_gib(m, layout(columns, m)) <= 79.1
    assert 0.05 < fits.mean() < 0.95
    assert [space.is_valid(wide.of_codes(row)) for row in codes.tolist()] == fits.tolist()


def test_knobs_and_rules_are_replicated_by_dimension():
    catalog = shipped("stack")
    names = [knob.name for knob in catalog.knob]
    assert [name for name in names if name.startswith("topology")] == [f"topology_{i}" for i in range(1, 5)]
    second = next(knob for knob in catalog.knob if knob.name == "topology_2")
    assert (second.when, second.meaning) == ("dims >= 2", "how dimension 2 is wired")
    assert {"C2_1", "C2_4"} <= {rule.id for rule in catalog.rule}


def test_a_session_ends_with_a_design_that_is_never_called_measured(job, tmp_path):
    narrow = "fix = { dims = 2, mbs = 1, sp = 1, chunks = 4 }, limit = { bandwidth_1 = [400], bandwidth_2 = [50, 100] }"
    job(narrow, objective=', also = ["minimize network_usd"]')
    kb, run = str(tmp_path / "kb.duckdb"), CliRunner()
    path = str(tmp_path / "small.toml")
    tuned = run.invoke(cli, ["tune", path, "--no-tui", "--kb", kb, "--json"])
    assert tuned.exit_code == 0, tuned.output
    found = json.loads(run.invoke(cli, ["best", path, "--kb", kb, "--json"]).stdout)
    assert found["evidence"].startswith(DESIGNED)
    assert found["gain"] >= 1
    assert found["low"] is None
    said = run.invoke(cli, ["best", path, "--kb", kb]).stdout
    assert DESIGNED in said
    assert "measured configuration" not in said
    session = json.loads(tuned.stdout)["session"]["session"]
    steps = run.invoke(cli, ["why", session, "--kb", kb]).stdout.partition("share of the predicted")[0]
    assert "designed" in steps
    assert "measured" not in steps.replace("nothing was measured", "")
    rows = run.invoke(cli, ["sql", "SELECT DISTINCT fidelity FROM measurement", "--kb", kb, "--format", "csv"]).stdout
    assert rows.split() == ["fidelity", "predicted"]


def test_an_experiment_is_the_chunked_model_and_says_so(job, tmp_path):
    wanted = job()
    space = JobSpace.of_job(wanted)
    found = profiler_of(wanted).run(space.reference, "reference", tmp_path)
    assert (found.fidelity, found.status, found.counts) == ("predicted", "ok", True)
    assert DESIGNED in found.evidence
    codes = np.array([space.codes_of(space.reference.knobs)], dtype=np.int16)
    assert found.metrics["latency_s"] == pytest.approx(measured(wanted, codes, space, whole=True)["latency_s"][0])
    assert not msgspec.structs.replace(found, environment={}).counts  # a prediction of anything else


def test_no_proposal_of_ours_breaks_a_rule_or_a_budget(job):
    wanted = job("fix = { dims = 2, mbs = 1, sp = 1 }", objective=', constraints = ["network_usd <= 100000"]')
    space = JobSpace.of_job(wanted)

    def predict(codes):
        found = evaluate(space.columns(codes), workloads(wanted))
        return np.where(found["network_usd"] <= 1e5, found["latency_s"], np.inf)

    search = strategy("autoscout", space, simulators={"closed form": predict})
    profiler, asked = profiler_of(wanted), []
    for _ in range(6):
        batch = search.ask()
        asked += batch
        search.tell([profiler.run(c, "x", Path()) for c in batch])
    assert all(space.is_valid(c) for c in asked)
    bills = [profiler.run(c, "x", Path()).metrics["network_usd"] for c in asked[1:]]  # the first is the reference
    assert max(bills) <= 1e5


def test_single_layers_are_found_again_inside_the_full_stack(job):
    full = JobSpace.of_job(job(space="fix = { dims = 2, mbs = 1 }, limit = { chunks = [1, 4], zero = [0, 3] }"))

    def best(space):
        from autoscout.search.candidates import favourites

        given = workloads(space.job)
        ask = lambda codes: evaluate(space.columns(codes), given)["latency_s"]  # noqa: E731
        codes, costs = favourites(space, ask, np.random.default_rng(1))
        return costs[0], space.of_codes(codes[0].tolist())

    reached, _ = best(full)
    layers = {"workload", "collectives", "network"}
    for layer in layers:
        kept = {k: v for k, v in full.reference.knobs.items() if full.knob[k].layer in layers - {layer}}
        if layer == "network":
            kept = {k: v for k, v in kept.items() if not k.startswith("algorithm")}
        limits = msgspec.structs.replace(full.job.space, fix={**full.job.space.fix, **kept}, limit={})
        alone, chosen = best(JobSpace.of_job(msgspec.structs.replace(full.job, space=limits)))
        assert full.is_valid(chosen) or layer != "network"
        assert reached <= alone * 1.0001


def test_a_mix_is_a_weighted_mean_and_its_rules_hold_for_each(job):
    model = "{ layers = 6, hidden = 512, heads = 4, vocab = 1000 }"
    more = f"mix = [{{ model = {model}, weight = 3.0, seq_len = 512, global_batch = 32 }}]"
    wanted = job(traffic=f"seq_len = 1024, global_batch = 64, {more}")
    space = JobSpace.of_job(wanted)
    assert {"L2 (8 layers of 1024, 64 × 1024)", "L2 (6 layers of 512, 32 × 512)"} <= {rule.id for rule in space.rules}
    codes = space.sample_many(50, np.random.default_rng(0))
    assert space.columns(codes)["pp"].max() <= 4
    (_, first), (_, second) = workloads(wanted)
    one, other = (evaluate(space.columns(codes), [(1.0, w)])["latency_s"] for w in (first, second))
    assert np.allclose(measured(wanted, codes, space)["latency_s"], (one + 3 * other) / 4)
    assert wanted.id != msgspec.structs.replace(wanted, traffic=msgspec.structs.replace(wanted.traffic, mix=[])).id


def test_serving_and_experts_have_designs_too(job):
    served = job(task="serve", traffic="concurrency = 64, input_len = 512, output_len = 128")
    moe = job(model=", experts = 16, topk = 2, expert_ffn = 1024")
    for wanted in (served, moe):
        space = JobSpace.of_job(wanted)
        codes = space.sample_many(500, np.random.default_rng(0))
        found = measured(wanted, codes, space)
        assert np.isfinite(found["latency_s"]).all()
        assert (found["latency_s"] > 0).all()
    assert found["part_experts"].max() > 0  # of moe


def test_twice_the_bandwidth_never_hurts_and_costs_more(job):
    wanted = job()
    space = JobSpace.of_job(wanted)
    columns = space.columns(space.sample_many(2000, np.random.default_rng(0)))
    twice = {**columns, **{f"bandwidth_{i}": 2 * columns[f"bandwidth_{i}"] for i in range(1, 5)}}
    now, then = (evaluate(c, workloads(wanted)) for c in (columns, twice))
    assert (then["latency_s"] <= now["latency_s"] * 1.000001).all()
    assert (then["network_usd"] > now["network_usd"]).all()


# ---- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "says"),
    [
        (
            "fix = { dims = 2, npus_1 = 8, npus_2 = 4 }",
            "dimensions of 32 NPUs together, but the cluster has 64",
        ),
        ("limit = { bandwidth_1 = [0, 100] }", "wants bandwidth_1 = 0: a dimension without bandwidth joins nothing"),
        ("fix = { bandwidth_2 = -5 }", "wants bandwidth_2 = -5"),
    ],
)
def test_networks_that_cannot_be_are_refused_in_a_sentence(job, space, says):
    with pytest.raises(AutoscoutError, match=r"small\.toml: ") as refused:
        job(space=space)
    assert says in str(refused.value)
    assert refused.value.exit_code == 2


def test_explain_says_why_a_collective_cannot_run(job):
    space = JobSpace.of_job(job("fix = { mbs = 1, chunks = 4 }, limit = { dims = [1, 2] }", count=96))
    given = {**space.reference.knobs, "dims": 2, "npus_1": 6, "npus_2": 16, "topology_1": "ring"}
    for algorithm, says in (
        ("halving_doubling", "power of two; dimension 1 has 6 NPUs"),
        ("double_tree", "dimension 1, a ring"),
    ):
        wanted = space.canonical({**given, "algorithm_1": algorithm})
        assert any(says in v.sentence for v in space.violations(wanted)), algorithm


def test_explain_says_that_the_dimensions_do_not_hold_the_npus(job):
    space = JobSpace.of_job(job())
    given = {**space.reference.knobs, **parse(space, ["dims=2", "npus_1=8", "npus_2=4"])}
    found = space.violations(space.canonical(given))
    assert any("the dimensions hold 8 × 4 × 1 × 1 NPUs, not the 64 of the cluster" in v.sentence for v in found)


@pytest.mark.parametrize(
    "model", ["experts = 8, topk = 2, shared_ffn = 192", "experts = 8, topk = 2, dense_layers = 1"]
)
def test_what_its_cost_models_do_not_know_of_a_mixture_is_refused(job, model):
    with pytest.raises(AutoscoutError, match="designed cluster's cost models do not know the") as refused:
        job(model=f", {model}")
    assert refused.value.exit_code == 2


def test_a_device_without_a_price_and_a_mixed_cluster_are_refused(tmp_path):
    text = SMALL.format(
        space="", task="pretrain", traffic="seq_len = 1024, global_batch = 64", count=64, objective="", model=""
    )
    for old, new, says in (
        ('"h100"', '"l40s"', "device = 'l40s' is unknown"),
        ("count = 64 }", 'count = 64 }, { device = "a100", count = 64 }', "one kind of device"),
    ):
        (tmp_path / "other.toml").write_text(text.replace(old, new).strip())
        with pytest.raises(AutoscoutError, match=says):
            load_job(tmp_path / "other.toml")


KNOBS = """
SYSTEM_KNOBS = {'scheduling-policy': ({'FIFO', 'LIFO'}, 'N/A'), 'preferred-dataset-splits': ({2, 4}, 'N/A')}
NETWORK_KNOBS = {'topology': ({"Ring", "Switch", "FullyConnected"}, 'FALSE'), 'npus-count': ({4, 8}, 'FALSE')}
WORKLOAD_KNOBS = {'dp': ({1, 2, 4, 8}, 'N/A'), 'pp': ((1, 2, 1), 'N/A'), 'weight_sharded': ((0, 1, 1), 'N/A')}
DERIVED_KNOBS = ["network bandwidth", "system all-reduce-implementation"]
CONSTRAINTS = ["product network npus-count == num workload num_npus"]
"""
WORKLOAD = {"num_npus": 64, "dp": 4, "pp": 1, "sp": 1, "weight_sharded": 1, "din": 512, "dout": 512, "dff": 2048}
WORKLOAD |= {"dmodel": 512, "batch": 64, "seq": 256, "head": 8, "num_stacks": 4}
NETWORK = (
    "topology: [ Ring, Switch ]\nnpus_count:\n- 8\n- 8\nbandwidth: [ 50.0, 50.0 ]  # GB/s\nlatency: [ 700.0, 500 ]\n"
)


def imported(folder: Path, knobs: str = KNOBS, workload: dict = WORKLOAD):
    (folder / "knobs.py").write_text(knobs)
    (folder / "network.yml").write_text(NETWORK)
    (folder / "workload.json").write_text(json.dumps(workload))
    files = [str(folder / name) for name in ("knobs.py", "network.yml", "workload.json")]
    return CliRunner().invoke(cli, ["init", *files, "--out", str(folder / "job.toml")])


def test_parameter_files_of_cosmic_become_a_job(tmp_path):
    done = imported(tmp_path)
    assert done.exit_code == 0, done.output
    space = JobSpace.load(tmp_path / "job.toml")
    assert space.knob["npus_1"].values == (4, 8)
    assert space.knob["zero"].values == (0, 3)
    assert space.knob["latency_2"].values == (500,)
    assert space.knob["bandwidth_1"].values == (100,)
    match = {"ring": "ring", "switch": "halving_doubling", "fully_connected": "direct"}
    for _ in range(20):
        c = space.sample(np.random.default_rng(_)).knobs
        assert [c[f"algorithm_{i}"] for i in (1, 2)] == [match[str(c[f"topology_{i}"])] for i in (1, 2)]
        assert int(c["npus_1"]) * int(c["npus_2"]) == 64


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "'scheduling-policy'",
            "'scheduling-polcy'",
            "parameter 'scheduling-polcy' is unknown; did you mean 'scheduling-policy'?",
        ),
        ("product network npus-count ==", "product network npus-count <", "constraint 'product network"),
        ('"network bandwidth"', '"network width"', "derived knob 'network width' is unknown"),
        ("({2, 4}, 'N/A')", "__import__('os').getpid()", "literals only"),
        ("DERIVED_KNOBS", "DERIVED", "'DERIVED' is unknown"),
    ],
)
def test_parameter_files_with_something_unknown_are_refused(tmp_path, old, new, says):
    done = imported(tmp_path, KNOBS.replace(old, new))
    assert isinstance(done.exception, AutoscoutError)
    assert done.exception.exit_code == 2
    assert says in str(done.exception)
    assert not (tmp_path / "job.toml").exists()


def test_a_knob_file_alone_says_what_is_missing(tmp_path):
    (tmp_path / "knobs.py").write_text(KNOBS)
    done = CliRunner().invoke(cli, ["init", str(tmp_path / "knobs.py")])
    assert isinstance(done.exception, AutoscoutError)
    assert done.exception.exit_code == 2
    assert "give the workload file too" in str(done.exception)


def test_configurations_of_a_design_stay_one_by_their_hash(job):
    space = JobSpace.of_job(job())
    known = {space.of_codes(row).id for row in space.sample_many(500, np.random.default_rng(0)).tolist()}
    assert len(known) > 450
    assert Configuration(dict(space.reference.knobs)).id == space.reference.id
