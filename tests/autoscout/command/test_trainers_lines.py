"""Lines of Hugging Face's Trainer: found by their flags, whatever the script's name, with what their file says."""

import shlex
from pathlib import Path

import pytest

from autoscout.line.launch_line import Line, read
from autoscout.line.recognition import recognised
from autoscout.machine.starting import job_file
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.targets.target import target_of

SETTINGS = """# a recipe
model_name_or_path: m
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
gradient_checkpointing: true
eval_strategy: "steps" # often
packing: true
"""
FINETUNE = (
    "torchrun --nproc_per_node=4 train_mem.py --output_dir out --per_device_train_batch_size 4 --save_steps 100 "
    "--gradient_accumulation_steps 2 --gradient_checkpointing True --evaluation_strategy no --push_to_hub True"
)


def job_of(folder: Path, line: str):
    (folder / "recipe.yaml").write_text(SETTINGS)
    (folder / "job.toml").write_text(job_file(shlex.split(line), folder)[0])
    job = load_job(folder / "job.toml")
    return job, JobSpace.of_job(job).reference


def measured(folder: Path, job, configuration) -> list[str]:
    return shlex.split(target_of(job).probe_line(job, configuration, folder / "x" / "experiment.json"))


@pytest.mark.parametrize("start", ["accelerate launch --num_processes 4 sft.py", "trl sft --num_processes 4"])
def test_the_batch_of_a_line_s_file_is_kept(tmp_path, start):
    """It was taken for 8 samples, each once, and the launch was handed back with an accumulation of 1."""
    job, reference = job_of(tmp_path, f"{start} --config recipe.yaml")
    assert job.traffic.global_batch == 2 * 8 * 4
    assert (reference.knobs["mbs"], reference.knobs["checkpointing"], reference.knobs["packing"]) == (2, True, True)
    words = target_of(job).launch(job, reference).program
    assert words[words.index("--gradient_accumulation_steps") + 1] == "8"
    assert "--eval_strategy no" in shlex.join(measured(tmp_path, job, reference))


def test_llama_factory_s_script_is_known_by_its_file(tmp_path):
    """torchrun src/train.py, as it starts on several nodes, had no knobs."""
    file = "model_name_or_path: meta-llama/Llama-3.1-8B\nstage: sft\nfinetuning_type: full\ncutoff_len: 2048\n"
    (tmp_path / "sft.yaml").write_text(f"{file}per_device_train_batch_size: 2\ngradient_accumulation_steps: 4\n")
    job, reference = job_of(tmp_path, "torchrun --nproc_per_node 8 src/train.py sft.yaml")
    assert (job.launch.script, job.traffic.global_batch, reference.knobs["mbs"]) == ("llamafactory", 64, 2)


@pytest.mark.parametrize(("said", "on"), [("1", True), ("yes", True), ("0", False), ("no", False), ("True", True)])
def test_a_switch_is_read_as_the_trainer_reads_it(tmp_path, said, on):
    """1 was taken for off, and yes closed the knob."""
    line = f"torchrun --nproc_per_node 4 run_clm.py --per_device_train_batch_size 4 --gradient_checkpointing {said}"
    job, reference = job_of(tmp_path, line)
    assert reference.knobs["checkpointing"] is on
    assert not job.space.knob


def test_a_file_that_is_not_here_is_asked_for(tmp_path):
    from kb.records import AutoscoutError

    with pytest.raises(AutoscoutError, match=r"other.yaml: cannot be read"):
        job_file(shlex.split("trl sft --config other.yaml"), tmp_path)


def test_a_configuration_s_name_is_no_file(tmp_path):
    job, _ = job_of(tmp_path, f"{FINETUNE} --config llama3_8b")
    assert (job.launch.script, job.traffic.global_batch) == ("hf-trainer", 4 * 2 * 4)


def test_what_a_file_in_a_container_says_is_asked_for(tmp_path):
    """The line was refused, though no file could be given."""
    text, notes = job_file(shlex.split("docker run --gpus 4 -v /d:/w image trl sft --config /w/sft.yaml"), tmp_path)
    assert "global_batch" not in text.partition("name =")[2]
    assert any(note.startswith("launch.current: /w/sft.yaml is in the container") for note in notes)


def test_a_script_of_any_name_with_the_trainer_s_flags_is_one_of_it(tmp_path):
    job, reference = job_of(tmp_path, FINETUNE)
    assert job.launch.script == "hf-trainer"
    assert target_of(job).launch(job, reference).program == shlex.split(FINETUNE)
    words = measured(tmp_path, job, reference)
    assert not {"out", "--push_to_hub", "--eval_strategy"} & {*words}
    assert words[words.index("--evaluation_strategy") + 1] == "no"


@pytest.mark.parametrize(
    "said", ["--auto_find_batch_size", "--auto_find_batch_size True", "--auto-find-batch-size=true"]
)
def test_an_experiment_measures_its_own_batch_or_none(tmp_path, said):
    """A batch that did not fit was run as 0.9 of it, and that speed stood under the larger one's name."""
    job, reference = job_of(tmp_path, f"{FINETUNE} {said}")
    flag = said.split()[0].partition("=")[0]
    text = " ".join(measured(tmp_path, job, reference)).replace("=", " ")
    assert f"{flag} false" in text
    assert text.count(flag) == 1
    assert said in shlex.join(target_of(job).launch(job, reference).program)


@pytest.mark.parametrize("flag", ["--with_tracking", "--checkpointing_steps epoch"])
def test_a_loop_of_its_own_is_not_the_trainer(flag):
    assert recognised(read(f"{FINETUNE} {flag}", "launch.current")) == ""


def test_what_the_line_has_is_allowed(tmp_path):
    """Flash attention was left out of the present launch, as it needs permission where it is new."""
    (tmp_path / "a.yaml").write_text("flash_attn: fa2\nper_device_train_batch_size: 2\n")
    job, reference = job_of(tmp_path, "llamafactory-cli train a.yaml")
    assert reference.knobs["attention"] == "fa2"
    assert "flash_attn=fa2" in target_of(job).launch(job, reference).program


def test_llamafactory_s_settings_as_flags_are_the_trainer_s(tmp_path):
    """Such a line was refused, as it names no file."""
    line = FINETUNE.partition("train_mem.py ")[2]
    job, reference = job_of(tmp_path, f"llamafactory-cli train --stage sft --finetuning_type lora {line}")
    assert (job.launch.script, job.traffic.global_batch) == ("hf-trainer", 8 * job.devices)
    assert reference.knobs["mbs"] == 4


def test_a_model_without_a_vocabulary_is_none(tmp_path):
    """Of images: the job of the line was refused for model.vocab = 0."""
    model = "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 3136 --vocab-size 0"
    flags = "--tensor-model-parallel-size 1 --micro-batch-size 4 --global-batch-size 64"
    job, _ = job_of(tmp_path, f"torchrun --nproc-per-node 8 pretrain_vision_dino.py {model} {flags}")
    assert (job.launch.script, job.model.layers) == ("megatron-lm", 0)


def test_a_line_of_ms_swift_has_its_own_defaults(tmp_path):
    line = "swift sft --model m --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --output_dir out"
    job, reference = job_of(tmp_path, f"NPROC_PER_NODE=4 {line}")
    assert (job.launch.script, job.traffic.global_batch) == ("swift", 2 * 4 * 4)
    assert reference.knobs["checkpointing"] is True
    assert target_of(job).launch(job, reference).program == line.split()


def test_a_batch_that_the_program_chooses_is_asked_for(tmp_path):
    text, notes = job_file(shlex.split("NPROC_PER_NODE=4 swift sft --model m"), tmp_path)
    assert "global_batch" not in text.partition("name =")[2]
    assert any(note.startswith("traffic.global_batch: write the samples of a step") for note in notes)


def test_an_accumulation_that_only_a_shell_knows_is_not_taken_for_one(tmp_path):
    """It was replaced by 1, and the batch with it."""
    line = FINETUNE.replace("_accumulation_steps 2", "_accumulation_steps '$((B / 4))'")
    text, notes = job_file(shlex.split(line), tmp_path)
    assert "global_batch" not in text.partition("name =")[2]
    assert any(note.startswith("traffic.global_batch: write the samples of a step") for note in notes)


@pytest.mark.parametrize("more", ["", " --deepspeed ds.json"])
def test_a_batch_of_devices_that_nobody_says_is_said_to_be_theirs(tmp_path, more):
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}, "train_batch_size": "auto"}')
    text, notes = job_file(shlex.split(FINETUNE.replace("--nproc_per_node=4", "") + more), tmp_path)
    assert "global_batch = 8" in text
    assert any("8 samples per step are for 1 device; for a different number" in n for n in notes)
    assert any("of devices, write 8 samples per device" in n for n in notes)


def test_a_program_whose_settings_are_in_a_file_is_not_told_the_trainer_s_flags(tmp_path):
    """Axolotl was told --per_device_train_batch_size 1024."""
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    (tmp_path / "a.yml").write_text("micro_batch_size: 2\ngradient_accumulation_steps: 4\n")
    job, _ = job_of(tmp_path, "accelerate launch -m axolotl.cli.train a.yml --deepspeed ds.json")
    assert (job.target, job.launch.script) == ("command", "axolotl")


MEGATRON = "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 24 --micro-batch-size '$MBS'"


@pytest.mark.parametrize("line", [MEGATRON, FINETUNE.replace("batch_size 4", "batch_size '${BS}'")])
def test_a_micro_batch_that_only_a_shell_knows_is_asked_for(tmp_path, line):
    """It ended in a ValueError."""
    text, notes = job_file(shlex.split(line), tmp_path)
    assert "global_batch =" not in text
    assert any(note.startswith("traffic.global_batch: write the samples of a step") for note in notes)
    assert any("no shell expands variables here" in note for note in notes)


def test_the_batch_of_a_line_is_known_without_its_micro_batch(tmp_path):
    assert "global_batch = 64" in job_file(shlex.split(f"{MEGATRON} --global-batch-size 64"), tmp_path)[0]


TITAN = "torchrun --nproc-per-node 8 -m torchtitan.train"


def test_torchtitan_s_file_says_today_s_batch(tmp_path):
    """It was taken for 8 samples a rank, and the launch was handed back with --training.global_batch_size 64."""
    (tmp_path / "a.toml").write_text("[training]\nlocal_batch_size = 1\n[parallelism]\ntensor_parallel_degree = 2\n")
    job, reference = job_of(tmp_path, f"{TITAN} --job.config_file a.toml")
    assert job.traffic.global_batch == 4
    assert (reference.knobs["mbs"], reference.knobs["tp"]) == (1, 2)


def test_stages_of_the_line_s_torchtitan_need_no_flag_that_it_lacks(tmp_path):
    """A line with two stages was held for one with none: only the newest release has CUDA graphs to turn off."""
    staged = f"{TITAN} --training.local_batch_size 1 --parallelism.pipeline_parallel_degree 2"
    assert job_of(tmp_path, staged)[1].knobs["pp"] == 2
    off = job_of(tmp_path, f"{staged} --training.disable_cuda_graphs")[1].knobs
    assert (off["pp"], off["eager"]) == (2, True)


def test_the_batch_of_a_configuration_in_python_is_asked_for(tmp_path):
    text, notes = job_file(shlex.split(f"{TITAN} --module llama3 --config llama3_8b"), tmp_path)
    assert "global_batch" not in text.partition("name =")[2]
    assert any(note.startswith("traffic.global_batch: write the samples of a step") for note in notes)


def test_torchtitan_s_shards_and_context_parallel_ranks_are_the_line_s(tmp_path):
    more = "--training.local_batch_size 1 --training.global_batch_size 8 --parallelism.tensor_parallel_degree 2"
    sizes = "--parallelism.data_parallel_shard_degree 2 --parallelism.context_parallel_degree 2"
    job, reference = job_of(tmp_path, f"{TITAN} {more} {sizes}")
    found = {(c.knobs["tp"], c.knobs["pp"], c.knobs["replicas"]) for c in JobSpace.of_job(job).configurations()}
    assert reference.knobs["tp"] == 2
    assert found == {(2, 1, 1), (1, 2, 1), (1, 1, 2)}


@pytest.mark.parametrize(
    "program",
    [
        "torchtitan_on_cpu.py --module llama3 --config llama3_debugmodel --parallelism.spmd_backend partial_dtensor",
        "-m torchtitan_npu.train --module llama3 --config llama3_8b --training.local-batch-size 1",
        "./train.py --job.config_file a.toml",
        "-m torchtitan.experiments.forge.train --job.config-file=a.toml --training.steps 10",
    ],
)
def test_a_script_of_one_s_own_that_calls_torchtitan_s_trainer_is_one_of_it(program):
    """It was taken for an unknown script: no knob, and no line of its log known for a step."""
    assert recognised(read(f"torchrun --nproc-per-node 8 {program}", "launch.current")) == "torchtitan"


@pytest.mark.parametrize(
    "program",
    [
        "train.py --job.config_file flame/models/fla.toml --model.config fla.json --training.batch_size 1",
        "train.py --module vision --config resnet.yaml",
    ],
)
def test_flags_alike_of_another_trainer_are_not_torchtitan_s(program):
    assert recognised(read(f"torchrun --nproc-per-node 8 {program}", "launch.current")) == ""


def test_ms_swift_s_script_is_no_trl(tmp_path):
    line = "accelerate launch swift/cli/sft.py --tuner_type lora --per_device_train_batch_size 2"
    assert recognised(read(line, "launch.current")) == "swift"


def test_a_line_that_only_a_shell_can_start_is_refused_before_anything_runs(tmp_path):
    """`check` found nothing wrong with it, and every experiment ended with the sentence."""
    from kb.records import AutoscoutError

    line = ["torchrun", "--nnodes", "$(cat '$hosts' | wc -l)", "train.py", "--batch_size", "4"]
    (tmp_path / "job.toml").write_text(job_file(line, tmp_path)[0])
    with pytest.raises(AutoscoutError, match=r"the flag of batch_size cannot be added: replace the variables"):
        load_job(tmp_path / "job.toml")


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("from transformers import HfArgumentParser, Trainer, TrainingArguments", "hf-trainer"),
        ("import argparse\nfrom transformers import TrainingArguments", ""),  # refuses flags that it does not declare
    ],
)
def test_a_script_that_parses_the_trainers_arguments_is_known_by_its_source(tmp_path, source, name):
    (tmp_path / "finetune.py").write_text(source)
    flags = "--output_dir out --per_device_train_batch_size 4 --gradient_accumulation_steps 2"
    words = f"torchrun --nproc-per-node 2 finetune.py {flags}".split()
    assert recognised(Line(tuple(words), place=tmp_path)) == name
