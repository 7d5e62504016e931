"""Rungs, what machines did to experiments, measuring periods, values per rank: kept, told apart, asked for in SQL."""

import math
from pathlib import Path

import msgspec
import pytest
from kb_samples import asked, ended, job, measured, write

from kb import journal, outcomes, similar, store
from kb.records import Measurement
from kb.sharing import lake


def on(rung: str, measurement: Measurement) -> Measurement:
    return msgspec.structs.replace(measurement, fidelity=rung)


def spoiled(at: float = 0.0, **knobs: int) -> Measurement:
    """By its machine."""
    return msgspec.structs.replace(
        measured(None, at, **knobs),
        status="infrastructure",
        evidence="gpu-07 fell off the bus",
        period="gpu-07 boot 3",
        rank_devices=["gpu-07:gpu:0", "gpu-07:gpu:1"],
        conditions={"throttled": 1.0},
    )


@pytest.fixture
def kb(tmp_path: Path) -> Path:
    """tp1 is fine, but spoiled once; tp2 was spoiled only; tp4 fails; lower rungs claim that tp8 is the best and that
    tp1 does not run."""
    path = tmp_path / "kb.duckdb"
    store.ingest(
        path,
        write(
            path,
            "s",
            ended(measured(2.0, 1.0, tp=1), 1),
            ended(spoiled(2.0, tp=1), 2),
            ended(spoiled(3.0, tp=2), 3),
            ended(measured(None, 4.0, tp=4), 4),
            *(ended(on(rung, measured(0.5, tp=8))) for rung in ("predicted", "shadow", "one-device", "short")),
            *(ended(on(rung, measured(None, tp=1))) for rung in ("predicted", "shadow", "one-device", "short")),
        ),
    )
    return path


def test_the_parts_of_a_step_are_asked_for_by_name(tmp_path: Path):
    kb, whole = tmp_path / "kb.duckdb", measured(2.0, 1.0, tp=1)
    parts = {"forward_backward_s": 1.5, "gradients_s": 0.3, "optimizer_s": 0.1}
    whole = msgspec.structs.replace(whole, metrics={**whole.metrics, **parts})
    store.ingest(kb, write(kb, "s", ended(whole, 1), ended(measured(3.0, tp=2), 2)))
    found = asked(kb, "SELECT name, part, seconds, share FROM parts ORDER BY seconds DESC")
    assert [row[:3] for row in found] == [
        ("tp1", "forward_backward", 1.5), ("tp1", "gradients", 0.3), ("tp1", "optimizer", 0.1)
    ]  # fmt: skip
    assert [row[3] for row in found] == pytest.approx([0.75, 0.15, 0.05])


def test_only_what_was_measured_is_a_fact_about_a_configuration(kb: Path):
    assert [(m.name, m.status) for _, m in store.measurements(kb)] == [("tp1", "ok"), ("tp4", "oom")]
    found = outcomes.outcomes(kb, job().id, ["step_time_s"])
    assert [(o.name, o.status, o.runs) for o in found] == [("tp1", "ok", 1), ("tp4", "oom", 1)]
    [alike] = similar.similar(kb, job(), lambda node: 1.0)
    assert (alike.measurements, alike.ok) == (2, 1)


def test_the_views_count_nothing_else(kb: Path):
    assert asked(kb, "SELECT name, value, measurements FROM best") == [("tp1", 2.0, 1)]
    results = asked(kb, "SELECT name, value, measurements, failed, wrong FROM results ORDER BY name")
    assert results == [("tp1", 2.0, 1, 0, False), ("tp4", None, 0, 1, False)]
    effects = asked(kb, "SELECT value, configurations, failed FROM knob_effects WHERE knob = 'tp' ORDER BY 1")
    assert effects == [("1", 1, 0), ("4", 1, 1)]
    failed = asked(kb, "SELECT name, status FROM failures WHERE fidelity = 'measured'")
    assert failed == [("tp4", "oom")]
    assert asked(kb, "SELECT count(*) FROM failures WHERE status = 'infrastructure'") == [(0,)]
    assert asked(kb, "SELECT failed, incidents FROM sessions") == [(5, 2)]


def test_every_rung_can_be_asked_for(kb: Path):
    rows = asked(kb, "SELECT fidelity, count(*) FROM runs GROUP BY 1 ORDER BY 1")
    assert rows == [("measured", 4), ("one-device", 2), ("predicted", 2), ("shadow", 2), ("short", 2)]


def test_what_machines_did_is_shown_in_its_own_right(kb: Path):
    sql = "SELECT session, name, period, evidence, rank_devices ->> 0, conditions ->> 'throttled' FROM incidents"
    assert asked(kb, f"{sql} ORDER BY ended") == [
        ("s", "tp1", "gpu-07 boot 3", "gpu-07 fell off the bus", "gpu-07:gpu:0", "1.0"),
        ("s", "tp2", "gpu-07 boot 3", "gpu-07 fell off the bus", "gpu-07:gpu:0", "1.0"),
    ]


def test_an_import_counts_them_apart(tmp_path: Path):
    from kb import imports

    kb = tmp_path / "kb.duckdb"
    rows = [spoiled(tp=1), measured(None, tp=2), measured(1.0, tp=4)]
    imports.store_import(kb, "import-0123456789abcdef", job(), {"reader": "csv", "file": "t.csv"}, 1.0, iter(rows))
    assert asked(kb, "SELECT measurements, failed FROM imports") == [(3, 1)]


RICH = msgspec.structs.replace(
    measured(1.0, 5.0, tp=2),
    rank_memory_gib=[1.5, 2.5],
    period="gpu-07 boot 3",
    per_rank={"power_w": [300.0, math.nan], "step_time_s": [1.0, 0.75]},
    rank_devices=["gpu-07:gpu:0", "gpu-08:gpu:1"],
    conditions={"steal_share": 0.25, "clock_mhz": math.inf},
)


def test_periods_conditions_and_values_per_rank_come_back(tmp_path: Path):
    """Through a journal and through a lake; JSON has no NaN."""
    ann, bob = tmp_path / "ann" / "kb.duckdb", tmp_path / "bob" / "kb.duckdb"
    path = write(ann, "s", ended(RICH), ended(measured(2.0, 6.0, tp=4)))
    store.ingest(ann, path)
    lake.push(ann, tmp_path / "lake")
    lake.pull(bob, tmp_path / "lake")
    read = next(e.measurement for e in journal.events(path) if isinstance(e, journal.ExperimentEnded))
    for kb in (ann, bob):
        (_, back), (_, plain) = store.measurements(kb)
        assert back.id == read.id
        assert (back.period, back.rank_devices, back.conditions) == (
            RICH.period,
            RICH.rank_devices,
            {"steal_share": 0.25},
        )
        assert back.per_rank["step_time_s"] == [1.0, 0.75]
        assert math.isnan(back.per_rank["power_w"][1])
        assert (plain.period, plain.per_rank, plain.rank_devices, plain.conditions) == ("", {}, [], {})
        ranks = asked(kb, "SELECT rank, device, metric, value FROM ranks ORDER BY metric, rank")
        assert ranks == [
            (0, "gpu-07:gpu:0", "peak_memory_gib", 1.5),
            (1, "gpu-08:gpu:1", "peak_memory_gib", 2.5),
            (0, "gpu-07:gpu:0", "power_w", 300.0),
            (1, "gpu-08:gpu:1", "power_w", None),
            (0, "gpu-07:gpu:0", "step_time_s", 1.0),
            (1, "gpu-08:gpu:1", "step_time_s", 0.75),
        ]
        assert asked(kb, "SELECT period, measurements, incidents, sessions FROM periods") == [
            ("gpu-07 boot 3", 1, 0, 1)
        ]
        assert asked(kb, "SELECT name FROM runs WHERE (conditions ->> 'steal_share')::DOUBLE > 0.2") == [("tp2",)]


def test_text_of_a_machine_is_checked_at_the_door(tmp_path: Path):
    from kb import door

    told = msgspec.structs.replace(RICH, conditions={"steal_share": 0.25})
    door.check_measurement(told)
    for said in (
        {"period": "a\nb"},
        {"rank_devices": ["\x1b[2J"]},
        {"per_rank": {"\x07": [1.0]}},
        {"conditions": {"\n": 1.0}},
    ):
        with pytest.raises(door.Refused, match="control character"):
            door.check_measurement(msgspec.structs.replace(RICH, **said))
