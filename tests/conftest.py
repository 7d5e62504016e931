"""How hard tests look: `make test` tries a few fixed examples of each property, `make test-all` many random ones."""

import os

import pytest

# Before anything loads numpy: with a worker of pytest a core, threads of the linear algebra only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from hypothesis import settings

settings.register_profile("quick", max_examples=15, deadline=None, derandomize=True, database=None)
settings.register_profile("thorough", max_examples=150, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The screens first: their tests wait most, and a file of them that comes last keeps one worker alone."""
    items.sort(key=lambda item: not item.nodeid.startswith("tests/tui/"))
