"""Knobs, rules and pictures of a space by hand: every refusal as a whole sentence, every picture's number, every
attribute of a small job worked out."""

import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from asking import refusal

from autoscout.space import attributes, explain, opened, picture
from autoscout.space.graph import Space
from autoscout.space.knob import Catalog, Knob, KnobEntry, Rule, RuleEntry, checked, instantiate
from autoscout.space.language.expression import Expression
from autoscout.space.network import topological
from kb.cluster_links import Links
from kb.records import (
    Cluster,
    Configuration,
    Job,
    LaunchSettings,
    Model,
    Node,
    Objective,
    SpaceLimits,
    Traffic,
)
from kb.sizes import expert_parameters


def knob(name: str, *values: Any, kind: str = "sparse", layer: str = "l", **more: Any) -> Knob:
    return Knob(name=name, kind=kind, layer=layer, values=values, meaning="m", sets="s", **more)  # type: ignore[arg-type]


def rule(holds: str, reason: str = "", id: str = "r") -> Rule:
    return Rule(id=id, holds=Expression(holds), reason=reason, source="here", checked="ours")


def test_limits_of_a_job():
    def said(*knobs: Knob, rules: tuple[Rule, ...] = (), **limits: Any) -> tuple[str, int]:
        sentence, code = refusal(Space, list(knobs), list(rules), {}, SpaceLimits(**limits))
        assert code == (3 if sentence.startswith("no configuration of this job is valid") else 2)
        return sentence, code

    a = knob("a", 1, 2, 4)
    assert said(knob("a")) == ("the knob a has no possible value in this job; correct its `values`", 2)
    many = "the knob a has 32,768 values, more than 32,767; give it fewer values"
    assert said(knob("a", *range(2**15))) == (many, 2)
    assert said(a, fix={"a": 4}, limit={"a": [1, 2]})[0].startswith("[space] fixes a = 4, but limits it to ")
    assert said(a, fix={"a": 3})[0].startswith("[space] wants a = 3, but in this job a is one of ")
    assert said(a, limit={"a": []})[0].startswith("[space] excludes all values of a; keep some of ")
    assert said(a, limit={"b": [1]})[0].startswith("[space]: 'b' is unknown")
    assert said(a, knob("d", 1, kind="dense"), knob("e", 1, when=Expression("d > 0"))) == (
        "e depends on 'd', which is a dense knob, but only sparse knobs can activate other knobs; declare 'd' with "
        'kind = "sparse"', 2,
    )  # fmt: skip
    assert said(a, rules=(rule("b > 1"),))[0].startswith("r: 'b > 1': 'b' is unknown")
    circle = (knob("a", 1, when=Expression("b > 0")), knob("b", 1, when=Expression("a > 0")))
    assert said(*circle)[0].startswith("the conditions of these knobs form a cycle: ")
    nothing = (rule("a > b", "{a} is not above {b}", "R1"), rule("a < 9", "", "R2"))
    assert said(knob("a", 1), knob("b", 1, 2), rules=nothing) == (
        "no configuration of this job is valid (1 is not above (any) (R1)); relax [space] or change the cluster",
        3,
    )
    space = Space([a], [], {}, SpaceLimits(limit={"a": [4, 1]}))
    assert space.knob["a"].values == (1, 4)


def test_orders_of_knobs():
    graph: dict[str, set[str]] = {"a": {"c"}, "b": set(), "c": set(), "d": set()}
    assert topological(graph, list("abcd"), None) == ["b", "c", "a", "d"]
    seen = {tuple(topological(graph, list("abcd"), np.random.default_rng(i))) for i in range(60)}
    assert len(seen) > 6
    assert all(order.index("c") < order.index("a") for order in seen)


SPACE = Space(
    [
        knob("tp", 1, 2, 4, layer="parallelism", off=1),
        knob("sp", False, True, layer="parallelism", off=False, when=Expression("tp > 1")),
        knob("mbs", 1, 2, 4, 8, kind="dense", layer="schedule", unit="samples"),
        knob("ar", "none", "full", layer="memory"),
        knob("layers", 1, 2, kind="dense", layer="memory", when=Expression("ar == 'full'")),
        knob("dp", 1, 2, 4, layer="parallelism", implied=Expression("4 // tp")),
        knob("never", 1, layer="memory", off=1, when=Expression("tp > 4")),
    ],
    [rule("mbs * dp <= 8", "mbs {mbs} on {dp} replicas is more than {half} + 4", "M1")],
    {},
    derived={"half": "4"},
)
DEFAULT = Configuration({"tp": 1, "dp": 4, "ar": "none", "mbs": 1})


def explained(**given: Any) -> tuple[str | None, list[tuple[str, str]], list[str], str]:
    found = explain.explain(SPACE, given, DEFAULT)
    return (
        found.configuration and SPACE.name(found.configuration),
        [(v.rule, v.sentence) for v in found.violations],
        found.inactive,
        found.nearest_name,
    )


def test_explanations():
    assert explained(tp=2) == ("tp2_mbs1_ar-none_dp2", [], [], "")
    eight = ("M1", "mbs 4 on 4 replicas is more than 4 + 4")
    assert explained(tp=1, mbs=4) == (None, [eight], [], "mbs2_ar-none_dp4")
    # A value that there is not is taken for the nearest, whose rules are none against it.
    among = ("domain", "mbs 3 is not among 1, 2, 4, 8")
    assert explained(mbs=3) == (None, [among], [], "tp2_mbs4_ar-none_dp2")
    assert explained(mbs=4, never=2)[1] == [("domain", "never 2 is not among 1")]
    assert explained(never=1) == ("mbs1_ar-none_dp4", [], ["never has no effect here: it needs tp > 4"], "")
    implied = ("implied", "dp 4 must be 4 // tp, which is 2")
    assert explained(tp=2, dp=4) == (None, [implied], [], "mbs1_ar-none_dp4")
    cannot = "sp has no effect here: it needs tp > 1"
    assert explained(tp=1, sp=True) == (None, [("inactive", cannot)], [], "mbs1_ar-none_dp4")
    assert explained(tp=1, sp=False) == ("mbs1_ar-none_dp4", [], [cannot], "")
    said, code = refusal(explain.completed, SPACE, {"tp": 2, "dp": 4}, DEFAULT)
    assert said.startswith("this is not a valid configuration: dp 4 must be 4 // tp, which is 2; the nearest ")
    assert code == 2
    assert explain.parse(SPACE, ["tp=2", "sp=On", "ar=full", "mbs=x"]) == {
        "tp": 2,
        "sp": True,
        "ar": "full",
        "mbs": "x",
    }
    for text, start in (("tp", "'tp' is neither KNOB=VALUE, for example tp=2"), ("tq=1", "'tq'")):
        said, code = refusal(explain.parse, SPACE, [text])
        assert (said.startswith(start), code) == (True, 2)
    absent = SPACE.violations(Configuration({"tp": 1, "dp": 4, "ar": "none"}))
    assert [(v.rule, v.sentence) for v in absent] == [("missing", "mbs has no value")]


def test_a_picture_in_numbers():
    Box = picture.Box
    left, right = Box(28, 104, 168, 0), Box(316, 170, 168, 1)
    edge = picture._edge(left, right, "activates", "a<b")
    assert edge == (
        '<path class="activates" d="M196 130 C256 130 256 188 316 188" marker-end="url(#head)"><title>a&lt;b</title>'
        "</path>"
    )
    assert 'd="M316 192 C256 192 256 126 196 126">' in picture._edge(right, left, "narrows", "")
    assert 'd="M316 188 C256 188 256 130 196 130" marker' in picture._edge(right, left, "implies", "")
    below = Box(28, 170, 168, 0)
    assert 'd="M196 130 C227.28 130 227.28 188 196 188"' in picture._edge(left, below, "implies", "")
    far = Box(1000, 104, 168, 3)
    assert 'd="M196 126 C316 126 880 126 1000 126">' in picture._edge(left, far, "narrows", "")
    texts = [
        ((1, 2, 4), "1 2 4"), ((False, True), "off on"), (tuple(range(10)), "0 1 2 3 4 5 6 7 8 9"),
        (tuple(range(100, 120)), "100 101 102 103 104 … 119"), (("a" * 30, "b"), "a" * 10 + "… b"),
        (("x" * 12, "y" * 11, "z"), "xxxxxxxxxx… yyyyyyyyyyy z"),
        (("p" * 11, "q" * 11, "r" * 11), "ppppppppppp … rrrrrrrrrrr"),
    ]  # fmt: skip
    for values, text in texts:
        assert picture._values(knob("k", *values)) == text
    assert picture._mean([1.0, 2.0], 9.0) == 1.5
    assert picture._mean([], 9.0) == 9.0


def test_the_picture_whole():
    frozen = Path(__file__).parent / "frozen" / "space.svg"
    drawn = picture.svg(SPACE, 'a "space"')
    if os.environ.get("UPDATE_FROZEN"):
        frozen.write_text(drawn)
    assert drawn == frozen.read_text()


JOB = Job(
    name="j",
    target="megatron",
    objective=Objective(minimize="step_time_s"),
    model=Model(layers=2, hidden=8, heads=2, vocab=10, kv_heads=1, experts=3, expert_ffn=16),
    traffic=Traffic(seq_len=64, global_batch=12),
    cluster=Cluster(nodes=[Node(device="a100", count=4, memory_gib=80.0), Node(device="l4", count=2, memory_gib=24.0)]),
)


def test_what_a_job_tells_expressions():
    found = attributes.attributes_of(JOB)
    # 192 + 768 + 24 parameters a layer, 160 of embeddings; 2 × 3 × 2 × 8 × 16 of experts.
    wanted = {
        "params": 2 * 984 + 160, "expert_params": 1536, "dtype_bytes": 2, "memory_gib": 22.5, "cuda": True,
        "head_dim": 4, "ffn": 32, "kv_heads": 1, "seq_len": 64, "global_batch": 12, "capability": 8.0,
        "grad_mib": 2128 * 4 / 2**20, "degrees": (1, 2, 3, 4, 6),
    }  # fmt: skip
    assert {name: found[name] for name in wanted} == wanted
    assert "gpus" not in found
    derived, knobs = attributes.device_knobs(JOB)
    assert derived == {"gpus": "a100 + l4"}
    assert [(k.name, k.values, k.off, k.meaning) for k in knobs] == [
        ("a100", [0, 4], 0, "number of the cluster's 4 a100 devices to use"),
        ("l4", [0, 2], 0, "number of the cluster's 2 l4 devices to use"),
    ]
    gated = msgspec.structs.replace(JOB.model, gated=True, dtype="fp32")
    assert expert_parameters(gated) == 2304
    one = Cluster(nodes=[Node(device="a100-40g", count=2), Node(device="a100-40g", count=4)])
    same = msgspec.structs.replace(JOB, cluster=one, model=gated)
    found = attributes.attributes_of(same)
    assert (found["gpus"], found["dtype_bytes"], found["memory_gib"]) == (6, 4, 39.4)
    assert attributes._choices(same) == {"a100_40g": [0, 2, 6]}
    assert attributes.device_knobs(same) == ({}, [])
    wired = msgspec.structs.replace(one, network=Links(between_nodes_gbps=100.0))
    assert attributes._network(msgspec.structs.replace(JOB, cluster=wired)) == {"node_gb_s": 12.5}
    assert attributes.whole_devices().holds == "gpus > 0"


def test_what_a_job_tells_expressions_in_serving():
    serving = msgspec.structs.replace(
        JOB, task="serve", target="vllm", traffic=Traffic(rate=2.0, concurrency=5, input_len=[100, 60], output_len=30),
        launch=LaunchSettings(kv_folder="/x"),
    )  # fmt: skip
    found = attributes.attributes_of(serving)
    # 130 tokens are two blocks of 128; a token's keys and values: 2 × 2 layers × 1 head × 4 × 2 bytes.
    wanted = {
        "longest": 130, "longest_input": 100, "model_len": 256, "input_mean": 80.0, "output_mean": 30.0, "rate": 2.0,
        "concurrency": 5, "kv_mib": 256 * 32 / 2**20, "weights_gib": 2128 * 2 / 2**30, "kv_folder": True,
        "shares": False,
        "draft": "", "node_gpus": 4, "engine_counts": (1, 2, 3, 4, 6), "shared_prefix": 0,
        "kv_steps": tuple(2**i for i in range(14)),
    }  # fmt: skip
    assert {name: found[name] for name in wanted} == wanted
    derived, _ = attributes.device_knobs(serving)
    assert derived["device_gib"] == "min((79.15 if a100 > 0 else 1000000), (22.5 if l4 > 0 else 1000000))"
    assert attributes.shares_beginnings(
        msgspec.structs.replace(serving, traffic=msgspec.structs.replace(serving.traffic, shared_prefix=1))
    )


def entry(name: str = "k", values: Any = (1, 2), **more: Any) -> KnobEntry:
    values = values if isinstance(values, str) else list(values)
    return KnobEntry(
        **{"name": name, "kind": "sparse", "layer": "l", "values": values, "meaning": "", "sets": "", **more}
    )


NAMES = "expressions use this name, so it may have only letters, digits and _, and must not be a Python keyword"


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (entry("min"), NAMES),
        (entry("a-b"), NAMES),
        (entry(values=[]), "values is empty; give at least one value"),
        (entry(values=[True, 1]), "values must be all switches (true, false), all numbers or all names"),
        (entry(values=[1, 1.0]), "values contains a value twice; remove one of them"),
        (entry(values=["a\nb", "c"]), "a value contains a control character"),
        (entry(default="x"), "default = 'x' must have the same type as the knob's values"),
        (entry(off=True), "off = True must have the same type as the knob's values"),
        (entry(default=3), "default = 3 is not among the knob's values"),
        (
            entry(when="a > 1"),
            "a sparse knob (a knob whose value activates other knobs) with a condition needs `off`, the value that "
            "the target uses while the condition is false",
        ),
    ],
)
def test_what_no_catalog_may_declare(bad: KnobEntry, said: str):
    found, code = refusal(checked, Path("f"), Catalog(knob=[bad]))
    assert (found, code) == (f"f: knob '{bad.name}': {said}", 2)


def test_catalogs():
    good = Catalog(knob=[entry(default=2, off=1, when="a > 1"), entry("d", "divisors(n)", kind="dense", when="a > 1")])
    assert checked(Path("f"), good) is good
    assert refusal(checked, Path("f"), Catalog(knob=[entry(), entry()])) == ("f: knob 'k' is declared twice", 2)
    one = RuleEntry(id="r", holds="k > 0", reason="", source="", checked="ours")
    assert refusal(checked, Path("f"), Catalog(rule=[one, one])) == ("f: rule 'r' is declared twice", 2)
    bad = Catalog(rule=[msgspec.structs.replace(one, holds="k >")])
    said, code = refusal(checked, Path("f"), bad)
    assert (said.startswith("f: rule 'r': holds: 'k >' is not an expression: "), code) == (True, 2)
    asking = Catalog(knob=[entry("q", [1, 2, 3], asks=[3], asks_for="why", default=1), entry("d", "divisors(n)")])
    knobs, _ = instantiate(asking, {"n": 6})
    assert [(k.values, k.asks) for k in knobs] == [((1, 2), (3,)), ((1, 2, 3, 6), ())]
    knobs, _ = instantiate(asking, {"n": 6}, SpaceLimits(allow=["q"]))
    assert (knobs[0].values, knobs[0].asks) == ((1, 2, 3), ())


def test_knobs_that_have_to_be_allowed():
    only = Catalog(knob=[entry("q", [False, True], asks=[True], off=False, default=True), entry("r", asks=[])])
    shut = opened.opened(only, {}, SpaceLimits())
    assert [k.name for k in shut.knob] == ["r"]
    said = (
        "q is not allowed by default, because it changes numerical results or needs a package; to allow it, set "
        "[space] allow = ['q']"
    )
    assert (shut.closed, shut.derived) == ({"q": said}, {"q": "False"})
    assert opened.opened(only, {}, SpaceLimits(allow=["q"])) is only
    assert refusal(opened.opened, shut, {}, SpaceLimits(fix={"q": True})) == (f"[space] names 'q': {said}", 2)
    assert opened.instead(entry(default=2)) == 2
    assert not opened.asking(entry("q", [1, 2, 3], asks=[3], default=1), only, {})
