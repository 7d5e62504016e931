"""`init` follows a line that calls a script into it, and keeps what no job file must hold out of it."""

import shlex

import pytest

from autoscout.machine.left_out import secret_flags, without_secrets
from autoscout.machine.starting import described

SCRIPT = """#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gpus-per-node=a100:4
MODEL=$1
BATCH=${2:-4}
torchrun --nproc-per-node 4 train.py --model $MODEL --micro-batch $BATCH --name $NAME "${@:3}"
"""


def made(folder, line):
    (folder / "run.sh").write_text(SCRIPT)
    return described(shlex.split(line), folder)


@pytest.mark.parametrize("line", ["bash run.sh m 8 --lr 1", "./run.sh m 8 --lr 1", "bash -x run.sh m 8 --lr 1"])
def test_a_line_that_calls_a_script_is_the_line_in_it(tmp_path, line):
    job, notes = made(tmp_path, f"NAME=n {line}")
    assert job["launch"]["current"] == "torchrun --nproc-per-node 4 train.py --model m --micro-batch 8 --name n --lr 1"
    assert job["launch"]["environment"] == {"NAME": "n"}
    assert job["cluster"]["nodes"] == [{"device": "a100", "count": 4}]
    assert not [note for note in notes if "launch.current" in note]


def test_what_sbatch_is_asked_for_counts_before_the_script_s_own_lines(tmp_path):
    job, _ = made(tmp_path, "sbatch --nodes=2 --gpus-per-node h100:8 run.sh m")
    assert job["cluster"]["nodes"] == [{"device": "h100", "count": 8}] * 2


def test_a_script_that_calls_another_is_that(tmp_path):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "outer.sh").write_text("export SEED=3\nSIZE=2\nbash run.sh m $SIZE --seed $SEED\n")
    job, _ = made(tmp_path, str(tmp_path / "outer.sh"))
    assert "--model m --micro-batch 2" in job["launch"]["current"]
    assert job["launch"]["current"].endswith("--seed 3")
    assert job["launch"]["environment"] == {"SEED": "3"}


def test_arguments_that_a_loop_reads_are_not_followed_and_that_is_said(tmp_path):
    loop = "N=1\nwhile [ $# -gt 0 ]; do case $1 in --n) N=$2; shift 2;; esac; done\ntorchrun train.py --n $N\n"
    (tmp_path / "loop.sh").write_text(loop)
    job, notes = described(["bash", "loop.sh", "--n", "4"], tmp_path)
    assert job["launch"]["current"] == "torchrun train.py --n 1"
    assert [
        note for note in notes if note.startswith("launch.current: what its script makes of '--n 4' is not followed")
    ]


def test_secrets_stay_out_of_the_job(tmp_path):
    script = "export WANDB_API_KEY=0123456789abcdef\nexport TOKENIZERS_PARALLELISM=false\nexport MAX_TOKENS=12\n"
    (tmp_path / "run.sh").write_text(f"{script}torchrun train.py --hub_token hf_0123456789 --pad_token '<pad>'\n")
    job, notes = described([str(tmp_path / "run.sh")], tmp_path)
    assert job["launch"]["environment"] == {"TOKENIZERS_PARALLELISM": "false", "MAX_TOKENS": "12"}
    assert any(note.startswith("launch.environment: WANDB_API_KEY is left out") for note in notes)
    assert any(note.startswith("launch.current: the value of --hub_token looks like a secret") for note in notes)


@pytest.mark.parametrize("name", ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "DB_PASSWORD", "WANDB_KEY"])
def test_names_of_secrets(name):
    assert without_secrets({name: "x" * 20})[0] == {}


@pytest.mark.parametrize("words", ["--max_token 512", "--key_token_path a/b", "--pad_token <pad>", "a.token=$T"])
def test_flags_that_only_sound_like_it(words):
    assert not secret_flags(words.split())


def test_variables_that_only_a_shell_knows_are_said(tmp_path):
    (tmp_path / "run.sh").write_text("export HOSTS=$(cat hosts)\nexport A=1\ntorchrun train.py\n")
    notes = described([str(tmp_path / "run.sh")], tmp_path)[1]
    assert "launch.environment: write the value of HOSTS, or take it out; no shell fills it in" in notes


def test_a_script_that_is_run_as_a_whole_is_told_no_flags_of_its_last_line(tmp_path):
    """They were given to the script, which hands none on: every configuration was the same run."""
    (tmp_path / "run.sh").write_text("python reward_server.py &\ntorchrun train.py --micro_batch_size 4\n")
    job, notes = described([str(tmp_path / "run.sh")], tmp_path)
    assert job["launch"]["current"].startswith("bash ")
    assert "space" not in job
    assert any("run as a whole" in note for note in notes)
