"""Home and the new job, headless: what they list, what they draft, and that a session comes of it."""

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import msgspec
import pytest
from pty_terminal import PtyScreens
from textual.pilot import Pilot
from textual.widgets import Input, OptionList
from tui_samples import ended, gated, running

from autoscout.machine.new_job import JobAnswers, drafted, engines, write
from autoscout.targets.jobs import load_job
from kb import lock
from kb.records import AutoscoutError
from tui import actions
from tui.home import WINNERS, HomeApp
from tui.screens.wizard import NewJob
from tui.session.house import SessionsOfHouse, job_files
from tui.widgets.one_of import Choice

ROOT = Path(__file__).parents[2]
SIZES = [(80, 24), (120, 40), pytest.param((200, 50), marks=pytest.mark.thorough)]
LLAMA = {
    "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 256, "vocab_size": 512, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("AUTOSCOUT_KB", str(tmp_path / "kb.duckdb"))


@pytest.fixture
def model(tmp_path) -> Path:
    """A stranger's own."""
    folder = tmp_path / "my-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return folder


def session_folder(tmp_path: Path, name: str, events: list) -> Path:
    folder = tmp_path / "sessions" / name
    folder.mkdir(parents=True)
    (folder / "journal.jsonl").write_bytes(b"".join(msgspec.json.encode(e) + b"\n" for e in events))
    return folder


def text_of(app: HomeApp) -> str:
    lines = app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in lines)


async def until(pilot: Pilot[Path], holds: Callable[[], bool], within_s: float = 1800.0) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, text_of(pilot.app)  # type: ignore[arg-type]
        await pilot.pause(0.1)


def test_sessions_that_run_come_first_and_each_says_how_it_stands(tmp_path):
    session_folder(tmp_path, "over", ended())
    live = session_folder(tmp_path, "live", running())
    session_folder(tmp_path, "lost", running())
    (live / "owner.lock").touch()
    look = SessionsOfHouse(tmp_path / "kb.duckdb")
    with lock.exclusive(live / "owner.lock"):
        first, *others = look.look()
    assert (first.session, first.state, first.experiments) == ("live", "runs", "9/20")
    by_name = {s.session: s for s in others}
    assert by_name["over"].state == "ended: budget"
    assert by_name["over"].best == "0.7300 s/iter"
    assert "broke off" in by_name["lost"].state


def test_a_long_journal_is_read_at_its_ends_alone(tmp_path):
    events = ended()
    padded = [*events[:-3], *running()[10:20] * 400, *events[-3:]]
    session_folder(tmp_path, "long", padded)
    (seen,) = SessionsOfHouse(tmp_path / "kb.duckdb").look()
    assert seen.best == "0.7300 s/iter"


HOSTILE = (b"good", b"not-\xff-utf8", b"clip\x1b]52;c;aGk=\x07board", b"two\nlines", b"c1\x9b2J")


def hostile(folder: Path) -> list[str]:
    """Sessions and job files with names that no session and no sane job has."""
    names = [os.fsdecode(name) for name in HOSTILE]
    for name in names:
        session_folder(folder, name, ended())
        (folder / f"{name}.toml").write_text('name = "x"\ntask = "serve"\ntarget = "\\u001b[2Jv\\u009bllm\\nx"\n')
    return names


async def test_names_of_files_that_are_no_text_break_no_line_and_what_they_name_opens(tmp_path):
    names = hostile(tmp_path)
    app = HomeApp(tmp_path / "kb.duckdb", tmp_path)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: all(word in text_of(app) for word in ("good.toml", "two?lines.toml", "clipboard")))
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff]", text_of(app))
        assert text_of(app).count("\n") == 39
        at = next(i for i, s in enumerate(app.sessions) if s.session == names[1])
        await pilot.press(*["down"] * at, "enter")
    assert app.return_value == tmp_path / "sessions" / names[1] / "journal.jsonl"


def test_names_of_files_that_are_no_text_reach_no_terminal(tmp_path):
    hostile(tmp_path)
    screens = PtyScreens(AUTOSCOUT_KB=str(tmp_path / "kb.duckdb"), XDG_STATE_HOME=str(tmp_path / "state"))
    screens.shows("two?lines")
    screens.settle()
    assert screens.close() == 0
    assert b"52;c;" not in screens.sent
    assert b"Traceback" not in screens.sent


async def test_a_session_of_a_knowledge_base_of_any_name_opens(tmp_path):
    (tmp_path / "kb.duckdb").touch()  # another one's sessions are in `sessions`
    session_folder(tmp_path, "theirs", running())
    folder = tmp_path / "team.sessions/ours"
    folder.mkdir(parents=True)
    (folder / "journal.jsonl").write_bytes((tmp_path / "sessions/theirs/journal.jsonl").read_bytes())
    app = HomeApp(tmp_path / "team.duckdb", tmp_path)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "ours" in text_of(app))
        await pilot.press("enter")
    assert app.return_value == folder / "journal.jsonl"


def test_a_damaged_journal_and_one_without_a_session_stop_nothing(tmp_path):
    session_folder(tmp_path, "over", ended())
    (session_folder(tmp_path, "noise", []) / "journal.jsonl").write_bytes(b"\xff\xfe\x00 no event\n")
    session_folder(tmp_path, "empty", [])
    assert "over" in {s.session for s in SessionsOfHouse(tmp_path / "kb.duckdb").look()}


def test_job_files_are_what_names_a_job(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'no-job'\n")
    (tmp_path / "broken.toml").write_text("name = ")
    (tmp_path / "mine.toml").write_text("name = 'mine'\ntask = 'serve'\ntarget = 'vllm'\n")
    found = job_files(tmp_path)
    assert [(j.given, j.ours) for j in found[:2]] == [("mine.toml", False), (found[1].given, True)]
    assert "smallest-cpu" in {j.given for j in found}


def test_a_draft_is_a_job_file_that_loads_and_is_never_written_over_another(model, tmp_path):
    found = {e.name: e for e in engines(tmp_path)}
    assert found["megatron"].found or found["megatron"].missing
    draft = drafted(JobAnswers(source=str(model), engine="megatron", device="h100", count=8, batch=32), tmp_path)
    assert draft.job["cluster"]["nodes"] == [{"device": "h100", "count": 8}]
    assert draft.job["traffic"] == {"seq_len": 128, "global_batch": 32}
    assert "dtype" not in draft.job["model"]
    file = write(draft, tmp_path)
    assert file == write(draft, tmp_path)
    assert load_job(file).cluster.nodes[0].count == 8
    other = drafted(JobAnswers(source=str(model), engine="megatron", device="cpu"), tmp_path)
    assert other.job["model"]["dtype"] == "fp32"
    assert write(other, tmp_path).name == "my-llama-2.toml"
    serving = drafted(JobAnswers(source="llama-3.1-8b", engine="vllm", device="h100", length=300), tmp_path)
    assert (serving.job["task"], serving.job["traffic"]["input_len"]) == ("serve", 300)
    line = drafted(JobAnswers(source="torchrun --nproc-per-node 2 pretrain_gpt.py --num-layers 4 --hidden-size 64 "
                                  "--num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 "
                                  "--micro-batch-size 1 --global-batch-size 8"), tmp_path)  # fmt: skip
    assert line.own


def test_a_servers_line_gets_devices_limits_and_a_load(tmp_path):
    """The line's timeouts were those of CPU ranks, and nothing took limits."""
    line, limits = "vllm serve Qwen/Qwen3-32B --tensor-parallel-size 4", ["ttft_p99_ms <= 500", "tpot_p99_ms <= 50"]
    answers = JobAnswers(source=line, device="h100", count=4, batch=64, limits=" , ".join(limits))
    job = load_job(write(drafted(answers, tmp_path), tmp_path))
    assert (job.cluster.nodes[0].device, job.devices, job.traffic.concurrency) == ("h100", 4, 64)
    assert job.objective.constraints == limits
    assert (job.launch.timeout_s, job.launch.measure_s) == (900, 60)
    with pytest.raises(AutoscoutError, match="'fast' is not a constraint"):
        drafted(JobAnswers(source=line, limits="fast"), tmp_path)


async def test_a_line_s_engine_and_devices_stand_in_the_answers(tmp_path):
    """The engine stayed megatron, and the devices those of this machine, whatever the line has."""
    app = HomeApp(tmp_path / "kb.duckdb", tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("n")
        await until(pilot, lambda: isinstance(app.screen, NewJob) and len(app.screen.query_one(Choice).values) > 1)
        line = "srun --gres=gpu:h100:4 vllm serve Qwen/Qwen3-32B --tensor-parallel-size 4"
        app.screen.query_one("#source", Input).value = line
        await until(pilot, lambda: "‹ h100 ›" in text_of(app))
        limits = app.screen.query_one("#limits", Input)
        assert "‹ vllm ›" in text_of(app)
        assert limits.parent.display
        assert "your own launch line" in text_of(app)  # it stood there that the engine of before trains
        assert app.screen.draft.job["cluster"]["nodes"] == [{"device": "h100", "count": 4}]
        app.screen.query_one("#source", Input).value = "llama-3.1-8b"
        await until(pilot, lambda: not limits.parent.display)
        assert len(app.screen.query_one("#engine", Choice).values) == 2


@pytest.mark.parametrize("source", ["nothing-of-that-name", "'unclosed quote", "/dev/null", "\u202eoops"])
def test_a_source_that_is_none_is_said_in_a_sentence(source, tmp_path):
    with pytest.raises(AutoscoutError) as raised:
        drafted(JobAnswers(source=source, engine="megatron"), tmp_path)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
async def test_home_lists_what_is_there_and_opens_it(tmp_path, size):
    session_folder(tmp_path, "gpt-gate-2", gated())
    session_folder(tmp_path, "gpt-1", ended())
    (tmp_path / "mine.toml").write_text("name = 'mine'\ntask = 'pretrain'\ntarget = 'megatron'\n")
    app = HomeApp(tmp_path / "kb.duckdb", tmp_path)
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: all(word in text_of(app) for word in ("gpt-1", "mine.toml", "n new job")))
        shown = text_of(app)
        for word in (
            "sessions",
            "jobs",
            "recent winners",
            "machines known",
            "n new job",
            "1.36×",
            "ended: budget",
            "gate: worse, +8.2 %",
        ):
            assert word in shown
        await pilot.press("question_mark")
        assert "a new job: from a config.json" in text_of(app)
        await pilot.press("escape", "enter")
    assert app.return_value == tmp_path / "sessions/gpt-1/journal.jsonl"


def test_winners_are_those_whose_gain_is_proven():
    """Undecided gains stood among them, with a question mark."""
    rows = [("proven", 1.3, 1.1), ("undecided", 1.39, 0.9), ("one round", 1.2, None), ("no gain", 1.0, 1.0)]
    with duckdb.connect() as con:
        con.execute(
            "CREATE TABLE sessions (job TEXT, best TEXT, value DOUBLE, metric TEXT, gain DOUBLE, low DOUBLE, ended INT)"
        )
        con.executemany("INSERT INTO sessions VALUES (?, 'tp2', 1, 'm', ?, ?, 1)", rows)
        assert [row[0] for row in con.execute(WINNERS).fetchall()] == ["proven"]


def test_jobs_that_run_on_any_machine_come_first(tmp_path):
    """At 80 × 24 Home began with six jobs of GPUs."""
    on_cpus = [job.about.endswith("×cpu") for job in job_files(tmp_path)]
    assert on_cpus == sorted(on_cpus, reverse=True)
    assert len(set(on_cpus)) == 2


async def test_every_action_is_in_the_palette(tmp_path):
    app = HomeApp(tmp_path / "kb.duckdb", tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.jobs is not None)
        await pilot.press("ctrl+p", *"a new job")
        await until(pilot, lambda: "key n" in text_of(app))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, NewJob))
        offered = {command.title for command in app.get_system_commands(app.screen)}
        assert offered == {a.says for a in actions.WIZARD}  # Textual's own (Quit, Screenshot, Theme) stood first
        await pilot.press("ctrl+p", *"back, without")
        await until(pilot, lambda: "key esc" in text_of(app))
        await pilot.press("enter")
        await until(pilot, lambda: not isinstance(app.screen, NewJob))


async def test_keys_where_there_is_no_room_for_a_list_end_nothing(tmp_path):
    """A page up was a KeyError."""
    session_folder(tmp_path, "over", ended())
    app = HomeApp(tmp_path / "kb.duckdb", tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "over" in text_of(app) and app.focused is not None)
        await pilot.resize_terminal(1, 1)
        for key in ["pageup", "pagedown", "end", "home", "down", "up", "tab", "pageup", "pagedown", "j", "k"]:
            await pilot.press(key)
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda: "over" in text_of(app))


async def test_a_letter_in_an_answer_is_a_letter_and_what_is_wrong_is_said(tmp_path):
    app = HomeApp(tmp_path / "kb.duckdb", tmp_path)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.jobs is not None)
        await pilot.press("n")
        await until(pilot, lambda: "models that are known by name" in text_of(app))
        await until(pilot, lambda: "trains;" in text_of(app))
        await pilot.press(*"nq?t")
        assert app.screen.query_one("#source", Input).value == "nq?t"
        await until(pilot, lambda: "is neither a file nor a program on this machine" in text_of(app))
        await pilot.press("enter")
        assert "first enter a known model or command" in text_of(app)
        await pilot.press("tab", "n", "q")  # on the engine: nothing of Home acts below
        assert isinstance(app.screen, NewJob)
        await pilot.press("escape")
        assert not isinstance(app.screen, NewJob)


async def test_answers_are_clicked(tmp_path):
    app = HomeApp(tmp_path / "kb.duckdb", tmp_path)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("n")
        await until(pilot, lambda: isinstance(app.screen, NewJob) and len(app.screen.query_one(Choice).values) > 1)
        engine = app.screen.query_one("#engine", Choice)
        first = engine.value
        await pilot.click("#engine")
        assert engine.value != first
        for answer in ("batch", "source"):
            await pilot.click(f"#{answer}")
            await pilot.press("1")
            assert app.screen.query_one(f"#{answer}", Input).value == "1"


async def test_an_idle_home_draws_nothing(tmp_path):
    session_folder(tmp_path, "gpt-1", ended())
    app = HomeApp(tmp_path / "kb.duckdb", tmp_path)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "gpt-1" in text_of(app))
        box = app.query_one("#sessions", OptionList)
        before = box.get_option_at_index(0)
        await pilot.pause(5.0)  # two looks
        assert box.get_option_at_index(0) is before


async def test_a_job_that_is_clicked_is_checked_then_started_and_its_session_opens(tmp_path):
    text = (ROOT / "fixtures/jobs/smallest-cpu.toml").read_text().replace("profiles = 8", "profiles = 2")
    recorded = ROOT / "fixtures/recorded/smallest-cpu.jsonl"
    (tmp_path / "job.toml").write_text(
        text.replace("[launch]", f'[launch]\nlauncher = "replay"\nrecorded = "{recorded}"')
    )
    app = HomeApp(tmp_path / "kb.duckdb", tmp_path)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "job.toml" in text_of(app))
        await until(pilot, lambda: "no proven gain yet" in text_of(app))  # the layout no longer changes
        await pilot.click("#jobs", offset=(6, 1))
        await until(pilot, lambda: "predicted" in text_of(app))
        await pilot.click("#start")
        await until(pilot, lambda: app.return_value is not None)
    journal = app.return_value
    assert journal is not None
    assert journal.is_file()
    for _ in range(600):
        if b"session_ended" in journal.read_bytes():
            break
        time.sleep(0.1)
    assert b"session_ended" in journal.read_bytes()
    assert os.listdir(tmp_path / "sessions") == [journal.parent.name]
