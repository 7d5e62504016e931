"""The conditional space: exact masks, absent inactive knobs, reasons in words."""

import itertools
from pathlib import Path

import msgspec
import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscout.job import load_job
from autoscout.rivals.expert import expert_default
from autoscout.space.explain import completed, explain, parse
from autoscout.space.graph import Space
from autoscout.space.knob import Knob, Rule
from autoscout.space.rules import Expression
from kb.records import AutoscoutError, Cluster, Configuration, Node, SpaceLimits


def number(configuration: Configuration, knob: str, absent: int = 1) -> int:
    return int(configuration.knobs.get(knob, absent))


JOBS = ["tiny-gpt-cpu", "tiny-moe-cpu", "smallest-cpu", "llama-3.2-3b", "llama-3.1-nemotron-nano-8b", "qwen3-30b-a3b"]


def job_of(name: str):
    return load_job(Path("fixtures/jobs") / f"{name}.toml")


def space_of(name: str, **limits) -> Space:
    return Space.of_job(msgspec.structs.replace(job_of(name), space=SpaceLimits(**limits)))


@pytest.mark.parametrize("name", JOBS)
def test_samples_and_the_expert_default_are_valid_by_every_rule(name):
    space = space_of(name)
    rng = np.random.default_rng(0)
    for configuration in [expert_default(space), *(space.sample(rng) for _ in range(100))]:
        assert space.violations(configuration) == []
        assert space.is_valid(configuration)


@pytest.mark.parametrize("name", JOBS)
def test_the_graph_is_acyclic_and_knows_every_knob(name):
    space = space_of(name)
    assert nx.is_directed_acyclic_graph(space.graph)
    assert set(space.graph) == set(space.knob)


def test_the_table_and_the_rules_agree_next_to_every_valid_configuration():
    """One knob changed, added or taken away: in the table exactly if no rule is violated."""
    space = space_of("smallest-cpu")
    for configuration in space.configurations():
        for knob in space.knobs:
            for value in (*knob.values, None):
                knobs = {k.name: configuration.knobs.get(k.name) for k in space.knobs} | {knob.name: value}
                changed = Configuration({n: v for n, v in knobs.items() if v is not None})
                assert space.is_valid(changed) == (not space.violations(changed)), changed


@pytest.mark.parametrize("name", ["tiny-gpt-cpu", "tiny-moe-cpu"])
def test_names_and_ids_are_unique(name):
    space = space_of(name)
    configurations = list(space.configurations())
    assert len(configurations) == space.count
    assert len({space.name(c) for c in configurations}) == len({c.id for c in configurations}) == space.count


def test_inactive_knobs_are_absent():
    space = space_of("tiny-gpt-cpu")
    for configuration in space.configurations():
        knobs = configuration.knobs
        assert ("sp" in knobs) == (number(configuration, "tp") > 1)
        assert ("vpp" in knobs) == (number(configuration, "pp") > 1)
        assert ("ddp_bucket" in knobs) == bool(knobs.get("overlap_grad"))
        assert ("overlap_param" in knobs) == bool(knobs.get("overlap_grad") and knobs.get("distopt"))
        assert "tp_comm" not in knobs
        assert "ep" not in knobs


def test_what_megatron_does_not_check_is_forbidden_here():
    space = space_of("tiny-gpt-cpu")
    for configuration in space.configurations():
        knobs = configuration.knobs
        pp, vpp = number(configuration, "pp"), number(configuration, "vpp")
        assert not (pp == 2 and vpp > 1 and not knobs["overlap_p2p"])  # P9: trains wrong
        if knobs.get("ar_method") == "uniform":  # R5: IndexError in the first forward pass
            assert 8 // (pp * vpp) % number(configuration, "ar_layers") == 0


def test_transformer_engine_activates_what_needs_it():
    job = job_of("llama-3.2-3b")
    without = Space.of_job(job)
    with_te = Space.of_job(
        msgspec.structs.replace(job, launch=msgspec.structs.replace(job.launch, transformer_engine=True))
    )
    assert not any("tp_comm" in without.mask(without.structure(i)) for i in range(len(without.structures)))
    overlapping = [
        with_te.structure(i) for i in range(len(with_te.structures)) if with_te.structure(i).get("tp_comm_overlap")
    ]
    assert overlapping
    assert all(s["sp"] and with_te.mask(s)["tp_comm"] == tuple(range(12, 21)) for s in overlapping)


def test_a_mixed_cluster_uses_or_leaves_out_each_kind():
    space = space_of("llama-3.2-3b")
    seen = set()
    for i in range(len(space.structures)):
        s = space.structure(i)
        used = (s["a100"], s["a40"])
        seen.add(used)
        assert s["pp"] * s["tp"] * s["cp"] * s["dp"] == sum(used)  # type: ignore[operator]
    assert seen == {(8, 0), (0, 4), (8, 4)}


def test_fix_and_limit():
    space = space_of("tiny-gpt-cpu", fix={"tp": 2}, limit={"mbs": [1, 2]})
    assert {space.structure(i)["tp"] for i in range(len(space.structures))} == {2}
    assert {c.knobs["mbs"] for c in space.configurations()} == {1, 2}


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ({"fix": {"tq": 2}}, "did you mean 'tp'?"),
        ({"fix": {"tp": 3}}, "tp = 3, but in this job tp is one of 1, 2, 4"),
        ({"fix": {"sp": 1}}, "sp is one of false, true"),
        ({"limit": {"mbs": []}}, "leaves mbs no value"),
    ],
)
def test_limits_that_cannot_be(limits, sentence):
    with pytest.raises(AutoscoutError) as refused:
        space_of("tiny-gpt-cpu", **limits)
    assert sentence in str(refused.value)
    assert refused.value.exit_code == 2


def test_three_devices_cannot_hold_tp_2_by_pp_2():
    job = msgspec.structs.replace(job_of("tiny-gpt-cpu"), cluster=Cluster(nodes=[Node(device="cpu", count=3)]))
    with pytest.raises(AutoscoutError, match="is one of 1, 3"):
        Space.of_job(msgspec.structs.replace(job, space=SpaceLimits(fix={"tp": 2, "pp": 2})))


def test_nothing_feasible_names_the_rule_in_the_way():
    with pytest.raises(AutoscoutError) as refused:
        space_of("tiny-gpt-cpu", fix={"pp": 4, "mbs": 8, "vpp": 2})
    assert refused.value.exit_code == 3
    assert "limits (P4: vpp == 1 or micro_batches >= pp);" in str(refused.value)


def test_explain_gives_reasons_and_the_nearest_valid_configuration():
    space = space_of("tiny-gpt-cpu")
    default = expert_default(space)
    explanation = explain(space, parse(space, ["pp=2", "vpp=2", "overlap_p2p=false"]), default)
    assert explanation.configuration is None
    assert [v.rule for v in explanation.violations] == ["P9"]
    assert "silently wrong" in explanation.violations[0].sentence
    assert explanation.nearest is not None
    assert space.is_valid(explanation.nearest)
    assert explanation.nearest.knobs["pp"] == 2


def test_explain_completes_what_was_not_given():
    space = space_of("tiny-gpt-cpu")
    configuration = completed(space, {"tp": 2, "pp": 2}, expert_default(space))
    assert configuration.knobs["dp"] == 1
    assert space.is_valid(configuration)


def test_explain_says_which_knob_cannot_act():
    space = space_of("tiny-gpt-cpu")
    explanation = explain(space, {"tp": 1, "sp": False}, expert_default(space))
    assert explanation.inactive == ["sp cannot act here: it needs tp > 1"]


def test_values_out_of_the_domain_and_unknown_knobs():
    space = space_of("tiny-gpt-cpu")
    with pytest.raises(AutoscoutError, match="did you mean 'mbs'"):
        parse(space, ["mbz=2"])
    with pytest.raises(AutoscoutError, match="is not KNOB=VALUE"):
        parse(space, ["mbs"])
    explanation = explain(space, parse(space, ["tp=3"]), expert_default(space))
    assert any("tp 3 is not among 1, 2, 4" in v.sentence for v in explanation.violations)


def test_projection_keeps_what_is_valid_and_moves_the_rest_as_little_as_possible():
    space = space_of("tiny-gpt-cpu")
    s = space.split(completed(space, {"dp": 4, "overlap_grad": True}, expert_default(space)))[0]
    assert space.project(s, {"mbs": 2, "ddp_bucket": 8}) == {"mbs": 2, "ddp_bucket": 8}
    assert space.project(s, {"mbs": 8, "ddp_bucket": 4}) == {"mbs": 4, "ddp_bucket": 4}  # 16 / 4 replicas


# ---- any space, not only ours ----------------------------------------------------------------------------


@st.composite
def random_spaces(draw) -> Space:
    names = [f"k{i}" for i in range(draw(st.integers(2, 5)))]
    knobs = []
    for i, name in enumerate(names):
        values = tuple(range(1, draw(st.integers(2, 4)) + 1))
        parent = draw(st.sampled_from(names[:i])) if i and draw(st.booleans()) else None
        knobs.append(
            Knob(
                name=name,
                kind="dense" if draw(st.booleans()) else "sparse",
                layer="l",
                values=values,
                off=1,
                meaning="",
                sets="",
                when=Expression(f"{parent} > 1") if parent and knobs[names.index(parent)].kind == "sparse" else None,
            )
        )
    rules = []
    for i in range(draw(st.integers(0, 3))):
        a, b = draw(st.sampled_from(names)), draw(st.sampled_from(names))
        limit = draw(st.integers(3, 8))
        rules.append(Rule(id=f"r{i}", holds=Expression(f"{a} + {b} <= {limit}"), reason="", source="", checked="ours"))
    return Space(knobs, rules, {})


@given(random_spaces())
@settings(max_examples=60, deadline=None)
def test_every_random_space_is_exact(space):
    choices = [[*((k.name, v) for v in k.values), *([(k.name, None)] if k.when else [])] for k in space.knobs]
    brute = {
        c.id
        for combination in itertools.product(*choices)
        if not space.violations(c := Configuration({n: v for n, v in combination if v is not None}))
    }
    listed = [c.id for c in space.configurations()]
    assert set(listed) == brute
    assert len(listed) == len(brute) == space.count
    rng = np.random.default_rng(0)
    for _ in range(5):
        configuration = space.sample(rng)
        s, x = space.split(configuration)
        assert space.is_valid(configuration)
        assert space.configuration(s, x) == configuration
        assert space.nearest(configuration.knobs, firm=configuration.knobs) == configuration


def test_a_cycle_of_conditions_is_named():
    knobs = [
        Knob(name=a, kind="sparse", layer="l", values=(1, 2), off=1, meaning="", sets="", when=Expression(f"{b} > 1"))
        for a, b in (("a", "b"), ("b", "a"))
    ]
    with pytest.raises(AutoscoutError, match="go in a circle"):
        Space(knobs, [], {})


def test_an_unknown_name_in_a_rule_is_named():
    knob = Knob(name="pipelines", kind="sparse", layer="l", values=(1, 2), off=1, meaning="", sets="")
    rule = Rule(id="X1", holds=Expression("pipeline > 0"), reason="", source="", checked="ours")
    with pytest.raises(AutoscoutError, match=r"X1: 'pipeline > 0' speaks of 'pipeline'.*did you mean 'pipelines'"):
        Space([knob], [rule], {})


ROWS = [
    {"engine": "a", "threads": 1, "block": 16},
    {"engine": "a", "threads": 2, "block": 16},
    {"engine": "a", "threads": 2, "block": 32},
    {"engine": "b", "threads": 1},  # block is inactive under b
]


def test_a_table_of_measured_rows_is_a_space():
    space = Space.from_table([*ROWS, ROWS[0]], sparse=["engine"], dense=["threads", "block"])
    assert space.count == len(space.feasible) == 4
    assert [c.knobs for c in space.configurations()] == ROWS
    assert [space.feasible.index(space.feasible.configuration(i)) for i in range(4)] == [0, 1, 2, 3]
    columns = space.feasible.columns()
    assert columns["engine"].tolist() == ["a", "a", "a", "b"]
    assert columns["block"].tolist()[:3] == [16, 16, 32]
    assert np.isnan(columns["block"][3])
    assert space.mask({"engine": "b"}) == {"threads": (1,)}
    assert space.project({"engine": "a"}, {"threads": 1, "block": 32}) in ({"threads": 1, "block": 16}, ROWS[2])
    absent = Configuration({"engine": "a", "threads": 1, "block": 32})
    assert not space.is_valid(absent)
    assert space.feasible.index(absent) is None
    assert [v.rule for v in space.violations(absent)] == ["table"]
