"""docs/lab/deepspeed-autotuner.md: each of its 25 + 13 rows names tests, and there are such tests."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "lab" / "deepspeed-autotuner.md").read_text()
ROWS = re.findall(r"^\| (\d+|[a-m]) \|(.*)\|$", PAGE, re.MULTILINE)


def test_every_row_names_tests_that_exist():
    parity = [row for row in ROWS if row[0].isdigit()]
    assert [row[0] for row in parity] == [str(i) for i in range(1, 26)]
    assert [row[0] for row in ROWS if not row[0].isdigit()] == list("abcdefghijklm")
    text = "\n".join(path.read_text() for path in ROOT.glob("tests/autoscout/**/test_*.py"))
    there = set(re.findall(r"def (test_\w+)\(", text))
    for name, row in ROWS:
        named = re.findall(r"\b(test_\w+)\b(?!\.py)", row.rpartition("|")[2])
        file = re.findall(r"(\w+/test_\w+\.py)", row)
        assert named or file, name
        assert set(named) <= there, name
        assert all((ROOT / "tests" / "autoscout" / path).exists() for path in file), name
