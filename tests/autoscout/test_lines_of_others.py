"""Lines that another program starts: a submitter, a chart, a framework's own command."""

import shlex
import tomllib
from pathlib import Path

import pytest

from autoscout.machine.starting import job_file
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.targets.target import target_of
from kb.records import AutoscoutError

SUBMITTED = "accelerate launch --num_processes 8 train.py --per_device_train_batch_size 1"


@pytest.mark.parametrize("before", ["", "source env.sh && "])
def test_a_line_that_is_submitted_is_asked_for_as_it_starts_there(before: str, tmp_path: Path) -> None:
    """The submitter's nodes divided the line's processes: eight on four nodes were two on each."""
    submits = before.replace("&&", "'&&'")
    (tmp_path / "run.sh").write_text(f"python mason.py --num_nodes 4 --gpus 8 -- {submits}{SUBMITTED}\n")
    with pytest.raises(AutoscoutError) as refused:
        job_file([str(tmp_path / "run.sh")], tmp_path)
    assert f"give that command instead: autoscout init -- {SUBMITTED}"[:100] in str(refused.value)


CHART = """
modelArtifacts: {name: Qwen/Qwen3-0.6B}
decode:
  parallelism: {tensor: 2}
  containers:
  - {name: vllm, image: ghcr.io/llm-d/llm-d-cuda, modelCommand: COMMAND, args: [--enforce-eager]}
prefill:
  containers:
  - {name: vllm, image: ghcr.io/llm-d/llm-d-cuda, modelCommand: COMMAND, args: [--enforce-eager]}
"""


def test_values_of_a_chart_are_the_line_that_it_makes(tmp_path: Path) -> None:
    """Its arguments alone were the line of a job."""
    (tmp_path / "values.yaml").write_text(CHART.replace("COMMAND", "vllmServe"))
    text, notes = job_file([str(tmp_path / "values.yaml")], tmp_path)
    made = tomllib.loads(text)
    assert made["launch"]["current"] == "vllm serve Qwen/Qwen3-0.6B --tensor-parallel-size 2 --enforce-eager"
    assert made["cluster"]["nodes"] == [{"device": "GPU", "count": 2}]
    assert [note for note in notes if "the first of 2 containers that serve a model" in note]


def test_arguments_whose_program_only_an_image_knows_are_no_line(tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(CHART.replace("COMMAND", "imageDefault"))
    with pytest.raises(AutoscoutError, match=r"the image ghcr\.io/llm-d/llm-d-cuda decides which program gets them"):
        job_file([str(tmp_path / "values.yaml")], tmp_path)


MEGATRON = "--tensor_model_parallel_size 2 --micro_batch_size 2 --global_batch_size 16 --model Qwen/Qwen3-8B"


@pytest.mark.parametrize("program", ["megatron sft", "megatron rlhf --rlhf_type dpo", "swift megatron sft"])
def test_training_over_megatron_core_by_swift_is_known(program: str, tmp_path: Path) -> None:
    """It was an unknown script, whose workers and micro batches were guessed from the names of its flags."""
    (tmp_path / "run.sh").write_text(f"NPROC_PER_NODE=8 {program} {MEGATRON}\n")
    text, _ = job_file([str(tmp_path / "run.sh")], tmp_path)
    (tmp_path / "job.toml").write_text(text.replace('"cpu"', '"h100"'))
    job = load_job(tmp_path / "job.toml")
    assert (job.launch.script, job.devices, job.traffic.global_batch) == ("swift-megatron", 8, 16)
    space = JobSpace.of_job(job)
    assert (space.reference.knobs["tp"], space.reference.knobs["mbs"]) == (2, 2)
    assert all(16 % (c.knobs["mbs"] * 8 // (c.knobs["tp"] * c.knobs["pp"])) == 0 for c in space.configurations())
    words = " ".join(target_of(job).launch(job, space.reference).program)
    assert MEGATRON in words


def test_a_batch_that_swift_does_not_start_with_is_said_at_init(tmp_path: Path) -> None:
    line = "megatron sft --tensor_model_parallel_size 2 --micro_batch_size 3 --model Qwen/Qwen3-8B"
    (tmp_path / "run.sh").write_text(f"NPROC_PER_NODE=8 {line}\n")
    notes = job_file([str(tmp_path / "run.sh")], tmp_path)[1]
    assert [note for note in notes if "16 samples a step do not divide into micro batches of 3 on 8 GPUs" in note]


def test_preferences_are_not_predicted_as_training_on_every_token(tmp_path: Path) -> None:
    """A line of DPO had the model, and so the predictions, of fine-tuning."""
    line = "swift rlhf --rlhf_type dpo --model Qwen/Qwen3-8B --tuner_type full --per_device_train_batch_size 1"
    made = [tomllib.loads(job_file(shlex.split(text), tmp_path)[0]) for text in (line, line.replace("dpo", "sft"))]
    assert ["model" in job for job in made] == [False, True]


def test_yaml_that_cannot_be_read_is_refused_by_its_place(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text("kind: Pod\nspec: {{ .Values.spec }}\n")
    with pytest.raises(AutoscoutError, match=r"it is not YAML: found unhashable key in line 2"):
        job_file([str(tmp_path / "pod.yaml")], tmp_path)


def test_the_label_of_gkes_nodes_names_the_gpu(tmp_path: Path) -> None:
    container = "{image: vllm/vllm-openai, args: [--model=Qwen/Qwen3-8B], resources: {limits: {nvidia.com/gpu: 1}}}"
    label = "{cloud.google.com/gke-accelerator: nvidia-l4}"
    (tmp_path / "pod.yaml").write_text(f"kind: Pod\nspec: {{containers: [{container}], nodeSelector: {label}}}\n")
    made = tomllib.loads(job_file([str(tmp_path / "pod.yaml")], tmp_path)[0])
    assert made["cluster"]["nodes"] == [{"device": "l4", "count": 1}]


def test_what_follows_a_training_by_composer_is_no_launch(tmp_path: Path) -> None:
    """The line that generates answers with the trained model was tuned."""
    (tmp_path / "run.sh").write_text("composer -n 8 train.py mpt.yaml\npython hf_generate.py --max_new_tokens 256\n")
    made = tomllib.loads(job_file([str(tmp_path / "run.sh")], tmp_path)[0])
    assert made["launch"]["current"] == "composer -n 8 train.py mpt.yaml"
    assert made["cluster"]["nodes"][0]["count"] == 8


def test_a_line_that_does_not_say_its_batch_is_a_job_that_keeps_it(tmp_path: Path) -> None:
    """It was asked for, and every verb refused the job till then: traffic.global_batch = 0."""
    line = "swift sft --model Qwen/Qwen2-7B-Instruct --dataset x/y --tuner_type lora --output_dir output"
    text, notes = job_file(shlex.split(line), tmp_path)
    assert [note for note in notes if note.startswith("traffic.global_batch: write the samples of a step")]
    assert not [note for note in notes if note.startswith("AutoScout cannot read this job")]
    (tmp_path / "job.toml").write_text(text)
    assert {c.knobs["mbs"] for c in JobSpace.load(tmp_path / "job.toml").configurations()} == {1}
