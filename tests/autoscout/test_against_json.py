"""JSON tables for `predict --against`: the same rows as CSV give the same scores."""

import gzip
import json
from pathlib import Path

import pytest
from test_against import analytic, layouts, written

from autoscout.simulate.validation.column_names import plain_all
from autoscout.simulate.validation.measured import read
from kb.records import AutoscoutError
from kb.table_files import read_table


def test_a_list_and_lines_and_their_compressed_form(tmp_path: Path):
    rows = layouts()
    expected = analytic(written(tmp_path / "t.csv", rows))
    (tmp_path / "list.json").write_text(json.dumps(rows))
    (tmp_path / "lines.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    with gzip.open(tmp_path / "lines.json.gz", "wt") as file:
        file.write((tmp_path / "lines.jsonl").read_text())
    for name in ("list.json", "lines.jsonl", "lines.json.gz"):
        assert analytic(tmp_path / name) == pytest.approx(expected)


def test_nested_objects_are_columns_with_dots(tmp_path: Path):
    """As trackers and tuners write them: knobs among `params`, results among `metrics`."""
    knobs = ("tp", "pp", "micro_batch")
    nested = [
        {
            **{k: v for k, v in row.items() if k not in (*knobs, "iteration_time_s")},
            "params": {k: row[k] for k in knobs},
            "metrics": {"iteration_time_s": row["iteration_time_s"], "losses": [1.0, 2.0]},
        }
        for row in layouts()
    ]
    (tmp_path / "t.json").write_text(json.dumps(nested))
    assert analytic(tmp_path / "t.json") == (18, pytest.approx(0, abs=1e-9))
    assert read(tmp_path / "t.json").unknown == []


def test_a_prefix_stays_where_the_name_exists_without_it():
    assert plain_all(["tp", "params.tp", "metrics.Step Time (s)"]) == ["tp", "params.tp", "step_time_s"]
    assert plain_all(["config.tp", "params.tp"]) == ["config.tp", "params.tp"]


def test_what_is_no_number_is_no_value(tmp_path: Path):
    """Python's json module writes NaN and Infinity, which are no JSON."""
    rows = layouts()
    rows[0]["iteration_time_s"] = float("nan")
    (tmp_path / "t.json").write_text(json.dumps(rows))
    assert analytic(tmp_path / "t.json") == (17, pytest.approx(0, abs=1e-9))
    assert read_table(tmp_path / "t.json", "tp = 4 AND iteration_time_s > 0").columns[0] == "gpu"


@pytest.mark.parametrize("text", ["[1, 2]", "{", "[]", '"a"', "[[1]]"])
def test_what_is_no_table_is_named(tmp_path: Path, text: str):
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(AutoscoutError, match=r"t.json cannot be read as a JSON table \("):
        read(tmp_path / "t.json")
