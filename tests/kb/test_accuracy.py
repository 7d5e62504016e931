"""How far off each simulator was: by what a check itself says, and by what older sessions had simulated before."""

from pathlib import Path

import pytest
from kb_samples import asked, ended, measured, write

from kb import journal, store
from kb.records import Configuration


def check(**members: float) -> journal.Checked:
    return journal.Checked(
        step=1, name="tp2", predicted=1.5, measured=2.0, mape=0.25, epsilon=0.15, weights={}, members=members
    )


SIMULATED = journal.Simulated(
    configuration=Configuration({"tp": 2}), name="tp2", predicted=1.5, members={"analytic": 1.0}
)


@pytest.mark.parametrize(
    "events",
    [[check(analytic=1.0)], [SIMULATED, check()], [SIMULATED, check(analytic=1.0)]],
    ids=["as today", "as before", "both"],
)
def test_each_simulator_is_held_against_what_was_measured(tmp_path: Path, events: list[journal.Event]):
    kb = tmp_path / "kb.duckdb"
    store.ingest(kb, write(kb, "s", *events, ended(measured(2.0, tp=2))))
    found = asked(kb, "SELECT simulator, checks, mape, bias FROM simulator_accuracy ORDER BY simulator")
    assert found == [("analytic", 1, 0.5, -0.5), ("ensemble", 1, 0.25, -0.25)]
