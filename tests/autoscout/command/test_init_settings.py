"""`init` of trainers whose settings are in a YAML file: what the file says is today's launch."""

import shlex
import tomllib

import pytest

from autoscout.machine.starting import job_file
from autoscout.targets.command.arguments import Place, started
from autoscout.targets.command.preset import recognised
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
        ("axolotl train sft.yml", "batch_size: 16\n", "sft.yml: says batch_size, beside which no gradient_accum"),
        ("axolotl train none.yml", "", "none.yml: cannot be read"),
        ("axolotl train folder", "", "names no YAML file of settings"),
        ("llamafactory-cli train --stage sft --per_device_train_batch_size 2", "", "names no YAML file of settings"),
    ],
)
def test_settings_that_cannot_be_had_are_one_sentence(begun, line, more, sentence):
    with pytest.raises(AutoscoutError, match=sentence):
        begun(line, more)


def test_what_merely_names_it_is_none():
    assert recognised(["axolotl", "train", "x.yml"]) == "axolotl"
    assert recognised(["axolotl", "preprocess", "x.yml"]) == ""


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


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        (
            "python3 -m verl.trainer.main_ppo data.batch_size=64 trainer.n_gpus_per_node=8 trainer.nnodes=2",
            [8, 8],
        ),
        ("tune run --nproc_per_node 4 lora_finetune_distributed --config llama3_1/8B_lora batch_size=2", [4]),
    ],
)
def test_settings_that_nobody_knows_are_said_not_tried(tmp_path, line, counts):
    text, notes = job_file(shlex.split(line), tmp_path)
    made = tomllib.loads(text)
    assert made["space"]["knob"] == []
    assert [node["count"] for node in made["cluster"]["nodes"]] == counts
    assert not any(note.startswith("cluster.hosts: ") for note in notes), "Ray reaches all nodes"
    (note,) = [note for note in notes if "key=value" in note]
    assert "batch_size=" in note


def test_a_script_without_settings_is_not_asked_about_them(tmp_path):
    notes = job_file(shlex.split("torchrun train.py --lr=1 --num-workers 2"), tmp_path)[1]
    assert not any("key=value" in note for note in notes)
