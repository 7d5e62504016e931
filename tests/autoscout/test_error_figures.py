"""No simulator becomes worse unnoticed: errors by source against those that are committed."""

import msgspec
import pytest

from tests.tools.error_figures import DATA, FIGURES, TABLES, TRAINING, Figure, figures, risen

COMMITTED = msgspec.json.decode(FIGURES.read_bytes(), type=dict[str, Figure])


@pytest.mark.skipif(not (DATA / TABLES[0]).exists(), reason="measurements of others are not beside this checkout")
def test_no_source_is_predicted_worse_than_the_committed_figures():
    stems = tuple(name.rsplit("/", 1)[-1].split(".")[0] for name in TRAINING)
    assert risen({name: of for name, of in COMMITTED.items() if name.startswith(stems)}, figures(DATA, TRAINING)) == []


def test_a_rise_a_lost_row_and_a_narrower_interval_are_each_told():
    old = Figure(rows=10, mape=8.0, inside=90.0, rank=0.9, regret=1.0)
    assert risen({"a": old}, {"a": msgspec.structs.replace(old, mape=8.7)}) == []
    assert "errs by 8.9 %" in risen({"a": old}, {"a": msgspec.structs.replace(old, mape=8.9)})[0]
    assert (
        "errs by 32.1 %"
        in risen({"a": msgspec.structs.replace(old, mape=30.0)}, {"a": msgspec.structs.replace(old, mape=32.1)})[0]
    )
    assert "9 rows are predicted, 10 were" in risen({"a": old}, {"a": msgspec.structs.replace(old, rows=9)})[0]
    assert "0 rows are predicted" in risen({"a": old}, {})[0]
    assert "84 % of rows" in risen({"a": old}, {"a": msgspec.structs.replace(old, inside=84.0)})[0]
