"""What many tests ask: with which sentence and exit code something is refused, and that something comes true."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kb.records import AutoscoutError


def refusal(call: Any, *arguments: Any, **options: Any) -> tuple[str, int]:
    with pytest.raises(AutoscoutError) as caught:
        call(*arguments, **options)
    return str(caught.value), caught.value.exit_code


def until(true: Callable[[], object], within_s: float = 1800.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def with_variable(text: str) -> list[Path]:
    """Processes, as folders of /proc, in whose environments the text stands."""
    return [path for path in Path("/proc").iterdir() if path.name.isdigit() and os.fsencode(text) in _environment(path)]


def _environment(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""
