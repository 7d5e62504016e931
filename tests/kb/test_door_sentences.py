"""What stays outside and why, in whole sentences; what text becomes on its way in: paths, keys, control characters."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from asking import refusal
from kb_samples import job, measured

from kb import door, older
from kb.records import DESIGNED, RECORDS, AutoscoutError, Configuration, Measurement


def test_an_error_says_that_it_failed_unless_told():
    assert AutoscoutError("x").exit_code == 1


def test_names():
    said = (
        "cannot be the name of a thing: it may have at most 200 ASCII letters, digits, '_', '.' and '-', "
        "and must begin with a letter or a digit"
    )
    assert refusal(door.name, "-a", "thing") == (f"'-a' {said}", 2)
    assert refusal(door.name, "a" * 201, "thing") == (f"'{'a' * 59}…' {said}", 2)
    assert "the name of an author: " in refusal(door.name, "", "author")[0]
    assert door.name("a" * 200, "thing") == "a" * 200
    assert door.shown("x" * 60) == repr("x" * 60)
    assert door.shown("x" * 61) == repr("x" * 59 + "…")
    assert door.shown("\x1b") == "'\\x1b'"
    path = Path("/tmp/\udcff")
    assert refusal(door.utf8, path)[1] == 2
    assert door.utf8(Path("/tmp/ä")) == Path("/tmp/ä")


def test_json_without_control_characters():
    text = rb'"\u0007 \u001F \u0080 \u009f \u007f \b \f \r \n \t \\u0007 \u00a0 \u0009"'
    assert door.plain_json(text) == rb'"                \n \t \\u0007 \u00a0 \u0009"'
    names = rb'{"name":"a\n\tb\"\n","type":"x\ny","session":"\\n\n","evidence":"a\nb"}'
    assert door.plain_json(names) == rb'{"name":"a  b\" ","type":"x\ny","session":"\\n ","evidence":"a\nb"}'
    assert door.plain_json(b"a\x00b\x7fc\xc2\x9fd\tn\n") == b"a b c d\tn\n"


def test_a_persons_json():
    assert door.parsed_json('{"a": 1}') == {"a": 1}
    assert door.parsed_json('{"a": 1}', list) == [("a", 1)]
    with pytest.raises(ValueError, match="it is nested too deeply"):
        door.parsed_json("[" * 100_000)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        *((text, "paths") for text in ("/home/ann", "~/x", "\\\\host\\x", "file:x", "C:\\x")),
        *(
            (text, "keys")
            for text in ("hf_abcdefgH", "AKIAABCDEFGHIJKL", "password = x", "a eyJ" + ".".join(["a" * 20] * 3))
        ),
        *((text, "addresses") for text in ("ann@host.org", "s3://bucket", "10.0.0.1:80")),
        *((text, "") for text in ("", "plain", "a/b", "a:\\x y", "hf_short", "10.0.0.1", "x C:\\y", "aC:\\")),
    ],
)
def test_what_is_nobody_elses_business(text: str, what: str):
    assert door.private(text) == ("paths" if text == "a:\\x y" else what)


def test_of_a_path_the_last_two_parts_stay():
    assert door.without_places("no /home/ann/project/a.py here") == "no …/project/a.py here"
    assert door.without_places("~/x/y/z: no") == "…/y/z: no"
    assert door.without_places("key hf_abcdefgh1, ann@host.org") == "key ‹secret›, …"
    assert door.without_places("a/b/c 1/2 /x") == "a/b/c 1/2 /x"


@pytest.mark.parametrize("stored", ["[]", "1", "null", "{", '{"name": 1}', "[" * 5000])
def test_what_is_no_job(stored: str):
    said, code = refusal(door.job, stored)
    assert said.startswith("a job cannot be read (")
    assert code == 1


def test_a_later_job_is_named_as_such():
    fields = msgspec.to_builtins(job())
    assert door.job(msgspec.json.encode({**fields, "records": 99})) == job()
    for version, kind in ((RECORDS + 1, door.Newer), (RECORDS, door.Refused), ("9", door.Refused)):
        with pytest.raises(door.Refused) as caught:
            door.job(msgspec.json.encode({**fields, "moonlight": 1, "name": 7, "records": version}))
        assert type(caught.value) is kind
        assert caught.value.exit_code == 1
    with pytest.raises(door.Newer, match=rf"\(record format {RECORDS + 1}, this one reads {RECORDS}\)"):
        door.job(msgspec.json.encode({"records": RECORDS + 1}))


def test_jobs_and_configurations_with_names_that_can_be_none():
    door.check_job(job())
    for field, what in (("name", "job"), ("target", "target")):
        said, code = refusal(door.check_job, msgspec.structs.replace(job(), **{field: "../x"}))
        assert said.startswith(f"'../x' cannot be the name of a {what}")
        assert code == 2
    door.check_configuration(Configuration({"a": 1, "b": "x", "c": True}))
    for knobs in ({"a\n": 1}, {"a": "x\x1b"}):
        [knob] = knobs
        assert refusal(door.check_configuration, Configuration({**knobs}))[0] == (
            f"the knob {door.shown(knob)} contains a control character"
        )


GOOD = msgspec.structs.replace(
    measured(1.0, tp=1), conditions={"a": 0.0}, per_rank={"b": [1.0]}, rank_devices=["h:cpu:0"], device_s=1.0,
    environment={"k": "v"}, period="p",
)  # fmt: skip


def change(**fields: Any) -> Measurement:
    return msgspec.structs.replace(GOOD, **fields)


@pytest.mark.parametrize("field", ["cost_s", "device_s", "at"])
def test_numbers_that_can_be_and_cannot(field: str):
    door.check_measurement(change(**{field: 0.0}))
    said = "the measurement 'tp1' has a number that is not finite, or an impossible cost or time"
    for value in (-1e-9, float("nan"), float("inf")):
        assert refusal(door.check_measurement, change(**{field: value}))[0] == said


def test_the_latest_time():
    door.check_measurement(change(at=4.0e9, cost_s=5.0e9))
    refusal(door.check_measurement, change(at=4.0e9 + 1))


@pytest.mark.parametrize(
    "fields",
    [
        *({name: "a\n"} for name in ("name", "context", "period")),
        *({"environment": pair} for pair in ({"k\n": "v"}, {"k": "v\n"})),
        *({name: {"a\n": 1.0}} for name in ("metrics", "conditions")),
        {"per_rank": {"a\n": [1.0]}},
        {"rank_devices": ["a\n"]},
    ],
)
def test_text_with_a_line_end_stays_outside(fields: dict[str, Any]):
    assert refusal(door.check_measurement, change(**fields))[0].endswith(
        "\\n' of a measurement contains a control character"
    )


def test_what_may_be_recommended_was_measured_or_is_designed_on_models():
    designed = {"device": DESIGNED}
    for rung, environment, counts in (
        ("measured", {}, True),
        ("measured", designed, True),
        ("predicted", designed, True),
        ("predicted", {}, False),
        ("short", designed, False),
        ("short", {}, False),
    ):
        assert change(fidelity=rung, environment=environment).counts is counts


def test_evidence_has_lines_and_nothing_else():
    door.check_measurement(change(evidence="a\n\tb"))
    assert refusal(door.check_measurement, change(evidence="a\x0b"))[0] == (
        "the evidence of 'tp1' contains a control character"
    )
    for metrics in ({"x": float("nan")}, {"x": float("-inf")}):
        refusal(door.check_measurement, change(metrics=metrics))
        refusal(door.check_measurement, change(conditions=metrics))


def test_numbers_that_json_has_not():
    fields = {
        "losses": [1.0, None], "iterations_s": [None], "grad_norms": [2.0], "metrics": {"a": None, "b": 1.0},
        "conditions": {"c": None}, "per_rank": {"d": [None, 1.0]}, "fidelity": "profiled",
    }  # fmt: skip
    found = older.measurement(fields)
    assert found["losses"][0] == 1.0
    assert [x != x for x in (*found["losses"], *found["iterations_s"], *found["per_rank"]["d"])] == [
        False, True, True, True, False,
    ]  # fmt: skip
    assert (found["grad_norms"], found["metrics"], found["conditions"]) == ([2.0], {"b": 1.0}, {})
    assert found["fidelity"] == "measured"
    assert older.measurement({"fidelity": "simulated"}) == {"fidelity": "predicted"}
    assert older.measurement({"fidelity": "short", "name": "x"}) == {"fidelity": "short", "name": "x"}


def test_events_of_older_words():
    assert older.event({"to": "profiled"}) == {"to": "measured"}
    assert older.event({"to": "measured"}) == {"to": "measured"}
    assert older.event({"to": [1]}) == {"to": [1]}
    assert older.event({"measurement": {"fidelity": "simulated"}}) == {"measurement": {"fidelity": "predicted"}}
    assert older.event({"measurement": {"metrics": 3}}) == {"measurement": {"metrics": 3}}
    assert older.event({"measurement": "x"}) == {"measurement": "x"}


def test_a_damaged_line_and_a_newer_ones(tmp_path: Path):
    path = tmp_path / "journal.jsonl"
    for text, version in (
        ("", 0),
        ('{"records": 3}\n{"records":4}\n{"nothing": 9}\n', 4),
        ('{"records": true}\n["records"]\n{"records": "9"}\n{"records"\n', 1),
        ('{"x": "records"}\n', 0),
    ):
        path.write_text(text)
        assert older._written_with(path) == version
    assert [older._records(line) for line in (b"{", b"{}", b"[]", b'{"records": "1"}', b"[" * 5000)] == [0] * 5
    path.write_text(f'{{"records": {RECORDS}}}\n')
    error = older.damaged(path, 17, ValueError("odd"))
    assert str(error) == f"{path}: the line that ends at byte 17 is not a journal event (odd); this line is skipped"
    assert error.exit_code == 2
    path.write_text(f'{{"records": {RECORDS + 1}}}\n')
    error = older.damaged(path, 17, ValueError("odd"))
    newer = (
        f"was written by a newer AutoScout (record format {RECORDS + 1}, this one reads {RECORDS}); upgrade AutoScout"
    )
    assert str(error) == f"{path} {newer}"
    assert error.exit_code == 2
