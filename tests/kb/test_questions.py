"""The questions of docs/knowledge-base.md: each is asked of a knowledge base made as the page says."""

import importlib.util
import sys
from pathlib import Path

import pytest

from kb import query

TOOL = Path(__file__).parents[1] / "tools" / "kb_questions.py"
spec = importlib.util.spec_from_file_location("kb_questions", TOOL)
assert spec is not None
assert spec.loader is not None
page = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = page
spec.loader.exec_module(page)

QUESTIONS = page.questions()


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("questions") / "kb.duckdb"
    page.commands(path)
    return path


@pytest.mark.thorough
@pytest.mark.parametrize("title", QUESTIONS)
def test_each_question_has_an_answer_with_the_columns_of_the_page(kb: Path, title: str):
    table = query.run(kb, QUESTIONS[title])
    shown = page.DOCS.read_text().split(f"### {title}")[1].split("```\n")[2].splitlines()[0]
    assert table.columns == shown.split()
    assert table.rows or "simulator" in title  # they are used only where enough is known


def test_there_are_ten():
    assert len(QUESTIONS) == 10


def test_every_documented_view_and_only_those(tmp_path: Path):
    kb = tmp_path / "kb.duckdb"
    views = {name for (name,) in query.run(kb, "SELECT view_name FROM duckdb_views() WHERE NOT internal").rows}
    text = page.DOCS.read_text().split("## Views")[1].split("## Ten questions")[0]
    documented = {
        name.strip("` ")
        for line in text.split("| view |")[1].splitlines()
        if line.startswith("| `")
        for name in line.split("|")[1].split(",")
    }
    assert documented == views


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
