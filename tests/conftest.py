"""How hard tests look: `make test` tries a few fixed examples of each property and leaves out the tests of
left_out.txt, `make test-all` runs all, with many random examples."""

import gc
import os
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

# Before anything loads numpy: with a worker of pytest a core, threads of the linear algebra only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from hypothesis import settings

settings.register_profile("quick", max_examples=15, deadline=None, derandomize=True, database=None)
settings.register_profile("thorough", max_examples=150, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_configure() -> None:
    """An environment older than pyproject.toml lacks targets and strategies: that is said once, not by each test."""
    declared = tomllib.loads(Path("pyproject.toml").read_text())["project"]["entry-points"]
    for group, wanted in declared.items():
        found = {entry.name: entry.value for entry in entry_points(group=group)}
        if wanted.items() - found.items():
            raise pytest.UsageError("the entry points of pyproject.toml are not installed: run make .venv/dev")


LEFT_OUT = frozenset(Path(__file__).with_name("left_out.txt").read_text().split())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Importing all files takes longer than some engines: a run of engines alone reads only those that name them."""
    engines = str(config.option.markexpr).startswith("engine") and collection_path.name.startswith("test_")
    return True if engines and "mark.engine" not in collection_path.read_text() else None


@pytest.hookimpl(tryfirst=True)  # before pytest selects by mark
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The screens first: their tests wait most, and a file of them that comes last keeps one worker alone."""
    for item in items:
        if item.nodeid.partition("[")[0] in LEFT_OUT:
            item.add_marker("thorough")
    items.sort(key=lambda item: not item.nodeid.startswith("tests/tui/"))


def pytest_collection_finish() -> None:
    """What is imported and collected stays: looking through it took a fourteenth of the CPU time, and copied its pages
    in forked children."""
    gc.collect()
    gc.freeze()
