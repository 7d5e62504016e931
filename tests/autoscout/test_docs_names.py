"""What the pages import can be imported, and the files that the simulators' pages name are there."""

import importlib
import re
from pathlib import Path

import pytest

PAGES = sorted(Path("docs").glob("*.md"))
IMPORT = re.compile(r"^from ((?:autoscout|kb|tui)\b[\w.]*) import \(?([\w, ]+)", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_imports_exists(page: Path):
    for module, names in IMPORT.findall(page.read_text()):
        there = dir(importlib.import_module(module))
        assert [name for name in re.split(r"[,\s]+", names) if name and name not in there] == [], module


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem.startswith("simulators")], ids=lambda p: p.stem)
def test_files_that_a_simulators_page_names_exist(page: Path):
    here = {path.name for top in ("autoscout", "kb", "tests", "tui") for path in Path(top).rglob("*.py")}
    named = set(re.findall(r"`(?:[\w/]+/)?(\w+\.py)`", page.read_text()))
    assert named - here == set()
    assert [
        path for path in re.findall(r"`((?:autoscout|tests)/[\w/]+\.py)`", page.read_text()) if not Path(path).exists()
    ] == []
