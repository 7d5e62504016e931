"""Looking back in a journal that is not kept in memory, and long sessions beside which keys are answered."""

import subprocess
import sys
import tracemalloc
from pathlib import Path

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tui_samples import ended, started

from kb import journal as journals
from kb.journal import AnyEvent, Waiting
from tui.session.follow import Follower
from tui.session.fronts import _unbeaten
from tui.session.state import fold
from tui.session.watched import Watched

RECORDED = Path(__file__).parents[2] / "fixtures/recorded/tiny-gpt-session.jsonl"


def watched(path: Path) -> Watched:
    session = Watched(Follower(path), path.parent / "kb.duckdb", False)
    session.take(session.follower.everything())
    return session


def test_an_earlier_moment_is_what_was_folded_then(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in ended()))
    session = watched(path)
    assert session.state == fold(ended())
    for at in (5, 20, 19, 0, len(ended()) - 1, 1, 10_000):
        session.go(at)
        while not session.catch_up():
            pass
        assert session.state == fold(ended()[:at])
    session.go_live()
    assert session.state == fold(ended())


def test_the_first_switch_is_remembered():
    session = watched(RECORDED)
    events = journals.events(RECORDED)
    assert session.switched_at is None or isinstance(events[session.switched_at - 1], journals.FidelitySwitched)
    assert (session.switched_at is None) == (not any(isinstance(e, journals.FidelitySwitched) for e in events))


def test_a_journal_that_somebody_cuts_off_ends_where_it_ends(tmp_path):
    path = tmp_path / "journal.jsonl"
    lines = [msgspec.json.encode(event) + b"\n" for event in ended()]
    path.write_bytes(b"".join(lines))
    session = watched(path)
    path.write_bytes(b"".join(lines[:7]))
    session.go(12)
    while not session.catch_up():
        pass
    assert session.state == fold(ended()[:7])


def test_events_that_no_screen_shows_take_no_memory(tmp_path):
    """They are folded and let go."""
    session = Watched(Follower(tmp_path / "journal.jsonl"), tmp_path / "kb.duckdb", False)
    session.take([started()])

    def some() -> list[AnyEvent]:
        return [Waiting(holder="other", pid=i, over=i % 2 == 1, at=1e9 + i) for i in range(4000)]

    session.take(some())
    tracemalloc.start()
    for _ in range(3):
        session.take(some())
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert session.count == 16_001
    assert kept < 100_000


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=20))
def test_the_front_is_those_that_none_beats(costs):
    points = [(float(x), float(y)) for x, y in costs]
    front = _unbeaten(points)
    assert sorted(front) == [
        i for i, a in enumerate(points) if not any(b != a and b[0] <= a[0] and b[1] <= a[1] for b in points)
    ]
    assert [points[i] for i in front] == sorted(points[i] for i in front)


def test_the_first_frame_waits_for_no_numbers_library():
    """Half of the time until then was theirs once."""
    loaded = "import sys, tui.app, tui.home; print(*{m.partition('.')[0] for m in sys.modules})"
    said = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout
    assert not {"numpy", "scipy", "duckdb", "torch"} & set(said.split())
