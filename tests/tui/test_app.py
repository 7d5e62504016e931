"""The screens in a headless terminal: what they show at three sizes, in each state, and what the keys do.

Pictures are compared as text with tests/tui/snapshots; UPDATE_SNAPSHOTS=1 writes them anew (look at them then).
"""

import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest
from textual.pilot import Pilot
from textual.widgets import ContentSwitcher, DataTable, Input, TextArea, Tree
from tui_samples import (
    believing,
    configuration,
    ended,
    experiment,
    failed,
    gated,
    infeasible,
    interrupted,
    later,
    measured,
    of_rl,
    paused,
    recording,
    running,
    session,
    started,
    two_kinds,
    waiting,
)

from autoscout.running.cluster import slots
from kb import choices, connect, lock, store
from kb.journal import AnyEvent
from tui import actions
from tui.app import SessionApp
from tui.draw.runs import called
from tui.feed import Read
from tui.modals import Full
from tui.screens.knowledge import KnowledgePane
from tui.session.follow import Follower
from tui.session.neighbours import waiting_orders
from tui.themes import THEMES
from tui.widgets.lazy_table import Rows

SNAPSHOTS = Path(__file__).parent / "snapshots"
SIZES = [(80, 24), (120, 40), pytest.param((200, 50), marks=pytest.mark.thorough)]
ONE_SIZE = [SIZES[0], pytest.param(SIZES[1], marks=pytest.mark.thorough), SIZES[2]]


def shape(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


KEYS = {"1": "tune", "2": "arms", "3": "checks", "4": "cluster", "5": "experiments", "6": "compare", "8": "launch"}
STATES: dict[str, list[AnyEvent]] = {
    "empty": [],
    "starting": [started()],
    "running": running(),
    "waiting": waiting(),
    "paused": paused(),
    "ended": ended(),
    "gated": gated(),
    "infeasible": infeasible(),
    "failed": failed(),
    "interrupted": interrupted(),
}


@pytest.fixture(autouse=True)
def own_knowledge_base(tmp_path, monkeypatch):
    """The usual one, so that no path of this machine is in a picture."""
    monkeypatch.setenv("AUTOSCOUT_KB", str(tmp_path / "kb.duckdb"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


async def settle(pilot: Pilot[None], app: SessionApp, count: int) -> None:
    """Waits until the journal is taken in and drawn: what is drawn again looks the same."""
    await until(pilot, lambda: app.session.count == count and bool(app.size.width))
    await pilot.pause()
    for _ in range(20):
        before = text_of(app)
        app.repaint()
        await pilot.pause()
        if text_of(app) == before:
            return


def text_of(app: SessionApp) -> str:
    width, height = app.size
    lines = app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip()[:width] for strip in lines[:height]) + "\n"


def compare(shown: str, name: str) -> None:
    shown = re.sub(r"\d\d:\d\d:\d\d", "HH:MM:SS", shown)  # the time of day depends on where one is
    stored = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        stored.parent.mkdir(exist_ok=True)
        stored.write_text(shown)
    assert shown == stored.read_text()


@pytest.mark.parametrize("size", ONE_SIZE, ids=shape)
@pytest.mark.parametrize("state", STATES)
async def test_tune_in_every_state(tmp_path, state, size):
    app = recording(tmp_path, STATES[state])
    async with app.run_test(size=size) as pilot:
        await settle(pilot, app, len(STATES[state]))
        compare(text_of(app), f"tune-{state}-{size[0]}x{size[1]}")


@pytest.mark.parametrize("size", SIZES, ids=shape)
@pytest.mark.parametrize("state", ["crashed", "silent"])
async def test_what_the_process_of_a_session_tells(tmp_path, state, size):
    """Its lock is held or not; how long it is silent is the clock's."""
    events = later(session(), time.time() - 300 - session()[-1].at)
    app = recording(tmp_path, events)
    owner = tmp_path / "owner.lock"
    owner.touch()
    with lock.exclusive(owner) if state == "silent" else nullcontext():
        async with app.run_test(size=size) as pilot:
            await settle(pilot, app, len(events))
            shown = text_of(app)
    compare(re.sub(r"\d\d:\d\d", "MM:SS", shown), f"tune-{state}-{size[0]}x{size[1]}")


@pytest.mark.parametrize("size", [(60, 18), (40, 10)], ids=shape)
async def test_a_terminal_that_is_too_small_shows_what_fits_and_says_so(tmp_path, size):
    app = recording(tmp_path, running())
    async with app.run_test(size=size) as pilot:
        await settle(pilot, app, len(running()))
        assert "80×24" in text_of(app)
        compare(text_of(app), f"tune-running-{size[0]}x{size[1]}")


async def test_a_long_journal_says_how_far_it_is_read(tmp_path):
    app = recording(tmp_path, session())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app, len(session()))
        read = Read(alive=None)
        read.share = 0.42
        app.post_message(read)
        await until(pilot, lambda: "reading the journal: 42%" in text_of(app))


@pytest.mark.parametrize("size", SIZES, ids=shape)
async def test_why_this_experiment_and_when_to_stop(tmp_path, size):
    app = recording(tmp_path, believing())
    async with app.run_test(size=size) as pilot:
        await settle(pilot, app, len(believing()))
        await pilot.press("9")
        await settle(pilot, app, len(believing()))
        compare(text_of(app), f"why-{shape(size)}")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, Full))
        assert "recompute_granularity" in text_of(app)


@pytest.mark.parametrize("size", SIZES, ids=shape)
async def test_a_session_too_short_for_reasons_has_no_empty_panels_for_them(tmp_path, size):
    """Three panels of four were "not recorded in this journal"."""
    events = [started(), *experiment(1, measured(configuration(), 1.0), 1_700_000_000.0), ended()[-1]]
    app = recording(tmp_path, events)
    async with app.run_test(size=size) as pilot:
        await settle(pilot, app, len(events))
        await pilot.press("9")
        await settle(pilot, app, len(events))
        shown = text_of(app)
    assert shown.count("the session ended before its first report") == 1
    assert "expected and achieved gains" not in shown
    assert "results by fidelity" in shown


@pytest.mark.parametrize("size", SIZES, ids=shape)
async def test_a_gate_shows_its_verdict_and_its_parts(tmp_path, size):
    app = recording(tmp_path, gated())
    async with app.run_test(size=size) as pilot:
        await settle(pilot, app, len(gated()))
        await pilot.press("6")
        await settle(pilot, app, len(gated()))
        compare(text_of(app), f"gate-{shape(size)}")


@pytest.mark.parametrize("size", SIZES, ids=shape)
async def test_the_phases_of_an_iteration_next_to_the_references(tmp_path, size):
    app = recording(tmp_path, of_rl())
    async with app.run_test(size=size) as pilot:
        await settle(pilot, app, len(of_rl()))
        await pilot.press("6", "c")
        await settle(pilot, app, len(of_rl()))
        shown = text_of(app)
        assert all(words in shown for words in ("idle: other ranks", "passes, optimizer")), "nothing is cut"
        compare(shown.split("╰")[0], f"iteration-{shape(size)}")  # what is below is computed meanwhile
        await pilot.press("5", "enter")
        await until(pilot, lambda: "phases of an iteration" in text_of(app))


@pytest.mark.parametrize("size", SIZES, ids=shape)
async def test_two_kinds_of_device_side_by_side(tmp_path, size):
    app = recording(tmp_path, two_kinds())
    async with app.run_test(size=size) as pilot:
        await settle(pilot, app, len(two_kinds()))
        await pilot.press("4")
        await settle(pilot, app, len(two_kinds()))
        compare(text_of(app), f"two-kinds-{shape(size)}")
        for view in ("stages", "ranks", "hosts"):  # one after the other where there is no room for all
            await pilot.press("c")
            await settle(pilot, app, len(two_kinds()))
            assert app.query_one(f"#{view}").region.height > 0


async def test_a_replay_shows_nothing_of_this_machine(tmp_path):
    """Old journals hold no telemetry, and what this machine does meanwhile is none of theirs."""
    app = recording(tmp_path, ended())
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot, app, len(ended()))
        await pilot.press("4")
        await pilot.pause(2.5)  # the machine is read once a second
        shown = text_of(app)
    assert "busy" not in shown
    assert "free" not in shown
    assert shown.count("not recorded") == 1, "panels of which the journal has nothing are not shown"


async def test_a_digit_leaves_the_example_question_for_its_screen(tmp_path):
    """8 and 9 after 7 were typed into the question."""
    app = recording(tmp_path, ended())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app, len(ended()))
        await pilot.press("7")
        await pilot.pause(0.5)
        await pilot.press("8")
        await settle(pilot, app, len(ended()))
        assert app.query_one("LaunchPane").display
        assert not app.query_one("KnowledgePane").display


@pytest.mark.parametrize("size", SIZES, ids=shape)
@pytest.mark.parametrize("key", [k for k in KEYS if k != "1"])
async def test_the_other_screens(tmp_path, key, size):
    app = recording(tmp_path, ended())
    async with app.run_test(size=size) as pilot:
        await settle(pilot, app, len(ended()))
        await pilot.press(key)
        await settle(pilot, app, len(ended()))
        shown = text_of(app)
        if key == "6":  # what is below is computed meanwhile
            shown = shown.split("╰")[0]
        compare(shown, f"{KEYS[key]}-{size[0]}x{size[1]}")


async def test_ascii_only(tmp_path):
    app = recording(tmp_path, running())
    app.session.ascii_only = True
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app, len(running()))
        panels = "".join(p.render().plain for p in app.query("Panel"))  # type: ignore[attr-defined]
        drawn = {c for c in panels if ord(c) > 127}
        assert drawn <= set("…×–Δε→≤\u00a0"), drawn  # which the canvas writes in ASCII (test_wire.py)


@pytest.mark.parametrize("theme", list(THEMES.values()))
async def test_all_themes_say_the_same(tmp_path, theme):
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
        assert app.session.past is not None
        assert len(app.session.past.switches) == 1
        assert app.session.past.confirmed is None
        await pilot.press("left_square_bracket")
        assert len(app.session.past.switches) == 0
        await pilot.press("g")
        assert not app.session.past.runs
        await pilot.press("right_curly_bracket")
        assert app.session.cursor == 21
        await pilot.press("G")
        assert app.session.past is None
        assert app.session.state.confirmed is not None


async def test_filtering_and_marking_experiments(tmp_path):
    app = recording(tmp_path, ended())
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot, app, len(ended()))
        await pilot.press("slash", *"oom", "enter")
        table = app.query_one("#experiments", Rows)
        await until(pilot, lambda: table.row_count == 1)
        app.query_one("#filter", Input).value = "-oom tp2"
        left = sum("tp2" in r.name and r.status != "oom" for r in app.session.state.runs)
        await until(pilot, lambda: table.row_count == left)
        await pilot.press("m")
        assert len(app.session.marked) == 1


async def test_experiments_page_by_page(tmp_path):
    events: list[AnyEvent] = [started()]
    for i in range(1, 1201):
        events += experiment(i, measured(configuration(mbs=i), 1.0 + i / 1000), 1_700_000_000.0 + 10 * i)
    app = recording(tmp_path, events)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app, len(events))
        await pilot.press("5")
        table = app.query_one("#experiments", Rows)
        await until(pilot, lambda: "experiment 1,200 of 1,200" in text_of(app))
        assert table.row_count == 1200
        await pilot.press("b")
        assert 1170 < table.cursor < 1199
        assert f"mbs {table.cursor + 1}" in text_of(app)
        await pilot.press("home")
        assert re.search(r"mbs 2\b", text_of(app))
        assert "experiment 1 of 1,200" in text_of(app)


async def test_what_is_cut_beside_a_scrollbar_says_so(tmp_path):
    """The mark itself was under the scrollbar."""
    recorded = Path(__file__).parents[2] / "fixtures/recorded/tiny-gpt-session.jsonl"
    app = SessionApp(Follower(recorded), tmp_path / "kb.duckdb")
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.session.share >= 1.0 and app.session.count > 40)
        await pilot.press("5")
        await until(pilot, lambda: "43 of 43" in text_of(app))
        await pilot.press("b")
        state = app.session.state
        often = Counter(setting for run in state.runs for setting in run.configuration.knobs.items())
        names = [called(state, run.configuration, run.name, often) for run in state.runs]
        rows = re.findall(r"^│\d.{48}(.*?) *[▁-█]*│$", text_of(app), re.MULTILINE)
        assert len(rows) > 10
        assert all(row in names or row.endswith("…") for row in rows), rows


async def test_help_is_of_the_screen_that_is_seen(tmp_path):
    app = recording(tmp_path, ended())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app, len(ended()))
        await pilot.press("3", "question_mark")
        await pilot.pause()
        assert "settings where predictions" in text_of(app)
        await pilot.press("escape")
        assert app.query_one(ContentSwitcher).current == "checks-pane"


async def test_events_that_come_while_it_is_open(tmp_path):
    app = recording(tmp_path, session())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app, len(session()))
        before = app.session.state.searched
        more = experiment(50, measured(configuration(pp=8), 0.5), 1_700_000_400.0)
        with open(app.session.follower.path, "ab") as file:
            file.write(b"".join(msgspec.json.encode(e) + b"\n" for e in more) + b'{"type":"experi')
        await settle(pilot, app, len(session()) + 2)
        assert app.session.state.searched == before + 1


async def test_a_damaged_journal_is_said_and_shown_as_far_as_it_goes(tmp_path):
    app = recording(tmp_path, session())
    with open(app.session.follower.path, "ab") as file:
        file.write(b"{broken}\n")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "is not a journal event" in " ".join(text_of(app).split()))


async def test_the_tree_opens(tmp_path):
    app = recording(tmp_path, ended())
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot, app, len(ended()))
        await pilot.press("2")
        await settle(pilot, app, len(ended()))
        tree = app.query_one("#tree", Tree)
        assert "visits" in str(tree.root.label)
        assert len(tree.root.children) > 1


async def test_one_experiment_in_full(tmp_path):
    """What came of it, the prediction, its knobs, the command, the environment and the end of its log."""
    log = tmp_path / "experiments" / "0004" / "rank-0.log"
    log.parent.mkdir(parents=True)
    log.write_text("iteration 3/10 | loss 4.2\n")
    app = recording(tmp_path, ended())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app, len(ended()))
        await pilot.press("5")
        app.query_one("#filter", Input).value = "pp2_tp1_arnone_mbs2"
        await until(pilot, lambda: app.query_one("#experiments", Rows).row_count == 1)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, Full))
        assert isinstance(app.screen, Full)
        told = app.screen.text.plain
        for words in ("predicted 0.8400, measured 0.8000: +5.0%", "pretrain_gpt.py", "tp                1  default 2"):
            assert words in told
        assert "iteration 3/10 | loss 4.2" in told
        await pilot.press("escape")
        assert app.query_one(ContentSwitcher).current == "experiments-pane"


async def test_the_row_under_the_cursor_is_run_again_pinned_and_excluded(tmp_path):
    """Each is an order in the file that the engine reads."""
    app = recording(tmp_path, session())
    owner = tmp_path / "owner.lock"
    owner.touch()
    with lock.exclusive(owner):
        async with app.run_test(size=(120, 40)) as pilot:
            await settle(pilot, app, len(session()))
            await pilot.press("5")
            app.query_one("#filter", Input).value = "oom"
            await until(pilot, lambda: app.query_one("#experiments", Rows).row_count == 1)
            await pilot.press("r", "y")
            await pilot.press("P", "j", "enter")  # the second knob: tp
            await pilot.press("x", "enter")  # the first: pp
            await pilot.press("1", "v", "n", "v", "y")
            await until(pilot, lambda: (tmp_path / "orders.jsonl").read_bytes().count(b"\n") == 4)
    given = [msgspec.json.decode(line) for line in (tmp_path / "orders.jsonl").read_bytes().splitlines()]
    assert [(o["what"], o["values"]) for o in given] == [
        ("retry", {"pp": 4, "tp": 1, "ar": "none", "mbs": 1}),
        ("pin", {"tp": 1}),
        ("exclude", {"pp": 4}),
        ("validate", {}),
    ]
    assert waiting_orders(tmp_path, 2) == ["exclude pp=4", "validate"]


async def test_what_is_typed_does_no_harm(tmp_path):
    """On the screen where people write SQL every letter is a letter, and no screen steers without being sure."""
    app = recording(tmp_path, session())
    (tmp_path / "owner.lock").touch()
    with connect.writer(tmp_path / "kb.duckdb"):
        pass
    with lock.exclusive(tmp_path / "owner.lock"):
        async with app.run_test(size=(120, 40)) as pilot:
            await settle(pilot, app, len(session()))
            await pilot.press("7")
            box = app.query_one("#console", TextArea)
            await until(pilot, lambda: app.focused is box)
            box.text = ""
            await pilot.press(*"selectprvxSP1q")
            assert box.text == "selectprvxSP1q"
            assert "esc keys" in text_of(app)
            await pilot.press("escape", *"pvSrPx")  # now they are keys, of other screens
            assert "esc keys" not in text_of(app)
            assert app.shown == "knowledge"
            app.query_one("#schema", Tree).focus()
            await pilot.press(*"pvSrPx")
            for screen in ("tune", "experiments", "compare"):
                await app.action_show(screen)
                await pilot.press("S" if screen == "tune" else "r", "n", "escape")
    assert not (tmp_path / "orders.jsonl").exists()


async def test_every_action_is_in_the_palette_of_the_screens_where_it_acts(tmp_path):
    app = recording(tmp_path, session())
    (tmp_path / "owner.lock").touch()
    with lock.exclusive(tmp_path / "owner.lock"):
        async with app.run_test(size=(120, 40)) as pilot:
            await settle(pilot, app, len(session()))
            for screen in ("experiments", "knowledge", "tune"):
                await app.action_show(screen)
                offered = {command.title for command in app.get_system_commands(app.screen)}
                assert offered == {a.says for a in actions.ACTIONS if not a.on or screen in a.on}
            await pilot.press("ctrl+p", *"pause")
            await until(pilot, lambda: "pause, or continue" in text_of(app))
            await pilot.press("enter")
            await until(pilot, lambda: (tmp_path / "orders.jsonl").is_file())
    assert '"what":"pause"' in (tmp_path / "orders.jsonl").read_text()


async def test_an_answer_that_comes_while_the_screens_close_has_no_place_and_ends_nothing(tmp_path):
    """Widgets are removed from the innermost on, and workers cancelled when the screen itself is."""
    app = recording(tmp_path, session())
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot, app, len(session()))
        await pilot.press("7")
        pane = app.query_one(KnowledgePane)
        await pane.query("#asked").remove()
        pane.ask("SELECT 1")
        await app.workers.wait_for_complete([w for w in app.workers if w.node is pane])


def test_the_page_lists_every_action():
    page = Path("docs/lab/screens-measured.md")
    before, _, rest = page.read_text().partition("| key | what it does")
    after = rest.partition("\n\n")[2]
    made = f"{before}{actions.table()}\n{after}"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        page.write_text(made)
    assert page.read_text() == made


async def test_the_cluster_screen_says_who_holds_the_devices_and_what_waits(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / "sessions" / "gpt-1"
    folder.mkdir(parents=True)
    app = recording(folder, later(waiting(), time.time() - 60 - waiting()[-1].at))
    app.session.kb = tmp_path / "kb.duckdb"
    (folder / "orders.jsonl").write_text('{"what":"try","values":{"tp":2}}\n')
    (folder / "owner.lock").touch()
    with lock.exclusive(folder / "owner.lock"), slots.machine(lambda: None, lambda: False, "other-7") as ours:
        assert ours
        async with app.run_test(size=(120, 40)) as pilot:
            await settle(pilot, app, len(waiting()))
            await pilot.press("4")
            shown = ""
            for _ in range(100):  # the machine is read by a thread of its own
                await pilot.pause(0.1)
                shown = " ".join(text_of(app).split())
                if "held by other-7" in shown and "order: try" in shown:
                    break
    assert "held by other-7" in shown
    assert f"process {os.getpid()}" in shown
    assert "waiting for the devices for 01:0" in shown
    assert "that process 4711 uses" in shown
    assert "order: try tp=2, before the next experiment" in shown
    assert "memory" in shown


async def test_a_locked_knowledge_base_says_by_whom_and_asks_again_by_itself(tmp_path):
    kb = tmp_path / "kb.duckdb"
    with connect.writer(kb):
        pass
    script = (
        "import sys, time; from pathlib import Path; from kb import connect\n"
        f"with connect.writer(Path({str(kb)!r})): print(flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert other.stdout is not None
    other.stdout.readline()
    app = recording(tmp_path, session())
    try:
        async with app.run_test(size=(120, 40)) as pilot:
            await settle(pilot, app, len(session()))
            await pilot.press("7")
            await until(pilot, lambda: f"kb.duckdb is in use by process {other.pid}" in text_of(app))
            other.kill()
            await until(pilot, lambda: "runs" in text_of(app) and "in use" not in text_of(app))
            pane = app.query_one(KnowledgePane)
            pane.ask("SELECT 40 + 2 AS answer FROM range(250)")
            await until(pilot, lambda: "rows 1–200" in text_of(app))
            app.query_one("#answer", DataTable).focus()
            await pilot.press("n")
            await until(pilot, lambda: "rows 201–250" in text_of(app))
    finally:
        other.kill()
        other.wait()


async def test_questions_are_saved_and_answers_exported(tmp_path):
    with connect.writer(tmp_path / "kb.duckdb"):
        pass
    app = recording(tmp_path, session())
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot, app, len(session()))
        await pilot.press("7")
        app.query_one("#console", TextArea).text = "SELECT 7 AS seven"
        app.query_one("#console", TextArea).focus()
        await pilot.press("ctrl+s")
        await pilot.press(*"mine", "enter")
        await until(pilot, lambda: "── mine" in text_of(app))
        await pilot.press("ctrl+e")
        await pilot.press(*str(tmp_path / "out.csv"), "enter")
        await until(pilot, lambda: (tmp_path / "out.csv").is_file())
    again = recording(tmp_path, session())
    async with again.run_test(size=(120, 40)) as pilot:
        await settle(pilot, again, len(session()))
        await pilot.press("7")
        await until(pilot, lambda: "mine" in text_of(again))
    assert (tmp_path / "out.csv").read_text() == "seven\n7\n"


async def until(pilot: Pilot[None], holds: Callable[[], bool], within_s: float = 1800.0) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, text_of(pilot.app)  # type: ignore[arg-type]
        await pilot.pause(0.1)


async def test_comparing_configurations_sessions_jobs_and_the_front(tmp_path):
    """What a knob brought is computed by the verb that says it on the command line too."""
    kb = tmp_path / "kb.duckdb"
    journal = tmp_path / "sessions" / "recorded" / "journal.jsonl"
    journal.parent.mkdir(parents=True)
    journal.write_bytes((SNAPSHOTS.parents[2] / "fixtures/recorded/tiny-gpt-session.jsonl").read_bytes())
    with connect.writer(kb):
        pass
    app = SessionApp(Follower(journal), kb)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("6")
        await until(pilot, lambda: "the reference" in text_of(app) and "measured" in text_of(app))
        await until(pilot, lambda: "predicted" in text_of(app))
        assert "±" in text_of(app)
        await pilot.press("c")
        await until(pilot, lambda: "tiny-gpt-cpu" in text_of(app) and "experiments" in text_of(app))
        await pilot.press("c")
        await until(pilot, lambda: "best value" in text_of(app))
        await pilot.press("c")
        await until(pilot, lambda: "are Pareto-optimal" in text_of(app))


async def test_a_similar_job_is_rejected_and_accepted_as_a_warm_start(tmp_path):
    kb = tmp_path / "kb.duckdb"
    journal = tmp_path / "sessions" / "recorded" / "journal.jsonl"
    journal.parent.mkdir(parents=True)
    journal.write_bytes((SNAPSHOTS.parents[2] / "fixtures/recorded/tiny-gpt-session.jsonl").read_bytes())
    store.ingest_all(kb)
    app = SessionApp(Follower(journal), kb)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("7")
        await until(pilot, lambda: "✓ 0 tiny-gpt-cpu" in text_of(app))
        tree = app.query_one("#schema", Tree)
        branch = next(n for n in tree.root.children if "similar" in str(n.label))
        tree.focus()
        tree.move_cursor(branch.children[0])
        await pilot.press("enter")
        await until(pilot, lambda: "a accepts, x rejects" in text_of(app))
        await pilot.press("x")
        await until(pilot, lambda: "rejected" in text_of(app))
        job = app.session.live.job
        assert job is not None
        assert choices.choices(kb, job.id) == {job.id: False}
        await pilot.press("a")
        await until(pilot, lambda: choices.choices(kb, job.id) == {job.id: True})
