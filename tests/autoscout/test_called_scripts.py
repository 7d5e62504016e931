"""`init` follows a line that calls a script into it, and keeps what no job file must hold out of it."""

import shlex

import pytest

from autoscout.line.left_out import secret_flags, without_secrets
from autoscout.machine.starting import described
from kb.records import AutoscoutError

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
    assert job["cluster"]["nodes"] == [{"device": "h100", "count": 4}] * 2


def test_a_script_that_calls_another_is_that(tmp_path):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "outer.sh").write_text("export SEED=3\nSIZE=2\nbash run.sh m $SIZE --seed $SEED\n")
    job, _ = made(tmp_path, str(tmp_path / "outer.sh"))
    assert "--model m --micro-batch 2" in job["launch"]["current"]
    assert job["launch"]["current"].endswith("--seed 3")
    assert job["launch"]["environment"] == {"SEED": "3"}


@pytest.mark.parametrize(
    "reads",
    [
        "while [ $# -gt 0 ]; do case $1 in --n) N=$2; shift 2;; esac; done",
        'for each in "$@"; do export "$each"; done',
        "for each; do export $each; done",
        "set -- --n 1",
        'log() { echo "$1"; }',
    ],
)
def test_a_script_that_reads_its_arguments_by_itself_is_run_with_them(tmp_path, reads):
    """Its line was taken with other values, and some were told twice."""
    (tmp_path / "loop.sh").write_text(f'N=1\n{reads}\ntorchrun --nproc-per-node 4 train.py --n $N "$@"\n')
    job, notes = described(["bash", "loop.sh", "N=4", "x"], tmp_path)
    assert job["launch"]["current"] == "bash loop.sh N=4 x"
    assert "space" not in job
    assert any(
        note.startswith("launch.current: the script reads its arguments in a loop or a function") for note in notes
    )
    assert not any("stands for" in note for note in notes)


def test_scripts_that_call_each_other_end(tmp_path):
    (tmp_path / "a.sh").write_text("bash b.sh\n")
    (tmp_path / "b.sh").write_text("bash a.sh\n")
    assert described([str(tmp_path / "a.sh")], tmp_path)[0]["launch"]["current"] == "bash a.sh"


def test_the_text_of_a_shell_may_be_longer_than_a_name(tmp_path):
    text = f"export A=1 && torchrun --nproc-per-node 2 train.py {'--flag 1 ' * 60}".strip()
    assert "train.py" in described(["bash", "-lc", text], tmp_path)[0]["launch"]["current"]


@pytest.mark.parametrize("options", ["-o log.txt", "--output log.txt -W", "--wait"])
def test_a_log_that_sbatch_writes_is_not_the_script(tmp_path, options):
    (tmp_path / "log.txt").write_text("torchrun --nproc-per-node 8 old.py\n")
    assert " train.py " in made(tmp_path, f"sbatch {options} run.sh m")[0]["launch"]["current"]


def test_a_preset_s_script_that_is_run_as_a_whole_has_no_knobs_either(tmp_path):
    """Flags of Megatron-LM were given to the script, which hands none on."""
    line = "torchrun pretrain_gpt.py --micro-batch-size 4 --global-batch-size 64"
    (tmp_path / "run.sh").write_text(f"nvidia-smi dmon &\n{line}\n")
    job, _ = described([str(tmp_path / "run.sh")], tmp_path)
    assert "script" not in job["launch"]
    assert "traffic" not in job


def test_secrets_stay_out_of_the_job(tmp_path):
    script = "export WANDB_API_KEY=0123456789abcdef\nexport TOKENIZERS_PARALLELISM=false\nexport MAX_TOKENS=12\n"
    (tmp_path / "run.sh").write_text(f"{script}torchrun train.py --hub_token hf_0123456789 --pad_token '<pad>'\n")
    job, notes = described([str(tmp_path / "run.sh")], tmp_path)
    assert job["launch"]["environment"] == {"TOKENIZERS_PARALLELISM": "false", "MAX_TOKENS": "12"}
    assert any("look like secrets (WANDB_API_KEY)" in note for note in notes)
    assert any(note.startswith("launch.current: the value of --hub_token looks like a secret") for note in notes)


@pytest.mark.parametrize(
    "line",
    ["./run.sh m --api_key sk-0123456789", "docker run i bash -c 'export HF_TOKEN=hf_0123456789 && torchrun t.py'"],
)
def test_secrets_in_texts_and_of_scripts_are_said(tmp_path, line):
    (tmp_path / "run.sh").write_text('for each; do N="$N $each"; done\ntorchrun train.py $N\n')
    notes = described(shlex.split(line), tmp_path)[1]
    assert any("looks like a secret" in note for note in notes)
    assert not any("0123456789" in note for note in notes)


def test_a_secret_of_the_container_is_said_and_none_of_an_earlier_launch_is_shown(tmp_path):
    """Of the first there was no word, and the second stood in a comment of the job."""
    line = "docker run -u 1000:1000 -e HF_TOKEN=hf_0123456789 vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-8B"
    notes = described(shlex.split(line), tmp_path)[1]
    assert any(note.startswith("launch: the value of HF_TOKEN looks like a secret") for note in notes)
    (tmp_path / "run.sh").write_text("docker run -e DB_PASSWORD=aB3aB3aB3 reg\ntorchrun train.py\n")
    notes = described([str(tmp_path / "run.sh")], tmp_path)[1]
    assert any("give its command: 'docker run -e DB_PASSWORD=‹secret› reg'" in note for note in notes)
    assert not any("aB3" in note for note in notes)


def test_a_line_in_quotes_is_followed_as_well(tmp_path):
    (tmp_path / "run.sh").write_text(SCRIPT)
    job, _ = described([f"bash {tmp_path}/run.sh m 8 --lr 1 > log 2>&1"], tmp_path)
    assert job["launch"]["current"].endswith("--model m --micro-batch 8 --name '$NAME' --lr 1")


@pytest.mark.parametrize("name", ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "HF_KEY", "AZURE_STORAGE_KEY", "DB_PASSWORD"])
def test_names_of_secrets(name):
    assert without_secrets({name: "aB3" * 7})[0] == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OPENAI_KEY", "sk-proj-" + "aB3" * 9),
        ("WANDBKEY", "0123456789abcdef" * 2 + "01234567"),
        ("A", "hf_" + "aB3" * 12),
    ],
)
def test_values_that_nothing_but_a_secret_has(name, value):
    """They went into the job: of a key's name only those of a few firms were known."""
    kept, (note,) = without_secrets({name: value, "SORT_KEY": "reward_model_2", "MOE_DROP_TOKEN": "true"})
    assert kept == {"SORT_KEY": "reward_model_2", "MOE_DROP_TOKEN": "true"}
    assert f"leaves out variables that look like secrets ({name})" in note


@pytest.mark.parametrize(
    "words",
    [
        "srun --export=ALL,HF_TOKEN={} t",
        "srun --export ALL,HF_KEY={} t",
        "t --key {}",
        "t '++a={{b:{}}}'",
        "t --hub {}",
    ],
)
def test_values_that_nothing_but_a_secret_has_are_said_of_the_line(words):
    (note,) = secret_flags(shlex.split(words.format("hf_" + "aB3" * 12)), "current")
    assert ("looks like a secret" in note, "aB3" in note) == (True, False)


@pytest.mark.parametrize("name", ["HF_TOKEN_PATH", "PAD_TOKEN", "SECRET_ID", "TOKENIZER", "MAX_TOKENS"])
def test_names_that_only_sound_like_it(name):
    assert without_secrets({name: "x" * 20})[0] == {name: "x" * 20}


@pytest.mark.parametrize("words", ["--max_token 512", "--key_token_path a/b", "--pad_token <pad>", "a.token=$T"])
def test_flags_that_only_sound_like_it(words):
    assert not secret_flags(words.split(), "current")


def test_variables_that_only_a_shell_knows_are_said(tmp_path):
    (tmp_path / "run.sh").write_text("export HOSTS=$(cat hosts)\nexport A=1\ntorchrun train.py\n")
    notes = described([str(tmp_path / "run.sh")], tmp_path)[1]
    assert (
        "launch.environment: write the value of HOSTS, or remove it, because no shell expands variables here" in notes
    )


def test_a_script_that_is_run_as_a_whole_is_told_no_flags_of_its_last_line(tmp_path):
    """They were given to the script, which hands none on: every configuration was the same run."""
    (tmp_path / "run.sh").write_text("python reward_server.py &\ntorchrun train.py --micro_batch_size 4\n")
    job, notes = described([str(tmp_path / "run.sh")], tmp_path)
    assert job["launch"]["current"].startswith("bash ")
    assert "space" not in job
    assert any("run unchanged" in note for note in notes)


def test_a_script_that_is_run_as_a_whole_has_the_gpus_of_all_its_commands(tmp_path):
    """Of a trainer beside its server's GPUs only the trainer's counted, and were all that the script saw."""
    (tmp_path / "run.sh").write_text(
        "CUDA_VISIBLE_DEVICES=0,1 trl vllm-serve --model x &\nCUDA_VISIBLE_DEVICES=2,3,4,5 torchrun train.py --bsz 4\n"
    )
    job, _ = described([str(tmp_path / "run.sh")], tmp_path)
    assert [node["count"] for node in job["cluster"]["nodes"]] == [6]
    assert job["launch"]["environment"] == {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5"}


def test_a_script_that_is_run_as_a_whole_has_the_gpus_of_its_allocation(tmp_path):
    """Without variables it was a KeyError."""
    allocation = "#!/bin/bash\n#SBATCH --nodes=1 --gpus-per-node=8\n"
    (tmp_path / "run.sh").write_text(
        f"{allocation}python reward_server.py &\ntorchrun --nproc-per-node 4 train.py --bsz 4\n"
    )
    job, _ = described([str(tmp_path / "run.sh")], tmp_path)
    assert [node["count"] for node in job["cluster"]["nodes"]] == [8]
    assert "environment" not in job["launch"]


def test_a_script_without_a_known_launch_says_what_it_ends_on(tmp_path):
    (tmp_path / "run.sh").write_text("make -C train run GPUS=2 | tee log\n")
    with pytest.raises(AutoscoutError, match=r"its last command is 'make -C train run GPUS=2'; give the command"):
        described([str(tmp_path / "run.sh")], tmp_path)
