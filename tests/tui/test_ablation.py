"""Which knobs the gain comes from, as drawn."""

from typing import Any

import pytest
from rich.console import Console

from tui.draw.comparing import ablation

STEP: dict[str, Any] = {"value": 1.0, "measured": True, "gain": None, "knobs": [], "before": [], "after": []}
BATCH = STEP | {"gain": 1.1, "knobs": ["max_num_batched_tokens"], "before": [2048], "after": [8192]}


@pytest.mark.parametrize("width", [20, 40, 44, 60, 100])
def test_a_narrow_terminal_shows_what_there_is_room_for(width: int) -> None:
    """Below 45 columns a step was a ValueError."""
    drawn = ablation({"error": 0.1, "steps": [STEP, BATCH]}, width, ascii_only=False)
    console = Console(width=width)
    with console.capture() as shown:
        console.print(drawn)
    lines = shown.get().splitlines()
    assert all(len(line) <= width for line in lines)
    assert "reference" in lines[0]
    assert "max_num" in "".join(lines)
