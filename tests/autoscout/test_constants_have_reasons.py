"""A number of a module that simulates or searches stands beside its reason or source: a comment on its line, within the
statement, or above the lines that it is one of. What was fitted, or belongs to a thing, is in that thing's record."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

FILES = [*Path("autoscout/simulate").rglob("*.py"), *Path("autoscout/search").rglob("*.py")]


def bare(source: str) -> Iterator[int]:
    """Lines of a module's assignments of numbers that no comment is beside. A comment above holds for the lines that
    follow it without a gap, up to one that has its own."""
    lines, covered_to = source.splitlines(), -1
    for node in ast.parse(source).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.end_lineno is None:
            continue
        above = lines[node.lineno - 2].strip() if node.lineno > 1 else ""
        own = "#" in "\n".join(lines[node.lineno - 1 : node.end_lineno]).replace("# fmt: skip", "")
        if above.startswith("#") or (covered_to == node.lineno - 1 and not own):
            covered_to = node.end_lineno
        elif not own and node.value is not None and _numbers(node.value):
            yield node.lineno


def _numbers(value: ast.expr) -> bool:
    return any(
        isinstance(n, ast.Constant) and isinstance(n.value, int | float) and not isinstance(n.value, bool)
        for n in ast.walk(value)
    )


@pytest.mark.parametrize("path", sorted(FILES), ids=lambda p: p.stem)
def test_every_number_has_a_reason(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert [f"{path}:{line}: {source.splitlines()[line - 1]}" for line in bare(source)] == []


def test_a_number_without_one_is_found() -> None:
    assert list(bare("A = 3\n\n\nB = {'x': 0.5}\n")) == [1, 4]
    assert list(bare("# why\nA = 3\nB = 2\n\nC = 1\n")) == [5]
    assert list(bare("# why\nA = 3\nB = 2  # another\nC = 1\n")) == [4]
    assert list(bare("C = True\nD = ()\n")) == []
