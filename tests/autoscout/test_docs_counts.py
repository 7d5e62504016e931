"""What the pages say of jobs and knobs: how many configurations, the job of README."""

import re
from pathlib import Path

import pytest

from autoscout.targets.deepspeed import DeepSpeed
from autoscout.targets.jobs import JobSpace, load_job
from tests.tools import count_spaces

PAGES = [Path("README.md"), *sorted(Path("docs").rglob("*.md"))]
NUMBER = r"([\d,]+)"
JOBS = {path.stem: path for folder in ("jobs", "large") for path in Path("fixtures", folder).glob("*.toml")}


def number(text: str) -> int:
    return int(text.replace(",", ""))


def said(pattern: str) -> list[tuple[str, ...]]:
    found = {each for page in PAGES for each in re.findall(pattern, page.read_text(), re.MULTILINE)}
    return sorted(each for each in found if each[0] in JOBS)


COUNTS = said(rf"^\| ([\w.-]+) \| {NUMBER} \| \[space-")
STRUCTURES = said(rf"^\| ([\w.-]+) \([^)]+\) \| {NUMBER} \| {NUMBER} \|$")


@pytest.mark.parametrize(("name", "count"), COUNTS)
def test_configurations(name: str, count: str):
    assert JobSpace.of_job(count_spaces.of_catalog(JOBS[name])).count == number(count)


@pytest.mark.parametrize(("name", "structures", "count"), STRUCTURES)
def test_structures(name: str, structures: str, count: str):
    space = JobSpace.of_job(count_spaces.of_catalog(JOBS[name]))
    assert (space.structure_count, space.count) == (number(structures), number(count))


def test_the_pages_count_something():
    assert len(COUNTS) == 4
    assert len(STRUCTURES) == 5


def test_the_table_of_all_jobs_is_what_its_command_prints(capsys):
    count_spaces.main()
    assert capsys.readouterr().out in Path("docs/lab/knobs.md").read_text()


def test_every_preset_is_in_the_table_of_presets():
    presets = {path.stem for path in Path("autoscout/line/frameworks").glob("*.toml")} - {DeepSpeed.preset}
    table = Path("docs/your-own-script.md").read_text().split("| name | lines |")[1].split("\n\n")[0]
    assert {name for row in table.splitlines() for name in re.findall(r"`([\w-]+)`", row.split(" | ")[0])} == presets


def test_the_job_that_is_shown_is_one(tmp_path):
    (printed,) = re.findall(r"```toml\n(.*?)```", Path("docs/job-file.md").read_text(), re.DOTALL)
    (tmp_path / "job.toml").write_text(printed)
    assert JobSpace.of_job(load_job(tmp_path / "job.toml")).reference
