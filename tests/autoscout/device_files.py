"""Device records of tests: a person's folder or another's shipped one, read by all that is asked in the test."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from autoscout.job import device_names, device_records
from autoscout.simulate.hardware import device as hardware_device
from autoscout.simulate.serving import serving_device

_READ_ONCE = (
    device_records.contents,
    device_records.shipped_contents,
    device_records.records,
    device_records.by_name,
    device_names._described,
    hardware_device.all_hardware,
    serving_device.device,
)


def forget() -> None:
    for function in _READ_ONCE:
        function.cache_clear()


@contextmanager
def own_records(folder: Path, monkeypatch: pytest.MonkeyPatch, **content: str) -> Iterator[Path]:
    """`content` by record, in place of what is beside the knowledge base."""
    monkeypatch.setenv("AUTOSCOUT_KB", str(folder / "kb.duckdb"))
    (folder / "hardware").mkdir(exist_ok=True)
    for name, text in content.items():
        (folder / "hardware" / f"{name}.toml").write_text(text)
    forget()
    try:
        yield folder / "hardware"
    finally:
        monkeypatch.undo()
        forget()


@contextmanager
def shipped_records(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(device_records, "folder", lambda: folder)
    forget()
    try:
        yield
    finally:
        monkeypatch.undo()
        forget()
