"""What is told of the search and of devices: from the journal alone, and "not recorded" where it says nothing."""

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tui_samples import JOB, START, configuration, decided, ended, experiment, measured, name, started

from autoscout.targets.jobs import meanings
from kb import journal as j
from kb.records import Measurement
from kb.within_events import ValueBelief
from tui.draw import beliefs, device_groups
from tui.draw.answers import of_answer, record
from tui.printing.html_report import page
from tui.session.by_device import by_host, by_kind, by_stage
from tui.session.questions import ten_questions
from tui.session.state import State, fold

ROOT = Path(__file__).parents[2]
OLD = ROOT / "fixtures/recorded/tiny-gpt-session.jsonl"


def told() -> list[j.AnyEvent]:
    """Of three promises one was kept, one was not, one failed."""
    events: list[j.AnyEvent] = [started()]
    outcomes = ([1.0, None, None, 0.9], [0.9, None, None, 0.95], [0.9, None, None, None])
    for step, (arm, costs) in enumerate(zip(("MODEL", "MODEL", "DENSE"), outcomes, strict=True), start=1):
        c = configuration(mbs=step)
        gains: dict[str, Any] = {"predicted_gain": 0.05, "gain_MODEL": 0.05, "gain_SPARSE": 0.01, "gain_DENSE": 0.02}
        events.append(decided(step, arm, c, START, **gains))
        events += experiment(step, measured(c, costs[3] or 0.0, "ok" if costs[3] else "oom"), START)
        events.append(j.Rewarded(step=step, costs=costs, delta_sparse=0, delta_dense=0, interaction=None, arms={}))
    believed = {
        "mbs": [
            ValueBelief(value=1, cost=1.4, low=1.2, high=1.7, runs=1.0, measured=2),
            ValueBelief(value=2, cost=1.0, low=0.98, high=1.02, runs=1.0, measured=1),
            ValueBelief(value=8, cost=0.8, low=0.5, high=11.0, runs=0.1, measured=0),
        ],
        "ar": [
            ValueBelief(value=None, cost=1.0, low=0.99, high=1.01, runs=1.0, measured=3),
            ValueBelief(value="full", cost=1.1, low=1.0, high=1.2, runs=1.0, measured=0),
        ],
    }
    outlook = j.Outlook(step=3, chance=0.34, gain=0.012, ahead=10)
    return [*events, outlook, j.Believed(step=3, knobs=believed)]


def test_each_proposer_is_held_to_what_it_promised():
    state = fold(told())
    kept, broken, failed = state.reasons.promises
    assert (kept.promised, kept.delivered) == (0.05, pytest.approx(0.1))
    assert broken.delivered == 0.0
    assert failed.failed
    model, sparse, dense = beliefs.promises(state, 60, 10, False).plain.splitlines()[1:4]
    assert model.split()[:5] == ["MODEL", "2", "0", "5.00%", "5.00%"]
    assert sparse.split() == ["SPARSE", "0", "0", "1.00%", "–"]
    assert dense.split()[:3] == ["DENSE", "1", "1"]


def test_beliefs_are_drawn_with_the_knob_that_matters_most_first():
    text = beliefs.belief(fold(told()), 100, 20, True).plain
    assert text.index("mbs") < text.index("ar ")
    assert "fails 90%" in text
    assert "0.98 to 1.02" in text
    assert "●" not in text
    assert "*" in text
    short = beliefs.belief(fold(told()), 70, 5, False).plain
    assert "1 less important knobs" in short
    assert max(map(len, short.splitlines())) <= 70


def test_what_is_left_is_the_search_s_own_word():
    text = beliefs.left(fold(told()), 60, 6, False).plain
    assert "34% chance that one at least 1 % better is left" in text
    assert "1.20% is the expected gain of 10 more" in text


def test_an_old_journal_says_that_it_did_not_record():
    state = fold(j.events(OLD))
    for drawn in (beliefs.belief, beliefs.left, device_groups.kinds, device_groups.hosts, device_groups.stages):
        assert "not recorded" in drawn(state, 80, 10, False).plain
    assert "cpu" not in device_groups.kinds(state, 80, 10, False).plain.lower()
    random = fold([msgspec.structs.replace(started(), strategy="random")])
    assert "strategy random has no belief" in beliefs.belief(random, 80, 10, False).plain


def on_two_kinds() -> Measurement:
    """A pipeline of two stages over an A100 node and an A40 node."""
    return msgspec.structs.replace(
        measured(configuration(pp=2), 0.8),
        per_rank={"alone_s": [0.001, 0.001, 0.0021, 0.0023], "peak_memory_gib": [30.0, 31.0, 20.0, 22.0]},
        rank_devices=["n1:a100:0", "n1:a100:1", "n2:a40:0", "n2:a40:1"],
    )


def test_kinds_stages_and_hosts_side_by_side():
    m = on_two_kinds()
    state = fold([started(), *experiment(1, m, START)])
    fast, slow = by_kind(m)
    assert (fast.name, slow.name) == ("a100", "a40")
    assert slow.values["alone_s"] == pytest.approx(0.0022)
    first, second = by_stage(state.runs[0])
    assert (first.ranks, second.ranks, second.kinds) == ([0, 1], [2, 3], ["a40"])
    assert [(h.name, h.runs) for h in by_host(state)] == [("n1", 1), ("n2", 1)]
    text = device_groups.kinds(state, 80, 12, False).plain
    assert "a40 takes 2.20 times as long as a100 for the same arithmetic" in text
    assert "not recorded" not in text  # a row of it for watts, which neither kind reported
    assert "stage 1" in device_groups.stages(state, 80, 12, False).plain


def test_an_answer_as_a_picture_and_a_row_in_full():
    rows = [{"job": "a", "n": 4, "x": 1.0}, {"job": "bb", "n": 2, "x": None}]
    bars = of_answer(rows, 40, 10, True).plain.splitlines()
    assert bars[1].count("#") == 2 * bars[2].count("#")
    assert of_answer([{"a": 1, "b": 2}, {"a": 2, "b": 4}], 40, 10, True).plain.count("*") == 2
    assert "no column contains numbers" in of_answer([{"a": "x"}], 40, 10, True).plain
    assert "no answer" in of_answer([], 40, 10, True).plain
    assert record({"a": None, "long": "x" * 300}).plain.endswith("x" * 300)


def test_the_questions_are_those_of_the_page():
    page_of = (ROOT / "docs/knowledge-base.md").read_text()
    for question, sql in ten_questions("smallest-cpu-replay", "step_time_s").items():
        assert f"### {question}\n\n```sql\n{sql}\n```" in page_of
    assert len(ten_questions("a", "b")) == 10
    assert "job = 'it''s'" in next(iter(ten_questions("it's", "b").values()))


class Tags(HTMLParser):
    """Every tag that needs it is closed; what is text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        assert tag not in ("script", "link", "img", "iframe", "object")
        assert not any(key in ("src", "href") or key.startswith("on") for key, _ in attrs)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs): ...

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_a_report_holds_everything_and_lets_nothing_in():
    evil = "</pre><script>alert(1)</script>\x1b]52;c;AAAA\x07"
    events = [
        msgspec.structs.replace(e, session=evil) if isinstance(e, j.SessionStarted) else e
        for e in [
            *ended()[:-3],
            *told()[1:],
            *experiment(99, measured(configuration(), 0, "error", evidence=evil), START),
        ]
    ]
    made = page(fold([*events, *ended()[-3:]]))
    parsed = Tags()
    parsed.feed(made)
    assert parsed.open == []
    assert "<script>alert(1)</script>" in parsed.text  # as text
    assert "\x1b" not in made
    for there in (
        "36 % faster than",
        name(configuration(pp=2, tp=2, mbs=2, ar="selective")),
        "34% chance that one",
        "; +36 % over the reference, 95 % interval ",
        "the axis is in s/iter",
        meanings(JOB)["ar"],
        "torchrun",
        "79.1 of 80",
    ):
        assert there in parsed.text
    assert "url(" not in made
    assert "://" not in made


def test_a_report_leaves_out_what_the_journal_has_not():
    """Five of its sections were "not recorded"."""
    made = page(fold(ended()))
    assert "not recorded" not in made
    assert "Beliefs about each value" not in made
    assert "Beliefs about each value" in page(fold(told()))


def test_a_report_names_the_other_load_on_the_machine():
    """`best` named it, and the report that is sent to others did not."""
    busy = msgspec.structs.replace(measured(configuration(), 1.0), conditions={"foreign_cpu_share": 0.6})
    assert "other processes took 60% of this machine" in page(fold([started(), *experiment(1, busy, START)]))
    assert "other processes" not in page(fold(ended()))


def test_a_report_of_a_session_that_measured_nothing(tmp_path):
    state = State()
    state.apply(started())
    assert "Nothing ran correctly" in page(state)
    file = tmp_path / "r.html"
    command = [sys.executable, "-m", "tui.cli", "best", str(OLD), "--report", str(file), "--json"]
    out = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert json.loads(out) == {"report": str(file)}
    assert "tiny-gpt-cpu" in file.read_text()
