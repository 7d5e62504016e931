"""`tune ds_config.json` where it is left to us what fits: the model is counted first, in a run of its own, and once."""

import json
from pathlib import Path

import pytest
from ds_configs import CONFIG
from test_ds_runs import persons, run_tune

LEFT_TO_US = {
    **{name: value for name, value in CONFIG.items() if name != "train_micro_batch_size_per_gpu"},
    "zero_optimization": {"stage": "auto"},
    "autotuning": {"enabled": True, "max_train_micro_batch_size_per_gpu": 4},
}
COUNTED = "counting the model's parameters and activations in a separate run"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("left-to-us")
    persons(made, LEFT_TO_US)
    return made


def test_18_profile_model_info_by_the_command_line(folder):
    done = run_tune(folder, folder / "kb", profiles=3)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(COUNTED) == 1
    info = folder / "autotuning_results" / "profile_model_info"
    assert json.loads((info / "model_info.json").read_text())["num_params"] == 1000
    sent = json.loads((info / "ds_config.json").read_text())
    assert (sent["train_micro_batch_size_per_gpu"], sent["zero_optimization"]["stage"]) == (1, 3)
    completed = json.loads(next((folder / "jobs").glob("*-ds_config.json")).read_text())
    assert completed["autotuning"]["model_info"]["activation_mem_per_gpu"] == 64
    assert completed["zero_optimization"] == LEFT_TO_US["zero_optimization"]
    assert json.loads((folder / "ds_config.json").read_text()) == LEFT_TO_US  # theirs stays as it was
    best = json.loads((folder / "autotuning_results" / "ds_config_optimal.json").read_text())
    assert best["train_micro_batch_size_per_gpu"] in (1, 2, 4)
    assert isinstance(best["zero_optimization"]["stage"], int)


def test_18_what_was_counted_is_not_counted_again(folder):
    again = run_tune(folder, folder / "kb", profiles=3)
    assert again.returncode == 0, again.stderr
    assert COUNTED not in again.stderr


def test_18_a_model_that_does_not_run_is_one_sentence(tmp_path):
    persons(tmp_path, LEFT_TO_US)
    rule = "import atexit\natexit.register(print, '=' * 60)\n"  # as torchrun ends what it says
    (tmp_path / "train.py").write_text(f"{rule}raise ValueError('no such model')\n")
    done = run_tune(tmp_path, tmp_path / "kb", profiles=3)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "profile_model_info: the model did not run under DeepSpeed: ended with exit code 1" in last
    assert "ValueError: no such model" in last
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "autotuning_results" / "profile_model_info" / "model_info.json").exists()
