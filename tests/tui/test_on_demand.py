"""Screens that are made when they are opened, and the mouse: what can be clicked does what its key does."""

import time
from collections.abc import Callable

import pytest
from textual.pilot import Pilot
from textual.widgets import Input
from tui_samples import configuration, ended, experiment, measured, recording, started

from kb.journal import AnyEvent
from tui.actions import SCREENS
from tui.app import SessionApp
from tui.feed import Read
from tui.screens.pane import Pane
from tui.session.follow import Follower
from tui.themes import THEMES
from tui.widgets.key_line import KeyLine
from tui.widgets.lazy_table import Rows


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOSCOUT_KB", str(tmp_path / "kb.duckdb"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


async def until(pilot: Pilot[None], holds: Callable[[], bool], within_s: float = 1800.0) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline
        await pilot.pause(0.05)


def shown(app: SessionApp) -> str:
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


async def test_the_others_are_made_while_nobody_presses_a_key(tmp_path):
    app = recording(tmp_path, ended())
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.session.count == len(ended()))
        assert len(app.query(Pane)) < len(SCREENS)
        await until(pilot, lambda: len(app.query(Pane)) == len(SCREENS))
        assert app.shown == "tune"
        assert app.focused is None  # a box to type in among them takes no keys


async def test_a_journal_that_is_read_before_there_is_anything_to_draw_on_is_drawn(tmp_path):
    """As on a machine that has much else to do."""
    journal = recording(tmp_path, ended()).session.follower.path
    follower, read = Follower(journal), Read(alive=None)
    read.events = follower.everything()  # the app's own thread finds nothing new
    app = SessionApp(follower, tmp_path / "kb.duckdb")
    app.on_read(read)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "faster than the expert default" in shown(app))


async def test_the_keys_of_the_last_line_can_be_clicked(tmp_path):
    app = recording(tmp_path, ended())
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.session.count == len(ended()))
        for screen, name in (("experiments", "5 Runs"), ("why", "9 Why"), ("tune", "1 Tune")):
            line = shown(app).splitlines()[-1]
            await pilot.click(KeyLine, offset=(line.index(name) + 2, 0))
            await until(pilot, lambda screen=screen: app.shown == screen)


async def test_a_row_that_is_clicked_is_selected(tmp_path):
    app = recording(tmp_path, ended())
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.session.count == len(ended()))
        await pilot.press("5")
        table = app.query_one("#experiments", Rows)
        await until(pilot, lambda: table.row_count > 3)
        await pilot.click("#experiments", offset=(10, 4))  # the border, the heading, then the rows
        assert table.cursor == 2
        selected = app.session.state.runs[2].name
        await until(pilot, lambda: selected in str(app.query_one("#one-text").render()))  # type: ignore[attr-defined]


async def test_a_filter_that_looks_at_many_runs_finds_all_of_them(tmp_path):
    events: list[AnyEvent] = [started()]
    for i in range(1, 6001):
        m = measured(configuration(mbs=i), 1.0 + i / 10_000, "oom" if i % 10 == 0 else "ok")
        events += experiment(i, m, 1_700_000_000.0 + 10 * i)
    app = recording(tmp_path, events)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.session.count == len(events))
        await pilot.press("slash", *"oom")
        table = app.query_one("#experiments", Rows)
        await until(pilot, lambda: table.row_count == 600)
        assert [app.session.state.runs[i].number for i in table.rows[:2]] == [10, 20]
        app.query_one("#filter", Input).value = "-oom mbs6000"
        await until(pilot, lambda: table.row_count == 0)


async def test_a_theme_that_is_chosen_is_that_of_screens_which_were_not_seen_then(tmp_path, monkeypatch):
    """Cell by cell as where it was the theme from the beginning."""
    cells: dict[bool, list[object]] = {True: [], False: []}
    for chosen in cells:
        monkeypatch.setenv("AUTOSCOUT_THEME", "dark" if chosen else "light")
        app = recording(tmp_path, ended())
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda app=app: len(app.query(Pane)) == len(SCREENS))
            await pilot.press("3")
            if chosen:
                app.theme = THEMES["light"]
            for key in "381":
                await pilot.press(key)
                await pilot.pause(0.5)
                strips = app.screen._compositor.render_strips()
                cells[chosen] += [[(s.text, str(s.style)) for s in strip] for strip in strips]
    assert cells[True] == cells[False]
