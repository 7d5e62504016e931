"""Clusters that mix kinds of device: which kinds a configuration uses, how deep its stages are, what that costs."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscout.deploy.export import launch
from autoscout.job.load import read_job
from autoscout.search.sequential import Pool
from autoscout.simulate.training.crossing import network_matters
from autoscout.simulate.training.memory import Memory
from autoscout.simulate.training.step import Training
from autoscout.space.explain import completed, explain, parse
from autoscout.studies.rivals.metis import metis
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.targets.megatron import arguments, unequal
from autoscout.targets.megatron.expert import balanced
from autoscout.tuning.predict import predict
from kb.cluster_links import Links
from kb.records import AutoscoutError, Cluster, Configuration, Job, Node, SpaceLimits

PAPER = [Node("a100", 8), Node("a40", 4)]
ASSUMED = Links()
PAPER_JOBS = ("llama-3.2-3b", "llama-3.1-nemotron-nano-8b", "qwen3-30b-a3b")


def paper(name: str = "llama-3.2-3b", nodes: Sequence[Node] = PAPER, network: Links = ASSUMED, hosts: str = "") -> Job:
    job = load_job(f"fixtures/jobs/{name}.toml")
    return msgspec.structs.replace(job, cluster=Cluster(nodes=list(nodes), network=network, hosts=hosts))


def space_of(job: Job, **fix) -> JobSpace:
    return JobSpace.of_job(msgspec.structs.replace(job, space=SpaceLimits(fix=fix)))


def configuration(space: JobSpace, *told: str) -> Configuration:
    return completed(space, parse(space, told), space.reference)


def seconds(space: JobSpace, found: Configuration) -> float:
    columns = {n: v for n, v in space.attributes.items() if n != "degrees"}
    columns |= space.columns(np.array([space.codes_of(found.knobs)]))
    return float(Training.of_job(space.job).predict(columns).value[0])


# ---- stages of unequal depth --------------------------------------------------------------------------------------


def test_a_slower_devices_stages_get_fewer_layers():
    space = space_of(paper())
    told = ("a100=8", "a40=4", "pp=3", "tp=1", "dp=4", "mbs=4")
    even, shallow = (configuration(space, *told, f"a40_layers={n}") for n in (0, 4))
    assert unequal.stages(space.job, shallow) == [12, 12, 4]
    flags = arguments.flags(space.job, shallow)
    assert flags[unequal.LAYOUT] == f"E{'t' * 12}|{'t' * 12}|ttttL"
    assert unequal.LAYOUT not in arguments.flags(space.job, even)
    assert seconds(space, shallow) < seconds(space, even)


def test_the_knob_is_there_only_where_stages_are_on_one_kind_each():
    space = space_of(paper())
    assert "a40_layers" in configuration(space, "a100=8", "a40=4", "pp=6", "tp=1", "mbs=1").knobs
    assert "a40_layers" not in configuration(space, "a100=8", "a40=4", "pp=2", "tp=1", "mbs=1").knobs  # 6 and 2 + 4
    assert "a40_layers" not in configuration(space, "a100=8", "a40=0", "pp=2", "tp=1", "mbs=1").knobs
    assert "a40_layers" not in space_of(paper(nodes=[Node("a100", 8)])).knob


@pytest.mark.parametrize("told", [("pp=3",), ("pp=6",), ("pp=3", "tp=2")])
def test_an_open_depth_becomes_that_with_the_shortest_predicted_step(told):
    """One layer beside the loss, whose vocabulary of 128,256 takes an A40 as long as four layers do: the depth nearest
    to the reference's (8 A100) balances here."""
    space = space_of(paper())
    found = configuration(space, *told)
    others = [Configuration({**found.knobs, "a40_layers": n}) for n in space.knob["a40_layers"].values]
    assert seconds(space, found) == min(seconds(space, other) for other in others if space.is_valid(other))


def test_the_fastest_kind_shares_what_is_left_in_whatever_order_they_are_named():
    space = space_of(paper(nodes=PAPER[::-1]))
    found = configuration(space, "a100=8", "a40=4", "pp=3", "tp=1", "dp=4", "mbs=1", "a40_layers=4")
    assert unequal.stages(space.job, found) == [4, 12, 12]


def test_every_layout_has_all_layers():
    space = space_of(paper(), a100=8, a40=4, mbs=1, distopt=False, overlap_grad=False, ar="none")
    seen = set()
    for found in space.configurations():
        share = unequal.stages(space.job, found)
        if share:
            text = str(arguments.flags(space.job, found)[unequal.LAYOUT])
            stages = text.split("|")
            assert stages[0].startswith("E")
            assert stages[-1].endswith("L")
            assert [stage.count("t") for stage in stages] == share
            assert len(share) == found.knobs["pp"]
            assert sum(share) == 28
            assert min(share) >= 1
            seen.add(tuple(share))
    assert len(seen) >= 10


@pytest.mark.engine
def test_megatron_reads_the_layouts_back():
    layouts = pytest.importorskip("megatron.core.transformer.pipeline_parallel_layer_layout")
    from megatron.core.transformer.enums import LayerType

    space = space_of(paper("llama-3.1-nemotron-nano-8b"))
    for depth in (1, 3, 5):
        found = configuration(space, "a100=8", "a40=4", "pp=6", "tp=2", "mbs=1", f"a40_layers={depth}")
        read = layouts.PipelineParallelLayerLayout(str(arguments.flags(space.job, found)[unequal.LAYOUT]), 6)
        read.validate_layer_layout(num_layers=32, mtp_num_layers=0)
        assert [read.get_num_layers_to_build(LayerType.decoder, pp_rank=stage) for stage in range(6)] == unequal.stages(
            space.job, found
        )


def test_unequal_stages_are_not_recomputed_in_groups():
    space = space_of(paper())
    told = ("a100=8", "a40=4", "pp=3", "tp=1", "mbs=1", "a40_layers=4", "ar=full", "ar_method=uniform")
    assert configuration(space, *told, "ar_layers=1").knobs["a40_layers"] == 4
    with pytest.raises(AutoscoutError, match="does not divide stages of different depth"):
        configuration(space, *told, "ar_layers=4")


def test_configurations_that_differ_in_depth_never_export_alike():
    space = space_of(paper())
    told = ("a100=8", "a40=4", "pp=3", "tp=1", "dp=4", "mbs=1")
    texts = {str(launch(space.job, configuration(space, *told, f"a40_layers={n}"), "", "").arguments) for n in range(9)}
    assert len(texts) == 9


# ---- what it costs ------------------------------------------------------------------------------------------------


@st.composite
def mixed_runs(draw):
    """A job over two kinds, with stages that lie on one kind each."""
    tp, dp, fast, slow = (draw(st.sampled_from((1, 2, 4))) for _ in range(4))
    pp, each = fast + slow, tp * dp
    layers = pp * draw(st.integers(2, 6))
    return {
        "hidden": 2048, "heads": 16, "vocab": draw(st.sampled_from((32000, 128256))), "layers": layers, "seq_len": 2048,
        "tied": float(draw(st.booleans())), "tp": tp, "pp": pp, "dp": dp, "mbs": 1, "gpus": pp * each,
        "global_batch": dp * draw(st.sampled_from((1, 8, 32))), "distopt": float(draw(st.booleans())),
    }, fast * each, slow * each  # fmt: skip


@given(mixed_runs())
def test_kinds_that_are_equal_cost_what_one_kind_costs(drawn):
    run, first, second = drawn
    two = {**run, "a100": first, "a100-80g": second}
    one = {**run, "gpu": "a100"}
    for member in (Training(), Memory()):
        assert member.predict(two).value == pytest.approx(member.predict(one).value, rel=1e-9)
    assert Memory().filled(two) == pytest.approx(Memory().filled(one), rel=1e-9)


@given(mixed_runs(), st.integers(1, 3))
def test_other_names_of_the_kinds_change_nothing(drawn, depth):
    run, first, second = drawn
    before = {**run, "a100": first, "a40": second, "a40_layers": depth}
    after = {**run, "A100-SXM4-80GB": first, "A40-48GB": second, "A40-48GB_layers": depth}
    for member in (Training(), Memory()):
        assert member.predict(after).value == pytest.approx(member.predict(before).value, rel=1e-12)


def test_a_stage_without_layers_has_memory(recwarn):
    """A row of a table may say so; what it keeps was divided by its layers."""
    run = {"hidden": 64, "heads": 4, "vocab": 512, "layers": 4, "seq_len": 64, "pp": 2, "gpus": 2, "global_batch": 8}
    assert Memory().predict({**run, "a100": 1, "a40": 1, "a40_layers": 4}).value > 0
    assert not recwarn


@given(mixed_runs())
def test_depths_that_are_the_even_ones_cost_what_even_stages_cost(drawn):
    run, first, second = drawn
    even = {**run, "a100": first, "a40": second}
    told = {**even, "a40_layers": run["layers"] // run["pp"]}
    for member in (Training(), Memory()):
        assert member.predict(told).value == pytest.approx(member.predict(even).value, rel=1e-9)


def best_predicted(nodes: Sequence[Node]) -> float:
    """Over every configuration of a small space."""
    fixed = {"distopt": True, "overlap_grad": False, "ar": "none", "tp": 1, "cp": 1, "mbs": 1}
    space = space_of(paper(nodes=nodes), **fixed)
    rows = np.array([space.codes_of(c.knobs) for c in space.configurations()])
    columns = {n: v for n, v in space.attributes.items() if n != "degrees"} | space.columns(rows)
    fits = Memory.of_job(space.job).fits(columns)
    return float(Training.of_job(space.job).predict(columns).value[fits].min())


@settings(max_examples=8, deadline=None)
@given(st.lists(st.sampled_from((Node("a40", 4), Node("a100", 4), Node("l40s", 2))), max_size=1), st.data())
def test_a_node_more_never_makes_the_predicted_best_worse(some, data):
    before = [*PAPER, *some]
    more = data.draw(st.sampled_from((Node("a40", 4), Node("a100", 8), Node("a10g", 4))))
    assert best_predicted([*before, more]) <= best_predicted(before) * (1 + 1e-12)


# ---- what experts do ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAPER_JOBS)
def test_no_recipe_is_predicted_slower_for_using_slow_devices(name):
    space = space_of(paper(name))
    alone = space_of(paper(name), a40=0)
    assert seconds(space, space.reference) <= seconds(alone, alone.reference) * (1 + 1e-9)


def test_the_balanced_pipeline_is_a_recipe_and_beats_the_even_one():
    space = space_of(paper("qwen3-30b-a3b"))
    (found,) = balanced(space)
    assert found in space.recipes
    assert 0 < int(found.knobs["a40_layers"]) < 48 // int(found.knobs["pp"])
    even = space.nearest({**found.knobs, "a40_layers": 0})
    assert even is not None
    assert seconds(space, found) < seconds(space, even)


# ---- the network between them -------------------------------------------------------------------------------------


def test_a_faster_network_is_never_slower_and_what_is_assumed_is_said():
    told = ("a100=8", "a40=4", "tp=1", "pp=1", "mbs=1")
    found = {}
    for gbps in (10, 100, 400):
        space = space_of(paper(network=Links(between_nodes_gbps=gbps)))
        found[gbps] = seconds(space, configuration(space, *told))
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert found[10] > 2 * found[400]
    space = space_of(paper())
    assert "is assumed to have" in predict(space, configuration(space, *told).knobs, None).network
    slow = space_of(paper(network=Links(between_nodes_gbps=10)))
    assert "(10 Gb/s) limits the speed" in predict(slow, configuration(slow, *told).knobs, None).network
    assert predict(space, configuration(space, "a100=8", "a40=0", "tp=1", "pp=1").knobs, None).network == ""


def test_nodes_have_as_many_devices_as_the_job_says():
    """One server of eight A40 was priced as two of four, and a node of one H100 as a part of eight with NVLink."""

    def told(*nodes: Node):
        space = space_of(paper(nodes=nodes))
        tp = configuration(space, f"tp={min(nodes[0].count, 4) if len(nodes) > 1 else 8}", "pp=1", "cp=1", "mbs=1")
        return predict(space, tp.knobs, None)

    one = told(Node("a40", 8))
    assert one.network == ""
    assert one.parts["tp"] < 3 * one.parts["compute"]
    alone, together = told(*[Node("h100", 1)] * 8), told(*[Node("h100", 4)] * 2)
    assert alone.parts["dp"] > together.parts["dp"]


def test_between_kinds_it_may_be_slower_than_between_nodes():
    space = space_of(paper(network=Links(between_nodes_gbps=200, between_kinds_gbps=10)))
    mixed = configuration(space, "a100=8", "a40=4", "tp=1", "pp=1", "mbs=1")
    plain = space_of(paper(network=Links(between_nodes_gbps=200)))
    assert seconds(space, mixed) > 2 * seconds(plain, mixed)
    columns = {n: v for n, v in space.attributes.items() if n != "degrees"}
    columns |= space.columns(np.array([space.codes_of(mixed.knobs)]))
    assert "10 Gb/s" in network_matters(space.job, columns)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{ between_nodes_gpbs = 200 }", "did you mean 'between_nodes_gbps'"),
        ("{ between_nodes_gbps = -1 }", "cluster.network.between_nodes_gbps = -1.0 must not be negative"),
        ("25", "cluster.network: expected `object`, got `int`"),
        ("{ between_kinds_gbps = 'fast' }", "cluster.network.between_kinds_gbps: expected `float`, got `str`"),
    ],
)
def test_a_network_that_is_none_is_one_sentence(tmp_path, written, said):
    text = Path("fixtures/jobs/llama-3.2-3b.toml").read_text()
    path = tmp_path / "job.toml"
    path.write_text(text.replace("[objective]", f"network = {written}\n\n[objective]"))
    with pytest.raises(AutoscoutError) as error:
        read_job(path)
    assert said in str(error.value)
    assert error.value.exit_code == 2


# ---- where it runs ------------------------------------------------------------------------------------------------


def test_metis_plans_over_every_kind_of_device_and_the_layers_on_each():
    nodes = [Node("h100", 8), Node("l40s", 4)]
    space = space_of(paper(nodes=nodes), cp=1, tp=1, mbs=1, ar="none", ddp_bucket=32, vpp=1)
    plan = ("h100", "l40s", "pp", "l40s_layers")
    pool = Pool(space, space.reference)
    proposed = [space.feasible.configuration(row).knobs for row in metis(pool, np.random.default_rng(0))]
    plans = [tuple(knobs.get(name) for name in plan) for knobs in proposed]
    everything = {
        tuple(space.feasible.configuration(row).knobs.get(name) for name in plan) for row in range(len(space.feasible))
    }
    assert set(plans) == everything
    assert len({found[3] for found in plans}) > 5


# ---- one user, every verb -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "counts", "degrees"),
    [("h100", (8, 8), [1, 2, 4, 8]), ("h100", (6, 6), [1, 2, 3, 6]), ("gb200", (4,) * 4, [1, 2, 4, 8, 16])],
)
def test_a_tensor_parallel_group_spans_nodes_only_where_the_job_says_so(device, counts, degrees):
    job = load_job("fixtures/jobs/llama-3.2-3b.toml")
    model = msgspec.structs.replace(job.model, heads=48, kv_heads=48, head_dim=64)
    job = msgspec.structs.replace(job, model=model, cluster=Cluster(nodes=[Node(device, n) for n in counts]))
    space = JobSpace.of_job(job)
    assert list(space.knob["tp"].values) == degrees
    if sum(counts) not in degrees:
        reasons = [v.sentence for v in explain(space, {"tp": sum(counts)}, space.reference).violations]
        assert any("not allowed by default, because a group would span nodes" in r for r in reasons)
        asked = msgspec.structs.replace(job, space=msgspec.structs.replace(job.space, allow=["tp"]))
        assert sum(counts) in JobSpace.of_job(asked).knob["tp"].values
        line = f"python pretrain_gpt.py --tensor-model-parallel-size {sum(counts)}"
        today = msgspec.structs.replace(job, launch=msgspec.structs.replace(job.launch, current=line))
        assert sum(counts) in JobSpace.of_job(today).knob["tp"].values
