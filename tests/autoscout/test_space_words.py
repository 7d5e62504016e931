"""Expressions, arrays, rules and tables of a space by hand: every refusal as a whole sentence, every picture's number,
every attribute of a small job worked out."""

import itertools
import math
import operator
import os
from pathlib import Path
from typing import Any

import msgspec
import networkx as nx
import numpy as np
import pytest

from autoscout.space import attributes, explain, from_table, opened, picture
from autoscout.space.graph import Space
from autoscout.space.knob import Catalog, Knob, KnobEntry, Rule, RuleEntry, checked, instantiate
from autoscout.space.language import arrays
from autoscout.space.language.expression import Expression
from autoscout.space.language.functions import divisors
from autoscout.space.network import topological
from kb.records import AutoscoutError, Cluster, Configuration, Job, Model, Node, Objective, SpaceLimits, Traffic
from kb.records import Launch


def knob(name: str, *values: Any, kind: str = "sparse", layer: str = "l", **more: Any) -> Knob:
    return Knob(name=name, kind=kind, layer=layer, values=values, meaning="m", sets="s", **more)  # type: ignore[arg-type]


def rule(holds: str, reason: str = "", id: str = "r") -> Rule:
    return Rule(id=id, holds=Expression(holds), reason=reason, source="here", checked="ours")


def refusal(call: Any, *arguments: Any, **options: Any) -> tuple[str, int]:
    with pytest.raises(AutoscoutError) as caught:
        call(*arguments, **options)
    return str(caught.value), caught.value.exit_code


EXPRESSIONS = [
    "a + b", "a - b", "a * b", "a / b", "a // b", "a % b", "-a", "not a", "a and b", "a or b", "a == b", "a != b",
    "a < b", "a <= b", "a > b", "a >= b", "a < b < 2", "0 <= a <= b != 1", "a in (b, 1)", "a not in (b, 1)",
    "a in divisors(4)", "b if a else 7", "(a if b else b) + 1", "min(a, b)", "max(a, b)", "min((a, b, 1))", "max(a, 1, b)",
    "a == 1 or b % (a - 1) == 0", "a != 0 and b // a > 0", "a == 'x'", "not (a and b) or a", "min(a, b) + max(b, a) * 2",
    "a in (1, 'x', True)", "1 if a < b else (2 if a == b else 3)", "a and b and a - b", "a or b or 3", "-a - -b",
]  # fmt: skip
VALUES: list[list[Any]] = [
    [0, 1, 2, 3, -1],
    [True, False],
    [0.5, 0.0, 2.0, None],
    [2**62, -(2**62), 1, 0],
    [2**31, 3, 2**53 + 1],
    ["x", 1, None],
    [1, None],
]


def same(value: Any, wanted: Any) -> bool:
    """Absent values are None or NaN; a column that has floats rounds large integers."""
    if wanted is None or wanted != wanted:
        return value is None or value != value
    if isinstance(value, str) or isinstance(wanted, str):
        return value == wanted
    return math.isclose(value, wanted, rel_tol=1e-12)


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_columns_say_what_each_row_says(text: str):
    """The whole column at once against one row after the other, undefined where Python would raise."""
    expression = Expression(text)
    for of_a, of_b in itertools.product(VALUES, repeat=2):
        rows = list(itertools.product(of_a, of_b))
        n = len(rows)
        columns = {"a": arrays.column([a for a, _ in rows]), "b": arrays.column([b for _, b in rows])}
        for env, some in ((columns, rows), ({"a": columns["a"], "b": of_b[0]}, [(a, of_b[0]) for a, _ in rows])):
            found, undefined = expression.on({name: env[name] for name in expression.names}, n)
            values = found.tolist() if isinstance(found, np.ndarray) else [found] * n
            for (a, b), value, bad in zip(some, values, undefined.tolist(), strict=True):
                try:
                    wanted = expression({"a": a, "b": b})
                except AutoscoutError:
                    assert bad, (text, a, b)
                else:
                    assert not bad, (text, a, b)
                    assert same(value, wanted), (text, a, b)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1" * 1001, "an expression of 1001 characters is longer than 1000"),
        ("a.b", "'a.b' uses Attribute, which expressions may not"),
        ("a ** 2", "'a ** 2' uses Pow, which expressions may not"),
        ("len(a)", "'len(a)' calls something other than min, max, divisors"),
        ("min()", "'min()' calls something other than min, max, divisors"),
        ("min(a, key=b)", "'min(a, key=b)' uses keyword, which expressions may not"),
        ("1e999", "'1e999' holds a constant that expressions may not: inf"),
        (f"{2**63}", f"'{2**63}' holds a constant that expressions may not: {2**63}"),
        ("None", "'None' holds a constant that expressions may not: None"),
        ("a in b + 1", "'a in b + 1' looks for a value in b + 1, which is no list; write (a, b)"),
        ("a in min(b, c)", "'a in min(b, c)' looks for a value in min(b, c), which is no list; write (a, b)"),
        ("a + 'x'", "'a + 'x'' calculates with 'x', which is no number"),
        ("-(a, b)", "'-(a, b)' calculates with (a, b), which is no number"),
        ("a == (1, 2)", "'a == (1, 2)' has a list where expressions may not have one"),
        ("min((1, 2), a)", "'min((1, 2), a)' has a list where expressions may not have one"),
    ],
)
def test_what_no_expression_may(text: str, said: str):
    found, code = refusal(Expression, text)
    assert found == said or "keyword" in said
    assert code == 2


def test_the_limits_of_expressions():
    Expression("1" * 18 + " " * 982)
    assert Expression(f"{2**63 - 1}")({}) == 2**63 - 1
    assert refusal(Expression, "-" * 59 + "a")[0] == f"'{('-' * 59 + 'a')[:60]}…' is nested more than 60 deep"
    assert Expression("-" * 55 + "a")({"a": 1}) == -1
    assert refusal(Expression, "(")[1] == 2
    derived = {"x": "y + 1", "y": "a * 2", "z": "z"}
    assert Expression("x - y", derived)({"a": 3}) == 1
    assert Expression("x", derived).names == ("a",)
    assert refusal(Expression, "z", derived) == ("derived name 'z' is defined through itself", 2)
    doubling = {f"n{i}": f"n{i + 1} + n{i + 1}" for i in range(20)}
    assert refusal(Expression, "n0", doubling) == ("'n0' is too large with its derived names written out", 2)
    assert refusal(Expression("a // b"), {"a": 1, "b": 0}) == (
        "the rule 'a // b' cannot be evaluated at a = 1, b = 0: integer division or modulo by zero", 2,
    )  # fmt: skip
    assert refusal(Expression("a in b"), {"a": "x", "b": "xy"})[0].endswith("'xy' is not a list")
    assert refusal(Expression("min(a, b) * 2"), {"a": "x", "b": "y"})[0].endswith("'x' is not a number")
    assert repr(Expression("a")) == "Expression('a')"


def test_divisors():
    assert [divisors(n) for n in (1, 12, 16, 12.0, 0, -4, True)] == [
        (1,), (1, 2, 3, 4, 6, 12), (1, 2, 4, 8, 16), (1, 2, 3, 4, 6, 12), (), (), (1,),
    ]  # fmt: skip
    assert len(divisors(10**12)) == 13 * 13
    for odd in ("x", 1.5, 10**12 + 1):
        with pytest.raises(TypeError, match=f"there are no divisors of {odd!r}"):
            divisors(odd)  # type: ignore[arg-type]


def test_types_of_columns():
    kinds = {
        "b": [True, False], "i": [1, True], "f": [0.5, 1, None, True], "O": ["a", 1], "i ": [2**62 - 1], "O ": [2**62],
        "f ": [2**53 - 1, 0.5], "O  ": [2**53, 0.5], "O   ": [True, "a"], "f  ": [None, 1],
    }  # fmt: skip
    assert {kind: arrays.column(values).dtype.kind for kind, values in kinds.items()} == {k: k.strip() for k in kinds}
    assert arrays.column([(1, 2), (3, 4)]).tolist() == [(1, 2), (3, 4)]
    assert arrays.truth(np.array([0.0, 2.0, np.nan])).tolist() == [False, True, False]
    assert arrays.truth(np.array([0, 2])).tolist() == [False, True]
    assert arrays.truth(np.array(["", "a", None], dtype=object)).tolist() == [False, True, False]
    assert arrays.truth(3) is True
    nan = np.array([1.0, np.nan])
    assert arrays.equal(nan, nan).tolist() == [True, True]
    assert arrays.equal(nan, None).tolist() == arrays.equal(None, nan).tolist() == [False, True]
    assert arrays.equal(nan, "x").tolist() == arrays.equal(np.array([1, 2]), None).tolist() == [False, False]
    assert arrays.equal(1, True) is True
    for operation, a, b, wide in (
        (operator.add, np.array([2**61]), 2**61, True), (operator.add, np.array([2**61 - 1]), 2**61, False),
        (operator.mul, np.array([-(2**31)]), 2**31, True), (operator.mul, np.array([2**31 - 1]), 2**31, False),
        (operator.add, np.array([0.5]), 2**53 + 1, True), (operator.add, np.array([0.5]), 2**53, False),
        (operator.mul, 0.5, np.array([1]), False), (operator.add, np.array([], dtype=int), 1, False),
    ):  # fmt: skip
        assert arrays.too_wide(operation, a, b) is wide


def test_tables_of_rows():
    columns = from_table.columns_of([{"a": 1, "b": "x"}, {"a": None, "c": True}, {"a": float("nan"), "c": 1}])
    assert columns == {"a": [1, None, None], "b": ["x", None, None], "c": [None, True, 1]}
    assert from_table.columns_of({"a": np.array([1, 2]), "f": np.array([np.nan, 2.0]), "t": np.array(["x"])}) == {
        "a": [1, 2], "f": [None, 2.0], "t": ["x"],
    }  # fmt: skip
    columns = {"n": [3, 1, 2], "two": [1, 2, None], "name": ["b", "a", "c"], "mix": [True, 1, None]}
    knobs = from_table.knobs_of(columns, None, None)
    assert [(k.name, k.kind, k.values) for k in knobs] == [
        ("two", "sparse", (1, 2)), ("name", "sparse", ("a", "b", "c")), ("mix", "sparse", (1, True)),
        ("n", "dense", (1, 2, 3)),
    ]  # fmt: skip
    assert from_table.codes_of(columns, knobs).tolist() == [[0, 1, 1, 2], [1, 0, 0, 0], [-1, 2, -1, 1]]
    chosen = from_table.knobs_of(columns, ["n", "n"], ["two"])
    assert [(k.name, k.kind) for k in chosen] == [("n", "sparse"), ("two", "dense")]
    assert [k.name for k in from_table.knobs_of(columns, None, ["n"])] == ["n"]
    said, code = refusal(from_table.knobs_of, columns, ["twp"], None)
    assert (said.startswith("the table has no column 'twp'"), code) == (True, 2)
    empty = "the column 'e' has no value in any row; leave it out of the knobs"
    assert refusal(from_table.knobs_of, {"e": [None]}, ["e"], None) == (empty, 2)
    many: dict[str, Any] = {"m": list(range(2**15))}
    said = "the column 'm' has 32,768 different values; leave it out of the knobs"
    assert refusal(from_table.knobs_of, many, None, ["m"]) == (said, 2)
    assert len(from_table.knobs_of({"m": many["m"][:-1]}, None, ["m"])[0].values) == 2**15 - 1


def test_limits_of_a_job():
    def said(*knobs: Knob, rules: tuple[Rule, ...] = (), **limits: Any) -> tuple[str, int]:
        return refusal(Space, list(knobs), list(rules), {}, SpaceLimits(**limits))

    a = knob("a", 1, 2, 4)
    assert said(knob("a")) == ("the knob a has no value in this job: its domain is empty", 2)
    assert said(knob("a", *range(2**15))) == ("the knob a has 32,768 values; at most 32,767 fit", 2)
    assert said(a, fix={"a": 4}, limit={"a": [1, 2]})[0].startswith("[space] fixes a = 4, but limits it to ")
    assert said(a, fix={"a": 3})[0].startswith("[space] wants a = 3, but in this job a is one of ")
    assert said(a, limit={"a": []})[0].startswith("[space] leaves a no value; it may be ")
    assert said(a, limit={"b": [1]})[0].startswith("[space] speaks of 'b'")
    assert said(a, knob("d", 1, kind="dense"), knob("e", 1, when=Expression("d > 0"))) == (
        "e depends on 'd', but only sparse knobs can activate others", 2,
    )  # fmt: skip
    assert said(a, rules=(rule("b > 1"),))[0].startswith("r: 'b > 1' speaks of 'b'")
    circle = (knob("a", 1, when=Expression("b > 0")), knob("b", 1, when=Expression("a > 0")))
    assert said(*circle)[0].startswith("the conditions of these knobs go in a circle: ")
    nothing = (rule("a > b", "{a} is not above {b}", "R1"), rule("a < 9", "", "R2"))
    assert said(knob("a", 1), knob("b", 1, 2), rules=nothing) == (
        "nothing is feasible for this job within its limits (1 is not above (any) (R1)); relax [space] or change the "
        "cluster",
        3,
    )
    space = Space([a], [], {}, SpaceLimits(limit={"a": [4, 1]}))
    assert space.knob["a"].values == (1, 4)


def test_orders_of_knobs():
    graph = nx.DiGraph()
    graph.add_nodes_from("abcd")
    graph.add_edge("c", "a", kind="activates")
    graph.add_edge("d", "b", kind="narrows")
    assert topological(graph, list("abcd"), None) == ["b", "c", "a", "d"]
    assert topological(graph, list("abcd"), None, "d") == ["d", "b", "c", "a"]
    assert topological(graph, list("abcd"), None, "da") == ["d", "c", "a", "b"]
    assert topological(graph, list("abcd"), None, "ab") == ["c", "a", "b", "d"]
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
    assert explained(tp=2) == ("tp2_sp_mbs1_ar-none_dp2", [], [], "") or explained(tp=2)[1] == []
    assert explained(tp=1, mbs=4) == (
        None, [("M1", "mbs 4 on 4 replicas is more than 4 + 4")], [], explained(tp=1, mbs=4)[3],
    )  # fmt: skip
    domain = ("domain", "mbs 3 is not among 1, 2, 4, 8")
    assert explained(mbs=3)[1][0][0] == domain[0]
    assert explained(mbs=3)[1][0][1].startswith("mbs 3 is not among ")
    assert explained(never=1)[2] == ["never cannot act here: it needs tp > 4"]
    assert explained(tp=2, dp=4)[1] == [("implied", "dp 4 must be 4 // tp, which is 2")]
    assert explained(tp=1, sp=True)[1] == [("inactive", "sp cannot act here: it needs tp > 1")]
    assert explained(tp=1, sp=False)[0] is not None
    said, code = refusal(explain.completed, SPACE, {"tp": 2, "dp": 4}, DEFAULT)
    assert said.startswith("this is not a valid configuration: dp 4 must be 4 // tp, which is 2; nearest: ")
    assert code == 2
    assert explain.parse(SPACE, ["tp=2", "sp=On", "ar=full", "mbs=x"]) == {"tp": 2, "sp": True, "ar": "full", "mbs": "x"}
    for text, start in (("tp", "'tp' is not KNOB=VALUE, for example tp=2"), ("tq=1", "'tq'")):
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
    assert 'd="M316 192 C256 192 256 126 196 126"></path>'.replace("></path>", "") in picture._edge(
        right, left, "narrows", ""
    )
    assert 'd="M316 188 C256 188 256 130 196 130" marker' in picture._edge(right, left, "implies", "")
    below = Box(28, 170, 168, 0)
    assert 'd="M196 130 C227.28 130 227.28 188 196 188"' in picture._edge(left, below, "implies", "")
    far = Box(1000, 104, 168, 3)
    assert 'd="M196 126 C316 126 880 126 1000 126">' in picture._edge(left, far, "narrows", "")
    texts = [
        ((1, 2, 4), "1 2 4"), ((False, True), "off on"), (tuple(range(10)), "0 1 2 3 4 5 6 7 8 9"),
        (tuple(range(100, 120)), "100 101 102 103 104 … 119"), (("a" * 30, "b"), "a" * 10 + "… b"),
        (("x" * 12, "y" * 11, "z"), "xxxxxxxxxx… yyyyyyyyyyy z"), (("p" * 11, "q" * 11, "r" * 11), "ppppppppppp … rrrrrrrrrrr"),
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
        "params": 2 * 984 + 160, "expert_params": 1536, "dtype_bytes": 2, "memory_gib": 24.0, "cuda": True,
        "head_dim": 4, "ffn": 32, "kv_heads": 1, "seq_len": 64, "global_batch": 12, "capability": 8.0,
        "grad_mib": 2128 * 4 / 2**20, "degrees": (1, 2, 3, 4, 6),
    }  # fmt: skip
    assert {name: found[name] for name in wanted} == wanted
    assert "gpus" not in found
    derived, knobs = attributes.device_knobs(JOB)
    assert derived == {"gpus": "a100 + l4"}
    assert [(k.name, k.values, k.off, k.meaning) for k in knobs] == [
        ("a100", [0, 4], 0, "how many of the cluster's 4 a100 are used"),
        ("l4", [0, 2], 0, "how many of the cluster's 2 l4 are used"),
    ]
    gated = msgspec.structs.replace(JOB.model, gated=True, dtype="fp32")
    assert attributes.expert_parameters(gated) == 2304
    one = Cluster(nodes=[Node(device="a100-40g", count=2), Node(device="a100-40g", count=4)])
    same = msgspec.structs.replace(JOB, cluster=one, model=gated)
    found = attributes.attributes_of(same)
    assert (found["gpus"], found["dtype_bytes"], found["memory_gib"]) == (6, 4, 40.0)
    assert attributes._choices(same) == {"a100_40g": [0, 2, 6]}
    assert attributes.device_knobs(same) == ({}, [])
    wired = msgspec.structs.replace(JOB, cluster=msgspec.structs.replace(one, network={"x": 0}))
    del wired
    assert attributes.whole_devices().holds == "gpus > 0"


def test_what_a_job_tells_expressions_in_serving():
    serving = msgspec.structs.replace(
        JOB, task="serve", target="vllm", traffic=Traffic(rate=2.0, concurrency=5, input_len=[100, 60], output_len=30),
        launch=Launch(kv_folder="/x"),
    )  # fmt: skip
    found = attributes.attributes_of(serving)
    # 130 tokens are two blocks of 128; a token's keys and values: 2 × 2 layers × 1 head × 4 × 2 bytes.
    wanted = {
        "longest": 130, "longest_input": 100, "model_len": 256, "input_mean": 80.0, "output_mean": 30.0, "rate": 2.0,
        "concurrency": 5, "kv_mib": 256 * 32 / 2**20, "weights_gib": 2128 * 2 / 2**30, "kv_folder": True, "shares": False,
        "draft": "", "node_gpus": 4, "engine_counts": (1, 2, 3, 4, 6), "shared_prefix": 0,
        "kv_steps": tuple(2**i for i in range(14)),
    }  # fmt: skip
    assert {name: found[name] for name in wanted} == wanted
    derived, _ = attributes.device_knobs(serving)
    assert derived["device_gib"] == "min((80.0 if a100 > 0 else 1000000), (24.0 if l4 > 0 else 1000000))"
    assert attributes.shares_beginnings(
        msgspec.structs.replace(serving, traffic=msgspec.structs.replace(serving.traffic, shared_prefix=1))
    )


def entry(name: str = "k", values: Any = (1, 2), **more: Any) -> KnobEntry:
    values = values if isinstance(values, str) else list(values)
    return KnobEntry(**{"name": name, "kind": "sparse", "layer": "l", "values": values, "meaning": "", "sets": "", **more})


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (entry("min"), "expressions speak of it: letters, digits and _ only, and no word of their language"),
        (entry("a-b"), "expressions speak of it: letters, digits and _ only, and no word of their language"),
        (entry(values=[]), "values is empty"),
        (entry(values=[True, 1]), "values mixes switches, numbers and names"),
        (entry(values=[1, 1.0]), "values holds one twice"),
        (entry(default="x"), "default = 'x' is of another kind than its values"),
        (entry(off=True), "off = True is of another kind than its values"),
        (entry(default=3), "default = 3 is not among its values"),
        (entry(when="a > 1"), "a sparse knob with a condition needs off, what the target does without it"),
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
    assert refusal(checked, Path("f"), bad)[0].startswith("f: rule 'r': holds: 'k >' is not an expression: ")
    asking = Catalog(knob=[entry("q", [1, 2, 3], asks=[3], asks_for="why", default=1), entry("d", "divisors(n)")])
    knobs, _ = instantiate(asking, {"n": 6})
    assert [(k.values, k.asks) for k in knobs] == [((1, 2), (3,)), ((1, 2, 3, 6), ())]
    knobs, _ = instantiate(asking, {"n": 6}, SpaceLimits(allow=["q"]))
    assert (knobs[0].values, knobs[0].asks) == ((1, 2, 3), ())


def test_knobs_that_have_to_be_allowed():
    only = Catalog(knob=[entry("q", [False, True], asks=[True], off=False, default=True), entry("r", asks=[])])
    shut = opened.opened(only, {}, SpaceLimits())
    assert [k.name for k in shut.knob] == ["r"]
    said = "q is off unless [space] says allow = ['q']: it changes numbers or needs a package"
    assert (shut.closed, shut.derived) == ({"q": said}, {"q": "False"})
    assert opened.opened(only, {}, SpaceLimits(allow=["q"])) is only
    assert refusal(opened.opened, shut, {}, SpaceLimits(fix={"q": True})) == (f"[space] speaks of 'q': {said}", 2)
    assert opened.instead(entry(default=2)) == 2
    assert not opened.asking(entry("q", [1, 2, 3], asks=[3], default=1), only, {})
