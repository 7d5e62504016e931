"""Any table is a landscape: which columns are knobs, what a row means, and sentences for what cannot be."""

import csv
from pathlib import Path

import numpy as np
import pytest

from autoscout.studies.bench.table_landscape import TableSource, landscapes_of_table
from kb.records import AutoscoutError
from kb.table_files import read_table


def write(path: Path, header: str, rows: list[tuple]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header.split(","), *rows])
    return path


def kernels(path: Path) -> Path:
    """Two sizes and a switch; a failure, a measurement beside the metric, a copy of the metric, a constant."""
    rows = []
    for size in (16, 32, 64, 128):
        for tile in (1, 2, 4):
            for cached in ("hit", "miss"):
                ms = 100 / size + abs(tile - 2) + (0.5 if cached == "miss" else 0.0) + size / 64
                failed = size == 128 and tile == 4
                rows.append(
                    (
                        size,
                        tile,
                        cached,
                        7,
                        "" if failed else ms,
                        "oom" if failed else "ok",
                        "" if failed else 1 / ms,
                        ms * 3,
                    )
                )
    return write(path / "kernels.csv", "size,tile,cached,device,time_ms,status,speed,power_w", rows)


def source(path: Path, **options) -> TableSource:
    return TableSource(**{"path": path, "metric": "time_ms", "goal": "min", "status": "status", **options})


def test_knobs_are_what_was_set_not_what_was_measured(tmp_path):
    (land,), notes = landscapes_of_table(source(kernels(tmp_path)))
    assert [k.name for k in land.space.knobs] == ["cached", "size", "tile"]
    assert [k.name for k in land.space.sparse] == ["cached"]
    said = "\n".join(notes)
    assert "taken as knobs: size, tile, cached" in said
    assert "device: constant" in said
    assert "speed" in said
    assert "power_w: named like a measurement" in said


def test_dummies_are_switches_that_do_nothing(tmp_path):
    (plain,), _ = landscapes_of_table(source(kernels(tmp_path)))
    (land,), notes = landscapes_of_table(source(kernels(tmp_path), dummies=2))
    assert [k.name for k in land.space.sparse] == ["cached", "dummy1", "dummy2"]
    assert len(land.truth) == 4 * len(plain.truth)
    assert "6 of" not in "\n".join(notes)  # failures are counted of what was measured
    without = [
        tuple(v for k, v in c.knobs.items() if "dummy" not in k)
        for c in map(land.space.feasible.configuration, range(96))
    ]
    known = {tuple(plain.space.feasible.configuration(i).knobs.values()): v for i, v in enumerate(plain.truth)}
    np.testing.assert_equal(land.truth, [known[knobs] for knobs in without])
    with pytest.raises(AutoscoutError, match="already has a column dummy1"):
        landscapes_of_table(
            source(write(tmp_path / "d.csv", "dummy1,time_ms,status", [(1, 2.0, "ok"), (2, 3.0, "ok")]), dummies=1)
        )


def test_a_column_that_ranks_as_the_metric_does_is_no_knob(tmp_path):
    rows = [(a, b, 10 * a + b, -(10 * a + b) // 2) for a in range(12) for b in range(10)]
    table = write(tmp_path / "t.csv", "a,b,cost,grade", rows)
    (land,), notes = landscapes_of_table(source(table, metric="cost", goal="max", status=None, where="cost > 0"))
    assert {k.name for k in land.space.knobs} == {"a", "b"}
    assert any("grade" in note for note in notes)


def test_rows_that_failed_are_failures_and_the_others_their_values(tmp_path):
    (land,), _ = landscapes_of_table(source(kernels(tmp_path)))
    assert len(land.truth) == 24
    assert int((land.status != "ok").sum()) == 2
    assert set(land.status[np.isnan(land.truth)]) == {"oom"}
    row = int(np.nanargmin(land.truth))
    assert land.space.feasible.configuration(row).knobs == {"cached": "hit", "size": 64, "tile": 2}
    assert land.optimum == pytest.approx(100 / 64 + 1)


def test_rows_that_share_all_knobs_are_one_configuration(tmp_path):
    rows = [(a, repeat, a + noise) for a in (1, 2, 3) for repeat, noise in enumerate((0.0, 0.1, 0.5))]
    table = write(tmp_path / "t.csv", "a,run,seconds", rows)
    (land,), notes = landscapes_of_table(source(table, metric="seconds", status=None, knobs=["a"]))
    assert sorted(land.truth) == pytest.approx([1.1, 2.1, 3.1])
    assert any("9 rows are 3 configurations" in note for note in notes)


def test_missing_cells_are_inactive_knobs(tmp_path):
    rows = [("none", "", 3.0), ("block", 1, 2.0), ("block", 2, 1.0), ("block", 4, 4.0)]
    table = write(tmp_path / "t.csv", "recompute,layers,step", rows)
    (land,), _ = landscapes_of_table(source(table, metric="step", status=None, knobs=["recompute", "layers"]))
    found = [land.space.feasible.configuration(i).knobs for i in range(4)]
    assert {"recompute": "none"} in found
    assert land.truth[found.index({"recompute": "block", "layers": 2})] == 1.0


def test_groups_are_landscapes_of_their_own(tmp_path):
    rows = [(m, g, a, b, m * g + a * b) for m in (1, 2) for g in (2, 4) for a in (1, 2, 3) for b in (1, 2, 3)]
    table = write(tmp_path / "t.csv", "model,gpus,a,b,cost", rows)
    lands, _ = landscapes_of_table(source(table, metric="cost", status=None, group_by=["model", "gpus"]))
    assert [land.name for land in lands] == [f"model={m}, gpus={g}" for m in (1, 2) for g in (2, 4)]
    assert [land.optimum for land in lands] == [m * g + 1 for m in (1, 2) for g in (2, 4)]


def test_simulators_costs_and_parquet(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "t.parquet"
    duckdb.sql(
        f"COPY (SELECT a, a * 2.0 AS seconds, a * 2.5 AS guess, 10 * a AS price FROM range(1, 9) t(a)) TO '{path}'"
    )
    (land,), _ = landscapes_of_table(
        source(path, metric="seconds", status=None, knobs=["a"], simulators=["guess"], cost="price")
    )
    codes = land.space.feasible.codes
    assert land.predictor("guess")(codes[[3, 0]]) == pytest.approx(1.25 * land.truth[[3, 0]])
    assert land.cost is not None
    assert land.measure(2, land.space.feasible.configuration(2), 0.0, 0).device_s == 5 * land.truth[2]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"metric": "time"}, "--metric: there is no column 'time'"),
        ({"knobs": ["sise"]}, "did you mean 'size'"),
        ({"simulators": ["guess"]}, "--simulator: there is no column 'guess'"),
        ({"sparse": ["power_w2"]}, "'power_w2' is not one of the knobs"),
        ({"where": "size > "}, "--where size > "),
        ({"where": "size > 1000"}, "has no rows for which size > 1000"),
        ({"where": "true); DROP TABLE measured; --"}, "--where"),
        ({"knobs": ["time_ms"]}, "cannot be a knob"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path, options, sentence):
    with pytest.raises(AutoscoutError) as error:
        landscapes_of_table(source(kernels(tmp_path), **options))
    assert sentence in str(error.value)
    assert error.value.exit_code == 2


def test_a_predicate_reads_no_other_file(tmp_path):
    table = kernels(tmp_path)
    other = write(tmp_path / "other.csv", "x", [(1,)])
    with pytest.raises(AutoscoutError, match="--where"):
        read_table(table, f"size IN (SELECT x FROM '{other}')")


def test_a_metric_without_a_ratio_is_refused(tmp_path):
    table = write(tmp_path / "t.csv", "a,score", [(1, -1.0), (2, 0.5)])
    with pytest.raises(AutoscoutError, match="0 or less"):
        landscapes_of_table(source(table, metric="score", status=None))
    (land,), notes = landscapes_of_table(source(table, metric="score", status=None, goal="max"))
    assert int((land.status != "ok").sum()) == 1
    assert any("count as failures" in note for note in notes)
