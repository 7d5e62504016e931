"""How many numbers tests only compare with what they were: few enough that a change of them is read."""

import json
import re
from pathlib import Path

import pytest
from frozen_values import DOUBT, FILES, HERE, shortened

TESTS = Path(__file__).parents[1]
MOST = 5_000
OTHERS = [HERE.parent / "error_figures.json", TESTS / "kb" / "frozen" / "records.json"]
_NUMBER = re.compile(r"-?\d+\.?\d*(?:[eE][-+]?\d+)?")


def test_few_numbers_are_frozen():
    files = {*TESTS.rglob("frozen/*.json"), *OTHERS}
    assert sum(len(_NUMBER.findall(path.read_text())) for path in files) <= MOST


def test_each_file_says_how_it_is_made_anew_and_what_it_notices():
    assert {path.stem for path in HERE.glob("*.json")} == FILES.keys()
    for stem, (notices, tests) in FILES.items():
        parts = json.loads((HERE / f"{stem}.json").read_text())
        named = re.findall(r"test_(\w+)\.py", parts.pop("made anew by"))
        assert (parts.pop("notices that"), named) == (notices, list(tests))
        texts = [(TESTS / "autoscout" / f"test_{test}.py").read_text() for test in tests]
        assert all(f'"{stem}/' in text or f'"{stem}", ' in text for text in texts)
    page = (TESTS.parent / "docs" / "lab" / "testing.md").read_text()
    assert all(f"`tests/{path.relative_to(TESTS)}`" in page for path in OTHERS)


@pytest.mark.parametrize("at", [0, 7, 59])
@pytest.mark.parametrize("times", [0.999, -1.0, 0.0])
def test_one_value_of_sixty_that_moves_is_noticed(at: int, times: float):
    before = [10.0 ** (i % 5) for i in range(60)]
    after = [v * (times if i == at else 1.0) for i, v in enumerate(before)]
    digest, moved = shortened(before, 1e-6)[1], shortened(after, 1e-6)[1]
    assert isinstance(digest, float)
    assert isinstance(moved, float)
    assert abs(moved - digest) > DOUBT * 1e-6


def test_places_that_are_not_finite_are_noticed():
    assert shortened([1.0, None, 3.0, "inf"], 1e-6)[2:] == [".N.+"]
    assert shortened([1.0, 2.0, 3.0, 4.0], 1e-6)[2:] == []
