"""The expression language: what it computes, and what it refuses."""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from autoscout.space.language.arrays import column
from autoscout.space.language.expression import Expression
from autoscout.space.language.functions import divisors
from kb.records import AutoscoutError


@pytest.mark.parametrize(
    ("text", "env", "expected"),
    [
        ("layers % (pp * vpp) == 0", {"layers": 8, "pp": 2, "vpp": 2}, True),
        ("not sp or (seq // cp) % tp == 0", {"sp": True, "seq": 128, "cp": 2, "tp": 3}, False),
        ("ar in ('full', 'selective') and dp * cp > 1", {"ar": "full", "dp": 1, "cp": 2}, True),
        ("max(1, min(a, b))", {"a": 3, "b": -2}, 1),
        ("1 if cuda else 2", {"cuda": False}, 2),
    ],
)
def test_evaluates_as_python_would(text, env, expected):
    assert Expression(text)(env) == expected


def test_reads_only_the_names_it_mentions():
    assert Expression("a + b * a").names == ("a", "b")


def test_derived_names_are_expanded_also_through_each_other():
    expression = Expression("half > 3", {"half": "whole // 2", "whole": "x * y"})
    assert expression.names == ("x", "y")
    assert expression({"x": 4, "y": 2}) is True


def test_a_name_derived_from_itself_is_refused():
    with pytest.raises(AutoscoutError, match="the definition of the derived name"):
        Expression("a", {"a": "b + 1", "b": "a + 1"})


@pytest.mark.parametrize(
    "hostile",
    [
        "().__class__",
        "__import__('os').system('true')",
        "open('/etc/passwd')",
        "a[0]",
        "9 ** 9 ** 9",
        "lambda: 1",
        "[x for x in y]",
        "f'{a}'",
        "a := 3",
        "min(key=a)",
        "b'bytes'",
        "1 << 100000",
        "x" * 2000,
        "-" * 900 + "1",
        "(" * 300 + "1" + ")" * 300,
        "not " * 200 + "a",
        "10 ** 10 ** 10",
        "'a' * 1000000000",
        "'%1000000000d' % a",
        "(1, 2) * 1000000000",
        "99999999999999999999999999 * a",
        "1e999 > a",
        "a in 'abc'",
        "(a, b) == (1, 2)",
        "divisors()",
        "a +",
        "",
    ],
)
def test_everything_else_is_refused_in_one_sentence(hostile):
    with pytest.raises(AutoscoutError) as refused:
        Expression(hostile)
    assert refused.value.exit_code == 2
    assert "Traceback" not in str(refused.value)


def test_a_division_by_zero_names_the_rule_and_the_values():
    with pytest.raises(AutoscoutError, match=r"'a % b' cannot be evaluated at a = 3, b = 0"):
        Expression("a % b")({"a": 3, "b": 0})


@given(st.integers(1, 2000))
def test_divisors(n):
    assert divisors(n) == tuple(d for d in range(1, n + 1) if n % d == 0)


def test_derived_names_that_grow_without_bound_are_refused():
    doubling = {f"d{i}": f"d{i + 1} * d{i + 1}" for i in range(40)}
    with pytest.raises(AutoscoutError, match="too long after its derived names are expanded"):
        Expression("d0", doubling)


@pytest.mark.parametrize("text", ["name * 1000000000", "name % 3", "(name if a else 2) * 10", "max(name, name) * 9"])
def test_a_text_is_not_calculated_with_even_where_only_its_value_shows_that_it_is_one(text):
    with pytest.raises(AutoscoutError, match="is not a number"):
        Expression(text)({"name": "auto", "a": True})


def test_divisors_of_something_enormous_do_not_take_for_ever():
    with pytest.raises(AutoscoutError, match="no divisors"):
        Expression("divisors(n)")({"n": 10**30})


# ---- the same language on columns --------------------------------------------------------------------------

VALUES: dict[str, list] = {
    "a": [0, 1, 2, 3, None],
    "b": [0, 1, 5, 7],
    "c": [0.5, 2.0, 0.0],
    "s": ["x", "y", None],
    "t": [True, False],
    "m": ["auto", 1, 2, None],
    "big": [2**40, 2**62, 1],
}


def texts() -> st.SearchStrategy[str]:
    atoms = st.sampled_from([*VALUES, "0", "1", "2", "'x'", "True", "3.5"])

    def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        def of(template: str) -> st.SearchStrategy[str]:
            return st.tuples(inner, inner, inner).map(lambda terms: template.format(*terms))

        operators = ["+", "-", "*", "/", "//", "%", "==", "!=", "<", "<=", ">", ">=", "and", "or"]
        templates = [f"({{}} {o} {{}})" for o in operators]
        templates += ["(not {})", "({} if {} else {})", "min({}, {})", "max({}, {}, {})", "({} < {} <= {})"]
        templates += ["({} in ({}, {}))", "({} not in ({}, {}))", "({} in divisors({}))", "(-{})"]
        return st.sampled_from(templates).flatmap(of)

    return st.recursive(atoms, larger, max_leaves=8)


@given(texts())
def test_columns_mean_what_python_means_row_by_row(text):
    """Values, and where there is none: short circuits, absent values, names and numbers, integers beyond 64 bits.
    (Columns in which numbers are absent are of floats, exact up to 2⁵³.)"""
    try:
        expression = Expression(text)
    except AutoscoutError:
        assume(False)
        raise
    values_of = VALUES | {"big": [2**7, 3**4, 1]} if {"a", "m"} & set(expression.names) else VALUES
    rows = list(itertools.product(*(values_of[name] for name in expression.names)))[:500]
    env = {name: column([row[i] for row in rows]) for i, name in enumerate(expression.names)}
    values, undefined = expression.on(env, len(rows))
    values = values.tolist() if isinstance(values, np.ndarray) else [values] * len(rows)
    for row, value, no_value in zip(rows, values, undefined.tolist(), strict=True):
        try:
            expected = expression(dict(zip(expression.names, row, strict=True)))
        except AutoscoutError:
            assert no_value, row
            continue
        assert not no_value, row
        if value is None or value != value:
            assert expected is None, row
        elif isinstance(expected, float):
            assert value == pytest.approx(expected), row
        else:
            assert value == expected, row
