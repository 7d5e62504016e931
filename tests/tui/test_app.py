"""The screens in a headless terminal: what they show at three sizes, in each state, and what the keys do.

Pictures are compared as text with tests/tui/snapshots; UPDATE_SNAPSHOTS=1 writes them anew (look at them then).
"""

import os
from pathlib import Path

import msgspec
import pytest
from textual.pilot import Pilot
from textual.widgets import ContentSwitcher, DataTable, Input, Tree
from tui_samples import configuration, ended, experiment, measured, running, session, started

from kb.journal import AnyEvent, SessionEnded
from tui.app import SessionApp
from tui.follow import Follower

SNAPSHOTS = Path(__file__).parent / "snapshots"
SIZES = [(80, 24), (120, 40), (200, 50)]
KEYS = {"1": "tune", "2": "arms", "3": "checks", "5": "experiments", "6": "compare", "8": "launch"}
CRASHED: list[AnyEvent] = [
    started(),
    SessionEnded(reason="failed", experiments=0, engine_ms_mean=0, engine_ms_max=0, at=1_700_000_001.0),
]
STATES: dict[str, list[AnyEvent]] = {
    "empty": [],
    "starting": [started()],
    "running": running(),
    "ended": ended(),
    "failed": CRASHED,
}


def recording(folder: Path, events: list[AnyEvent]) -> SessionApp:
    journal = folder / "journal.jsonl"
    journal.write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))
    return SessionApp(Follower(journal), folder / "kb.duckdb")


async def settle(pilot: Pilot[None], app: SessionApp, count: int) -> None:
    """Waits until the journal is taken in and drawn."""
    for _ in range(100):
        if len(app.events) == count and app.size.width:
            break
        await pilot.pause(0.05)
    await pilot.pause()
    app.repaint()
    await pilot.pause()


def text_of(app: SessionApp) -> str:
    width, height = app.size
    lines = app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip()[:width] for strip in lines[:height]) + "\n"


def compare(shown: str, name: str) -> None:
    stored = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        stored.parent.mkdir(exist_ok=True)
        stored.write_text(shown)
    assert shown == stored.read_text()


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize("state", STATES)
async def test_tune_in_every_state(tmp_path, state, size):
    app = recording(tmp_path, STATES[state])
    async with app.run_test(size=size) as pilot:
        await settle(pilot, app, len(STATES[state]))
        compare(text_of(app), f"tune-{state}-{size[0]}x{size[1]}")


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize("key", [k for k in KEYS if k != "1"])
async def test_the_other_screens(tmp_path, key, size):
    app = recording(tmp_path, ended())
    async with app.run_test(size=size) as pilot:
        await settle(pilot, app, len(ended()))
        await pilot.press(key)
        await settle(pilot, app, len(ended()))
        compare(text_of(app), f"{KEYS[key]}-{size[0]}x{size[1]}")


async def test_ascii_only(tmp_path):
    app = recording(tmp_path, running())
    app.ascii_only = True
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app, len(running()))
        panels = "".join(p.render().plain for p in app.query("Panel"))  # type: ignore[attr-defined]
        drawn = {c for c in panels if ord(c) > 127}
        assert drawn <= set("…×–Δε→≤"), drawn


@pytest.mark.parametrize("theme", ["textual-light", "textual-dark"])
async def test_both_themes_say_the_same(tmp_path, theme):
    app = recording(tmp_path, ended())
    async with app.run_test(size=(80, 24)) as pilot:
        app.theme = theme
        await settle(pilot, app, len(ended()))
        compare(text_of(app), "tune-ended-80x24")


async def test_the_time_cursor(tmp_path):
    app = recording(tmp_path, ended())
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot, app, len(ended()))
        await pilot.press("f")
        assert app.past is not None
        assert len(app.past.switches) == 1
        assert app.past.confirmed is None
        await pilot.press("left_square_bracket")
        assert len(app.past.switches) == 0
        await pilot.press("g")
        assert not app.past.runs
        await pilot.press("right_curly_bracket")
        assert app.cursor == 21
        await pilot.press("G")
        assert app.past is None
        assert app.state.confirmed is not None


async def test_filtering_and_marking_experiments(tmp_path):
    app = recording(tmp_path, ended())
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot, app, len(ended()))
        await pilot.press("slash", *"oom", "enter")
        await pilot.pause(0.3)
        table = app.query_one("#experiments", DataTable)
        assert table.row_count == 1
        app.query_one("#filter", Input).value = "-oom tp2"
        await pilot.pause(0.3)
        assert table.row_count == sum("tp2" in r.name and r.status != "oom" for r in app.state.runs)
        await pilot.press("m")
        assert len(app.marked) == 1


async def test_a_hundred_thousand_experiments_are_paged(tmp_path):
    events: list[AnyEvent] = [started()]
    for i in range(1, 3001):
        events += experiment(i, measured(configuration(mbs=i), 1.0 + i / 1000), 1_700_000_000.0 + 10 * i)
    app = recording(tmp_path, events)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app, len(events))
        await pilot.press("5")
        await pilot.pause(0.3)
        table = app.query_one("#experiments", DataTable)
        assert table.row_count == 200
        assert "page 15 of 15" in str(table.border_title)
        await pilot.press("b")
        await pilot.pause(0.3)
        assert "page 14 of 15" in str(table.border_title)


async def test_help_is_of_the_screen_that_is_seen(tmp_path):
    app = recording(tmp_path, ended())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app, len(ended()))
        await pilot.press("3", "question_mark")
        await pilot.pause()
        assert "each check of the guard" in text_of(app)
        await pilot.press("escape")
        assert app.query_one(ContentSwitcher).current == "checks-pane"


async def test_events_that_come_while_it_is_open(tmp_path):
    app = recording(tmp_path, session())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app, len(session()))
        before = app.state.searched
        more = experiment(50, measured(configuration(pp=8), 0.5), 1_700_000_400.0)
        with open(app.follower.path, "ab") as file:
            file.write(b"".join(msgspec.json.encode(e) + b"\n" for e in more) + b'{"type":"experi')
        await settle(pilot, app, len(session()) + 2)
        assert app.state.searched == before + 1


async def test_a_damaged_journal_is_said_and_shown_as_far_as_it_goes(tmp_path):
    app = recording(tmp_path, session())
    with open(app.follower.path, "ab") as file:
        file.write(b"{broken}\n")
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause(1.0)
        app.repaint()
        await pilot.pause()
        assert "is not a journal event" in " ".join(text_of(app).split())


async def test_the_tree_opens(tmp_path):
    app = recording(tmp_path, ended())
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot, app, len(ended()))
        await pilot.press("2")
        await settle(pilot, app, len(ended()))
        tree = app.query_one("#tree", Tree)
        assert "visits" in str(tree.root.label)
        assert len(tree.root.children) > 1
