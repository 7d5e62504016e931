"""Records of devices and engines in tests: a person's folder or another's shipped one, read by all that is asked in the
test."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from autoscout.job import device_names, device_records
from autoscout.simulate import engine_records
from autoscout.simulate.hardware import device as hardware_device
from autoscout.simulate.serving import engine_run, served_by, serving_device, simulator
from autoscout.simulate.training import software

_READ_ONCE = (
    device_records.contents, device_records.shipped_contents, device_records.records, device_records.by_name,
    device_names._described, hardware_device.all_hardware, serving_device.device,
    engine_records.families, served_by._found, served_by._served,
    software.members, software.nameable, software._conditions, software._likely,
)  # fmt: skip


def forget() -> None:
    for function in _READ_ONCE:
        function.cache_clear()
    for kept in (simulator._SIMULATED, simulator._LAST, engine_run._TABLES):
        kept.clear()


@contextmanager
def _beside(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **content: str) -> Iterator[Path]:
    """`content` by record, in the folder of that name beside the knowledge base."""
    monkeypatch.setenv("AUTOSCOUT_KB", str(folder / "kb.duckdb"))
    (folder / name).mkdir(exist_ok=True)
    for stem, text in content.items():
        (folder / name / f"{stem}.toml").write_text(text)
    with _forgotten(monkeypatch):
        yield folder / name


@contextmanager
def _shipped(module: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "folder", lambda: folder)
    with _forgotten(monkeypatch):
        yield


@contextmanager
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    forget()
    try:
        yield
    finally:
        monkeypatch.undo()
        forget()


own_records, own_engines = partial(_beside, "hardware"), partial(_beside, "engines")
shipped_records, shipped_engines = partial(_shipped, device_records), partial(_shipped, engine_records)
