"""Small things of a launch line that `init` and `check` passed over or got wrong."""

import shlex

import pytest

from autoscout.machine.starting import job_file
from autoscout.targets.jobs import load_job
from autoscout.targets.target import target_of
from kb.records import AutoscoutError

TRAINER = "from transformers import HfArgumentParser, Trainer, TrainingArguments"
HF = "hf.py --output_dir out --per_device_train_batch_size 4 --gradient_accumulation_steps 2"


@pytest.mark.parametrize(("steps", "mentioned"), [(4, True), (2, False)])
def test_steps_of_accumulation_in_accelerate_s_file_are_mentioned(tmp_path, monkeypatch, steps, mentioned):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hf.py").write_text(TRAINER)
    (tmp_path / "acc.yaml").write_text(f"num_processes: 8\ngradient_accumulation_steps: {steps}\n")
    _, notes = job_file(["accelerate", "launch", "--config_file", "acc.yaml", *HF.split()], tmp_path)
    said = "launch.current: gradient_accumulation_steps is 2 on the line but 4 in acc.yaml; the line takes precedence"
    assert (said in notes) == mentioned


def test_a_submission_waits_for_its_job(tmp_path):
    """The experiment would have ended before its first step."""
    (tmp_path / "hf.py").write_text(TRAINER)
    line = f"ray job submit --no-wait --working-dir . -- torchrun --nproc-per-node 8 {HF}"
    text, notes = job_file(shlex.split(line), tmp_path)
    assert "ray job submit --working-dir . -- torchrun" in text
    assert any("--no-wait is left out" in note for note in notes)


@pytest.mark.parametrize(("micro", "noted"), [("4", False), ("[2, 4]", True)])
def test_one_micro_batch_is_one_batch(tmp_path, micro, noted):
    """`check` noted different batches where there was one configuration."""
    (tmp_path / "train.py").write_text("import deepspeed")
    sizes = f'"train_micro_batch_size_per_gpu": {micro}, "gradient_accumulation_steps": 2'
    (tmp_path / "ds.json").write_text(f'{{{sizes}, "zero_optimization": {{"stage": [1, 2]}}}}')
    (tmp_path / "job.toml").write_text(
        'name = "j"\ntask = "pretrain"\ntarget = "deepspeed"\ncluster = {nodes = [{device = "cpu", count = 2}]}\n'
        'objective = {maximize = "samples_per_s"}\n[launch]\ncommand = "torchrun train.py --deepspeed_config ds.json"\n'
        'render = [{from = "ds.json", to = "{folder}/ds.json"}]\n'
    )
    job = load_job(tmp_path / "job.toml")
    assert any("train different numbers of samples" in note for note in target_of(job).notes_on_job(job)) == noted


def test_a_server_without_an_image_needs_its_line(tmp_path):
    """A KServe object, whose arguments go to a program that the cluster chooses, was said to have none."""
    (tmp_path / "kserve.yaml").write_text(
        "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nspec:\n  predictor:\n    model:\n"
        "      modelFormat: {name: huggingface}\n      args: [--model_id=meta-llama/Meta-Llama-3-8B]\n"
    )
    with pytest.raises(AutoscoutError, match=r"has arguments but no image.*init -- PROGRAM --model_id=meta"):
        job_file([str(tmp_path / "kserve.yaml")], tmp_path)
