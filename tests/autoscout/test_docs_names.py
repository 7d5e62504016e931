"""What the pages import, link to and name is there: modules, headings, files, tests, job keys."""

import importlib
import os
import re
from functools import cache
from pathlib import Path

import pytest

from kb.records import Budget, Cluster, LaunchSettings, Traffic
from tests.tools import words_counted

DOCS = sorted(Path("docs").rglob("*.md"))
PAGES = [Path("README.md"), Path("CONTRIBUTING.md"), *DOCS]
IMPORT = re.compile(r"^from ((?:autoscout|kb|tui)\b[\w.]*) import \(?([\w, ]+)", re.MULTILINE)
LINK = re.compile(r"\]\((?!http)([^)\s]*)\)")
FENCED = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
OURS = re.compile(
    r"(?<![\w/.-])(?:autoscout|kb|tui|tests|fixtures|migrations)/[\w./-]*\.(?:py|toml|jsonl?|csv|svg|txt)\b"
)
OF_OTHERS = {"pretrain_gpt.py", "run_recipe.py"}
KEYS = {"launch": LaunchSettings, "cluster": Cluster, "traffic": Traffic, "budget": Budget}


def by_name(page: Path) -> str:
    return page.stem


@cache
def headings(page: Path) -> set[str]:
    """As GitHub makes anchors of them."""
    found = re.findall(r"^#+ (.*)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in found}


@cache
def modules() -> list[str]:
    return [f"/{path}" for top in ("autoscout", "fixtures", "kb", "tests", "tui") for path in Path(top).rglob("*.py")]


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_links_lead_somewhere(page: Path):
    for link in LINK.findall(FENCED.sub("", page.read_text())):
        path, _, anchor = link.partition("#")
        there = page.parent / path if path else page
        assert there.exists(), link
        assert not anchor or anchor in headings(there), link


@pytest.mark.parametrize("index", [Path("README.md"), Path("docs/lab/README.md")], ids=str)
def test_every_page_is_listed(index: Path):
    folder = Path("docs") if index.parent == Path() else index.parent
    linked = {Path(os.path.normpath(index.parent / link)) for link in LINK.findall(index.read_text())}
    assert {page for page in folder.glob("*.md") if page != index} <= linked


def test_the_pages_for_users_are_short():
    """README is read in five minutes, all pages for users in an afternoon."""
    words = words_counted.pages()
    assert words["README"] <= 1_200
    assert sum(words.values()) <= 24_000, words


def test_code_has_few_of_the_words_that_were_a_language_of_our_own():
    count, lines = words_counted.ours_per_1000()
    assert 1000 * count / lines <= 6


@pytest.mark.parametrize("page", DOCS, ids=by_name)
def test_what_a_page_imports_exists(page: Path):
    for module, names in IMPORT.findall(page.read_text()):
        there = dir(importlib.import_module(module))
        assert [name for name in re.split(r"[,\s]+", names) if name and name not in there] == [], module


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_files_that_a_page_names_exist(page: Path):
    text = page.read_text()
    assert {path for path in OURS.findall(text) if not Path(path).exists()} == set()
    named = set(re.findall(r"`((?:\w+/)*\w+\.py)`", text))
    assert {name for name in named - OF_OTHERS if not any(path.endswith(f"/{name}") for path in modules())} == set()


@pytest.mark.parametrize("page", DOCS, ids=by_name)
def test_tests_that_a_page_names_exist(page: Path):
    code = "".join(path.read_text() for path in Path("tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", page.read_text()))
    assert {name for name in named if f"def {name}(" not in code and f"\n{name} = " not in code} == set()


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_keys_of_a_job_that_a_page_names_exist(page: Path):
    for table, key in re.findall(rf"`({'|'.join(KEYS)})\.(\w+)", page.read_text()):
        assert key in KEYS[table].__struct_fields__, f"{table}.{key}"
