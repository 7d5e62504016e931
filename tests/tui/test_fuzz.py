"""A few broken inputs of every kind; thousands by `python tests/tools/fuzz.py`."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import fuzz


def test_broken_inputs_end_with_a_sentence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FUZZ_PATIENCE", "6")  # a machine that runs other tests, too
    faults: list[tuple] = []
    assert fuzz.fuzz(21, 7, lambda *fault: faults.append(fault))["inputs"] == 21
    assert faults == []
