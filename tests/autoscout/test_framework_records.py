"""docs/architecture.md, "To add a framework's line": one file, from a script that runs it to the export of what won."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from autoscout import Study
from autoscout.job.strict import read_toml
from autoscout.line import recognition
from autoscout.line.launch_line import Line, given
from autoscout.targets.command import preset
from kb.records import AutoscoutError
from tui.cli import cli

PAGE = Path("docs/architecture.md").read_text()
(COOKER,) = re.findall(r"```toml\n(about = .*?)```", PAGE, re.DOTALL)
SETTINGS = """
model: {layers: 16, hidden: 2048, heads: 16, vocab: 32000}
data: {tokens: 2048}
train: {micro_batch: 2, accumulate: 4, recompute: false}
"""
_READ_ONCE = (recognition.contents, recognition.frameworks, recognition.verbs, preset.preset)


@pytest.fixture
def added(tmp_path, monkeypatch):
    """Puts frameworks beside the knowledge base."""

    def add(**content: str) -> None:
        (tmp_path / "frameworks").mkdir(exist_ok=True)
        for name, text in content.items():
            (tmp_path / "frameworks" / f"{name}.toml").write_text(text)
        for function in _READ_ONCE:
            function.cache_clear()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUTOSCOUT_KB", str(tmp_path / "kb.duckdb"))
    yield add
    monkeypatch.undo()
    for function in _READ_ONCE:
        function.cache_clear()


def run(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(cli, list(words))
    found = done.exception.exit_code if isinstance(done.exception, AutoscoutError) else done.exit_code
    assert found == code, done
    return f"{done.output}{done.exception or ''}"


def test_a_framework_s_line_is_one_file(added: Callable[..., None], tmp_path: Path) -> None:
    script, kb = tmp_path / "go.sh", str(tmp_path / "kb.duckdb")
    (tmp_path / "run.yaml").write_text(SETTINGS)
    script.write_text("cooker prepare run.yaml\ncooker fit run.yaml runtime.gpus=8 runtime.nodes=2\n")
    script.with_name("before.sh").write_text(script.read_text())
    assert "no command of the script starts a known framework" in run("init", "before.sh", code=2)
    added(cooker=COOKER)
    run("init", "--out", "job.toml", str(script))
    job = read_toml(tmp_path / "job.toml", "job")
    assert job["launch"]["script"] == "cooker"
    assert job["launch"]["current"].startswith("cooker fit run.yaml runtime.gpus=8 runtime.nodes=2")
    assert [node["count"] for node in job["cluster"]["nodes"]] == [8, 8]
    assert job["model"] == {"layers": 16, "hidden": 2048, "heads": 16, "vocab": 32000}
    assert job["traffic"] == {"seq_len": 2048, "global_batch": 2 * 4 * 16}
    (tmp_path / "job.toml").write_text(
        re.sub(r'device = "\w+"', 'device = "h100"', (tmp_path / "job.toml").read_text())
    )
    assert "step_time_s of the reference" in run("check", "job.toml", code=1)  # which this machine has none of
    assert "step_time_s" in run("predict", "job.toml", "mbs=4")
    run("tune", "job.toml", "--dry-run", "--kb", kb)
    study = Study("job.toml", kb=kb, profiles=1, warm_start="off", name="new")
    (first,) = study.ask()
    study.tell(first, {"step_time_s": 1.0})
    exported = run("export", study.session, "--kb", kb, "--config", "mbs=4", "--config", "recompute=true")
    assert "train.micro_batch=4" in exported
    assert "train.accumulate=2" in exported
    assert "train.recompute=true" in exported


def test_a_person_s_file_stands_for_a_shipped_one(added: Callable[..., None], tmp_path: Path) -> None:
    line = given(["litgpt", "bake", "a.yaml"], tmp_path, {})
    added()
    assert recognition.recognised(line) == ""
    added(litgpt='recognises = ["litgpt bake"]\n')
    assert recognition.recognised(line) == "litgpt"
    assert recognition.recognised(Line(("litgpt", "pretrain"))) == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("recognises = ", "mine.toml: not valid TOML"),
        ("recognises = 1", "recognises"),
        ('recognises = ["mine go"]\nnods = 1', "nods"),
        ('recognises = ["mine go"]\n[[knob]]\nname = "a"', "mine.toml"),
    ],
)
def test_a_file_that_is_no_framework_is_one_sentence(added: Callable[..., None], text: str, said: str) -> None:
    added(mine=text)
    with pytest.raises(AutoscoutError, match=re.escape(said)):
        preset.preset(recognition.recognised(Line(("mine", "go"))))
