"""Whose word counts: three people share one folder, one of them lies, and nobody can speak for another."""

import os
import stat
import subprocess
from pathlib import Path

import msgspec
import pytest
from kb_samples import asked, ended, job, measured, write

from kb import forget, outcomes, store
from kb.imports import store_import
from kb.journal import Answered, Confirmed
from kb.lineage import device_hours, lineage
from kb.records import AutoscoutError, Configuration, Measurement
from kb.sharing import author_trust, lake, signatures

METRIC = ["step_time_s"]


class Person:
    def __init__(self, root: Path, name: str) -> None:
        self.name, self.kb, self.key = name, root / name / "kb.duckdb", root / f"{name}-key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", self.key], check=True)

    def measures(self, session: str, **steps: float | None) -> None:
        """Such as tp1=0.5: None is out of memory."""
        rows = [measured(value, tp=int(name[2:]), by=self.name) for name, value in steps.items()]
        store.ingest(self.kb, write(self.kb, session, *(ended(m, i) for i, m in enumerate(rows, 1))))

    def trusts(self, other: "Person", level: str) -> None:
        author_trust.decide(self.kb, other.name, level, signatures.public_key(other.key.with_suffix(".pub")))

    def answers(self) -> list[tuple[str, str]]:
        return [(session, m.name[:3]) for session, m in store.measurements(self.kb, answers=True)]

    def hints(self) -> list[str]:
        return [o.name[:3] for o in outcomes.outcomes(self.kb, job().id, METRIC, hints=True)]


@pytest.fixture
def team(tmp_path: Path) -> tuple[Person, Person, Person, Path]:
    ann, bob, eve = (Person(tmp_path, name) for name in ("ann", "bob", "eve"))
    ann.measures("ann-1", tp1=1.0, tp2=0.5)
    bob.measures("bob-1", tp4=0.4, tp8=None)
    eve.measures("eve-1", tp2=9.0, tp3=0.001)
    folder = tmp_path / "lake"
    folder.mkdir()
    folder.chmod(0o770)
    return ann, bob, eve, folder


def test_three_people_share_a_folder(team):
    ann, bob, eve, folder = team
    for person in (ann, bob, eve):
        lake.push(person.kb, folder, person.key)
    ann.trusts(bob, "answer")
    ann.trusts(eve, "ignore")
    assert lake.pull(ann.kb, folder)[:2] == (2, 4)
    assert lake.pull(ann.kb, folder) == (0, 0, [])
    assert [(a.name, a.level, a.sessions, a.measurements) for a in author_trust.authors(ann.kb)] == [
        ("bob", "answer", 1, 2),
        ("eve", "ignore", 1, 2),
    ]
    # Bob's failure closes nothing here; of Eve's nothing is used, though it can be asked for.
    assert ann.answers() == [("ann-1", "tp1"), ("ann-1", "tp2"), ("bob-1", "tp4")]
    assert ann.hints() == []
    assert len(store.measurements(ann.kb)) == 6
    best = "SELECT name[:3], value FROM best"
    assert asked(ann.kb, best) == [("tp4", 0.4)]
    # To those who decided nothing everybody's word is a hint.
    lake.pull(bob.kb, folder)
    assert {a.level for a in author_trust.authors(bob.kb)} == {"hint"}
    assert bob.answers() == [("bob-1", "tp4"), ("bob-1", "tp8")]
    assert sorted(bob.hints()) == ["tp1", "tp2", "tp2", "tp3"]
    assert asked(bob.kb, best) == [("tp4", 0.4)]
    # Revoking takes effect at once.
    ann.trusts(bob, "ignore")
    assert ann.answers() == [("ann-1", "tp1"), ("ann-1", "tp2")]
    assert asked(ann.kb, best) == [("tp2", 0.5)]
    for path in folder.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o770 if path.is_dir() else 0o660)


def test_whose_key_becomes_known_later_is_believed_from_the_next_pull_on(team):
    ann, bob, _, folder = team
    lake.push(bob.kb, folder, bob.key)
    lake.pull(ann.kb, folder)
    assert [a.name for a in author_trust.authors(ann.kb)] == ["unsigned"]
    ann.trusts(bob, "answer")
    lake.pull(ann.kb, folder)
    assert [(a.name, a.measurements) for a in author_trust.authors(ann.kb)] == [("bob", 2)]
    assert ("bob-1", "tp4") in ann.answers()


@pytest.mark.thorough
def test_nobody_speaks_for_another(team, tmp_path):
    ann, bob, eve, folder = team
    ann.trusts(bob, "answer")
    # Eve signs a session of Bob's name, and one of Ann's own, before Bob has pushed his.
    forger = Person(tmp_path, "forger")
    forger.measures("bob-1", tp2=7.0)
    forger.measures("ann-1", tp1=99.0, tp5=0.001)
    lake.push(forger.kb, folder, eve.key)
    lake.pull(ann.kb, folder)
    assert ann.answers() == [("ann-1", "tp1"), ("ann-1", "tp2")]
    assert [m.metrics["step_time_s"] for s, m in store.measurements(ann.kb) if s == "ann-1"] == [1.0, 0.5]
    lake.push(bob.kb, folder, bob.key)
    lake.pull(ann.kb, folder)  # what nobody known had signed makes way
    assert [name for session, name in ann.answers() if session == "bob-1"] == ["tp4"]
    assert len([s for s, _ in store.measurements(ann.kb) if s == "bob-1"]) == 2
    # Later files of Bob's session that Bob did not sign stay outside.
    forger.measures("bob-1", tp6=0.001)
    ann.trusts(eve, "answer")
    lake.push(forger.kb, folder, eve.key)
    said = lake.pull(ann.kb, folder).passed_over
    assert any("its session bob-1 belongs to bob, who did not sign this file" in text for text in said)
    assert ("bob-1", "tp6") not in ann.answers()


def test_a_signature_of_something_else_is_none(team):
    ann, bob, _, folder = team
    lake.push(bob.kb, folder, bob.key)
    ann.trusts(bob, "answer")
    [file] = folder.rglob("*.parquet")
    signature = signatures.signature_of(file)
    file.with_name("x").write_text("something else")
    signatures.sign([file.with_name("x")], bob.key)
    os.replace(file.with_name("x.sig"), signature)
    [said] = lake.pull(ann.kb, folder).passed_over
    assert "the signature does not match the file" in said
    assert author_trust.authors(ann.kb)[0].measurements == 0


def test_what_somebody_else_brought_stays_theirs_after_the_trash(team):
    ann, bob, _, folder = team
    lake.push(bob.kb, folder)
    lake.pull(ann.kb, folder)
    forget.forget(ann.kb, ["bob-1"])
    forget.undelete(ann.kb, ["bob-1"])
    assert ann.answers() == [("ann-1", "tp1"), ("ann-1", "tp2")]
    assert sorted(ann.hints()) == ["tp4", "tp8"]


def test_a_verdict_of_others_is_no_verdict_here(team):
    ann, _, eve, folder = team
    confirmed = Confirmed(
        winner=Configuration({"tp": 3}), name="tp3", value=0.001, default_name="tp1", default_value=1.0, gain=1000.0,
        low=999.0, high=1001.0, pairs=5,
    )  # fmt: skip
    store.ingest(eve.kb, write(eve.kb, "eve-2", ended(measured(0.001, tp=3)), confirmed))
    lake.push(eve.kb, folder)
    lake.pull(ann.kb, folder)
    assert asked(ann.kb, "SELECT name[:3], value, confirmed FROM best") == [("tp2", 0.5, False)]


def test_decisions_that_cannot_be_made(team):
    ann, bob, _, _ = team
    for author, level, key, said in (
        ("bob", "answer", "", "is not known yet"),
        ("bob", "love", "k", "not a level of trust"),
        ("../bob", "answer", "k", "cannot be the name"),
        ("unsigned", "answer", "k", "which have no key"),
    ):
        with pytest.raises(AutoscoutError, match=said) as refused:
            author_trust.decide(ann.kb, author, level, key)
        assert refused.value.exit_code == 2
    with pytest.raises(AutoscoutError, match="is not a public ssh key"):
        signatures.public_key(bob.key)
    with pytest.raises(AutoscoutError, match="cannot sign"):
        lake.push(ann.kb, ann.kb.parent / "lake", ann.kb)


def test_a_recommendation_says_what_it_rests_on(team):
    ann, bob, eve, folder = team
    for person in (bob, eve):
        lake.push(person.kb, folder, person.key)
    ann.trusts(bob, "answer")
    ann.trusts(eve, "ignore")
    lake.pull(ann.kb, folder)
    [(_, of_bob)] = [(s, m) for s, m in store.measurements(ann.kb, answers=True) if s == "bob-1"]
    ids = [m.configuration.id for _, m in store.measurements(ann.kb)]
    rests = lineage(ann.kb, job().id, "here", "step_time_s", ids)
    assert {(m.session, m.author, m.word) for m in rests.measurements} == {
        ("ann-1", "", ""),
        ("bob-1", "bob", "answer"),
    }
    [theirs] = [m for m in rests.measurements if m.measurement == of_bob.id]
    assert (theirs.value, theirs.status, theirs.purpose, theirs.devices) == (0.4, "ok", "search", "4×cpu")


def test_a_row_of_two_imports_belongs_to_both(tmp_path):
    kb = tmp_path / "kb.duckdb"
    one = measured(1.0, tp=1)
    for name in ("import-a", "import-b"):
        store_import(kb, name, job(), {"reader": "csv", "file": name}, 0.0, iter([one]))
    rests = lineage(kb, job().id, "here", "step_time_s", [one.configuration.id])
    assert [m.session for m in rests.measurements] == ["import-a", "import-b"]
    forget.forget(kb, ["import-a"])
    rests = lineage(kb, job().id, "here", "step_time_s", [one.configuration.id])
    assert [m.session for m in rests.measurements] == ["import-b"]


def test_what_a_team_spent_and_was_spared_is_told_by_job_and_author(tmp_path: Path):
    """In the hours of all devices together: two experiments of half an hour on four devices, the second session takes
    one of them as answered and measures one of its own."""

    def cost(step_time_s: float, tp: int) -> Measurement:
        return msgspec.structs.replace(measured(step_time_s, tp=tp), device_s=4 * 1800.0)

    ann, bob = Person(tmp_path, "ann"), Person(tmp_path, "bob")
    known = cost(1.0, 1)
    store.ingest(ann.kb, write(ann.kb, "first", ended(known, 1), ended(cost(2.0, 2), 2)))
    answered = Answered(measurement=known, measured_by="first")
    store.ingest(ann.kb, write(ann.kb, "second", answered, ended(cost(3.0, 4), 1)))
    assert device_hours(ann.kb, "first") == (4.0, 0.0)
    assert device_hours(ann.kb, "second") == (2.0, 2.0)

    bob.trusts(ann, "answer")
    lake.push(ann.kb, tmp_path / "lake", ann.key)
    lake.pull(bob.kb, tmp_path / "lake")
    store.ingest(bob.kb, write(bob.kb, "mine", ended(cost(4.0, 8), 1)))
    page = Path(__file__).parents[2] / "docs" / "trust.md"
    [question] = [block for block in page.read_text().split("```") if "FROM device_hours" in block]
    assert asked(bob.kb, question.removeprefix("sql\n")) == [("tiny", "ann", 2, 6.0, 2.0), ("tiny", "", 1, 2.0, 0.0)]
