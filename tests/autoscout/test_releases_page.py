"""The page of engines and releases is what its command writes, and what audits counted is what we aim at."""

from autoscout.targets import audited
from tests.tools import releases_page


def test_the_tables_of_the_page_are_those_that_are_recorded() -> None:
    text = releases_page.PAGE.read_text()
    assert releases_page.page(text) == text, "run: PYTHONPATH=. python tests/tools/releases_page.py"


def test_no_recorded_release_refuses_or_changes_what_would_be_launched() -> None:
    for name, found in audited.recorded().items():
        assert found.sound, name
        assert found.drawn >= 1000, name


def test_the_page_has_few_words_beside_its_tables() -> None:
    lines = [line for line in releases_page.PAGE.read_text().splitlines() if not line.startswith("|")]
    assert len(" ".join(lines).split()) <= 1000
