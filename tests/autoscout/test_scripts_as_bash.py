"""`init` reads a script's launch line as bash hands it to the launcher."""

import os
import shlex
import subprocess
import tomllib

import pytest

from autoscout.line.called_script import parameters
from autoscout.line.script_launch import launch_in
from autoscout.line.shell_commands import unwrapped
from autoscout.machine.starting import job_file
from autoscout.targets.jobs import load_job
from autoscout.targets.target import target_of

MEGATRON = """
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NUM_NODES=${NUM_NODES:-1}
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
CHECKPOINT_PATH=${1:-"checkpoints/of mine"} # where to
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES   # one
)
GPT_MODEL_ARGS=(
    --num-layers 96
    --hidden-size 12288 # don't change
)
if [[ $NUM_NODES == 1 ]] || [[ -z "$NUM_NODES" ]]; then
    GPT_MODEL_ARGS+=(--tensor-model-parallel-size "$WORLD_SIZE")
else
    GPT_MODEL_ARGS+=(--pipeline-model-parallel-size $WORLD_SIZE)
fi
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \\
    ${GPT_MODEL_ARGS[@]} \\
    --save "$CHECKPOINT_PATH" 2>&1 | cat
"""

SCRIPTS = {
    "Megatron-LM's": MEGATRON,
    "an array whose elements have blanks": 'A=(--x "1 2")\ntorchrun t.py "${A[@]}"\n',
    "the same, split again": 'A=(--x "1 2")\ntorchrun t.py ${A[@]}\n',
    "arguments in a variable": 'A="\n  --x 1\n  --y 2\n"\ntorchrun t.py $A',
    "two assignments": "A=1 B=2\ntorchrun t.py $A$B ${A}x '$A'",
    "exported beside the launch": "export A=1 && torchrun t.py $A < /dev/null",
    "quotes": """N="it's"\ntorchrun t.py --a "$N" --b 'x "y"' --c a\\ b --d="q;r|s" """,
    "a here-document": "cat > /dev/null <<EOF\nit's {\ntorchrun no.py\nEOF\ntorchrun yes.py",
    "branches": "X=b\nif [ $X = a ]; then Y=1; elif [ $X != b ]; then Y=2; else Y=3; fi\ntorchrun t.py $Y",
    "a branch within one": "X=1\nif [ -n '' ]; then\n if [ $X -eq 1 ]; then X=2; fi\n X=3\nfi\ntorchrun t.py $X",
    "eval": 'C="torchrun t.py"\neval $C --a 1',
    "in a variable": 'C="torchrun t.py"\n$C --a 1 # the rest',
    "defaults": 'torchrun t.py ${A:-1} "${B:-2 3}" ${C-4}',
    "comments": "# torchrun a.py\ntorchrun t.py --a x#y --n $((2+3*4/5)) # --b",
    "of another bash": 'bash -c "A=1; torchrun t.py --a \\$A"',
    "continued": "torchrun t.py \\\n  --a 1 \\\n  --b 2\necho done",
    "a default within a default": 'torchrun t.py --a ${A:-${B:-${C:-x}}/y} "${D:-${E:-1}z}"',
    "a default in a value": 'A=${A:-"b c"} B=${B:-~/d}\nC=${A:+--more}\ntorchrun t.py "$A" $B $C ${D:+no} ~/e',
    "parts of a value": "M=a/b.C.sh\ntorchrun t.py ${M##*/} ${M#*/} ${M%.*} ${M%%.*} ${M,,}",
    "quotes within a value": "A=\"['x'] <some|dir> # &\"\ntorchrun t.py a=$A --n 1",
    "an escaped dollar": 'A=1\ntorchrun t.py \\$A "\\$A $A"',
    "a value with a command's print as output": "L=out_`true a b`/x\ntorchrun t.py --a 1 &> /dev/null${L:+}\n",
    "continued within quotes": "torchrun t.py \"a \\\n  b\" 'c \\\n d'",
    "a case": "M=8B\ncase ${M} in\n 1B|2B) A=1 ;;\n 8*)\n  A=2; B=3 ;;\n *) A=4 ;;\nesac\ntorchrun t.py $A $B",
    "no arguments": "D=no\nwhile [[ $# -gt 0 ]]; do\n case $1 in\n -d) D=yes; shift ;;\n esac\ndone\n"
    'if [ "$1" = debug ]; then D=more; fi\ntorchrun t.py $D',
    "options": "N=1\nwhile getopts n: o; do case $o in n) N=2 ;; esac; done\ntorchrun t.py $N",
    "names like a pattern": (
        'M=Q/Q-32B\nif [[ $M == *7B* ]]; then A=1; elif [[ "$M" == *"32B"* ]]; then A=2; fi\n'
        "if [[ $M == '*32B*' || ! $M = Q/* ]]; then B=1; else B=2; fi\ntorchrun t.py $A $B"
    ),
    "numbers compared": "N=8\nif [ $N -ge 16 ]; then A=1; elif [[ $N -lt 16 ]]; then A=2; fi\ntorchrun t.py $A",
    "a loop": "for N in 1 2 4; do\n torchrun t.py --n $N\ndone",
    "a loop over settings": 'S=("1,2,x y" "3,4,z w")\nfor C in "${S[@]}"; do\n'
    '  IFS=\',\' read -r A B D <<< "$C"\n  torchrun t.py $A $B "$D"\ndone',
    "set unless they are": ': "${A:=1}"\n: ${B:=$A}\ntorchrun t.py $A $B',
    "sums within sums": "A=3\ntorchrun t.py $(( (A + (1 + 2)) * 2 ))",
    "an evaluated line": "C=\"torchrun t.py --a 'b c' &> /dev/null\"\neval $C",
    "several evaluated": 'C="true && torchrun t.py --a 1"\neval $C',
    "an evaluated line in quotes": 'C="torchrun t.py --a \'b && c\'"\neval "$C"',
    "an exported array": 'export A=( --x "1 2" )\ntorchrun t.py "${A[@]}"',
    "output to others": "D=/tmp\ntorchrun t.py --a 1 > >(tee $(cd $D/..; pwd)/dev/null) 2> >(tee /dev/null >&2)",
    "the folder": "torchrun t.py `pwd`/x $(pwd)/y",
    "the rest of the arguments": 'torchrun t.py "${@:2}" ${*} "$@"',
    "of itself": 'L=$L\n${L:-} torchrun t.py "${L:-1}"',
    "parts of paths": "D=$( dirname $( dirname /a/b/c ) )\n"
    "torchrun t.py $D `basename $D` $(basename /x/y.sh .sh) $(dirname z)",
    "sums below zero": "torchrun t.py $((-7 / 2)) $((7 / -2)) $((-7 % 3)) $((7 % -3)) $(expr -7 / 2) $((-8 / 2))",
    "sums of expr": "N=16\ntorchrun t.py $(expr $N / 2) $(expr 32 / $N / 2 + 1) `expr 3 \\* 4`",
    "a date": "torchrun t.py --name run-$(date +%Y)",
    "a mode called eval": "M=eval\nif [ $M = train ]; then torchrun t.py; elif [ $M = eval ]; then torchrun e.py; fi",
    "a function": "run() {\n  torchrun t.py --a 1\n}\nrun",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_words_are_bashs(name, tmp_path):
    heard = tmp_path / "words"
    stub = f"torchrun() {{ printf '%s\\0' torchrun \"$@\" > {heard}; }}\nexport -f torchrun\n"
    environment = {name: os.environ[name] for name in ("PATH", "HOME")}
    subprocess.run(["bash", "-c", stub + SCRIPTS[name]], check=True, env=environment, capture_output=True)
    assert launch_in(SCRIPTS[name], "s").words == heard.read_text().split("\0")[:-1]


GIVEN = ["dsw", "8B", "--more", "a b", "5"]
CALLED = {
    "by number": "ENV=$1\nM=${2}\nif [ $ENV = dsw ]; then N=8; else N=16; fi\n"
    'torchrun t.py $N $M ${3:-no} "$4" ${7:-seven}',
    "all": 'torchrun t.py "$@"',
    "all, split again": "torchrun t.py $@ $* ${@:4}",
    "within quotes": 'torchrun t.py "all of $*"',
    "the rest": 'torchrun t.py "${@:3}" $#',
    "the rest after a shift": 'N=$1; shift\nM=$1\nshift 2\ntorchrun t.py $N $M $# "$@"',
    "how many": "if [ $# -lt 5 ]; then echo usage; exit 1; fi\ntorchrun t.py $1",
    "or else an error": "torchrun t.py ${1:?give it} ${2?}",
    "in an array": 'A=(--x "$4" $5)\ntorchrun t.py "${A[@]}"',
}


@pytest.mark.parametrize("name", CALLED)
def test_what_a_script_is_called_with_stands_where_bash_has_it(name, tmp_path):
    heard = tmp_path / "words"
    stub = f"torchrun() {{ printf '%s\\0' torchrun \"$@\" > {heard}; }}\nexport -f torchrun\n"
    subprocess.run(["bash", "-c", stub + CALLED[name], "run.sh", *GIVEN], check=True, capture_output=True)
    given, notes = parameters(GIVEN, CALLED[name])
    assert launch_in(CALLED[name], "s", given=given).words == heard.read_text().split("\0")[:-1]
    assert not notes


def test_a_script_that_is_read_in_sets_its_variables(tmp_path):
    """slime's models are such scripts: ${MODEL_ARGS[@]} was asked for."""
    (tmp_path / "8b.sh").write_text("echo x\ntorchrun no.py\nexport A=1\nMODEL_ARGS=(\n --layers 36 # of 8B\n)\n")
    found = launch_in(f'source "{tmp_path}/8b.sh"\ntorchrun t.py ${{MODEL_ARGS[@]}} $A\n', "run.sh")
    assert found.words == ["torchrun", "t.py", "--layers", "36", "1"]
    assert found.exports == {"A": "1"}


def test_the_tasks_that_a_batch_script_asks_for_are_known():
    """WORLD_SIZE, as many scripts compute it, was asked for."""
    script = (
        "#SBATCH -N 4\n#SBATCH --gpus-per-node=8\n#SBATCH --ntasks-per-node=8\n"
        "export WORLD_SIZE=$(($SLURM_NNODES * $SLURM_NTASKS_PER_NODE))\nsrun python t.py --ranks $SLURM_NTASKS\n"
    )
    found = launch_in(script, "s")
    assert (found.exports["WORLD_SIZE"], found.words[-1]) == ("32", "32")


def test_what_only_the_person_knows_stays_a_name():
    script = "DATA=$1\nD=mock\ncase $2 in --data) D=$3 ;; esac\nHOST=$(hostname)\ntorchrun t.py $DATA $D $UNSET $HOST"
    assert launch_in(script, "s").words == ["torchrun", "t.py", "$DATA", "mock", "$UNSET", "$(hostname)"]


def test_a_branch_that_only_the_person_knows_is_said(tmp_path):
    line = 'A=(--a 1)\nif [ -n "$KEY" ]; then A+=(--log x); else A+=(--b 2); fi\ntorchrun t.py ${A[@]}\n'
    (tmp_path / "run.sh").write_text(line)
    notes = job_file([str(tmp_path / "run.sh")], tmp_path)[1]
    assert any("if one is false, remove '--log x' and add '--b 2'" in note for note in notes)


def test_what_reads_the_logs_after_a_run_is_no_launch():
    script = "srun -n 8 ./run_and_time.sh\nsrun -n 1 python -m mlperf_logging.compliance_checker log.txt"
    assert launch_in(script, "s").words == ["srun", "-n", "8", "./run_and_time.sh"]


@pytest.mark.parametrize(
    ("server", "client", "last"),
    [
        ("vllm serve X -tp 4", "python bench.py --model X", False),
        ("python -m sglang.launch_server --model-path X", "python3 client.py", False),
        ("srun docker run -d vllm/vllm-openai:v1 --model X", "bash load.sh", False),
        ("python -m sglang.launch_server --model-path X", "python -m sglang.bench_serving --port 3", True),
        ("vllm serve X", "python sft.py --model_name_or_path X", True),  # a training that asks the server
    ],
)
def test_a_server_is_the_launch_and_its_client_is_not(server, client, last):
    """The job trained: bench.py was its script."""
    found = launch_in(f"{server} > log 2>&1 &\nuntil curl -s localhost; do sleep 5; done\n{client}\n", "s").words
    assert shlex.join(found) == (client if last else server)


def test_what_is_read_from_another_command_stays_a_name():
    script = 'E=(A B)\nmapfile -t E < <(for v in "${E[@]}"; do echo "--env=$v"; done)\ndocker exec "${E[@]}" x\n'
    assert launch_in(script, "s").words == ["docker", "exec", "${E[@]}", "x"]


def test_what_a_command_prints_is_asked_for(tmp_path):
    (tmp_path / "run.sh").write_text("D=`date +%s`\ntorchrun t.py --out x_$D --host $(hostname)\n")
    assert any("replace $(…) with the value" in note for note in job_file([str(tmp_path / "run.sh")], tmp_path)[1])


def test_paths_that_are_added_to_are_ours(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/ours")
    found = launch_in('export PYTHONPATH=$PYTHONPATH:/theirs A=1 B="b c"\nC=3\nexport C\ntorchrun t.py', "s")
    assert found.exports == {"PYTHONPATH": "/ours:/theirs", "A": "1", "B": "b c", "C": "3"}


def test_the_line_of_a_script_that_sbatch_reads_from_a_document():
    script = (
        'CMD="\ncd /x;\npython t.py --a 1"\nsbatch <<EOF\n#!/bin/bash\nsrun -l bash -c "${CMD}" 2>&1 | tee log\nEOF\n'
    )
    after = ["bash", "-c", 'cd /x; exec "$@"', "bash", "python", "t.py", "--a", "1"]
    assert launch_in(script, "s").words == ["srun", "-l", *after]


@pytest.mark.parametrize(
    ("inner", "bashs"),
    [
        ("python t.py --a 1", None),
        ("cd /tmp && A=1 python t.py --a 'b c' 2>&1 | tee log", ["-c", 'cd /tmp && exec "$@"', "bash", "env", "A=1"]),
        ("python t.py --rank $SLURM_PROCID", ["-c", 'exec "$@" --rank $SLURM_PROCID', "bash", "python", "t.py"]),
        (
            'cd /x && torchrun --nnodes 2 --node_rank $SLURM_PROCID --master_addr="$HEAD" --n 8 t.py --a 1',
            [
                "-c",
                'cd /x && exec "${@:1:3}" --node_rank $SLURM_PROCID --master_addr="$HEAD" "${@:4}"',
                *["bash", "torchrun", "--nnodes", "2", "--n", "8", "t.py", "--a", "1"],
            ],
        ),
    ],
)
def test_the_words_within_a_container_s_bash_stand_at_the_end(inner, bashs):
    words = launch_in(f"srun --container-image=x bash -c {shlex.quote(inner)}", "s").words
    assert words[:2] == ["srun", "--container-image=x"]
    if bashs is None:
        assert words[2:] == ["python", "t.py", "--a", "1"]
    else:
        assert words[2 : 3 + len(bashs)] == ["bash", *bashs]


SHOWS = "import os, sys; print(os.getcwd(), os.environ['A'], os.environ['B'], sys.argv)"


@pytest.mark.parametrize("before", [["nice"], []])
@pytest.mark.parametrize(
    "last",
    [
        f"A=1 python3 -c {shlex.quote(SHOWS)} --a 'b c' $C",
        f"env A=1 python3 -c {shlex.quote(SHOWS)} --b=$HOME -a 'b c' -c \"x $HOME\" -d `echo 1 2` $(echo 3) t.py 'g h'",
        f"env A=1 python3 -c {shlex.quote(SHOWS)} $HOME t.py",
        f"A=1 python3 -c {shlex.quote(SHOWS)} -b $HOME t.py --f '' -- x",
        f"A=1 python3 -c {shlex.quote(SHOWS)} t.py --f 'a b' -i 2 --g $HOME --h=$HOME",
    ],
)
def test_bash_hands_over_what_stands_at_the_end(tmp_path, before, last):
    """The line as it is written and as it is changed run the same."""
    inner = f"cd {tmp_path} && export B=2; C=c; {last}"
    words = [*before, "bash", "-c", inner]
    told = [
        subprocess.run(line, check=True, capture_output=True, text=True).stdout for line in (words, unwrapped(words))
    ]
    assert unwrapped(words) != words
    assert told[0] == told[1]


def test_what_a_shell_in_the_line_expands_is_neither_asked_for_nor_in_the_way(tmp_path):
    """A line of `srun bash -c` was run unchanged, without knobs or a model, and its variables were to be replaced."""
    inner = "torchrun --nproc_per_node 8 --node_rank $SLURM_PROCID --master_addr $(hostname) run_clm.py --bf16"
    given = f"{inner} --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 2 --output_dir o"
    text, notes = job_file(["srun", "-N1", "--gpus-per-node=a40:8", "bash", "-c", given], tmp_path)
    made = tomllib.loads(text)
    assert (made["launch"]["script"], made["model"]["preset"]) == ("hf-trainer", "qwen2.5-7b")
    assert made["traffic"]["global_batch"] == 16
    assert "--node_rank $SLURM_PROCID --master_addr $(hostname)" in made["launch"]["current"]
    assert not [note for note in notes if "no shell expands" in note]


def test_a_line_that_its_devices_do_not_carry_is_said_to_be_replaced(tmp_path):
    line = (
        "torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 8 --pipeline-model-parallel-size 16"
    )
    (tmp_path / "job.toml").write_text(
        job_file([*f"{line} --micro-batch-size 1 --global-batch-size 8".split()], tmp_path)[0]
    )
    job = load_job(tmp_path / "job.toml")
    said = [note for note in target_of(job).notes_on_job(job) if "are not valid here" in note]
    assert len(said) == 1
    assert "pp 16 is not among 1, 2, 4, 8" in said[0]
    assert "the nearest valid settings are used instead, with tp=1, pp=8" in said[0]


def test_of_two_launches_the_last_is_taken_and_the_other_is_named(tmp_path):
    train, evaluate = "torchrun --nproc-per-node 2 train.py --a 1", "torchrun --nproc-per-node 2 evaluate.py --a 1"
    (tmp_path / "run.sh").write_text(f"python prepare.py\n{train}\n{evaluate}\n")
    said = [note for note in job_file([str(tmp_path / "run.sh")], tmp_path)[1] if "last launch" in note]
    earlier = f"to tune an earlier one, give its command: '{train}'"
    assert said == [f"launch.current: the script's last launch is used; {earlier}"]
    (tmp_path / "run.sh").write_text(f"python prepare.py\n{train}\n")
    assert not [note for note in job_file([str(tmp_path / "run.sh")], tmp_path)[1] if "last launch" in note]


@pytest.mark.parametrize(
    "line",
    [
        "swift sft --model m --per_device_train_batch_size 2",
        "megatron pt --load m --micro_batch_size 2",
        "trl sft --config a.yaml --num_processes 4",
        "llamafactory-cli train a.yaml",
        "axolotl train a.yaml",
        "tune run --nproc_per_node 2 full_finetune_distributed --config a.yaml",
        "litgpt pretrain pythia-14m",
        "composer -n 8 train.py a.yaml",
        "ray job submit -- python3 -m verl.trainer.main_ppo",
        "python3.11 train.py",
        "conda run -n mine torchrun train.py",
        "./deepy.py train.py -d configs a.yml",
        "sh train.sh",
        "colossalai run --nproc_per_node 8 train.py",
    ],
)
def test_every_framework_s_own_program_starts_a_launch(line):
    assert launch_in(f"swift export --to a\nuv sync\nconda activate mine\n{line}\nray stop\n", "run.sh").words == [
        *line.split()
    ]


@pytest.mark.parametrize("after", ["python merge_lora.py --to a", "python -c 'print(1 / 2)'", "bash evaluate.sh"])
def test_what_reads_what_a_launch_left_is_not_the_launch(after):
    train = "accelerate launch --num_processes 8 train.py"
    assert launch_in(f"python prepare.py\n{train}\n{after}\n", "run.sh").words == train.split()


@pytest.mark.parametrize(
    "before", ["accelerate env", "accelerate config default", "uv run prepare.py", "conda run -n a b"]
)
def test_what_prepares_a_launch_is_not_the_launch(before):
    assert launch_in(f"{before}\npython train.py\n", "run.sh").words == ["python", "train.py"]


@pytest.mark.parametrize(
    "train", ["srun torchrun train.py", "docker run i torchrun t.py", "uv --directory a run torchrun t.py"]
)
def test_what_reads_what_a_wrapped_launch_left_is_not_the_launch(train):
    assert launch_in(f"{train}\npython merge.py\n", "run.sh").words == train.split()


def test_a_case_that_only_a_shell_decides_is_read_as_one_branch_and_said(tmp_path):
    """All branches were read into each other: the first one's degree on the second one's devices."""
    script = tmp_path / "run.sh"
    script.write_text(
        'case "$(uname -m)" in\nx86_64) TP=${TP:-8}; GPUS=8 ;;\n'
        "aarch64) TP=${TP:-4}; GPUS=4 ;;\n*) exit 1 ;;\nesac\n"
        "torchrun --nproc-per-node $GPUS train.py --tp $TP\n"
    )
    text, notes = job_file([str(script)], tmp_path)
    assert "torchrun --nproc-per-node 8 train.py --tp 8" in tomllib.loads(text)["launch"]["current"]
    assert any("assumes that they are true; if one is false, remove '8 8' and add '4 4'" in note for note in notes)
