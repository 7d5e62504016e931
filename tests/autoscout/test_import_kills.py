"""An import that is killed at any moment leaves all of a file or nothing of it, and the next one brings it in."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kb import query

ROWS = 4_000
JOB = "fixtures/jobs/tiny-gpt-cpu.toml"


def started(kb: Path, path: Path) -> "subprocess.Popen[bytes]":
    code = "from tui.cli import main; main()"
    arguments = [sys.executable, "-c", code, "import", str(path), "--job", JOB, "--kb", str(kb)]
    return subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def counted(kb: Path) -> int:
    [(count,)] = query.run(kb, "SELECT count(*) FROM runs").rows if kb.exists() else [(0,)]
    return count


@pytest.mark.thorough
def test_a_kill_at_any_moment_leaves_all_of_a_file_or_nothing(tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_text("mbs,tp,step_time_s\n" + "".join(f"{2 ** (i % 4)},1,{0.1 + i / 1e4}\n" for i in range(ROWS)))
    begun = time.monotonic()
    assert started(tmp_path / "whole" / "kb.duckdb", path).wait() == 0
    took = time.monotonic() - begun
    chance, seen = random.Random(50), set[int]()
    for i in range(5):
        kb = tmp_path / f"kb{i}" / "kb.duckdb"
        killed = started(kb, path)
        time.sleep(took * chance.uniform(0.3, 1.1))
        killed.kill()
        killed.wait()
        seen.add(counted(kb))
        assert started(kb, path).wait() == 0
        assert counted(kb) == ROWS
        assert not [left for left in (kb.parent / "imports").glob(".unfinished-*") if left.is_dir()]
    assert seen <= {0, ROWS}
