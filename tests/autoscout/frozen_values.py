"""What the files of frozen values share: seeded rows, values as they are stored, and the comparison with what is stored
in tests/autoscout/frozen. `UPDATE_FROZEN=1` writes them anew.

A list of more than two numbers is stored as its largest and a digest of all, which one of them that moves by a
thousandth moves, too: enough to notice a change, and few enough to be read."""

import json
import math
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

HERE = Path(__file__).parent / "frozen"
Values = dict[str, list[float | str | None]]
DOUBT = 2  # times the tolerance of a value: a digest is a mean of logarithms with weights from 1 to 2
FEW = 2  # numbers of a list that are stored as they are
_GOLDEN = (math.sqrt(5) - 1) / 2  # multiples of it, modulo 1, lie apart: every place of a list has a weight of its own
_TESTS = "tests/autoscout/test_"
# What each file notices, and the tests that hold it, and write it anew.
FILES = {
    "training": (
        "a constant, sign or comparison of a training step, its memory, power or correction by measured rows changed",
        ("frozen", "frozen_training", "simulate_by_hand"),
    ),
    "serving": (
        "a constant, sign or comparison of a serving engine's steps, events, memory, load or offloading changed",
        ("frozen", "frozen_serving"),
    ),
    "stack": (
        "a collective, a bill or a design of a whole cluster is priced otherwise",
        ("frozen", "frozen_stack"),
    ),
    "tables": (
        "a column, a name or a model of other people's tables is read otherwise",
        ("frozen", "frozen_tables", "simulate_by_hand"),
    ),
    "learned": (
        "what is learned of measured rows, or how members are weighed, changed",
        ("frozen_learned",),
    ),
    "search": (
        "the bandit, the belief, the published algorithm or a rival decides otherwise on the same answers",
        ("frozen", "frozen_search"),
    ),
    "shadow": (
        "an operator or a collective of a traced rank is priced otherwise",
        ("simulate_by_hand",),
    ),
}


def drawn(choices: dict[str, list[Any]], count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """`count` rows as columns, each value as likely as the others."""
    rng = random.Random(seed)
    return {name: np.array([rng.choice(values) for _ in range(count)]) for name, values in choices.items()}


def kept(values: Any) -> list[float | str | None]:
    """Nine digits of each; None for NaN, and infinities by name (JSON has neither)."""
    flat = np.atleast_1d(np.asarray(values, dtype=float)).ravel().tolist()
    return [None if math.isnan(v) else str(v) if math.isinf(v) else float(f"{v:.9g}") for v in flat]


def shortened(values: list[float | str | None], rel: float) -> list[float | str | None]:
    """The largest and the digest, and where some are not finite a text of one letter each; few values,
    and words, as they are."""
    if len(values) <= FEW or any(isinstance(v, str) and v not in ("inf", "-inf") for v in values):
        return values
    finite = [(i, float(v)) for i, v in enumerate(values) if v is not None and not isinstance(v, str)]
    kinds = "".join({None: "N", "inf": "+", "-inf": "-"}.get(v, ".") for v in values)  # type: ignore[arg-type]
    largest = max((v for _, v in finite), key=abs, default=0.0)
    scale = abs(largest) * rel or 1.0  # about a number's error: logarithms of those above, those below as they are
    weighed = ((1 + i * _GOLDEN % 1) * math.asinh(v / scale) for i, v in finite)
    digest = float(f"{math.fsum(weighed) / len(values):.9g}")
    return [largest, digest, *([kinds] if set(kinds) != {"."} else [])]


def hold(name: str, now: Values, rel: float = 1e-6) -> None:
    """`name`: FILE/PART. Errors: AssertionError names the first list that is not as it was."""
    stem, _, part = name.partition("/")
    file = HERE / f"{stem}.json"
    found = {key: shortened(values, rel) for key, values in now.items()}
    if os.environ.get("UPDATE_FROZEN"):
        _write(file, part, found)
    before = json.loads(file.read_text())[part]
    assert found.keys() == before.keys()
    for key, frozen in before.items():
        short = found[key] is not now[key]
        expected = [
            v
            if v is None or isinstance(v, str)
            else pytest.approx(v, rel=0, abs=DOUBT * rel)
            if short and at == 1
            else pytest.approx(v, rel=rel, abs=rel**2)
            for at, v in enumerate(frozen)
        ]
        assert found[key] == expected, key


def _write(file: Path, part: str, found: Values) -> None:
    parts = json.loads(file.read_text()) if file.exists() else {}
    notices, tests = FILES[file.stem]
    again = "UPDATE_FROZEN=1 python -m pytest " + " ".join(f"{_TESTS}{test}.py" for test in tests)
    parts = {**parts, "made anew by": again, "notices that": notices, part: found}
    lines = [f"{json.dumps(name)}: {_lines(each)}" for name, each in parts.items()]
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _lines(part: str | Values) -> str:
    """JSON with a line for each list."""
    if isinstance(part, str):
        return json.dumps(part)
    return "{\n" + ",\n".join(f" {json.dumps(key)}: {json.dumps(values)}" for key, values in part.items()) + "\n}"
