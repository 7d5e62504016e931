"""An order that no search takes any more is refused, not promised."""

import json
from pathlib import Path

import pytest
import verbs

from kb import lock

RECORDED = Path("fixtures/recorded/tiny-gpt-session.jsonl")


def session_of(kb: Path, until: str) -> Path:
    """A session's folder, whose journal ends with the first event of that kind."""
    lines = RECORDED.read_text().splitlines(keepends=True)
    last = next(i for i, line in enumerate(lines) if json.loads(line)["type"] == until)
    name = json.loads(lines[0])["session"]
    (folder := kb.parent / "sessions" / name).mkdir(parents=True)
    (folder / "journal.jsonl").write_text("".join(lines[: last + 1]))
    return folder


@pytest.mark.parametrize("order", [["pin", "pp=2"], ["pause"], ["budget", "profiles=4"]])
def test_an_order_after_the_search_is_refused(tmp_path, order):
    """It was "asked for", and nothing ever said that it had come too late."""
    folder = session_of(tmp_path / "kb.duckdb", "search_ended")
    with lock.exclusive(folder / "owner.lock"):
        done = verbs.run("steer", folder.name, *order, "--kb", tmp_path / "kb.duckdb")
        assert (
            done.returncode,
            "has ended, so it takes no orders; its finalists are being measured again" in done.stderr,
        ) == (
            1,
            True,
        )
        assert verbs.run("stop", folder.name, "--kb", tmp_path / "kb.duckdb").returncode == 0
    assert len((folder / "orders.jsonl").read_text().splitlines()) == 1


def test_what_has_ended_is_not_to_be_resumed(tmp_path):
    folder = session_of(tmp_path / "kb.duckdb", "session_ended")
    done = verbs.run("stop", folder.name, "--kb", tmp_path / "kb.duckdb")
    assert (done.returncode, "has ended; tune its job again" in done.stderr) == (1, True)
