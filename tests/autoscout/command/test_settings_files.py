"""Trainings whose settings are in YAML files: `init` reads them, runs get copies with other values, and every step has
today's samples."""

import shlex
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
import yaml

from autoscout.machine.starting import job_file
from autoscout.targets.command.arguments import Place, started
from autoscout.targets.command.watched_run import OutputReader
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.targets.target import target_of
from kb.records import AutoscoutError, Configuration, Job

HERE = Place(folder="here", port="1", iterations="12")
THERE = Place(folder="there", port="1", iterations="12", measuring=False)
NANOTRON = """# tiny
checkpoints: {checkpoints_path: mine, checkpoint_interval: 5, resume_checkpoint_path: mine/5}
logging: {iteration_step_info_interval: 10}
model:
  model_config:
    hidden_size: 64
    intermediate_size: 192
    num_attention_heads: 4
    num_hidden_layers: 8
    num_key_value_heads: 2
    tie_word_embeddings: true
    vocab_size: 1000
optimizer:
  zero_stage: 0
parallelism:
  dp: 4
  pp: 1
  tp: 2  # of a node
  tp_mode: REDUCE_SCATTER
  tp_linear_async_communication: true
tokens:
  batch_accumulation_per_replica: 6
  micro_batch_size: 3
  sequence_length: 128
  train_steps: 100
"""
NEOX = """# JSON with comments, as its own
{
  "pipe-parallel-size": 1,
  "model-parallel-size": 2,
  "num_layers": 8, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 128,
  "optimizer": {"type": "Adam", "params": {"lr": 0.001}},
  "zero_optimization": {"stage": 1, "overlap_comm": True},
  "train_micro_batch_size_per_gpu": 4, # of a replica
  "gradient_accumulation_steps": 2,
  "checkpoint_activations": true,
}
"""
NEOX_PATHS = '{"save": "mine", "load": "mine", "num_workers": 2}\n'
FOUNDRY = """max_seq_len: ${variables.length}
variables: {length: 256}
model: {name: mpt_causal_lm, d_model: 64, n_heads: 4, n_layers: 8, vocab_size: 1000}
train_loader: {name: text, num_workers: 8}
global_train_batch_size: 64
device_train_microbatch_size: 2
fsdp_config: {sharding_strategy: FULL_SHARD, activation_checkpointing: true}
save_folder: mine
"""
OLMO = """model: {d_model: 64, n_heads: 4, n_layers: 8, mlp_hidden_size: 256, vocab_size: 1000,
  rope: true, include_bias: false, max_sequence_length: 128}
data: {num_workers: 16, paths: [a.npy]}
global_train_batch_size: 64
device_train_microbatch_size: 2
activation_checkpointing: one_in_two
load_path: null
"""
LITGPT = """devices: 4
num_nodes: 1
train: {global_batch_size: 32, micro_batch_size: 2, max_seq_length: 512, log_interval: 1}
"""


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """The job of a launch line whose files, by name, lie in its folder; and what its person is told."""
    monkeypatch.chdir(tmp_path)

    def begun(line: str, **files: str) -> tuple[Job, list[str]]:
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").replace("_yml", ".yml").replace("_yaml", ".yaml")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        text, notes = job_file(shlex.split(line), tmp_path)
        (tmp_path / "job.toml").write_text(text)
        return load_job(tmp_path / "job.toml"), notes

    return begun


def settings(job: Job, configuration: Configuration, place: Place = HERE) -> dict:
    (text,) = started(job, configuration, place).files.values()
    return yaml.safe_load(text)


def some(job: Job) -> list[Configuration]:
    """Of all that the space calls valid, so many that each layout is likely among them."""
    space, rng = JobSpace.of_job(job), np.random.default_rng(0)
    return list({c.id: c for c in (space.sample(rng) for _ in range(300))}.values())


LINE = "torchrun --nproc_per_node=8 run_train.py --config-file tiny.yaml"


def test_a_line_of_nanotron_is_tuned_by_its_file(begun, tmp_path):
    job, _ = begun(LINE, tiny_yaml=NANOTRON)
    assert (job.launch.script, job.name, job.devices) == ("nanotron", "tiny", 8)
    assert (job.traffic.global_batch, job.traffic.seq_len) == (4 * 6 * 3, 128)
    shape = job.model
    assert (shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.ffn) == (8, 64, 4, 2, 192)
    assert (shape.tied, shape.gated, shape.vocab) == (True, True, 1000)
    now = JobSpace.of_job(job).reference
    assert {**now.knobs, "mbs": 3, "tp": 2, "pp": 1, "dp": 4, "sequence": "REDUCE_SCATTER"} == now.knobs
    run = started(job, now, THERE)
    assert run.words == shlex.split(LINE.replace("tiny.yaml", "there/tiny.yaml"))
    assert run.files == {"there/tiny.yaml": NANOTRON}, "what they launch now, to the letter"
    assert (tmp_path / "tiny.yaml").read_text() == NANOTRON


def test_every_configuration_of_nanotron_trains_on_as_many_samples(begun):
    job, _ = begun(LINE, tiny_yaml=NANOTRON)
    configurations = some(job)
    assert len(configurations) > 50
    for configuration in configurations:
        made = settings(job, configuration)
        layout, step = made["parallelism"], made["tokens"]
        assert layout["dp"] * layout["tp"] * layout["pp"] == 8
        assert layout["dp"] * step["micro_batch_size"] * step["batch_accumulation_per_replica"] == 72
        assert step["sequence_length"] == 128


def test_a_run_of_nanotron_writes_over_nothing(begun):
    job, _ = begun(LINE, tiny_yaml=NANOTRON)
    made = settings(job, JobSpace.of_job(job).reference)
    assert made["checkpoints"]["checkpoints_path"] == "here/out"
    assert made["checkpoints"]["resume_checkpoint_path"] is None
    assert made["logging"]["iteration_step_info_interval"] == 1
    assert made["tokens"]["train_steps"] == 100, "rates of learning follow from it"
    without = NANOTRON.replace("checkpoints: {", "other: {")
    job, _ = begun(LINE, tiny_yaml=without)
    assert "checkpoints" not in settings(job, JobSpace.of_job(job).reference)


@pytest.mark.parametrize(
    ("line", "files"),
    [
        ("python ./deepy.py train.py -d conf big.yml paths.yml", "conf__"),
        ("python ./deepy.py train.py --conf_dir conf big paths", "conf__"),
        ("python deepy.py train.py big.yml paths.yml", ""),
    ],
)
def test_settings_of_gpt_neox_stay_in_the_file_that_says_them(begun, line, files):
    """It refuses a setting that two files say, and no flag overrides any."""
    given = {f"{files}big_yml": NEOX.replace("{\n", '{\n  "num_gpus": 8,\n', 1), f"{files}paths_yml": NEOX_PATHS}
    job, notes = begun(line, **given)
    assert (job.launch.script, job.devices, job.traffic.global_batch) == ("gpt-neox", 8, 4 * 2 * 4)
    assert any("50432 is assumed" in note for note in notes)
    now = JobSpace.of_job(job).reference
    assert (now.knobs["tp"], now.knobs["pp"], now.knobs["mbs"], now.knobs["zero"]) == (2, 1, 4, 1)
    run = started(job, now, THERE)
    assert run.words == [*shlex.split(line)[:3], "there/big.yml", "there/paths.yml"]
    other = {**now.knobs, "tp": 1, "pp": 0, "mbs": 2, "zero": 3, "workers": 4}
    configuration = Configuration({name: value for name, value in other.items() if name != "partition"})
    run = started(job, configuration, HERE)
    big, paths = (yaml.safe_load(run.files[f"here/{name}.yml"]) for name in ("big", "paths"))
    assert not {name.replace("-", "_") for name in big} & {name.replace("-", "_") for name in paths}
    assert (big["pipe-parallel-size"], big["model-parallel-size"], big["zero_optimization"]["stage"]) == (0, 1, 3)
    assert (big["train_micro_batch_size_per_gpu"], big["gradient_accumulation_steps"]) == (2, 2)
    assert paths == {"save": None, "load": None, "num_workers": 4}


def test_every_configuration_of_gpt_neox_trains_on_as_many_samples(begun):
    big = NEOX.replace('"gradient_accumulation_steps": 2', '"num_gpus": 8, "train_batch_size": 64')
    job, _ = begun("python deepy.py train.py big.yml", big_yml=big)
    assert job.traffic.global_batch == 64, "as the file says, whatever the accumulation is"
    configurations = some(job)
    assert len(configurations) > 100
    for configuration in configurations:
        made = settings(job, configuration)
        ranks = 8 // (made["model-parallel-size"] * max(made["pipe-parallel-size"], 1))
        steps = made.get("gradient_accumulation_steps", 1)
        assert made["train_micro_batch_size_per_gpu"] * steps * ranks == 64 == made["train_batch_size"]


def test_what_is_no_transformer_is_not_predicted(begun):
    mamba = NEOX.replace('"num_layers"', '"attention_config": [[["mamba"], 8]], "num_layers"')
    assert not begun("python deepy.py train.py big.yml", big_yml=mamba)[0].model.layers
    gated = NEOX.replace('"num_layers"', '"activation": "swiglu", "num_layers"')
    assert not begun("python deepy.py train.py big.yml", big_yml=gated)[0].model.layers, (
        "whose MLP is half as large again"
    )
    flash = NEOX.replace('"num_layers"', '"attention_config": [[["flash"], 8]], "num_layers"')
    assert begun("python deepy.py train.py big.yml", big_yml=flash)[0].model.layers == 8


OVERRIDDEN = {
    "llm-foundry": ("composer -n 4 train/train.py {0}.yaml max_duration=10ba", FOUNDRY, 64),
    "olmo": ("torchrun --nproc_per_node=4 scripts/train.py {0}.yaml --save_overwrite", OLMO, 64),
    "litgpt": ("litgpt finetune_lora --config {0}.yaml", LITGPT, 32),
}


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_a_file_that_the_line_overrides_stays(begun, name):
    line, text, batch = OVERRIDDEN[name]
    job, _ = begun(line.format("run"), run_yaml=text)
    assert (job.launch.script, job.devices, job.traffic.global_batch) == (name, 4, batch)
    space = JobSpace.of_job(job)
    assert space.reference.knobs["mbs"] == 2
    run = started(job, Configuration({**space.reference.knobs, "mbs": 4}), HERE)
    assert not run.files
    said = shlex.join(run.words)
    assert any(each in said for each in ("microbatch_size=4", "micro_batch_size 4"))
    assert any(each in said for each in (f"global_train_batch_size={batch}", f"global_batch_size {batch}"))
    assert "here/out" in said or "save_folder=null" in said
    assert all(batch % (4 * int(c.knobs["mbs"])) == 0 for c in some(job))


def test_shapes_of_overridden_files(begun):
    job, _ = begun(OVERRIDDEN["olmo"][0].format("run"), run_yaml=OLMO)
    assert (job.model.layers, job.model.hidden, job.model.ffn, job.model.bias) == (8, 64, 128, False)
    assert JobSpace.of_job(job).reference.knobs["checkpointing"] == "one_in_two"
    job, _ = begun(OVERRIDDEN["llm-foundry"][0].format("run"), run_yaml=FOUNDRY)
    assert (job.model.layers, job.model.vocab, job.traffic.seq_len) == (8, 1000, 256), "${variables.length}"
    job, _ = begun(
        OVERRIDDEN["llm-foundry"][0].format("run"), run_yaml=FOUNDRY.replace("mpt_causal_lm", "hf_causal_lm")
    )
    assert not job.model.layers


def test_whole_replicas_are_not_sharded_by_the_way(begun):
    """A setting of a section that the file does not have would make one."""
    line = OVERRIDDEN["llm-foundry"][0].format("run")
    job, _ = begun(line, run_yaml="\n".join(row for row in FOUNDRY.splitlines() if not row.startswith("fsdp")))
    assert not {"sharding", "checkpointing"} & JobSpace.of_job(job).reference.knobs.keys()
    words = started(job, JobSpace.of_job(job).reference, HERE).words
    assert not any(word.startswith("fsdp_config") for word in words)


def test_a_number_that_the_program_chooses_is_none_of_ours(begun):
    line = OVERRIDDEN["llm-foundry"][0].format("run")
    job, notes = begun(line, run_yaml=FOUNDRY.replace("microbatch_size: 2", "microbatch_size: auto"))
    assert any("=auto leaves mbs to the program" in note for note in notes)
    assert "auto" not in job.launch.current
    assert JobSpace.of_job(job).reference.knobs["mbs"] == 1


def test_a_script_whose_file_is_not_here_is_one_that_nobody_knows(tmp_path):
    text, notes = job_file(shlex.split(LINE), tmp_path)
    assert "script" not in tomllib.loads(text)["launch"]
    assert any(note.startswith("launch.current: tiny.yaml, whose settings") for note in notes)


def test_a_file_that_goes_later_is_said(begun, tmp_path):
    begun(LINE, tiny_yaml=NANOTRON)
    Path(tmp_path / "tiny.yaml").unlink()
    with pytest.raises(AutoscoutError, match=r"launch\.render: cannot read .*tiny\.yaml"):
        load_job(tmp_path / "job.toml")


@pytest.mark.parametrize(("more", "ends"), [("", True), ("[launch.metrics]\nmine = 'mine ([0-9]+)'\n", False)])
def test_a_run_does_not_wait_for_what_a_preset_s_log_may_lack(begun, tmp_path, more, ends):
    """On CPUs no memory is said, and every run lasted to launch.timeout_s. A person's own metric is waited for."""
    begun(LINE, tiny_yaml=NANOTRON)
    text = (tmp_path / "job.toml").read_text().replace("[launch]\n", "[launch]\nmeasure_s = 0.01\n")
    (tmp_path / "job.toml").write_text(f"{text}\n{more}")
    reader, ended = OutputReader(load_job(tmp_path / "job.toml"), tmp_path, None), []
    for i in range(40):
        reader.feed(f"iteration: {i} / 100 | lm_loss: 5.9 | lr: 1\n".encode())
        ended.append(bool(reader.enough()))
        time.sleep(0.001)
    assert ended[-1] == ends
    assert not any(ended[:10]), "it may still come"


def test_what_a_file_says_in_vain_moves_nothing(begun):
    """The layers between checkpoints, and how these are divided, made a launch without checkpointing one with it."""
    vain = NEOX.replace('"checkpoint_activations": true', '"checkpoint_activations": false, "checkpoint_num_layers": 2')
    text = vain.replace("{\n", '{\n  "num_gpus": 8, "partition_activations": true, ', 1)
    job, _ = begun("python deepy.py train.py big.yml", big_yml=text)
    reference = JobSpace.of_job(job).reference
    assert reference.knobs["checkpointing"] is False
    assert started(job, reference, THERE).files == {"there/big.yml": text}
    assert not any("not valid" in note for note in target_of(job).notes_on_job(job))


def test_an_accumulation_that_nobody_says_is_not_written_in(begun):
    text = NEOX.replace('"gradient_accumulation_steps": 2', '"num_gpus": 8')
    job, _ = begun("python deepy.py train.py big.yml", big_yml=text)
    assert job.traffic.global_batch == 4 * 4
    assert started(job, JobSpace.of_job(job).reference, THERE).files == {"there/big.yml": text}


SEVERAL = '{\n  "num_gpus": 8, "num_nodes": 2, "hostfile": "h",'


@pytest.mark.parametrize(
    ("hosts", "counts", "unread"),
    [
        ("", [8, 8], True),
        ("a slots=8\nb slots=8\nc slots=8\n", [8, 8], False),
        ("a slots=9\nb slots=4\n", [8, 4], False),
    ],
)
def test_gpt_neox_starts_all_of_its_nodes(begun, tmp_path, hosts, counts, unread):
    """They were taken for one, and an accumulation for it was written into what runs on two."""
    if hosts:
        (tmp_path / "h").write_text(hosts)
    text = NEOX.replace('"gradient_accumulation_steps": 2', '"train_batch_size": 64').replace("{", SEVERAL, 1)
    job, notes = begun("python deepy.py train.py big.yml", big_yml=text)
    assert [node.count for node in job.cluster.nodes] == counts
    assert any("the hosts of the launch line cannot be read" in note for note in notes) == unread
    assert not any("starts one of" in note for note in notes)
    if counts == [8, 8]:
        made = settings(job, JobSpace.of_job(job).reference, THERE)
        assert made["gradient_accumulation_steps"] == 64 // (4 * 8)


def test_ranks_of_nanotron_are_those_of_all_nodes(begun):
    text = NANOTRON.replace("dp: 4", "dp: 8")
    line = "torchrun --nnodes 2 --nproc_per_node=gpu run_train.py --config-file tiny.yaml"
    job, _ = begun(line, tiny_yaml=text)
    assert [node.count for node in job.cluster.nodes] == [8, 8]
    assert job.traffic.global_batch == 8 * 6 * 3


def test_what_is_said_beside_a_default_is_held_against_it(begun):
    """zero > 0 could not be evaluated: stage 0 is the program's own, and nobody said it."""
    text = NEOX.replace('"stage": 1, ', "").replace("{", '{\n  "num_gpus": 8,', 1)
    job, _ = begun("python deepy.py train.py big.yml", big_yml=text)
    assert not any("not valid" in note for note in target_of(job).notes_on_job(job))
    assert started(job, JobSpace.of_job(job).reference, THERE).files == {"there/big.yml": text}


def test_experts_of_nanotron_have_ranks_of_their_own(begun):
    """Replicas are those that the file says: devices would count each group of experts' ranks as one more."""
    text = NANOTRON.replace("dp: 4", "dp: 2\n  expert_parallel_size: 2").replace("REDUCE_SCATTER", "ALL_REDUCE")
    job, _ = begun(LINE, tiny_yaml=text)
    assert job.traffic.global_batch == 2 * 6 * 3
    reference = JobSpace.of_job(job).reference
    assert (reference.knobs["dp"], reference.knobs["sequence"]) == (2, "ALL_REDUCE")
    assert started(job, reference, THERE).files == {"there/tiny.yaml": text}


def test_a_value_that_others_stand_for_is_no_knob(begun):
    """It passed `check`, and the first other value was a traceback."""
    text = NANOTRON.replace("micro_batch_size: 3", "micro_batch_size: &m 3").replace("steps: 100", "steps: *m")
    with pytest.raises(
        AutoscoutError, match=r"tiny\.yaml: the YAML value tokens\.micro_batch_size is shared by several places"
    ) as why:
        begun(LINE, tiny_yaml=text)
    assert why.value.exit_code == 2
    text = NANOTRON.replace("micro_batch_size: 3", "micro_batch_size: &m 3")
    job, _ = begun(LINE, tiny_yaml=text)
    other = Configuration({**JobSpace.of_job(job).reference.knobs, "mbs": 1})
    assert settings(job, other)["tokens"]["micro_batch_size"] == 1


@pytest.mark.parametrize(
    "text", ["\ufeff" + NANOTRON, NANOTRON + "---\nmore: 1\n", NANOTRON.replace("tokens:", "dp: !ENV x\ntokens:")]
)
def test_what_editors_write_is_read(begun, text):
    """A byte order mark was an internal error, a second document a traceback, a tag no YAML."""
    job, _ = begun(LINE, tiny_yaml=text)
    other = Configuration({**JobSpace.of_job(job).reference.knobs, "mbs": 1})
    (made,) = started(job, other, HERE).files.values()
    assert "  micro_batch_size: 1\n" in made
    assert made.startswith("# tiny\n")


@pytest.mark.parametrize(
    ("name", "way"), [("olmo", "HYBRID_SHARD"), ("llm-foundry", "HYBRID_SHARD"), ("llm-foundry", "NO_SHARD")]
)
def test_todays_way_to_shard_is_among_those_tried(begun, name, way):
    """`check` refused the job: "a sparse knob with a condition needs `off`"."""
    line, text, _ = OVERRIDDEN[name]
    text = text.replace("FULL_SHARD", way) + ("" if "FULL" in text else f"fsdp: {{sharding_strategy: {way}}}\n")
    space = JobSpace.of_job(begun(line.format("run"), run_yaml=text)[0])
    assert space.reference.knobs["sharding"] == way
    assert {*space.domain("sharding")} == {"FULL_SHARD", "SHARD_GRAD_OP", way}


def test_a_way_in_small_letters_is_none_of_its_own(begun):
    job, _ = begun(LINE, tiny_yaml=NANOTRON.replace("REDUCE_SCATTER", "reduce_scatter"))
    space = JobSpace.of_job(job)
    assert {*space.domain("sequence")} == {"ALL_REDUCE", "reduce_scatter"}
    assert space.reference.knobs["sequence"] == "reduce_scatter"
    assert not any("not valid" in note for note in target_of(job).notes_on_job(job))


def test_a_file_that_was_edited_since_says_another_batch(begun, tmp_path):
    """Every run had the batch of the job, the present launch's, too, which nobody launched."""
    begun(LINE, tiny_yaml=NANOTRON)
    (tmp_path / "tiny.yaml").write_text(NANOTRON.replace("per_replica: 6", "per_replica: 3"))
    with pytest.raises(AutoscoutError, match=r"tiny\.yaml: a step has 36 samples on these devices, but traffic") as why:
        load_job(tmp_path / "job.toml")
    assert why.value.exit_code == 2


def test_files_of_one_name_have_a_copy_each(begun):
    """The second was written over the first."""
    big = NEOX.replace("{\n", '{\n  "num_gpus": 8,\n', 1)
    job, _ = begun("python deepy.py train.py a/x.yml b/x.yml", a__x_yml=big, b__x_yml=NEOX_PATHS)
    run = started(job, JobSpace.of_job(job).reference, THERE)
    assert run.words[3:] == ["there/1-x.yml", "there/2-x.yml"]
    assert [run.files[name] for name in run.words[3:]] == [big, NEOX_PATHS]


@pytest.mark.parametrize("name", ["olmo", "llm-foundry"])
def test_a_run_goes_on_from_nobodys_checkpoint(begun, name):
    """The file's load_path was read all the same, as it does not stand on the line."""
    line, text, _ = OVERRIDDEN[name]
    text = text.replace("load_path: null\n", "") + "load_path: mine/step5\n"
    job, _ = begun(line.format("run"), run_yaml=text)
    said = [started(job, JobSpace.of_job(job).reference, place).words for place in (HERE, THERE)]
    loaded = [[word.lstrip("-") for word in words if "load_path" in word] for words in said]
    assert loaded == [["load_path=null"], ["load_path=mine/step5"]]
