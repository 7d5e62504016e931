"""A short run of tests/tools/kb_stress.py: writers and readers killed at random, and started again."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from kb_samples import ended, measured, python, write

from kb import connect, store

INGEST = """
import sys
from pathlib import Path
from kb import store
print(store.ingest(Path(sys.argv[1]), Path(sys.argv[2])))
"""
TOOL = Path(__file__).parents[1] / "tools" / "kb_stress.py"


@pytest.mark.thorough
def test_nothing_is_lost_or_duplicated_when_everybody_is_killed_at_random():
    command = [sys.executable, str(TOOL), "--minutes", "0.2", "--writers", "6", "--readers", "2", "--json"]
    root = TOOL.parents[2]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, env={"PYTHONPATH": str(root)})
    figures = json.loads(done.stdout)
    assert done.returncode == 0, figures
    assert figures["acknowledged"] > 0
    assert figures["killed"] > 3
    assert (figures["lost"], figures["duplicated"], figures["differ_from_journals"]) == (0, 0, 0)
    assert (figures["errors"], figures["unsound"]) == ([], [])


def test_who_gets_the_lock_ingests_for_all_who_wait(tmp_path: Path):
    """Ten processes wait while the file is held; the first to get it writes for all of them."""
    kb = tmp_path / "kb.duckdb"
    store.mark(kb)
    paths = [write(kb, f"s{i}", ended(measured(1.0 + i, tp=i))) for i in range(6)]
    with connect.writer(kb):
        children = [python(INGEST, kb, path) for path in paths]
        requests = kb.with_name("kb.duckdb.requests")
        while not requests.is_dir() or len(list(requests.glob("s*"))) < 6:
            pass
    added = sorted(int(child.communicate()[0]) for child in children)
    assert added == [0, 0, 0, 0, 0, 6]
    assert len(store.measurements(kb)) == 6
    assert list(requests.iterdir()) == []


def test_a_request_of_a_killed_process_is_fulfilled_by_the_next(tmp_path: Path):
    kb = tmp_path / "kb.duckdb"
    store.mark(kb)
    path = write(kb, "killed", ended(measured(1.0, tp=1)))
    with connect.writer(kb):
        child = python(INGEST, kb, path)
        while not list(kb.with_name("kb.duckdb.requests").glob("killed*")):
            pass
        child.kill()
        child.communicate()
    assert store.ingest(kb, write(kb, "next", ended(measured(2.0, tp=2)))) == 2
    assert store.ingest(kb, path) == 0
