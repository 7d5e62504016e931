"""Spaces that nobody designed: random knobs, conditions, implications and rules, for property-based tests."""

import itertools
from collections.abc import Callable, Mapping

from hypothesis import assume
from hypothesis import strategies as st

from autoscout.space.graph import Space
from autoscout.space.knob import Knob, Rule
from autoscout.space.language.expression import Expression
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


def verdict(knobs: list[Knob], rules: list[Rule], attributes: Mapping[str, Value]) -> set[str] | int:
    """What a space of these must be, every assignment evaluated by itself and nothing shared with the space: the ids of
    the valid configurations; 2 if an expression has no value on an assignment that all others allow; 3 if none."""
    order = [*(k for k in knobs if k.kind == "sparse"), *(k for k in knobs if k.kind == "dense")]
    choices = [[*k.values, None] for k in knobs]
    valid, undefined = set(), False
    for values in itertools.product(*choices):
        assigned = {k.name: v for k, v in zip(knobs, values, strict=True) if v is not None}
        env = {**attributes, **{k.name: assigned.get(k.name, k.off) for k in knobs}}
        holds = [h for k in order for h in _conditions(k, assigned.get(k.name), env)]
        holds += [_value(r.holds, env) for r in rules]
        if all(h is None or h for h in holds):
            undefined |= None in holds
            valid.add(Configuration(assigned).id)
    return 2 if undefined else valid or 3


def _conditions(knob: Knob, value: Value | None, env: dict[str, Value | None]) -> list[bool | None]:
    active = True if knob.when is None else _value(knob.when, env)
    if active is None:
        return [None]
    if active != (value is not None):
        return [False]
    if knob.implied is None or value is None:
        return [True]
    try:
        return [knob.implied(env) == value]
    except AutoscoutError:
        return [None]


def _value(expression: Expression, env: dict[str, Value | None]) -> bool | None:
    """None where it has no value."""
    try:
        return bool(expression(env))
    except AutoscoutError:
        return None


def _is_numeric(knob: Knob) -> bool:
    return all(isinstance(v, int) and not isinstance(v, bool) for v in knob.values)
