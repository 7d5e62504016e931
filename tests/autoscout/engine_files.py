"""Engines' records of tests: a person's folder or another's shipped one, read by all that is asked in the test."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from autoscout.simulate import engine_records
from autoscout.simulate.serving import served_by, simulator
from autoscout.simulate.training import software

_READ_ONCE = (
    engine_records.families, served_by._found, served_by._served,
    software.members, software.stems, software._conditions, software._likely,
)  # fmt: skip


def forget() -> None:
    for function in _READ_ONCE:
        function.cache_clear()
    simulator._SIMULATED.clear()
    simulator._AVERAGES.clear()


@contextmanager
def own_engines(folder: Path, monkeypatch: pytest.MonkeyPatch, **content: str) -> Iterator[Path]:
    """`content` by record, beside the knowledge base."""
    monkeypatch.setenv("AUTOSCOUT_KB", str(folder / "kb.duckdb"))
    (folder / "engines").mkdir(exist_ok=True)
    for name, text in content.items():
        (folder / "engines" / f"{name}.toml").write_text(text)
    forget()
    try:
        yield folder / "engines"
    finally:
        monkeypatch.undo()
        forget()


@contextmanager
def shipped_engines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(engine_records, "folder", lambda: folder)
    forget()
    try:
        yield
    finally:
        monkeypatch.undo()
        forget()
