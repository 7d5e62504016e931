"""The conditional space: exact masks, absent inactive knobs, reasons in words."""

import gzip
from pathlib import Path

import msgspec
import networkx as nx
import numpy as np
import pytest

from autoscout.space.attributes import attributes_of
from autoscout.space.explain import completed, explain, parse
from autoscout.space.graph import Space
from autoscout.space.knob import Knob, Rule
from autoscout.space.language.expression import Expression
from autoscout.targets.jobs import JobSpace, load_job
from kb.records import AutoscoutError, Cluster, Configuration, Node, SpaceLimits


def number(configuration: Configuration, knob: str, absent: int = 1) -> int:
    return int(configuration.knobs.get(knob, absent))


JOBS = ["tiny-gpt-cpu", "tiny-moe-cpu", "smallest-cpu", "llama-3.2-3b", "llama-3.1-nemotron-nano-8b", "qwen3-30b-a3b"]


def job_of(name: str):
    return load_job(Path("fixtures/jobs") / f"{name}.toml")


def space_of(name: str, **limits) -> JobSpace:
    return JobSpace.of_job(msgspec.structs.replace(job_of(name), space=SpaceLimits(**limits)))


@pytest.mark.parametrize("name", JOBS)
def test_samples_and_the_expert_default_are_valid_by_every_rule(name):
    space = space_of(name)
    rng = np.random.default_rng(0)
    for configuration in [space.reference, *(space.sample(rng) for _ in range(100))]:
        assert space.violations(configuration) == []
        assert space.is_valid(configuration)


@pytest.mark.parametrize("name", JOBS)
def test_the_graph_is_acyclic_and_knows_every_knob(name):
    space = space_of(name)
    assert nx.is_directed_acyclic_graph(space.graph)
    assert set(space.graph) == set(space.knob)


@pytest.mark.thorough
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
    without = JobSpace.of_job(job)
    with_te = JobSpace.of_job(
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
        ({"limit": {"mbs": []}}, "excludes all values of mbs; keep some of 1, 2, 4, 8"),
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
        JobSpace.of_job(msgspec.structs.replace(job, space=SpaceLimits(fix={"tp": 2, "pp": 2})))


def test_nothing_feasible_names_the_rule_in_the_way():
    with pytest.raises(AutoscoutError) as refused:
        space_of("tiny-gpt-cpu", fix={"pp": 4, "mbs": 8, "vpp": 2})
    assert refused.value.exit_code == 3
    assert "no configuration of this job is valid (interleaving needs at least pp 4 micro batches" in str(refused.value)
    assert "(P4)" in str(refused.value)


def test_explain_gives_reasons_and_the_nearest_valid_configuration():
    space = space_of("tiny-gpt-cpu")
    default = space.reference
    explanation = explain(space, parse(space, ["pp=2", "vpp=2", "overlap_p2p=false"]), default)
    assert explanation.configuration is None
    assert [v.rule for v in explanation.violations] == ["P9"]
    assert "trains incorrectly" in explanation.violations[0].sentence
    assert explanation.nearest is not None
    assert space.is_valid(explanation.nearest)
    assert explanation.nearest.knobs["pp"] == 2


@pytest.mark.parametrize(
    ("given", "rules"),
    [(["tp=16"], ["domain"]), (["tp=8", "pp=8"], ["W1"]), (["tp=8", "sp=false"], ["M3"])],
    ids=["no such value", "too many ranks", "the rule itself"],
)
def test_explain_lists_the_rules_against_what_was_asked_alone(given, rules):
    """Of tp 16 it also said that experts with tp 8 need sequence parallel, which may be had."""
    space = space_of("deepseek-v2-lite")
    explanation = explain(space, parse(space, given), space.reference)
    assert [v.rule for v in explanation.violations] == rules


def test_explain_completes_what_was_not_given():
    space = space_of("tiny-gpt-cpu")
    configuration = completed(space, {"tp": 2, "pp": 2}, space.reference)
    assert configuration.knobs["dp"] == 1
    assert space.is_valid(configuration)


def test_explain_says_which_knob_cannot_act():
    space = space_of("tiny-gpt-cpu")
    explanation = explain(space, {"tp": 1, "sp": False}, space.reference)
    assert explanation.inactive == ["sp has no effect here: it needs tp > 1"]


def test_values_out_of_the_domain_and_unknown_knobs():
    space = space_of("tiny-gpt-cpu")
    with pytest.raises(AutoscoutError, match="did you mean 'mbs'"):
        parse(space, ["mbz=2"])
    with pytest.raises(AutoscoutError, match="is neither KNOB=VALUE"):
        parse(space, ["mbs"])
    explanation = explain(space, parse(space, ["pp=3"]), space.reference)
    assert any("pp 3 is not among 1, 2, 4" in v.sentence for v in explanation.violations)


def test_what_no_configuration_can_have_is_said_by_the_rule():
    """ "tp 3 is off unless [space] allows it" led to a second refusal: the heads do not split."""
    space = space_of("llama-3.2-3b")
    explanation = explain(space, parse(space, ["tp=3"]), space.reference)
    assert [v.rule for v in explanation.violations] == ["T2"]
    assert explanation.violations[0].sentence == "8 key/value heads and tp 3: one must be a multiple of the other"
    off = explain(space, {"tp": 0}, space.reference).violations
    assert [v.sentence for v in off] == ["tp 0 is not among 1, 2, 4, 8"]


def test_projection_keeps_what_is_valid_and_moves_the_rest_as_little_as_possible():
    space = space_of("tiny-gpt-cpu")
    s = space.split(completed(space, {"dp": 4, "overlap_grad": True}, space.reference))[0]
    assert space.project(s, {"mbs": 2, "ddp_bucket": 8}) == {"mbs": 2, "ddp_bucket": 8}
    assert space.project(s, {"mbs": 8, "ddp_bucket": 4}) == {"mbs": 4, "ddp_bucket": 4}  # 16 / 4 replicas


def test_a_cycle_of_conditions_is_named():
    knobs = [
        Knob(name=a, kind="sparse", layer="l", values=(1, 2), off=1, meaning="", sets="", when=Expression(f"{b} > 1"))
        for a, b in (("a", "b"), ("b", "a"))
    ]
    with pytest.raises(AutoscoutError, match="form a cycle"):
        Space(knobs, [], {})


def test_an_unknown_name_in_a_rule_is_named():
    knob = Knob(name="pipelines", kind="sparse", layer="l", values=(1, 2), off=1, meaning="", sets="")
    rule = Rule(id="X1", holds=Expression("pipeline > 0"), reason="", source="", checked="ours")
    with pytest.raises(AutoscoutError, match=r"X1: 'pipeline > 0': 'pipeline' is unknown.*did you mean 'pipelines'"):
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


def test_a_table_by_columns_or_from_a_file_is_the_same_space(tmp_path):
    columns = {"engine": np.array(["a", "a", "b"]), "threads": np.array([1, 2, 1]), "ratio": np.array([0.5, 0.5, 2.0])}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*(c.tolist() for c in columns.values()), strict=True)]
    path = tmp_path / "table.csv.gz"
    with gzip.open(path, "wt") as file:
        file.write("engine,threads,ratio\n" + "".join(f"{r['engine']},{r['threads']},{r['ratio']}\n" for r in rows))
    spaces = [Space.from_table(t, ["engine"], ["threads", "ratio"]) for t in (rows, columns, path)]
    listed = [[c.id for c in space.configurations()] for space in spaces]
    assert listed[0] == listed[1] == listed[2]
    assert len(listed[0]) == 3


def test_names_and_switches_are_sparse_and_ranges_dense_where_nothing_is_said():
    rows = [{"engine": "a", "flag": i % 2 == 0, "threads": i, "pair": i % 2} for i in range(4)]
    space = Space.from_table(rows)
    assert [k.name for k in space.sparse] == ["engine", "flag", "pair"]
    assert [k.name for k in space.dense] == ["threads"]


@pytest.mark.parametrize(
    ("table", "sparse", "sentence"),
    [
        ([{"a": 1}], ["b"], "no column 'b'"),
        ([{"a": 1, "b": None}], ["b"], "'b' has no value in any row"),
        ([], ["a"], "no column 'a'"),
        ("/nowhere.csv", ["a"], "/nowhere.csv: not a CSV or Parquet table"),
        ({"a": list(range(40_000))}, ["a"], r"'a' has too many different values for a knob \(40,000\)"),
    ],
)
def test_tables_that_are_none(table, sparse, sentence):
    with pytest.raises(AutoscoutError, match=sentence) as refused:
        Space.from_table(table, sparse)
    assert refused.value.exit_code == 2


# ---- bad input -------------------------------------------------------------------------------------------


def numbers(name, *values, dense=False, off=None, when="", implied=""):
    return Knob(
        name=name,
        kind="dense" if dense else "sparse",
        layer="l",
        values=values,
        off=off,
        meaning="",
        sets="",
        when=Expression(when) if when else None,
        implied=Expression(implied) if implied else None,
    )


def ruled(name, holds):
    return Rule(id=name, holds=Expression(holds), reason=holds, source="", checked="ours")


def test_of_many_rules_only_those_that_conflict_are_named():
    knobs = [numbers(name, 1, 2, 4, 8, 16) for name in "abcdef"]
    rules = [
        ruled("R1", "a + b <= 20"),
        ruled("R2", "a * b == 8"),
        ruled("R3", "c != d"),
        ruled("R4", "b * c == 16"),
        ruled("R5", "e <= f"),
        ruled("R6", "a * c == 1"),
        ruled("R7", "d + e >= 2"),
    ]
    with pytest.raises(AutoscoutError, match=r"\(R2: a \* b == 8; R4: b \* c == 16; R6: a \* c == 1\)") as refused:
        Space(knobs, rules, {})
    assert refused.value.exit_code == 3
    for left_out in ("R2", "R4", "R6"):
        assert Space(knobs, [r for r in rules if r.id != left_out], {}).count


def test_what_is_implied_but_impossible_is_named():
    with pytest.raises(AutoscoutError, match=r"no configuration of this job is valid.*\(b = a \+ 10\)") as refused:
        Space([numbers("a", 1, 2), numbers("b", 1, 2, implied="a + 10")], [], {})
    assert refused.value.exit_code == 3


def test_a_rule_without_a_value_somewhere_is_refused_with_the_place():
    knobs = [numbers("tp", 1, 2, 4), numbers("x", 3, 4)]
    with pytest.raises(
        AutoscoutError, match=r"R1: x % \(tp - 1\) == 0: cannot be evaluated at tp = 1, x = 3"
    ) as refused:
        Space(knobs, [ruled("R1", "x % (tp - 1) == 0")], {})
    assert refused.value.exit_code == 2
    guarded = Space(knobs, [ruled("R1", "tp == 1 or x % (tp - 1) == 0")], {})
    assert guarded.count == 5
    elsewhere = Space(knobs, [ruled("R1", "x % (tp - 1) == 0"), ruled("R2", "tp > 1")], {})  # R2 forbids the place
    assert elsewhere.count == 3


def test_calculating_with_an_inactive_knob_is_refused_too():
    knobs = [numbers("a", 0, 1), numbers("b", 1, 2, dense=True, when="a == 1")]
    with pytest.raises(AutoscoutError, match=r"R1: b \* 2 > 0: cannot be evaluated at b = \(inactive\)"):
        Space(knobs, [ruled("R1", "b * 2 > 0")], {})


def test_an_empty_domain_and_a_condition_on_a_dense_knob_are_refused():
    with pytest.raises(AutoscoutError, match="knob a has no possible value in this job"):
        Space([numbers("a")], [], {})
    with pytest.raises(AutoscoutError, match="only sparse knobs can activate"):
        Space([numbers("a", 1, 2, dense=True), numbers("b", 1, when="a > 1")], [], {})


def test_true_and_1_are_different_values():
    space = Space([numbers("a", True, 1)], [], {})
    assert space.count == 2
    assert space.is_valid(Configuration({"a": True}))
    assert [type(c.knobs["a"]) for c in space.configurations()] == [bool, int]


def test_what_is_implied_is_said_by_the_rule_that_says_why_where_there_is_one():
    knobs = [numbers("a", 1, 2), numbers("b", 2, 3, 5, implied="a + 1")]
    wrong = Configuration({"a": 1, "b": 5})
    assert [v.sentence for v in Space(knobs, [], {}).violations(wrong)] == ["b 5 must be a + 1, which is 2"]
    assert [v.rule for v in Space(knobs, [ruled("R1", "b - a == 1")], {}).violations(wrong)] == ["R1"]


def test_a_jobs_attributes_are_made_once():
    job = job_of("tiny-gpt-cpu")
    assert JobSpace.of_job(job).attributes == attributes_of(job)
    assert attributes_of(job) is attributes_of(job)
    longer = msgspec.structs.replace(job, traffic=msgspec.structs.replace(job.traffic, seq_len=7))
    assert attributes_of(longer)["seq_len"] == 7, "another job has others"
