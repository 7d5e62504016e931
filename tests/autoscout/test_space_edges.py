"""Spaces at their limits: the first and the last value that counts, the state that is one too many, pictures, and the
order of assignment held against its definition."""

import contextlib
import itertools
import math
from pathlib import Path
from typing import Any

import msgspec
import networkx as nx
import numpy as np
import pytest
from asking import refusal

from autoscout.space import attributes, explain, picture
from autoscout.space.compiled import build, diagram, entangled
from autoscout.space.compiled.constraints import Columns, Constraint, constraints
from autoscout.space.compiled.merge import from_rows
from autoscout.space.graph import Space
from autoscout.space.knob import Catalog, Knob, KnobEntry, Rule, RuleEntry, instantiate, read_catalog
from autoscout.space.language import expression
from autoscout.space.language.expression import Expression
from kb.records import Configuration


def knob(name: str, *values: Any, kind: str = "sparse", layer: str = "l", **more: Any) -> Knob:
    more |= {key: Expression(more[key]) for key in ("when", "implied") if key in more}
    return Knob(name=name, kind=kind, layer=layer, values=values, meaning="m", sets="s", **more)  # type: ignore[arg-type]


def rule(holds: str) -> Rule:
    return Rule(id=holds, holds=Expression(holds), reason="", source="", checked="ours")


def test_derived_names_may_be_written_out_to_a_depth_and_a_size(monkeypatch: pytest.MonkeyPatch):
    def chain(links: int) -> dict[str, str]:
        return {f"x{i}": f"x{i + 1}" for i in range(links)} | {f"x{links}": "a"}

    assert Expression("x0", chain(60)).names == ("a",)
    large = ("'x0' is too long after its derived names are expanded", 2)
    assert refusal(Expression, "x0", chain(61)) == large
    monkeypatch.setattr(expression, "_LARGEST", 6)  # two definitions of three nodes: expression, name, load
    assert Expression("x0", chain(1)).names == ("a",)
    assert refusal(Expression, "x0", chain(2)) == large


def test_a_sample_of_a_space_includes_what_it_is_told_to():
    space = Space(WIDE, [], {})
    rng = np.random.default_rng(0)
    asked = [Configuration({"a": 0, "b": i}) for i in (3, 5)]
    for including in ([], asked[:1], asked, [*asked, Configuration({"a": 99, "b": 0})]):
        some = space.sampled(4, rng, including)
        assert all(some.is_valid(c) for c in including if c.knobs["a"] != 99)
        assert len(including) <= some._diagram.count <= 4 + len(including)
        assert (some.count, some.count_is_exact, some.measured) == (256, False, False)


def test_what_cannot_be_asked_of_a_space(tmp_path: Path):
    large = Space([knob(name, *range(10)) for name in "abcdefgh"], [], {})
    said = "100,000,000 valid configurations are too many to list; sample them instead"
    assert refusal(lambda: large.feasible) == (said, 1)
    small = Space(A_AND_B, [rule("a < b")], {})
    assert refusal(small.neighbours, Configuration({"a": 2, "b": 2})) == ("a2_b2 is not a valid configuration", 2)
    assert refusal(small.neighbours, Configuration({"a": 2})) == ("a2 is not a valid configuration", 2)
    assert refusal(Space.from_table, {"a": [], "b": []}, [], []) == ("the table has no rows", 3)
    bad = tmp_path / "bad.parquet"
    bad.write_text("no")
    said, code = refusal(Space.from_table, bad)
    assert (said.startswith(f"{bad}: not a CSV or Parquet table: "), said.count("\n"), code) == (True, 0, 2)
    said, code = refusal(Space, A_AND_B, [rule("b // (a - 1) < 9")], {})
    assert (said.startswith("b // (a - 1) < 9: b // (a - 1) < 9: cannot be evaluated at a = 1, b = 1 ("), code) == (
        True,
        2,
    )


def test_partial_assignments_with_what_is_no_value():
    space = Space([knob("a", 1, 2), knob("b", 1, 2, when="a > 1", off=1), knob("x", 1, 2, 4, kind="dense")], [], {})
    assert space.active({"b": 1}) == {"a": True, "b": True, "x": True}
    assert space.active({"b": 7}) == {"a": False, "b": False, "x": False}
    assert space.domain("a", {"b": 7}) == ()
    assert space.domain("a", {"b": None}) == (1,)
    assert space.project({"a": 1}, {}) == {"x": 1}
    assert space.project({"a": 1}, {"x": 3}) == {"x": 4}  # by their ratio
    assert space.project({"a": 1}, {"x": 9}) == {"x": 4}


# ---- how a diagram is built ---------------------------------------------------------------------------------------


def in_order_of_frugality(knobs: list[Knob], coupled: list[Constraint]) -> list[str]:
    """As `build._frugal` says: among the sparse knobs, then among the dense ones, always the knob after which the codes
    of the assigned knobs in constraints that are still open take the fewest bits; of several the one with the fewest
    values, then the first. A knob whose value the assigned ones imply takes none."""
    bits = {k.name: math.log2(len(k.values) + (1 if k.when else 0)) for k in knobs}
    implied = {c.knob.name: set(c.names) for c in coupled if c.knob and c.knob.implied}
    order: list[str] = []
    known: set[str] = set()

    def cost(name: str) -> tuple[float, float]:
        now = {*order, name}
        open_ = [set(c.names) for c in coupled if not set(c.names) <= now]
        follows = {name} if implied.get(name, {""}) <= now else set()
        return sum(bits[n] for n in set().union(*open_) & now - known - follows), bits[name]

    for kind in ("sparse", "dense"):
        left = [k.name for k in knobs if k.kind == kind]
        while left:
            best = min(left, key=cost)
            left.remove(best)
            order.append(best)
            known |= {best} if implied.get(best, {""}) <= set(order) else set()
    return order


@pytest.mark.parametrize("seed", range(40))
def test_the_frugal_order_is_the_one_that_remembers_least(seed: int):
    rng = np.random.default_rng(seed)
    knobs = []
    for i in range(6):
        more: dict[str, Any] = {}
        kind = "dense" if rng.random() < 0.3 else "sparse"
        before = [k.name for k in knobs if k.kind == "sparse"]
        n = int(rng.choice([2, 4, 8, 16]))  # so that logarithms are exact
        if before and rng.random() < 0.3:
            more, n = {"when": f"{rng.choice(before)} > 1", "off": 0}, n - 1
        if before and rng.random() < 0.3:
            more["implied"] = " + ".join(sorted({str(rng.choice(before)) for _ in range(2)}))
        knobs.append(knob("abcdef"[i], *range(1, n + 1), kind=kind, **more))
    rules = [rule(" + ".join(rng.choice(list("abcdef"), int(rng.integers(2, 4)), replace=False)) + " < 99")
             for _ in range(4)]  # fmt: skip
    coupled = constraints(knobs, rules)
    assert [knobs[i].name for i in build._frugal(knobs, coupled)] == in_order_of_frugality(knobs, coupled)


A_AND_B = [knob("a", 1, 2, 3), knob("b", 1, 2, 3, 4)]


def built(most_states: int = 1_000_000) -> diagram.Diagram | None:
    """A rule that forbids nothing: after a its three values are three states, with five codes of b each."""
    return build.in_order([0, 1], A_AND_B, constraints(A_AND_B, [rule("a + b < 9")]), Columns(A_AND_B, {}), most_states)


def test_one_state_too_many(monkeypatch: pytest.MonkeyPatch):
    found = built(3)
    assert found is not None
    assert found.count == 12
    with pytest.raises(build.TooWide):
        built(2)
    for limit, fits in (("_MOST_CELLS", 15), ("_MOST_EDGES", 12)):
        with monkeypatch.context() as patch:
            patch.setattr(build, limit, fits)
            assert built() is not None
            patch.setattr(build, limit, fits - 1)
            with pytest.raises(build.TooWide):
                built()
    # Every way of building is tried with one limit, then with the next.
    coupled, columns = constraints(A_AND_B, [rule("a + b < 9")]), Columns(A_AND_B, {})
    for limits, there in (((2, 3), True), ((1, 2), False)):
        monkeypatch.setattr(build, "_MOST_STATES", limits)
        with contextlib.nullcontext() if there else pytest.raises(build.TooWide):
            assert build.from_constraints(A_AND_B, coupled, columns) is not None


WIDE = [knob("a", *range(16)), knob("b", *range(16), kind="dense")]
ALL = from_rows(np.array(list(itertools.product(range(16), repeat=2)), dtype=np.int16), WIDE)


def sampled(holds: str, monkeypatch: pytest.MonkeyPatch, **limits: int) -> entangled.Sampled:
    for name, limit in limits.items():
        monkeypatch.setattr(entangled, f"_{name}", limit)
    left_out = [c for c in constraints(WIDE, [rule(holds)]) if c.rule]
    assert ALL is not None
    return entangled.sampled_from(ALL, left_out, WIDE, Columns(WIDE, {}))


def test_a_sample_ends_when_it_is_large_enough(monkeypatch: pytest.MonkeyPatch):
    found = sampled("a <= b", monkeypatch, MOST_LISTED=256)
    assert (len(found.codes), found.total, found.exact) == (136, 136, True)
    # All that is drawn is valid: one batch is enough for ten, two are for eleven.
    found = sampled("a >= 0", monkeypatch, MOST_LISTED=255, BATCH=10, SAMPLE=10, DRAWS=1000)
    assert (found.total, found.exact) == (256, False)
    assert len(found.codes) <= 10
    one_more = sampled("a >= 0", monkeypatch, SAMPLE=11)
    assert 10 < len(one_more.codes) <= 20
    assert np.unique(one_more.codes, axis=0).tolist() == one_more.codes.tolist()  # sorted, each once
    every = sampled("a >= 0", monkeypatch, BATCH=6000)
    assert every.codes.tolist() == [list(row) for row in itertools.product(range(16), repeat=2)]
    # A third of the draws are valid or so: their share is the share of all.
    assert ALL is not None
    drawn = ALL.sample(1000, np.random.default_rng(0))
    passed = int((drawn[:, 0] * 3 <= drawn[:, 1] + 3).sum())
    found = sampled("a * 3 <= b + 3", monkeypatch, BATCH=1000, SAMPLE=1, DRAWS=5000)
    assert found.total == round(256 * passed / 1000)
    assert (found.codes[:, 0] * 3 <= found.codes[:, 1] + 3).all()


def test_draws_of_which_none_is_valid_end(monkeypatch: pytest.MonkeyPatch):
    for draws, tried in ((20, 20), (21, 30)):
        said, code = refusal(sampled, "a > 99", monkeypatch, MOST_LISTED=255, BATCH=10, DRAWS=draws)
        assert said.startswith(f"none of {tried} random configurations obeys these rules: a > 99: a")
        assert code == 3


def test_the_edges_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(diagram, "_MOST_STEPS", 3)
    found = built()
    assert found is not None
    kept = [sum(map(len, found._steps)) for _ in (*found.every(), *found.every()) if found.walk([0, 1]) is not None]
    assert max(kept) <= 3
    assert found.walk([2, 3]) is not None
    kept = []
    for codes in itertools.product(range(3), range(4)):
        assert found.walk(codes) is not None
        kept.append(sum(map(len, found._steps)))
    assert max(kept) == 3


# ---- pictures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("layers", "arranged"), [(8, True), (9, False)])
def test_up_to_eight_layers_are_arranged(layers: int, arranged: bool):
    """The last layer is activated by the first: it belongs next to it, if that is tried."""
    names = "abcdefghi"[:layers]
    knobs = [knob(name, 1, 2, layer=name) for name in names[:-1]]
    space = Space([*knobs, knob(names[-1], 1, 2, layer=names[-1], when="a > 1", off=1)], [], {})
    found = picture._layers(space.knobs, space.graph)
    assert found == [names[0], names[-1], *names[1:-1]] if arranged else list(names)


def test_pictures_of_long_names_and_level_arrows():
    space = Space([knob("n" * 20, 1, 2)], [], {})
    assert '" width="196" height="44" rx="2"/>' in picture.svg(space, "t")  # 8.3 a letter, and 30
    left, right = picture.Box(28, 104, 168, 0), picture.Box(316, 104, 168, 1)
    assert 'd="M196 122 C256 122 256 130 316 130"' in picture._edge(left, right, "activates", "")
    graph = nx.DiGraph()
    graph.add_edge("a", "b", kind="activates")
    graph.add_edge("b", "c", kind="implies")
    graph.add_edge("c", "a", kind="narrows")
    assert [picture._connected(graph, name) for name in "abc"] == [["b"], ["a", "c"], ["b"]]
    # What fits into 25 characters: as many values from the left as there is room for, and the last one.
    assert picture._values(knob("k", 10**5, 10**6, 10**7, 10**8)) == "100000 … 100000000"
    assert picture._values(knob("k", 10**5, 10**6, 10**7, 10**7 + 1)) == "100000 1000000 … 10000001"


def test_a_space_of_nothing_but_what_acts_has_no_line_below():
    space = Space([knob("a", 1, 2)], [], {})
    assert "without effect in this job" not in picture.svg(space, "t")
    assert space.name(Configuration({"a": 2})) == "a2"


# ---- plain data -----------------------------------------------------------------------------------------------------


def test_what_an_entry_says_that_says_nothing_else():
    plain = KnobEntry(name="k", kind="sparse", layer="l", values=[1], meaning="", sets="")
    assert (plain.priced, plain.replace, plain.each, plain.default, plain.off) == (True, False, 0, None, None)
    bare = RuleEntry(id="r", holds="k > 0", reason="", source="", checked="ours")
    assert (bare.replace, bare.each) == (False, 0)
    assert knob("k", 1).priced
    assert knob("k", 1).why_inactive == "k has no effect here: it needs nothing"
    found, rules = instantiate(Catalog(knob=[msgspec.structs.replace(plain, priced=False)], rule=[bare]), {})
    assert [(k.priced, k.values) for k in found] == [(False, (1,))]
    assert [r.id for r in rules] == ["r"]


def test_what_a_space_is_made_of_does_not_change(tmp_path: Path):
    file = tmp_path / "catalog.toml"
    file.write_text(
        '[[knob]]\nname = "k"\nkind = "sparse"\nlayer = "l"\nvalues = [1, 2]\nmeaning = ""\nsets = ""\neach = 1'
    )
    catalog, of_rule = read_catalog(file), attributes.whole_devices()
    own = msgspec.structs.replace(catalog, rule=[msgspec.structs.replace(of_rule, holds="k_1 > 0")])
    [of_knob], [holds] = instantiate(own, {})
    space = Space(A_AND_B, [rule("a < b")], {})
    explained = explain.explain(space, {}, Configuration({"a": 1, "b": 2}))
    [violation] = space.violations(Configuration({"a": 2, "b": 1}))
    coupled = constraints(A_AND_B, [])[0]
    by_place = [violation, coupled.knobs_read({"a"})[0], build.Slot(1, 2)]
    every: list[Any] = [*by_place, catalog, catalog.knob[0], of_rule, of_knob, holds, explained, coupled]
    for made in every:
        field, *_ = made.__struct_fields__
        with pytest.raises(AttributeError, match="immutable"):
            setattr(made, field, getattr(made, field))
        values = [getattr(made, name) for name in made.__struct_fields__]
        with contextlib.nullcontext() if made in by_place else pytest.raises(TypeError):
            assert type(made)(*values) == made
