"""Journals are for ever: what older AutoScouts wrote is read, what newer ones wrote is known as such, and what is
written today keeps to what kb/journal.py says."""

import inspect
import itertools
import re
from pathlib import Path

import msgspec
import pytest
from kb_samples import PAST, ended, measured, started, write

from kb import journal, query, store
from kb.journal import AnyEvent, Decided, ExperimentEnded, ExperimentStarted, FidelitySwitched
from kb.records import RECORDS, AutoscoutError

RECORDED = sorted((Path(__file__).parents[2] / "fixtures" / "recorded").glob("*.jsonl"))
# Of the five measurements in each journal, as the AutoScouts that wrote them made them.
IDS = ["f765560a7c9594dc", "cea750526f48c3af", "6cf666ab49d5f2e9", "1821004263b1ef56", "c20615d087f73fa3"]


@pytest.mark.parametrize("name", ["first", "records-1"])
def test_what_older_autoscouts_wrote_is_read(tmp_path: Path, name: str):
    """`first`: by the first AutoScout; `records-1`: by the last one before the ladder of fidelities. Every kind of
    event that each knew, a failure, NaN, and their words for rungs."""
    events = journal.events(PAST / f"{name}.jsonl")
    assert [type(e).__struct_config__.tag for e in events] == [
        msgspec.json.decode(line)["type"] for line in (PAST / f"{name}.jsonl").read_bytes().splitlines()
    ]
    assert not any(isinstance(e, journal.Later) for e in events)
    found = [e.measurement for e in events if isinstance(e, ExperimentEnded | journal.Answered)]
    assert [m.id for m in found] == IDS
    assert {m.fidelity for m in found} == {"measured"}
    assert [e.to for e in events if isinstance(e, FidelitySwitched)] == ["measured"]
    kb = tmp_path / "kb.duckdb"
    assert store.ingest(kb, PAST / f"{name}.jsonl") == 5
    assert {m.id for _, m in store.measurements(kb)} == set(IDS)
    assert query.run(kb, "SELECT body ->> 'to' FROM decisions WHERE type = 'fidelity_switched'").rows == [("measured",)]


def test_what_newer_autoscouts_wrote_is_passed_on_or_named_as_theirs(tmp_path: Path):
    lines = journal.read(PAST / "newer.jsonl")
    events = [event for event, _ in itertools.islice(lines, 4)]
    with pytest.raises(AutoscoutError, match=rf"\(record format 9, this one reads {RECORDS}\)") as error:
        next(lines)
    assert error.value.exit_code == 2
    assert [type(e).__name__ for e in events] == ["SessionStarted", "Later", "Decided", "ExperimentEnded"]
    assert isinstance(later := events[1], journal.Later)
    assert (later.kind, later.body["height"], later.at) == ("levitated", [1, 2], 1795187021.0)
    kb = tmp_path / "kb.duckdb"
    with pytest.raises(AutoscoutError, match="newer AutoScout"):
        store.ingest(kb, PAST / "newer.jsonl")
    assert [m.name for _, m in store.measurements(kb)] == ["tp1"]  # what is before it is kept


def test_a_newer_autoscout_that_went_on_with_a_session_is_known_as_such(tmp_path: Path):
    path = write(tmp_path / "kb.duckdb", "s", ended(measured(1.0, tp=1)), journal.SessionResumed(pid=7, records=9))
    with open(path, "ab") as file:
        file.write(b'{"type":"session_ended","reason":{"in":"other words"}}\n')
    with pytest.raises(AutoscoutError, match="newer AutoScout"):
        journal.events(path)


def test_damage_is_not_taken_for_something_newer(tmp_path: Path):
    path = write(tmp_path / "kb.duckdb", "s", ended(measured(1.0, tp=1)))
    for line in (b'{"type": "decided"}', b'{"type":"experiment_ended","measurement":{"metrics":[1]}}', b"{", b"7"):
        damaged = tmp_path / "damaged.jsonl"
        damaged.write_bytes(path.read_bytes() + line + b"\n")
        with pytest.raises(AutoscoutError, match="is not a journal event"):
            journal.events(damaged)


def named(event: type[journal.Event], part: str) -> set[str]:
    """The words that a part of an event's docstring lists."""
    text = inspect.cleandoc(event.__doc__ or "").split(f"{part}:\n")[1].split("\n\n")[0]
    return set(re.findall(r"^    ([\w-]+)", text, re.MULTILINE))


PHASES, ARMS, PURPOSES = named(Decided, "Phases"), named(Decided, "Arms"), named(ExperimentStarted, "Purposes")


def unnamed(events: list[AnyEvent]) -> list[str]:
    """What the contract does not name. A strategy of another kind is its own arm, in two phases."""
    found: list[str] = []
    strategy = ""
    for event in events:
        match event:
            case journal.SessionStarted():
                strategy = event.strategy
            case Decided():
                ours = strategy in ("autoscout", "paper")
                arms = ARMS - {"RANDOM"} if ours else {strategy.upper()}
                phases = PHASES if ours else {"default", "search"}
                found += [f"phase {event.phase}"] if event.phase not in phases else []
                found += [f"arm {event.arm}"] if event.arm not in arms else []
            case ExperimentStarted() | ExperimentEnded() if event.purpose not in PURPOSES:
                found.append(f"purpose {event.purpose}")
            case _:
                pass
    return found


def test_the_contract_is_there():
    assert sorted(PHASES) == ["default", "opening", "repeat", "search", "tournament"]
    assert sorted(ARMS) == ["DEFAULT", "DENSE", "MODEL", "PROPOSED", "RANDOM", "SPARSE"]
    assert sorted(PURPOSES) == ["anchor", "check", "confirm", "profile", "repeat", "search"]
    strange = Decided(step=1, phase="pondering", arm="LUCK", configurations=[], names=[], why="")
    assert unnamed([started("s"), strange]) == ["phase pondering", "arm LUCK"]


@pytest.mark.parametrize("path", [*RECORDED, PAST / "records-1.jsonl"], ids=lambda path: path.stem)
def test_recorded_journals_keep_to_the_contract(path: Path):
    assert unnamed(journal.events(path)) == []


@pytest.mark.parametrize("line", [b'{"type":"x\xa0"}\n', b'{"\xa0":1,"type":"later"}\n', b"[" * 100_000 + b"\n"])
def test_a_line_that_is_no_text_is_named(tmp_path: Path, line: bytes):
    path = write(tmp_path / "kb.duckdb", "s")
    with open(path, "ab") as file:
        file.write(line)
    with pytest.raises(AutoscoutError, match="is not a journal event") as error:
        journal.events(path)
    assert error.value.exit_code == 2
