"""Terminals and journals that nobody wishes for: tiny, resized without end, growing fast, damaged, in other scripts."""

import signal
import threading
import time

import msgspec
import pytest
from cases import few
from pty_terminal import ROOT, PtyScreens
from rich.cells import cell_len
from test_app import recording, settle, text_of, until
from tui_samples import JOB, configuration, ended, experiment, measured, running, started

from autoscout.job import shipped
from kb import connect, lock
from kb import journal as j
from kb.journal import AnyEvent
from kb.records import Configuration
from tui.hygiene import plain
from tui.session.questions import ten_questions
from tui.widgets.lazy_table import Rows

WIDE = "漢字テスト模型"
RIGHT_TO_LEFT = "\u05e9\u05dc\u05d5\u05dd\u202eevil\u202c"


@pytest.mark.parametrize("size", [(20, 5), (1, 1), pytest.param((3, 60), marks=pytest.mark.thorough)], ids=str)
async def test_a_terminal_too_small_for_anything_shows_what_fits_on_every_screen(tmp_path, size):
    app = recording(tmp_path, ended())
    async with app.run_test(size=size) as pilot:
        await settle(pilot, app, len(ended()))
        for key in "2345681?":
            await pilot.press(key)
            await pilot.pause()
            lines = text_of(app).splitlines()
            assert len(lines) <= size[1]
            assert all(cell_len(line) <= size[0] for line in lines)
        await pilot.press("escape")
        await pilot.resize_terminal(120, 40)
        await settle(pilot, app, len(ended()))
        assert "best so far" in text_of(app)


@pytest.mark.thorough
async def test_after_a_storm_of_sizes_it_looks_as_if_there_had_been_one(tmp_path):
    fresh = recording(tmp_path, running())
    async with fresh.run_test(size=(120, 40)) as pilot:
        await settle(pilot, fresh, len(running()))
        expected = text_of(fresh)
    app = recording(tmp_path, running())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app, len(running()))
        for i in range(60):
            await pilot.resize_terminal(20 + i * 37 % 180, 5 + i * 13 % 50)
        await pilot.resize_terminal(120, 40)
        await settle(pilot, app, len(running()))
        assert text_of(app) == expected


def test_a_storm_of_sizes_in_a_terminal_ends_with_the_whole_screen(tmp_path):
    shown = PtyScreens("watch", str(ROOT / "fixtures/recorded/tiny-gpt-session.jsonl"))
    shown.shows("experiments")
    for i in range(50):
        shown.resize(20 + i * 37 % 180, 5 + i * 13 % 50)
        shown.read(0.01)
    shown.settle()
    before = len(shown.sent)
    shown.resize(120, 40)
    shown.settle()
    after = bytes(shown.sent[before:])
    assert b"best so far" in after
    assert b"experiments " in after
    assert shown.close() == 0


def test_a_size_that_was_another_for_a_moment_is_drawn_anew(tmp_path):
    """The terminal has cut what did not fit: nothing was sent, as all that is told is the size that there was."""
    shown = PtyScreens("watch", str(ROOT / "fixtures/recorded/tiny-gpt-session.jsonl"))
    shown.shows("experiments")
    shown.settle()
    shown.resize(60, 10)
    shown.resize(120, 40)
    assert b"best so far" in shown.settle(within_s=30, some=True)
    assert shown.close() == 0


@pytest.mark.parametrize("how", few([signal.SIGTSTP, signal.SIGSTOP], 1))
def test_what_a_shell_wrote_while_the_screens_were_stopped_is_drawn_over(how):
    shown = PtyScreens("watch", str(ROOT / "fixtures/recorded/tiny-gpt-session.jsonl"))
    shown.shows("experiments")
    shown.settle()
    shown.process.send_signal(how)
    shown.read(1.0)
    shown.process.send_signal(signal.SIGCONT)
    assert b"best so far" in shown.settle(within_s=30, some=True)
    assert shown.close() == 0


@pytest.mark.thorough
def test_a_journal_that_grows_by_a_thousand_events_a_second_is_kept_up_with(tmp_path):
    """What is sent meanwhile stays small, and the end is shown."""
    journal = tmp_path / "journal.jsonl"
    journal.write_bytes(msgspec.json.encode(started()) + b"\n")

    def grow() -> None:
        with open(journal, "ab") as file:
            for second in range(3):
                for i in range(1 + 500 * second, 501 + 500 * second):
                    pair = experiment(i, measured(configuration(mbs=i), 1.0 + i / 1000), time.time())
                    file.write(b"".join(msgspec.json.encode(e) + b"\n" for e in pair))
                    file.flush()
                time.sleep(0.5)

    with lock.exclusive(tmp_path / "owner.lock"):
        shown = PtyScreens("watch", str(journal))
        shown.shows("experiments")
        shown.settle()
        before, began = len(shown.sent), time.monotonic()
        writer = threading.Thread(target=grow)
        writer.start()
        while writer.is_alive():
            shown.read(0.1)
        shown.read(3.0)
        assert len(shown.sent) - before < 4096 + 1024 * (time.monotonic() - began)
        deadline = time.monotonic() + 120
        while b"1500/20" not in shown.redrawn():
            assert time.monotonic() < deadline
    shown.close()


async def test_bytes_that_are_no_utf8_are_named_and_what_is_before_them_is_shown(tmp_path):
    app = recording(tmp_path, running())
    with open(app.session.follower.path, "ab") as file:
        file.write(b'{"type":"decided","why":"\xff\xfe"}\n')
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot, app, len(running()))
        await until(pilot, lambda: "is not a journal event" in " ".join(text_of(app).split()))  # however long its path
        assert "best 0.7200" in text_of(app)


def test_a_log_that_is_no_utf8_is_shown_as_far_as_it_is(tmp_path):
    folder = tmp_path / "log"
    folder.mkdir()
    (folder / "rank0.log").write_bytes(b"loss 9.8 \xff\xfe\x1b[2J\nnext\n")
    follower = recording(tmp_path, []).session.follower
    assert follower.tail("log") == ["loss 9.8 \ufffd\ufffd", "next"]


def other_scripts() -> list[AnyEvent]:
    job = msgspec.structs.replace(JOB, name=f"{WIDE}-{RIGHT_TO_LEFT}")
    events: list[AnyEvent] = [msgspec.structs.replace(started(), job=job)]
    for i in range(1, 6):
        c = Configuration({"knob": f"{WIDE}{i}", "tp": i})
        m = msgspec.structs.replace(measured(c, 1.0 / i), name=f"{WIDE}{i}_{RIGHT_TO_LEFT}_{'e' + chr(0x301)}" * 3)
        events.append(
            j.Decided(
                step=i, arm="SPARSE", configurations=[c], names=[m.name], why=WIDE * 20, values={}, phase="search",
                at=1_700_000_000.0 + 20 * i,
            )
        )  # fmt: skip
        events += experiment(i, m, 1_700_000_000.0 + 20 * i)
    return events


@pytest.mark.parametrize("size", [(80, 24), pytest.param((120, 40), marks=pytest.mark.thorough)], ids=str)
async def test_wide_and_right_to_left_names_move_no_border(tmp_path, size):
    app = recording(tmp_path, other_scripts())
    async with app.run_test(size=size) as pilot:
        await settle(pilot, app, len(other_scripts()))
        for key in "123568":
            await pilot.press(key)
            await settle(pilot, app, len(other_scripts()))
            for strip in app.screen._compositor.render_strips():
                assert cell_len(strip.text) == strip.cell_length == size[0]
        await pilot.press("5")
        table = app.query_one(Rows)
        assert {cell_len(table.render_line(y).text) for y in range(5)} == {table.size.width}


async def test_line_ends_and_tabs_in_names_move_no_border(tmp_path):
    events = other_scripts()
    broken = "a\nb\tc\r\x1b[2Jd"
    first = started()
    events[0] = msgspec.structs.replace(
        first, session=broken, job=msgspec.structs.replace(JOB, name=broken), strategy=broken, environment={broken: "1"}
    )
    for i in range(6, 9):
        c = Configuration({"knob": broken, broken: i})
        m = msgspec.structs.replace(measured(c, 1.0 / i), name=f"{broken}{i}")
        events += experiment(i, m, 1_700_000_000.0 + 20 * i)
    size = (80, 24)
    app = recording(tmp_path, events)
    async with app.run_test(size=size) as pilot:
        await settle(pilot, app, len(events))
        for key in "123456789":
            await pilot.press(key)
            await settle(pilot, app, len(events))
            strips = app.screen._compositor.render_strips()
            assert [cell_len(strip.text) for strip in strips] == [size[0]] * size[1]


async def test_the_longest_name_of_a_job_that_comes_with_us_is_whole_on_a_small_terminal(tmp_path):
    longest = max(shipped.jobs(), key=len)
    first, *rest = j.events(ROOT / "fixtures/recorded/tiny-gpt-session.jsonl")
    assert isinstance(first, j.SessionStarted)
    job = msgspec.structs.replace(first.job, name=longest)
    events = [msgspec.structs.replace(first, session=f"{longest}-20261123-145807-f8fe", job=job), *rest]
    app = recording(tmp_path, events)
    whole = {
        "1": "next: −overlap_grad, 1.156×",
        "2": "permute_fusion → 19 more",
        "3": "distopt is off",
        "5": "mbs 2, −overlap_grad",
    }
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app, len(events))
        for key, words in {**whole, "8": "dp4_distopt_overlap_grad_overlap_param_mbs4_ddp_bucket8"}.items():
            await pilot.press(key)
            await settle(pilot, app, len(events))
            for text in (f" {longest} ", "ended: no improvement for a long time", words):
                assert text in text_of(app)


def test_text_that_turns_text_around_is_taken_out():
    assert plain(RIGHT_TO_LEFT) == "\u05e9\u05dc\u05d5\u05dd?evil?"


def test_other_scripts_in_a_locale_of_ascii(tmp_path):
    journal = tmp_path / "journal.jsonl"
    journal.write_bytes(b"".join(msgspec.json.encode(e) + b"\n" for e in other_scripts()))
    shown = PtyScreens("watch", str(journal), LC_ALL="C")
    shown.shows("experiments")
    shown.press("5")
    shown.settle()
    assert shown.close() == 0
    assert [c for c in shown.sent if c > 127] == []


async def test_the_documented_questions_are_whole_beside_an_answer(tmp_path):
    events = j.events(ROOT / "fixtures/recorded/tiny-gpt-session.jsonl")
    app = recording(tmp_path, events)
    with connect.writer(app.session.kb):
        pass
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot, app, len(events))
        await pilot.press("7")
        await until(pilot, lambda: "authors" in text_of(app))  # all tables: longer than the screen, so it scrolls
        for question in ten_questions("job", "metric"):
            assert f"{question} " in text_of(app)
