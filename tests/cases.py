"""Cases that differ little: some of them in `make test`, all in `make test-all`."""

from typing import Any

import pytest


def few(cases: list[Any], kept: int) -> list[Any]:
    """`kept` of the cases as they are, spread evenly from first to last; the others marked thorough. A tuple is the
    values of several names."""
    always = {round(i * (len(cases) - 1) / max(kept - 1, 1)) for i in range(kept)}
    return [case if i in always else _thorough(case) for i, case in enumerate(cases)]


def _thorough(case: Any) -> Any:
    if isinstance(case, type(pytest.param())):
        return pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.thorough])
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.thorough)
