"""The language of expressions and a table's rows by hand: columns against each row, what no expression may in whole
sentences, the types of columns, the knobs and codes of measured rows."""

import itertools
import math
import operator
from typing import Any

import numpy as np
import pytest
from asking import refusal

from autoscout.space import from_table
from autoscout.space.language import arrays
from autoscout.space.language.expression import Expression
from autoscout.space.language.functions import divisors
from kb.records import AutoscoutError

EXPRESSIONS = [
    "a + b", "a - b", "a * b", "a / b", "a // b", "a % b", "-a", "not a", "a and b", "a or b", "a == b", "a != b",
    "a < b", "a <= b", "a > b", "a >= b", "a < b < 2", "0 <= a <= b != 1", "a in (b, 1)", "a not in (b, 1)",
    "a in divisors(4)", "b if a else 7", "(a if b else b) + 1", "min(a, b)", "max(a, b)", "min((a, b, 1))",
    "max(a, 1, b)", "a == 1 or b % (a - 1) == 0", "a != 0 and b // a > 0", "a == 'x'", "not (a and b) or a",
    "min(a, b) + max(b, a) * 2", "a in (1, 'x', True)", "1 if a < b else (2 if a == b else 3)", "a and b and a - b",
    "a or b or 3", "-a - -b",
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
        ("a.b", "'a.b' uses Attribute, which expressions may not use"),
        ("a ** 2", "'a ** 2' uses Pow, which expressions may not use"),
        ("len(a)", "'len(a)' may call only min, max, divisors, and with at least one argument"),
        ("min()", "'min()' may call only min, max, divisors, and with at least one argument"),
        ("min(a, key=b)", "'min(a, key=b)' uses keyword, which expressions may not use"),
        ("1e999", "'1e999' has the constant inf; constants must be texts, or numbers below 2**63"),
        (f"{2**63}", f"'{2**63}' has the constant {2**63}; constants must be texts, or numbers below 2**63"),
        ("None", "'None' has the constant None; constants must be texts, or numbers below 2**63"),
        ("a in b + 1", "'a in b + 1' tests membership in b + 1, which is not a list; write a list as (a, b)"),
        (
            "a in min(b, c)",
            "'a in min(b, c)' tests membership in min(b, c), which is not a list; write a list as (a, b)",
        ),
        ("a + 'x'", "'a + 'x'' calculates with 'x', which is not a number"),
        ("-(a, b)", "'-(a, b)' calculates with (a, b), which is not a number"),
        (
            "a == (1, 2)",
            "'a == (1, 2)' contains a list; lists are allowed only after 'in', as the only argument of "
            "a function, or as the whole expression",
        ),
        (
            "min((1, 2), a)",
            "'min((1, 2), a)' contains a list; lists are allowed only after 'in', as the only argument of "
            "a function, or as the whole expression",
        ),
    ],
)
def test_what_no_expression_may(text: str, said: str):
    found, code = refusal(Expression, text)
    assert found == said or "keyword" in said
    assert code == 2


def test_the_limits_of_expressions():
    Expression("1" * 18 + " " * 982)
    assert Expression(f"{2**63 - 1}")({}) == 2**63 - 1
    deep = "-" * 59 + "a"
    assert refusal(Expression, deep) == (f"'{deep[:60]}…' is nested more than 60 deep", 2)
    assert Expression("-" * 55 + "a")({"a": 1}) == -1
    assert refusal(Expression, "(")[1] == 2
    derived = {"x": "y + 1", "y": "a * 2", "z": "z"}
    assert Expression("x - y", derived)({"a": 3}) == 1
    assert Expression("x", derived).names == ("a",)
    assert refusal(Expression, "z", derived) == ("the definition of the derived name 'z' uses 'z' itself", 2)
    doubling = {f"n{i}": f"n{i + 1} + n{i + 1}" for i in range(20)}
    assert refusal(Expression, "n0", doubling) == ("'n0' is too long after its derived names are expanded", 2)
    assert refusal(Expression("a // b"), {"a": 1, "b": 0}) == (
        "the rule 'a // b' cannot be evaluated at a = 1, b = 0: integer division or modulo by zero", 2,
    )  # fmt: skip
    assert refusal(Expression("a in b"), {"a": "x", "b": "xy"})[0].endswith("'xy' is not a list")
    assert refusal(Expression("min(a, b) * 2"), {"a": "x", "b": "y"})[0].endswith("'x' is not a number")
    assert repr(Expression("a")) == "Expression('a')"


def test_divisors():
    numbers: list[Any] = [1, 12, 16, 12.0, 0, -4, True]
    assert [divisors(n) for n in numbers] == [
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
    rows: list[Any] = [{"a": 1, "b": "x"}, {"a": None, "c": True}, {"a": float("nan"), "c": 1}]
    columns = from_table.columns_of(rows)
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
    empty = "the column 'e' has no value in any row, so it cannot be a knob; remove it from the knobs"
    assert refusal(from_table.knobs_of, {"e": [None]}, ["e"], None) == (empty, 2)
    many: dict[str, Any] = {"m": list(range(2**15))}
    said = "the column 'm' has too many different values for a knob (32,768); remove it from the knobs"
    assert refusal(from_table.knobs_of, many, None, ["m"]) == (said, 2)
    assert len(from_table.knobs_of({"m": many["m"][:-1]}, None, ["m"])[0].values) == 2**15 - 1
