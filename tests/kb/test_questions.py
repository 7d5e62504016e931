"""The questions of docs/knowledge-base.md: each is asked of a knowledge base made as the page says."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import verbs

from kb import query
from kb.query_formats import render

TOOL = Path(__file__).parents[1] / "tools" / "kb_questions.py"
spec = importlib.util.spec_from_file_location("kb_questions", TOOL)
assert spec is not None
assert spec.loader is not None
page = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = page
spec.loader.exec_module(page)

QUESTIONS = page.questions()
VIEWS = Path("docs/lab/knowledge-base-views.md")


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("questions") / "kb.duckdb"
    page.commands(path)
    return path


@pytest.mark.thorough
@pytest.mark.parametrize("title", QUESTIONS)
def test_each_question_has_the_answer_of_the_page(kb: Path, title: str):
    table = query.run(kb, QUESTIONS[title])
    shown = page.DOCS.read_text().split(f"### {title}")[1].split("```\n")[2]
    assert table.columns == shown.splitlines()[0].split()
    assert render(table, "table") == shown, "python tests/tools/kb_questions.py writes the answers anew"


def test_there_are_ten():
    assert len(QUESTIONS) == 10


def test_every_documented_view_and_only_those(tmp_path: Path):
    kb = tmp_path / "kb.duckdb"
    views = {name for (name,) in query.run(kb, "SELECT view_name FROM duckdb_views() WHERE NOT internal").rows}
    text = VIEWS.read_text().split("## Ten million rows")[0]
    documented = {
        name.strip("` ")
        for line in text.split("| view |")[1].splitlines()
        if line.startswith("| `")
        for name in line.split("|")[1].split(",")
    }
    assert documented == views


def test_every_documented_column_is_there(tmp_path: Path):
    columns: dict[str, set[str]] = {}
    asked = "SELECT table_name, column_name FROM information_schema.columns"
    for view, column in query.run(tmp_path / "kb.duckdb", asked, 10_000).rows:
        columns.setdefault(view, set()).add(column)
    known = columns["runs"] | columns.keys() | {"power_w"}  # metrics and other views
    for row in VIEWS.read_text().split("| view |")[1].split("## Ten million rows")[0].splitlines():
        if row.startswith("| `"):
            views, _, described = row.split(" | ")
            there = {column for view in re.findall(r"`(\w+)`", views) for column in columns[view]}
            assert set(re.findall(r"`(\w+)`", described)) <= there | known, row


def test_the_help_of_sql_names_every_view(tmp_path: Path):
    views = query.run(tmp_path / "kb.duckdb", "SELECT view_name FROM duckdb_views() WHERE NOT internal").rows
    text = verbs.run("sql", "--help").stdout.split("Views:")[1].split(".")[0]
    assert {name for (name,) in views} == set(re.findall(r"\w+", text))


@pytest.mark.thorough
def test_the_best_is_the_one_that_autoscout_best_says(kb: Path):
    from autoscout.deploy.recommendation import best_of_job
    from autoscout.targets.jobs import load_job

    found = best_of_job(kb, load_job("fixtures/jobs/smallest-cpu-replay.toml"))
    [row] = query.run(
        kb, "SELECT name, value, gain, confirmed FROM best WHERE job = 'smallest-cpu-replay' AND confirmed"
    ).rows
    assert row[0] == found.best.name
    assert row[1] == pytest.approx(found.best.value)
    assert row[2] == pytest.approx(found.gain)
