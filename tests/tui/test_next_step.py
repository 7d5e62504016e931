"""Errors end with a command to try, made from the user's own command line."""

from pathlib import Path

import pytest
import verbs

from tui.options import note
from tui.text import with_job

TINY = "tiny-gpt-cpu"


@pytest.mark.parametrize(
    ("words", "step"),
    [
        (["explain", TINY, "tpp=2"], f"explain {TINY} tp=2"),
        (["explain", TINY, "tensor_parallel=2"], f"explain {TINY} tp=2"),
        (["explain", TINY, "qqqqqq=2"], f"space {TINY}"),
        (["check", "gpu.toml"], ""),  # `space` would refuse the file, too
        (["chek", TINY], f"check {TINY}"),
        (["steer", "any", "pase"], "steer any pause"),
        (["explain", "tiny-gpt-cp"], "explain tiny-gpt-cpu"),
        (["explain", "goo.toml"], "explain good.toml"),
        (["check", "other.toml"], "init --out other.toml -- 'YOUR LAUNCH LINE'"),  # the ending alone is no likeness
        (["check", "no such.toml"], "init --out 'no such.toml' -- 'YOUR LAUNCH LINE'"),
        (["import", "tble.csv", "--job", TINY], f"import table.csv --job {TINY}"),
        (["best", "good.toml"], "tune good.toml"),
        (["best"], "best SESSION --report result.html"),
        (["init", "--out", "good.toml", "Qwen3-32B"], "init --out good-2.toml Qwen3-32B"),
        (["watch", "tiny-1"], "demo"),
        (["tune", TINY, "--wall", "soon"], ""),
    ],
)
def test_errors_end_with_a_command_to_try(tmp_path, monkeypatch, words, step):
    monkeypatch.chdir(tmp_path)
    Path("good.toml").write_text((Path(__file__).parents[2] / "fixtures/jobs/tiny-gpt-cpu.toml").read_text())
    Path("gpu.toml").write_text(Path("good.toml").read_text().replace('device = "cpu"', 'device = "GPU"'))
    Path("table.csv").write_text("tp\n1\n")
    done = verbs.run(*words, AUTOSCOUT_KB="", HOME=str(tmp_path))
    tries = [line for line in done.stderr.splitlines() if line.startswith("try: ")]
    assert tries == ([f"try: autoscout {step}"] if step else []), done.stderr
    assert done.returncode == 2 or words[0] == "best"


def test_an_invalid_configuration_gives_way_to_the_nearest(tmp_path):
    done = verbs.run("predict", TINY, "tp=2", "pp=4", "--kb", tmp_path / "kb.duckdb")
    step = done.stderr.splitlines()[-1]
    assert step.startswith(f"try: autoscout predict {TINY} ")
    assert "tp2" in step
    assert verbs.run(*step.split()[2:]).returncode == 0


def test_commands_in_sentences_name_the_job_and_begin_as_this_process_did(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/opt/env/bin/autoscout"])
    monkeypatch.setenv("PATH", "/nowhere")
    sentence = with_job(
        "`autoscout tune JOB.toml --as slurm`, or `autoscout profile`; `autoscout sessions`", "my job.toml"
    )
    ours = "/opt/env/bin/autoscout"
    assert sentence == f"`{ours} tune 'my job.toml' --as slurm`, or `{ours} profile 'my job.toml'`; `{ours} sessions`"
    assert (
        with_job("`autoscout init --target megatron` tunes", "j", "a.sh")
        == f"`{ours} init --target megatron a.sh` tunes"
    )


def test_check_ends_with_the_next_command(tmp_path):
    """Nothing that `check` printed led on to `tune`."""
    done = verbs.run("check", "smallest-cpu-replay", "--kb", tmp_path / "kb.duckdb")
    assert done.stdout.splitlines()[-1] == "next: autoscout tune smallest-cpu-replay"


def test_notes_can_be_pasted_outside_the_environment(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["/opt/env/bin/autoscout"])
    monkeypatch.setenv("PATH", "/nowhere")
    note("`autoscout sessions` lists them; autoscout watch x; AutoScout, strategy autoscout, see")
    ours = "/opt/env/bin/autoscout"
    expected = f"autoscout: `{ours} sessions` lists them; {ours} watch x; AutoScout, strategy autoscout, see\n"
    assert capsys.readouterr().err == expected
