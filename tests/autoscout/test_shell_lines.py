"""`init` of lines as a shell reads them: what follows the launch, quotes, `env` with options."""

import shlex
import tomllib

import pytest

from autoscout.machine.starting import job_file

SCRIPT = "torchrun --nproc-per-node 2 train.py --layers 4"


def current(given: list[str], folder) -> str:
    return tomllib.loads(job_file(given, folder)[0])["launch"]["current"]


@pytest.mark.parametrize(
    "after",
    [
        "2>&1 | tee -a log.txt",
        "> log.txt 2>&1",
        "&> log.txt",
        ">>log.txt 2>/dev/null",
        "|| exit 1",
        "; echo done",
        "# the large one",
        "> >(tee log.txt) 2>&1",
        "> >(tee $(cd ..; pwd)/log.txt) 2> >(tee $(cd ..; pwd)/err.txt >&2)",
        "\\",
        "&& echo 'done; really'",
    ],
)
def test_what_a_shell_does_with_the_output_is_no_argument(tmp_path, after):
    """'2>&1' '|' tee log.txt were handed to the script, which refuses them."""
    (tmp_path / "run.sh").write_text(f"{SCRIPT} {after}\n")
    assert current([str(tmp_path / "run.sh")], tmp_path) == SCRIPT
    assert current([f"{SCRIPT} {after}"], tmp_path) == SCRIPT


@pytest.mark.parametrize("more", ["'a | b > c # d'", "'it; goes'", "'a & b'", "'x#y'", "'$(hosts | wc -l)'"])
def test_what_is_quoted_stays(tmp_path, more):
    (tmp_path / "run.sh").write_text(f"{SCRIPT} --note {more} > log\n")
    assert current([str(tmp_path / "run.sh")], tmp_path) == f"{SCRIPT} --note {more}"


def test_a_pipe_within_a_substitution_ends_no_line(tmp_path):
    (tmp_path / "run.sh").write_text("torchrun --nnodes $(hosts | wc -l) train.py --layers 4\n")
    assert current([str(tmp_path / "run.sh")], tmp_path).endswith("train.py --layers 4")


def test_a_line_that_begins_with_another_command_is_left_whole(tmp_path):
    assert "torchrun" in current([f"cd x && {SCRIPT}"], tmp_path)


def test_a_variable_that_ends_in_a_quote_keeps_it(tmp_path):
    """The inner quote was taken off with the outer one, and the line could not be read."""
    (tmp_path / "run.sh").write_text(f"ARGS=\"--layers 4 --note 'a b'\"\neval {SCRIPT} $ARGS\n")
    assert current([str(tmp_path / "run.sh")], tmp_path) == f"{SCRIPT} --layers 4 --note 'a b'"


def test_env_with_options_stays_in_the_line(tmp_path):
    """The line began with -u."""
    line = f"env -u NCCL_DEBUG A=1 {SCRIPT}"
    assert current(shlex.split(line), tmp_path) == line


def test_a_quote_that_does_not_end_is_read_at_once(tmp_path):
    """Each `${A}` after it was tried in two ways: 40 of them took hours."""
    (tmp_path / "run.sh").write_text(f'{SCRIPT}\nA="{"${A} " * 40}\n')
    assert current([str(tmp_path / "run.sh")], tmp_path) == SCRIPT


def test_the_commands_that_eval_is_given_are_read_one_by_one(tmp_path):
    (tmp_path / "run.sh").write_text(f'CMD="pwd && cd {tmp_path} && {SCRIPT}"\necho "$CMD"\neval $CMD\n')
    assert current([str(tmp_path / "run.sh")], tmp_path) == SCRIPT
    (tmp_path / "run.sh").write_text(f'CMD="{SCRIPT} --text \'a && b\'"\neval "$CMD"\n')
    assert current([str(tmp_path / "run.sh")], tmp_path) == f"{SCRIPT} --text 'a && b'"
    (tmp_path / "run.sh").write_text(f'ARGS="\n --layers 4\n"\nCMD="{SCRIPT} $ARGS"\neval $CMD --last 1')
    assert current([str(tmp_path / "run.sh")], tmp_path) == f"{SCRIPT} --layers 4 --last 1"  # split at its blanks
