"""What tests of several rooms ask for."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Writes a driver's program, a shell's body that is given its query as $1."""

    def write(body: str) -> None:
        path = tmp_path / "bin" / "nvidia-smi"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")

    return write
