"""Spaces that nobody designed: random knobs, conditions, implications and rules, for property-based tests."""

import itertools
from collections.abc import Callable

from hypothesis import assume
from hypothesis import strategies as st

from autoscout.space.graph import Space
from autoscout.space.knob import Knob, Rule
from autoscout.space.rules import Expression
from kb.records import AutoscoutError, Configuration, Value

_DOMAINS: list[tuple[Value, ...]] = [
    (1, 2),
    (1, 2, 4),
    (1, 2, 3, 4),
    (0, 3, 5),
    (False, True),
    ("a", "b", "c"),
    (0.5, 2.0),
    (True, 1, "a"),
]
_RULES = [
    "{a} + {b} <= {n}",
    "{a} * {b} * {c} <= {n}",
    "{a} % {b} == 0",
    "{a} == {b} or {c} != {d}",
    "{a} in ({b}, {c}, 'b')",
    "not {a} or {b} or {c}",
    "({a} if {b} else {c}) != {d}",
    "1 < {a} + {b} + {c} + {d} <= {n} + 4",
    "min({a}, {b}) <= {c} // {d}",
    "{a} - {b} in divisors({n})",
    "{a} * total > {b}",
]


@st.composite
def raw_spaces(draw: Callable) -> tuple[list[Knob], list[Rule]]:
    names = [f"k{i}" for i in range(draw(st.integers(2, 6)))]
    knobs: list[Knob] = []
    for i, name in enumerate(names):
        values = draw(st.sampled_from(_DOMAINS))
        sparse = [k for k in knobs if k.kind == "sparse"]
        parent = draw(st.sampled_from(sparse)) if sparse and draw(st.booleans()) else None
        when = Expression(f"{parent.name} != {parent.values[-1]!r}") if parent and draw(st.booleans()) else None
        source = next((k for k in knobs if k.kind == "sparse" and _is_numeric(k) and k.when is None), None)
        implied = Expression(f"{source.name} + 1") if source and i and draw(st.integers(0, 5)) == 0 else None
        knobs.append(
            Knob(
                name=name,
                kind=draw(st.sampled_from(["sparse", "sparse", "dense"])),
                layer=draw(st.sampled_from(["x", "y"])),
                values=values,
                off=draw(st.sampled_from([None, values[0]])),
                meaning="",
                sets="",
                when=when,
                implied=implied,
            )
        )
    rules = []
    for i in range(draw(st.integers(0, 4))):
        template = draw(st.sampled_from(_RULES))
        terms = {letter: draw(st.sampled_from(names)) for letter in "abcd"}
        text = template.format(n=draw(st.integers(2, 12)), **terms)
        rules.append(Rule(id=f"r{i}", holds=Expression(text), reason="", source="", checked="ours"))
    return knobs, rules


@st.composite
def random_spaces(draw: Callable) -> Space:
    """Those of them that have configurations, and whose rules have a value on all of them."""
    knobs, rules = draw(raw_spaces())
    try:
        return Space(knobs, rules, {"total": 2})
    except AutoscoutError:
        assume(False)
        raise


def by_brute_force(space: Space) -> list[Configuration]:
    """Every assignment that violates nothing, evaluated one by one."""
    choices = [[*((k.name, v) for v in k.values), (k.name, None)] for k in space.knobs]
    assignments = (
        Configuration({n: v for n, v in combination if v is not None}) for combination in itertools.product(*choices)
    )
    return [c for c in assignments if not space.violations(c)]


def _is_numeric(knob: Knob) -> bool:
    return all(isinstance(v, int) and not isinstance(v, bool) for v in knob.values)
