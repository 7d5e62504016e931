"""What the journal recorded of a machine: ranks beside each other, and the screen that shows them of a recording."""

import msgspec
from test_app import recording, settle, text_of
from tui_samples import JOB, configuration, experiment, measured, session, started

from kb import journal as j
from kb.sharing import hosts
from tui.draw.panels import budget
from tui.draw.rank_table import rank_rows, ranks, recorded
from tui.printing.plain import Progress
from tui.session.state import fold

ALONE = [0.010, 0.011, 0.034, 0.010, 0.010, 0.009, 0.010, 0.011]


def placed():
    """Four A100 beside four A40, of which the third A100 is slowed."""
    kinds = ["NVIDIA A100"] * 4 + ["NVIDIA A40"] * 4
    return msgspec.structs.replace(
        measured(configuration(tp=2), 1.0),
        per_rank={
            "alone_s": ALONE,
            "step_time_s": [1.0] * 8,
            "power_w": [390.0, 385.0, 120.0, 388.0, 290.0, 288.0, 291.0, 287.0],
        },
        rank_devices=[f"{'node1' if i < 4 else 'node2'}:{kind}:{i % 4}" for i, kind in enumerate(kinds)],
        conditions={"foreign_cpu_share": 0.31, "throttled": 1.0},
    )


def recorded_session() -> list[j.AnyEvent]:
    begun = msgspec.structs.replace(started(), host="node1")
    outlook = j.Outlook(step=5, chance=0.07, gain=0.004, ahead=10, at=begun.at + 12)
    return [begun, *session()[1:], *experiment(30, placed(), begun.at + 200), outlook]


def test_every_rank_has_a_line_and_the_slowest_is_named():
    text = rank_rows(placed(), 120, 20, True).plain
    assert "slowest: rank 2 (node1:NVIDIA A100:2), 3.40× the others' time" in text
    assert text.count("node") == 9
    (line,) = [line for line in text.splitlines() if line.startswith(">")]
    assert line.split()[1] == "2"
    assert "120" in line


def test_where_there_is_no_room_for_all_ranks_the_slowest_stays():
    text = rank_rows(placed(), 80, 6, True).plain
    assert "> 2" in text
    assert "5 more" in text
    assert text.count("\n") < 6


def test_what_searching_on_is_worth_stands_beside_the_budget():
    state = fold(recorded_session())
    assert "P(1 % better exists) 7%, 10 more runs gain 0.4%" in budget(state, 60, 6, True).plain
    assert "1 % better left 7%, +10: 0.4%" in budget(state, 40, 6, True).plain


def test_a_journal_without_telemetry_says_so():
    state = fold(session())
    assert "not recorded" in recorded(state, 80, 10, True).plain
    assert "no run" in ranks(state, 80, 10, True).plain


async def test_a_recording_shows_the_machine_that_was_recorded_and_not_the_viewers(tmp_path):
    app = recording(tmp_path, recorded_session())
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot, app, len(recorded_session()))
        await pilot.press("4")
        await settle(pilot, app, len(recorded_session()))
        shown = text_of(app)
    assert "as recorded on node1: NVIDIA A100, NVIDIA A40" in shown
    assert hosts.host() not in shown
    assert "by others" in shown
    assert "31%" in shown
    assert "slowest: rank 2" in shown


def test_the_lines_name_a_rank_that_stays_slow_once_and_none_that_was_slow_by_luck():
    lines: list[str] = []
    progress = Progress(JOB, "gpt-1", lines.append)
    progress.see(started())
    said: list[str] = []
    quick = msgspec.structs.replace(placed(), per_rank={"alone_s": [0.01] * 8})
    for number, m in enumerate([placed(), placed(), quick, *[placed()] * 5]):
        for event in experiment(number, m, started().at + 20 * number):
            progress.see(event)
        said = [line for line in lines if "slowest: rank 2" in line]
        assert len(said) == (number >= 5)
    assert "3 runs in a row" in said[0]
