"""A line of a journal that was changed, removed, added or moved afterwards shows."""

import json
import re
from pathlib import Path

import pytest
import verbs
from kb_samples import PAST, ended, job, measured, write

from kb import care, journal, lineage, seals, store


@pytest.fixture
def kb(tmp_path: Path) -> Path:
    path = tmp_path / "kb.duckdb"
    store.ingest(path, write(path, "s", *(ended(measured(1.25 + i, tp=i), i) for i in range(1, 4))))
    return path


def finding(kb: Path) -> care.CareFinding:
    return next(found for found in care.check(kb) if found.subject == "seals")


def test_every_changed_digit_shows(kb: Path):
    """38 of 38 were accepted."""
    path = store.session_folder(kb, "s") / "journal.jsonl"
    text = path.read_bytes()
    assert seals.check(path) == seals.Seals(0, 0)
    places = [found.start() for found in re.finditer(rb"\d", text)]
    assert len(places) > 150
    for place in places:
        other = b"7" if text[place : place + 1] != b"7" else b"3"
        path.write_bytes(text[:place] + other + text[place + 1 :])
        assert seals.check(path).broken == text[:place].count(b"\n") + 1
    assert not finding(kb).ok
    assert "s: line 4 was changed after it was written" in finding(kb).found


@pytest.mark.parametrize(
    ("order", "broken"), [((0, 1, 3), 3), ((0, 2, 1, 3), 2), ((0, 1, 1, 2, 3), 3), ((1, 2, 3), 1), ((0, 1, 2, 3), 0)]
)
def test_lines_that_were_removed_moved_or_doubled_show(kb: Path, order: tuple[int, ...], broken: int):
    path = store.session_folder(kb, "s") / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[i] for i in order))
    assert seals.check(path).broken == broken


def test_lines_that_are_gone_from_the_end_show(kb: Path):
    """No seal follows them, but the knowledge base had them."""
    path = store.session_folder(kb, "s") / "journal.jsonl"
    log = journal.Journal(path)
    log.append(journal.Passed())
    log.close()
    store.ingest(kb, path)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    for _ in range(2):
        assert "s: line 4 was changed after it was written" in finding(kb).found
        found = lineage.lineage(kb, job().id, "here", "step_time_s", [measured(1.25, tp=1).configuration.id])
        assert found.journals == {"s": "line 4 was changed after it was written"}
        store.ingest_all(kb)  # as another file, which a shorter one is


def test_the_chain_goes_on_where_a_killed_process_left_it(kb: Path):
    path = store.session_folder(kb, "s") / "journal.jsonl"
    with open(path, "ab") as file:
        file.write(b'{"type":"passed","at":1')
    log = journal.Journal(path)
    log.append(journal.Passed(), journal.Passed())
    log.append(journal.Passed())
    log.close()
    assert seals.check(path) == seals.Seals(0, 0)
    assert len(journal.events(path)) == 7
    assert finding(kb).ok


def test_an_older_journal_opens_as_unsigned_and_goes_on_signed(kb: Path):
    old = store.session_folder(kb, "old") / "journal.jsonl"
    old.parent.mkdir()
    old.write_bytes(
        (PAST / "records-1.jsonl").read_bytes()
        if (PAST / "records-1.jsonl").exists()
        else next(PAST.glob("*.jsonl")).read_bytes()
    )
    count = len(old.read_bytes().splitlines())
    assert seals.check(old) == seals.Seals(count, 0)
    assert "1 journals have unsigned lines" in finding(kb).found
    assert finding(kb).ok
    log = journal.Journal(old)
    log.append(journal.Passed())
    log.close()
    assert seals.check(old) == seals.Seals(count, 0)
    lines = old.read_bytes().splitlines(keepends=True)
    old.write_bytes(b"".join([*lines[: count - 1], lines[-1]]))
    assert seals.check(old).broken == count, "what a signed line follows is known"


def test_the_evidence_of_a_recommendation_says_what_does_not_hold(kb: Path):
    path = store.session_folder(kb, "s") / "journal.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"step_time_s":2.25', b'"step_time_s":1.25'))
    [(_, first), *_] = store.measurements(kb)
    found = lineage.lineage(kb, job().id, "here", "step_time_s", [first.configuration.id])
    assert found.journals == {"s": "line 2 was changed after it was written"}
    done = verbs.run("kb", "check", "--json", "--kb", kb)
    assert done.returncode == 1
    assert "line 2 was changed after it was written" in json.dumps(json.loads(done.stdout))
