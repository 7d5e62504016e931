"""`init` of a script: the folder that its line runs in, where its files are looked for."""

import tomllib

import pytest

from autoscout.machine.starting import job_file

SETTINGS = "per_device_train_batch_size: 2\ngradient_accumulation_steps: 8\n"
LINE = "srun llamafactory-cli train sft.yaml"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A project from which jobs are submitted, with its scripts in jobs/."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs").mkdir()
    (tmp_path / "there").mkdir()
    return tmp_path


def begun(folder, head: str, line: str = LINE, name: str = "jobs/run.sbatch"):
    (folder / name).write_text(f"#!/bin/bash\n#SBATCH --gpus-per-node=h100:2\n{head}\n{line}\n")
    text, notes = job_file([name], folder)
    return tomllib.loads(text), [note for note in notes if note.startswith("launch.path: ")]


@pytest.mark.parametrize(
    ("head", "where"),
    [
        ("", "."),
        ("#SBATCH --chdir=there", "there"),
        ("#SBATCH -D there", "there"),
        ("#SBATCH -D there\ncd ..", "."),
        ("cd there", "there"),
        ("cd {here}/there", "there"),
        ("ROOT=$SLURM_SUBMIT_DIR\ncd ${{ROOT}}/there || exit 1", "there"),
        ('pushd "$SLURM_SUBMIT_DIR/there"', "there"),
        ('cd "$(dirname "$0")"', "jobs"),
        ('DIR="$( cd "$( dirname "${{BASH_SOURCE[0]}}" )" && pwd )"\ncd $DIR/../there', "there"),
        ('DIR=$(cd -- "$(dirname "$0")" >/dev/null 2>&1 ; pwd -P)\ncd $DIR/../there', "there"),
    ],
)
def test_a_script_runs_where_it_is_submitted_or_goes(folder, head, where):
    """Its files were looked for in the current folder and the job ran in the script's, wherever it goes."""
    (folder / where / "sft.yaml").write_text(SETTINGS)
    made, notes = begun(folder, head.format(here=folder))
    assert made["launch"]["path"] == str((folder / where).resolve())
    assert made["traffic"]["global_batch"] == 2 * 2 * 8
    assert notes == []


def test_a_line_after_which_it_goes_elsewhere_stays(folder):
    (folder / "sft.yaml").write_text(SETTINGS)
    assert begun(folder, "", f"{LINE}\ncd there")[0]["launch"]["path"] == str(folder)


def test_files_that_lie_beside_the_script_say_that_it_is_submitted_from_there(folder):
    (folder / "jobs/sft.yaml").write_text(SETTINGS)
    made, notes = begun(folder, "")
    assert made["launch"]["path"] == str(folder / "jobs")
    (note,) = notes
    assert note.startswith(f"launch.path: {folder}/jobs is used, because sft.yaml is in it and not in {folder}")


@pytest.mark.parametrize("line", ["cd $WORK/run", "#SBATCH --chdir=/nowhere/of/ours", "cd $(git rev-parse --top)/x"])
def test_a_folder_that_is_not_known_here_is_asked_for(folder, line):
    (folder / "sft.yaml").write_text(SETTINGS)
    made, notes = begun(folder, line)
    assert made["launch"]["path"] == str(folder)
    (note,) = notes
    assert note.startswith("launch.path: the script runs in the folder '")
    assert note.split("the folder ")[1].startswith(("'$WORK/run'", "'/nowhere/of/ours'", "'$(git rev-parse --top)/x'"))


def test_a_script_that_is_run_as_a_whole_is_found_from_where_it_runs(folder):
    line = "python -m sglang.launch_server --model x &\npython -m sglang.bench_serving --num-prompts 9"
    made, _ = begun(folder, "", line)
    assert made["launch"]["path"] == str(folder)
    assert made["launch"]["current"] == "bash jobs/run.sbatch"


@pytest.mark.parametrize(
    "line",
    [
        f"source ~/venv/bin/activate && {LINE}",
        f"cd there; cd .. && {LINE} && echo done",
        f"if true; then {LINE}; fi",
        f"{LINE} 2>&1 | tee run.log",
        f"{LINE} &> run.log",
        f"{LINE} > $HOME/run.log 2>&1",
    ],
)
def test_a_line_is_found_among_others_and_without_its_log(folder, line):
    """Where it went on a launch was not found, and a pipe's words became arguments of the script."""
    (folder / "sft.yaml").write_text(SETTINGS)
    made, notes = begun(folder, "", line)
    assert made["launch"]["current"].startswith(f"{LINE} per_device_train_batch_size=2")
    assert not {"&&", "|", ">", "2>&1", "tee", "echo"} & {*made["launch"]["current"].replace("'", "").split()}
    assert (made["launch"]["path"], notes) == (str(folder), [])


def test_a_shell_that_is_started_goes_to_its_folder_by_itself(folder):
    train = "torchrun --nproc-per-node 2 train.py --num-workers 2"
    line = f"srun bash -c 'cd there && {train} | tee log'"
    assert begun(folder, "", line)[0]["launch"]["current"] == f"srun bash -c 'cd there && exec \"$@\"' bash {train}"
