"""Shadows of RL iterations: vLLM's schedulers generate the answers; `make .venv-vllm/ready` makes their environment."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from job_files import written

sys.path.append(str(Path(__file__).parents[1]))
from test_rl_predicted import SPLIT, TRL, VERL

from kb.records import AutoscoutError
from tui.cli import cli

PYTHON = Path(".venv-vllm/bin/python").absolute()
pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-vllm: make .venv-vllm/ready"),
]
OURS = ("[launch]", f'[launch]\npython = "{PYTHON}"')
FEWER = ("train_batch_size=1024", "train_batch_size=128"), ("ppo_mini_batch_size=256", "ppo_mini_batch_size=32")


def told(verb: str, file: Path, *given: str) -> dict:
    run = CliRunner().invoke(cli, [verb, str(file), *given, "--kb", str(file.parent / "kb.duckdb"), "--json"])
    assert run.exit_code == 0, run.output + str(run.exception)
    return json.loads(run.stdout)


def test_an_iteration_of_verl_by_vllms_schedulers(tmp_path):
    file = written(tmp_path, VERL, OURS, *FEWER)
    found, predicted = told("shadow", file), told("predict", file)["parts"]
    assert found["verdict"] == "starts"
    assert sum(found["phases"].values()) == pytest.approx(found["metrics"]["step_time_s"])
    assert found["phases"]["update"] == pytest.approx(predicted["update"], rel=1e-6)
    rollout = found["phases"]["rollout"] + found["phases"]["tail"]
    assert rollout == pytest.approx(predicted["rollout"] + predicted["tail"], rel=0.3)
    assert sum(each["requests"] for each in found["each"]) == 128 * 4
    assert found["each"][0]["counts"]["cached"] > 0, "answers of a group share a prompt"
    again = told("shadow", file)
    assert (again["cached"], again["phases"]) == (True, found["phases"])


def test_an_engine_that_holds_few_answers_takes_longer(tmp_path):
    file = written(tmp_path, VERL, OURS, *FEWER)
    few, many = (told("shadow", file, f"seqs={n}")["phases"] for n in (64, 256))
    assert few["rollout"] > 1.2 * many["rollout"]
    assert few["update"] == many["update"]


@pytest.mark.parametrize(
    ("text", "changes", "given", "why"),
    [
        (VERL, (SPLIT,), ("placement=colocate_async",), "unfinished answers continue in the next iteration"),
        (TRL, (("--use_vllm True", ""),), (), "the trainer's own `generate` samples answers"),
    ],
)
def test_what_has_no_shadow_is_said_in_a_sentence(tmp_path, text, changes, given, why):
    run = CliRunner().invoke(cli, ["shadow", str(written(tmp_path, text, OURS, *changes)), *given])
    assert isinstance(run.exception, AutoscoutError)
    assert (run.exception.exit_code, why in str(run.exception)) == (2, True)
