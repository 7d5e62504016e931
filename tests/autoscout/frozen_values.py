"""What the files of frozen values share: seeded rows, values as they are stored, and the comparison with what is stored
in tests/autoscout/frozen. `UPDATE_FROZEN=1` writes them anew."""

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


def drawn(choices: dict[str, list[Any]], count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """`count` rows as columns, each value as likely as the others."""
    rng = random.Random(seed)
    return {name: np.array([rng.choice(values) for _ in range(count)]) for name, values in choices.items()}


def kept(values: Any) -> list[float | str | None]:
    """Nine digits of each; None for NaN, and infinities by name (JSON has neither)."""
    flat = np.atleast_1d(np.asarray(values, dtype=float)).ravel().tolist()
    return [None if math.isnan(v) else str(v) if math.isinf(v) else float(f"{v:.9g}") for v in flat]


def hold(name: str, now: Values, rel: float = 1e-6) -> None:
    """Errors: AssertionError names the first list that is not as it was."""
    file = HERE / f"{name}.json"
    if os.environ.get("UPDATE_FROZEN"):
        file.write_text(json.dumps(now, indent=0).replace(",\n", ",").replace("],", "],\n") + "\n")
    before = json.loads(file.read_text())
    assert now.keys() == before.keys()
    for key, frozen in before.items():
        expected = [v if v is None or isinstance(v, str) else pytest.approx(v, rel=rel, abs=rel**2) for v in frozen]
        assert now[key] == expected, key
