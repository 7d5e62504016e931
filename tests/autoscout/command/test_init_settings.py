"""`init` of trainers whose settings are in a YAML file: what the file says is today's launch."""

import shlex
import tomllib

import pytest

from autoscout.line.launch_line import Line
from autoscout.line.recognition import recognised
from autoscout.machine.starting import job_file
from autoscout.targets.command.arguments import Place, started
from autoscout.targets.jobs import JobSpace, load_job
from kb.records import AutoscoutError, Configuration

SETTINGS = """
base_model: tiny
micro_batch_size: 2  # of one rank
gradient_accumulation_steps: 8
gradient_checkpointing: "true"
fsdp_config:
  micro_batch_size: 7
"""


HERE = Place(folder="here", port="1", iterations="12")


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """The job of a launch line, and what its person is told; `more`: settings of the file."""
    monkeypatch.chdir(tmp_path)

    def begun(line: str, more: str = ""):
        (tmp_path / "sft.yml").write_text(SETTINGS + more)
        text, notes = job_file(shlex.split(line), tmp_path)
        (tmp_path / "job.toml").write_text(text)
        return load_job(tmp_path / "job.toml"), notes

    return begun


@pytest.mark.parametrize(
    ("line", "counts", "mbs"),
    [
        ("axolotl train sft.yml", [1], 2),
        ("axolotl train sft.yml --micro-batch-size 4 --launcher torchrun -- --nproc_per_node 2", [2], 4),
        ("accelerate launch --config_file gone.yaml --num_processes 4 -m axolotl.cli.train sft.yml", [4], 2),
        ("torchrun --nproc-per-node 2 -m axolotl.cli.train --config=sft.yml --micro_batch_size=4", [2], 4),
    ],
)
def test_an_axolotl_line_is_tuned_by_its_flags(begun, line, counts, mbs):
    job, _ = begun(line)
    assert job.launch.script == "axolotl"
    assert [node.count for node in job.cluster.nodes] == counts
    assert job.traffic.global_batch == mbs * 8 * counts[0]
    space = JobSpace.of_job(job)
    assert space.reference.knobs == {"mbs": mbs, "checkpointing": True}
    words = started(job, Configuration({"mbs": 8, "checkpointing": False}), HERE).words
    wanted = {"--micro-batch-size=8", f"--gradient-accumulation-steps={mbs}", "--gradient-checkpointing=false"}
    assert wanted <= {*words}
    assert "--output-dir=here/out" in words, "over the person's own adapters otherwise"
    assert "--" not in words, "what follows it is the launcher's"


def test_axolotls_launcher_reads_accelerates_own_configuration(begun, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate/default_config.yaml").write_text("num_machines: 1\nnum_processes: 4\n")
    assert begun("axolotl train sft.yml")[0].devices == 4
    assert begun("axolotl train sft.yml --launcher torchrun -- --nproc_per_node=2")[0].devices == 2


def test_packed_samples_are_compared_by_tokens(begun):
    """A larger micro batch is a larger bin, which more samples fit into."""
    job, notes = begun("axolotl train sft.yml", "sample_packing: true\n")
    assert job.objective.maximize == "tokens_per_s"
    assert any(note.startswith("objective: with sample_packing") for note in notes)
    job, notes = begun("axolotl train sft.yml", "sample_packing: false\n")
    assert job.objective.metric == "step_time_s"
    assert not any(note.startswith("objective: ") for note in notes)


@pytest.mark.parametrize(
    ("line", "more", "sentence"),
    [
        ("axolotl train sft.yml", "batch_size: 16\n", "sft.yml: gives batch_size, which excludes gradient_accum"),
        ("axolotl train none.yml", "", "none.yml: cannot be read"),
        ("axolotl train folder", "", "names no YAML file with settings"),
        ("llamafactory-cli train --stage sft --per_device_train_batch_size 2", "", "names no YAML file with settings"),
    ],
)
def test_settings_that_cannot_be_had_are_one_sentence(begun, line, more, sentence):
    with pytest.raises(AutoscoutError, match=sentence):
        begun(line, more)


def test_what_merely_names_it_is_none():
    assert recognised(Line(("axolotl", "train", "x.yml"))) == "axolotl"
    assert recognised(Line(("axolotl", "preprocess", "x.yml"))) == ""


@pytest.mark.parametrize(
    ("line", "knob", "values"),
    [
        ("torchrun run_clm.py --per_device_train_batch_size 3", "mbs", [1, 2, 3, 4, 8, 16, 32]),
        ("torchrun run_clm.py --fsdp 'full_shard auto_wrap'", "fsdp", ["full_shard auto_wrap"]),
        ("llamafactory-cli train sft.yml flash_attn=disabled", "attention", ["auto", "sdpa", "disabled"]),
        ("axolotl train sft.yml --gradient-checkpointing=offload", "checkpointing", ["offload"]),
    ],
)
def test_todays_value_is_among_those_tried(begun, line, knob, values):
    """`init` wrote a job that `check` refused: the line's value was none of the preset's."""
    job, _ = begun(line)
    (own,) = job.space.knob
    assert (own.name, own.values, own.replace) == (knob, values, True)
    assert JobSpace.of_job(job).reference.knobs[knob] in values
    assert own.values[0] == 1 or shlex.split(line)[-1] in " ".join(
        started(job, JobSpace.of_job(job).reference, HERE).words
    )


VERL = """#!/bin/bash
set -x
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo data.train_batch_size=1024 \\
    actor_rollout_ref.model.path=Qwen/Qwen3-8B \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32 actor_rollout_ref.rollout.n=5 \\
    actor_rollout_ref.actor.fsdp_config.param_offload=False \\
    actor_rollout_ref.rollout.gpu_memory_utilization=0.65 \\
    trainer.logger='["console","wandb"]' trainer.save_freq=20 trainer.nnodes=2 $@
"""


def test_a_script_of_verl_is_tuned_by_its_settings(tmp_path, monkeypatch):
    """As its examples are written; nothing of what is trained is touched, and nothing is saved or sent."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text(VERL)
    text, notes = job_file(["run.sh"], tmp_path)
    made = tomllib.loads(text)
    assert [node["count"] for node in made["cluster"]["nodes"]] == [8, 8], "8 of a node, as verl has it by itself"
    assert not any(note.startswith(("cluster.hosts: ", "launch.current: ", "space.knob: ")) for note in notes), notes
    (tmp_path / "job.toml").write_text(text.replace('device = "cpu"', 'device = "h100"'))
    job = load_job(tmp_path / "job.toml")
    space = JobSpace.of_job(job)
    now = space.reference.knobs
    assert (now["mbs"], now["memory"], now["tp"], now["dynamic"], now["offload"]) == (32, 0.65, 2, False, False)
    assert (now["unpadded"], now["checkpointing"]) == (True, True), "verl's own, which the line leaves out"
    other = Configuration({**{k: v for k, v in now.items() if k != "mbs"}, "dynamic": True, "tokens": 24576, "tp": 4})
    words = started(job, other, HERE).words
    kept = ["algorithm.adv_estimator=grpo", "data.train_batch_size=1024", "actor_rollout_ref.rollout.n=5"]
    assert [word for word in words if word in kept] == kept
    told = dict(word.split("=", 1) for word in words if "=" in word)
    assert told["actor_rollout_ref.actor.use_dynamic_bsz"] == "true"
    assert told["actor_rollout_ref.actor.ppo_max_token_len_per_gpu"] == "24576"
    assert "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu" not in told
    assert (told["trainer.logger"], told["trainer.save_freq"], told["trainer.resume_mode"]) == (
        "[console]",
        "-1",
        "disable",
    )
    assert told["trainer.total_training_steps"] == HERE.iterations
    assert "$@" not in words


def test_a_value_of_ones_own_acts_where_its_knob_does(tmp_path):
    """Tokens of a dynamic micro batch were tried where micro batches are none, each as another configuration."""
    line = "python3 -m verl.trainer.main_ppo {0}.use_dynamic_bsz=True {0}.ppo_max_token_len_per_gpu=24000"
    text, _ = job_file(shlex.split(line.format("actor_rollout_ref.actor")), tmp_path)
    (tmp_path / "job.toml").write_text(text)
    space = JobSpace.of_job(load_job(tmp_path / "job.toml"))
    assert space.reference.knobs["tokens"] == 24000
    other = space.nearest({**space.reference.knobs, "dynamic": False}, given=["dynamic"])
    assert other is not None
    assert "tokens" not in other.knobs


@pytest.fixture
def torchtune(tmp_path, monkeypatch):
    """An environment of torchtune's, whose packages hold the settings that it comes with."""
    settings = "batch_size: 2\ngradient_accumulation_steps: 8\nenable_activation_checkpointing: True\ncompile: False\n"
    folder = tmp_path / "venv/lib/python3.11/site-packages/recipes/configs/llama3_1"
    folder.mkdir(parents=True)
    (folder / "8B_lora.yaml").write_text(settings)
    (tmp_path / "mine.yaml").write_text(settings)
    (tmp_path / "venv/bin").mkdir()
    (tmp_path / "venv/bin/tune").touch(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/venv/bin:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("tune run --nproc_per_node 4 lora_finetune_distributed --config llama3_1/8B_lora batch_size=4", 4),
        ("tune run lora_finetune_single_device --config mine.yaml batch_size=4", 1),
    ],
)
def test_a_torchtune_line_is_tuned_by_its_settings(torchtune, line, count):
    text, _ = job_file(shlex.split(line), torchtune)
    (torchtune / "job.toml").write_text(text)
    job = load_job(torchtune / "job.toml")
    assert (job.launch.script, job.devices, job.traffic.global_batch) == ("torchtune", count, 4 * 8 * count)
    now = JobSpace.of_job(job).reference.knobs
    assert (now["mbs"], now["checkpointing"], now["compile"], now.get("reshard")) == (4, True, False, count > 1 or None)
    words = started(job, Configuration({**now, "mbs": 16, "checkpointing": False}), HERE).words
    wanted = {"batch_size=16", "gradient_accumulation_steps=2", "enable_activation_checkpointing=false", "seed=0"}
    wanted |= {"enable_activation_offloading=false", "output_dir=here/out", "checkpointer.output_dir=here/out"}
    assert wanted <= {*words}


def test_settings_that_came_with_torchtune_are_copied_where_it_is_not_here(torchtune):
    (torchtune / "venv/bin/tune").unlink()
    line = "tune run lora_finetune_distributed --config llama3_1/8B_lora"
    with pytest.raises(AutoscoutError, match=r"names no YAML file.*'tune cp NAME FILE"):
        job_file(shlex.split(line), torchtune)


def test_settings_that_nobody_knows_are_said_not_tried(tmp_path):
    text, notes = job_file(shlex.split("python3 -m mine.train data.batch_size=64 lr=1"), tmp_path)
    assert tomllib.loads(text)["space"]["knob"] == []
    (note,) = [note for note in notes if "key=value" in note]
    assert "batch_size=" in note


def test_a_script_without_settings_is_not_asked_about_them(tmp_path):
    notes = job_file(shlex.split("torchrun train.py --lr=1 --num-workers 2"), tmp_path)[1]
    assert not any("key=value" in note for note in notes)
