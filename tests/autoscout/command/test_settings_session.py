"""A person whose training reads YAML files, through every verb: init, check, predict, tune, best, export and back."""

import json
import os
import sys
import tempfile
from pathlib import Path

import pytest
from cases import few
from click.testing import CliRunner

from autoscout.machine.starting import job_file
from tui.cli import cli

TRAINER = Path(__file__).with_name("settings_trainer.py")
NANOTRON = """logging: {iteration_step_info_interval: 5}
model:
  model_config: {hidden_size: 64, num_attention_heads: 4, num_hidden_layers: 8, num_key_value_heads: 4, vocab_size: 999}
parallelism: {dp: 4, pp: 1, tp: 1}
tokens:
  batch_accumulation_per_replica: 4
  micro_batch_size: 1  # of a replica
  sequence_length: 64
"""
NEOX = """{
  "pipe_parallel_size": 0, "model_parallel_size": 1,  # all replicas
  "num_layers": 8, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 64, "num_gpus": 4,
  "optimizer": {"type": "Adam"}, "train_batch_size": 16, "train_micro_batch_size_per_gpu": 1,
  "gradient_accumulation_steps": 4,
}
"""
OLMO = """data: {num_workers: 2}
model: {d_model: 64, n_heads: 4, n_layers: 8, mlp_hidden_size: 256, vocab_size: 999, max_sequence_length: 64}
global_train_batch_size: 16
device_train_microbatch_size: 1
"""
# docker's part in it: what is named inside has to be mounted, and runs (without a container, which tests have not).
DOCKER = f"""#!{sys.executable}
import os, sys
assert sys.argv[1] == "run"
words = sys.argv[2:]
seen = [word.rpartition(":")[2] for word in words if word.startswith("--volume=")]
line = words[words.index("image") + 1 :]
named = line[line.index("--config-file") + 1]
if os.path.isabs(named) and not any(named.startswith(folder + "/") for folder in seen):
    sys.exit(f"FileNotFoundError: [Errno 2] No such file or directory: '{{named}}'")
os.execvp(line[0], line)
"""
LINES = {
    "nanotron": (f"{sys.executable} {TRAINER} --config-file set.yaml", "yaml", NANOTRON),
    "nanotron in a container": (
        f"docker run --volume=/mine:/w -w /w image {sys.executable} {TRAINER} --config-file set.yaml",
        "yaml",
        NANOTRON,
    ),
    "gpt-neox": (f"{sys.executable} {TRAINER} train.py set.yml", "yml", NEOX),
    "olmo": (f"{sys.executable} {TRAINER} set.yaml --nproc-per-node=4", "yaml", OLMO),
}


def call(*words: str):
    done = CliRunner().invoke(cli, list(words))
    assert done.exit_code == 0, (words, done.output, done.exception)
    return done


@pytest.mark.parametrize("name", few([*LINES], 1))
def test_every_verb_on_a_file_of_settings(name, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # a lock of our own on the machine
    monkeypatch.chdir(tmp_path)
    line, suffix, text = LINES[name]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/docker").write_text(DOCKER)
    (tmp_path / "bin/docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    (tmp_path / f"set.{suffix}").write_text(text)
    made, _ = job_file(line.split(), tmp_path)
    shorter = "[launch]\nmeasure_s = 0.2\ntimeout_s = 30.0\nrepeats = 2\niterations = 6\n"
    job, given = tmp_path / "job.toml", ("--kb", str(tmp_path / "kb" / "kb.duckdb"))
    job.write_text(made.replace("[launch]\n", shorter, 1))
    assert f'script = "{name.split()[0]}"' in made
    assert "compared with" in call("check", str(job), *given).stdout
    assert "step_time_s" in call("predict", str(job), "mbs=2", *given).stdout
    assert "not valid: mbs=32" in call("explain", str(job), "mbs=32", *given).stdout
    tuned = json.loads(call("tune", str(job), *given, "--no-tui", "--json", "--profiles", "4").stdout)
    assert tuned["gain"] > 1.2
    best = tuned["best"]["configuration"]
    assert best["mbs"] > 1
    session = tuned["session"]["session"]
    assert "mbs" in call("best", session, *given).stdout
    assert "2 iterations were run" in call("export", session, *given, "--check").stderr
    exported = json.loads(call("export", session, *given, "--format", "json").stdout)
    assert (tmp_path / f"set.{suffix}").read_text() == text, "the person's own file"
    if name == "olmo":  # whose line overrides the file
        assert f"--device_train_microbatch_size={best['mbs']}" in exported["program"]
        return
    ((path, content),) = exported["files"].items()
    assert path in exported["program"]
    assert "# " in content, "comments stay"
    # … and back: what was exported is a launch like any other.
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).write_text(content)
    again, _ = job_file(line.replace(f"set.{suffix}", path).split(), tmp_path)
    job.write_text(again)
    assert "global_batch = 16" in again
    now = json.loads(call("predict", str(job), *given, "--json").stdout)
    assert now["configuration"]["mbs"] == best["mbs"]
