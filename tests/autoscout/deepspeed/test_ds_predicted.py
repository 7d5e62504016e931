"""Predictions of DeepSpeed jobs: what a ds_config and a line say to the simulators, by DeepSpeed's code and papers."""

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import verbs

from autoscout.machine.starting import described, job_file
from autoscout.simulate.ensemble import Simulators, memory_of
from autoscout.space.explain import completed
from autoscout.targets.jobs import JobSpace, load_job, profiler_of, simulators_of
from autoscout.targets.target import target_of
from autoscout.tuning.best_predicted import ranking
from autoscout.tuning.predict import predict
from kb.records import AutoscoutError, Objective, OwnKnob

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import deepspeed_accuracy as published

LLAMA = {
    **{"model_type": "llama", "num_hidden_layers": 28, "hidden_size": 3072, "num_attention_heads": 24},
    **{"num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 8192, "vocab_size": 128256},
    "tie_word_embeddings": True,
}
CONFIG = {
    "train_batch_size": 256,
    "train_micro_batch_size_per_gpu": [1, 2, 4, 8, 16, 32],
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW"},
    "zero_optimization": {
        "stage": [1, 2, 3],
        "reduce_bucket_size": 5e8,
        "overlap_comm": [True, False],
        "offload_optimizer": {"device": ["none", "cpu"]},
    },
}


@pytest.fixture
def started(tmp_path, monkeypatch):
    """The job of a DeepSpeed line on eight A100, and what `init` says to its user."""
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)

    def started(flags: str, config=CONFIG, device: str = "a100"):
        (tmp_path / "ds.json").write_text(json.dumps(config))
        text, notes = job_file(shlex.split(f"deepspeed --num_gpus 8 train.py {flags}"), tmp_path)
        (tmp_path / "job.toml").write_text(re.sub(r'device = "\w+"', f'device = "{device}"', text))
        return load_job(tmp_path / "job.toml"), notes

    return started


def of(job, **knobs) -> Any:
    space = JobSpace.of_job(job)
    return predict(space, knobs, None)


def seconds(job, **knobs):
    return of(msgspec.structs.replace(job, objective=Objective(minimize="step_time_s")), **knobs)


def columns(job, **knobs):
    space = JobSpace.of_job(job)
    simulators = Simulators(job, space, [], bases=lambda: simulators_of(job))
    return simulators.columns([completed(space, knobs, space.reference)])


LINE = "--model_name_or_path llama --max_seq_length 2048 --gradient_checkpointing true --deepspeed_config ds.json"


def test_a_line_with_a_model_is_predicted_from_init_on(started, tmp_path):
    """It was "nothing can predict samples_per_s" whatever the line said."""
    job, notes = started(LINE)
    assert (job.model.layers, job.model.hidden, job.traffic.seq_len, job.model.dtype) == (28, 3072, 2048, "bf16")
    assert not [note for note in notes if note.startswith(("model", "traffic"))]
    found = ranking(JobSpace.of_job(job), job, None, 5)
    assert found.best[0].memory_gib is not None
    assert {row.configuration["stage"] for row in found.best} == {1, 2, 3}
    assert all((row.oom_probability or 0.0) < 0.5 for row in found.best)
    told = verbs.run("check", "job.toml", "--kb", tmp_path / "kb.duckdb")
    assert "the reference takes" in told.stdout
    assert "samples_per_s of the reference" in told.stdout


def test_a_ds_config_that_lists_nothing_is_predicted_as_it_is(started):
    """Every verb refused it, though only tuning needs something to choose."""
    fixed = {**CONFIG, "train_micro_batch_size_per_gpu": 4}
    listed, _ = started(LINE, {**fixed, "zero_optimization": {"stage": [2, 3]}})
    among = of(listed, stage=2)
    job, _ = started(LINE, {**fixed, "zero_optimization": {"stage": 2}})
    alone = predict(JobSpace.of_job(job), {}, None)
    assert (alone.name, alone.value) == ("stage2", among.value)
    with pytest.raises(AutoscoutError, match="the ds_config has nothing to tune") as refused:
        profiler_of(job)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(("stage", "states"), [(1, 2 + 2 + 12 / 8), (2, 2 + 2 / 8 + 12 / 8), (3, 16 / 8)])
def test_states_are_sharded_by_stage(started, stage, states):
    """16 bytes a parameter (Rajbhandari et al. 2020, "ZeRO", section 3): 2 of weights, 2 of gradients, 12 of Adam's."""
    job, _ = started(LINE)
    parts = of(job, stage=stage, mbs=1, offload_optimizer="none").memory.parts
    params = JobSpace.of_job(job).attributes["params"]
    found = sum(parts[name] for name in ("weights", "gradients", "optimizer")) * 2**30
    assert found == pytest.approx(states * params, rel=0.01)


def test_what_is_offloaded_is_the_hosts_and_takes_its_time(started):
    job, _ = started(LINE)
    here, there = (seconds(job, stage=2, mbs=8, offload_optimizer=where) for where in ("none", "cpu"))
    assert here.memory.parts["optimizer"] > 4
    assert there.memory.parts["optimizer"] == there.memory.parts["gradients"] == 0
    params = JobSpace.of_job(job).attributes["params"]
    assert there.parts["optimizer"] - here.parts["optimizer"] == pytest.approx(params * 30 / 120e9, rel=0.2)
    assert there.high / there.low > here.high / here.low
    weights = {**CONFIG["zero_optimization"], "stage": 3, "offload_param": {"device": ["none", "cpu"]}}
    job, _ = started(LINE, {**CONFIG, "zero_optimization": weights})
    kept, gone = (seconds(job, mbs=8, offload_param=where, offload_optimizer="none") for where in ("none", "cpu"))
    assert gone.memory.parts["weights"] == 0
    assert gone.parts["dp"] > kept.parts["dp"]


def test_buckets_take_room_twice_where_they_overlap(started):
    """setup_buckets of stage_1_and_2.py; a Trainer's "auto" is hidden²."""
    job, _ = started(LINE)
    once, twice = (of(job, stage=2, mbs=1, overlap_comm=on).memory.parts["buffers"] for on in (False, True))
    assert (once, twice) == pytest.approx((1e9 / 2**30, 2e9 / 2**30), rel=1e-4)
    auto = {**CONFIG["zero_optimization"], "reduce_bucket_size": "auto"}
    job, _ = started(LINE.replace("_config", ""), {**CONFIG, "zero_optimization": auto})
    assert of(job, stage=2, mbs=1, overlap_comm=False).memory.parts["buffers"] == pytest.approx(
        2 * 3072**2 / 2**30, rel=1e-4
    )


@pytest.mark.parametrize(
    ("flags", "optimizer", "said"),
    [
        ("--optim adamw_bnb_8bit", "", "--optim adamw_bnb_8bit"),
        ("--optim adafactor", "", "--optim adafactor"),
        ("", "OneBitAdam", "optimizer.type OneBitAdam"),
        ("--use_liger_kernel true", "", "--use_liger_kernel"),
        ("--load_in_4bit", "", "--load_in_4bit"),
        ("--pipe_parallel_size 2", "", "--pipe_parallel_size"),
        ("--optim adamw_torch --use_liger_kernel false --bits 16 --pipe_parallel_size 1", "AdamW", ""),
    ],
)
def test_what_a_prediction_does_not_know_of_a_line_is_said(started, flags, optimizer, said):
    """Adam's state was predicted of any optimizer, and a loss of whole rows of Liger's."""
    config = {**CONFIG, "optimizer": {"type": optimizer}} if optimizer else CONFIG
    job, _ = started(f"{LINE} {flags}", config)
    assert target_of(job).not_modelled(job) == ([said] if said else [])


@pytest.mark.parametrize("flag", ["grad_checkpoint", "use_gradient_checkpointing", "gradient_checkpointing_enable"])
def test_other_scripts_names_for_checkpointing_are_known(started, flag):
    """InternVL's lines were predicted to keep all activations, 54 GiB for 2."""
    line = LINE.replace("--gradient_checkpointing true", f"--{flag} True")
    told, known = (of(started(each)[0], stage=1, mbs=4).memory.parts["activations"] for each in (line, LINE))
    assert told == known


def test_stage_3_keeps_what_the_backward_pass_needs_soon(started):
    """__params_to_release: within stage3_max_reuse_distance, so half of it."""
    job, _ = started(LINE)
    plain = of(job, stage=3, mbs=1, overlap_comm=True).memory.parts["buffers"]
    zero = {**CONFIG["zero_optimization"], "stage3_max_reuse_distance": 0}
    job, _ = started(LINE, {**CONFIG, "zero_optimization": zero})
    assert plain - of(job, stage=3, mbs=1, overlap_comm=True).memory.parts["buffers"] == pytest.approx(
        1e9 / 2**30, rel=1e-4
    )
    again = seconds(job, stage=3, mbs=1, overlap_comm=False).parts["dp"]
    job, _ = started(LINE)
    assert seconds(job, stage=3, mbs=1, overlap_comm=False).parts["dp"] < again


def test_stage_2_reduces_after_every_micro_batch_and_stage_1_once(started):
    """256 samples are 32 micro batches of one on eight ranks."""
    job, _ = started(LINE)
    first, second = (seconds(job, stage=s, mbs=1, overlap_comm=False).parts["dp"] for s in (1, 2))
    largest = seconds(job, stage=2, mbs=32, overlap_comm=False).parts["dp"]
    assert largest == pytest.approx(seconds(job, stage=1, mbs=32, overlap_comm=False).parts["dp"])
    assert second > 6 * first
    assert second > 6 * largest
    assert seconds(job, stage=2, mbs=1, overlap_comm=True).parts["dp"] < second


def test_the_modules_hooks_of_stage_3_are_seen_where_micro_batches_are_short(started):
    short = {**CONFIG, "train_batch_size": 64}
    job, _ = started(LINE.replace("2048", "128"), short)
    small, large = (seconds(job, stage=3, mbs=mbs, overlap_comm=True).parts for mbs in (1, 8))
    assert small["host"] > 5 * large["host"]
    assert seconds(job, stage=1, mbs=1).value < seconds(job, stage=3, mbs=1).value


def test_checkpointing_is_the_scripts_flag_or_a_knob_of_ones_own(started):
    job, _ = started(LINE)
    without, _ = started(LINE.replace("--gradient_checkpointing true", ""))
    off, _ = started(LINE.replace("checkpointing true", "checkpointing False"))
    least, most, same = (of(j, stage=2, mbs=1).memory.parts["activations"] for j in (job, without, off))
    assert least < most / 5
    assert same == most
    assert seconds(job, stage=2, mbs=1).parts["recompute"] > 0
    knob = OwnKnob(name="again", values=[False, True], sets="--gradient_checkpointing")
    own = msgspec.structs.replace(without, space=msgspec.structs.replace(without.space, knob=[knob]))
    assert of(own, stage=2, mbs=1, again=True).memory.parts["activations"] == least
    assert of(own, stage=2, mbs=1, again=False).memory.parts["activations"] == most


def test_precision_is_the_ds_configs_or_for_its_auto_the_lines(started):
    for enabled, flag, dtype in ((True, "", "bf16"), ("auto", "--bf16", "bf16"), ("auto", "", "fp32")):
        job, _ = started(f"{LINE.replace('_config', '')} {flag}", {**CONFIG, "bf16": {"enabled": enabled}})
        told = columns(job, stage=1)
        assert (told["dtype"][0], told["grad_bytes"][0]) == (dtype, 4 if dtype == "fp32" else 2)
    wide = {**CONFIG, "data_types": {"grad_accum_dtype": "fp32"}}
    assert columns(started(LINE, wide)[0], stage=1)["grad_bytes"][0] == 4


def test_without_a_batch_every_configuration_trains_its_own(started):
    config = {name: value for name, value in CONFIG.items() if name != "train_batch_size"}
    job, _ = started(LINE, {**config, "gradient_accumulation_steps": 3})
    assert job.traffic.global_batch == 0
    assert [columns(job, stage=1, mbs=mbs)["global_batch"][0] for mbs in (2, 8)] == [48, 192]
    assert of(job, stage=2, mbs=8).value > of(job, stage=2, mbs=1).value


def test_a_job_that_does_not_say_its_model_says_so_in_a_sentence(started, tmp_path):
    job, notes = started("--deepspeed_config ds.json")
    why = "the job has no model: write [model] with from = 'its config.json'"
    with pytest.raises(AutoscoutError, match=re.escape(why)):
        of(job)
    told = verbs.run("check", "job.toml", "--kb", tmp_path / "kb.duckdb")
    assert f"not estimated: {why}" in told.stdout
    job, notes = started("--model_name_or_path google/gemma-7b --deepspeed_config ds.json")
    assert any(note.startswith("model: 'google/gemma-7b' is not on this machine") for note in notes)
    assert target_of(job).untold(job)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--use_peft true", "adapters (--use_peft)"),
        ("--lora_enable True --lora_r 128", "adapters (--lora_enable)"),
        ("--q_lora", "adapters (--q_lora)"),
        ("--use_llm_lora 16", "adapters (--use_llm_lora)"),
        ("--finetuning_type lora", "adapters (--finetuning_type)"),
        ("--freeze_llm True", "only a part of its model (--freeze_llm)"),
        ("--tune_mm_mlp_adapter True", "only a part of its model (--tune_mm_mlp_adapter)"),
        ("--use_lora False --lora_r 8 --freeze_llm False --merge_lora true --finetuning_type full", ""),
        ("--lora_dim 0", ""),
    ],
)
def test_a_line_that_trains_less_than_its_model_is_not_predicted_as_if_it_did(started, flags, said):
    """Of adapters and frozen parts that go by other names all weights were predicted to be trained; of adapters that
    are switched off, nothing was."""
    job, notes = started(f"{LINE} {flags}")
    assert any(f"model: the line trains {said}" in note for note in notes) == bool(said)
    assert bool(job.model.layers) != bool(said)


def test_known_names_and_megatron_deepspeeds_flags_are_models(started):
    job, notes = started("--model_name_or_path meta-llama/Llama-3.1-8B --deepspeed_config ds.json")
    assert (job.model.layers, job.traffic.seq_len) == (32, 1024)
    assert any(note.startswith("traffic.seq_len: 1024 tokens per sample are assumed") for note in notes)
    flags = "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --vocab-size 50257"
    job, _ = started(f"{flags} --tensor-model-parallel-size 2 --deepspeed_config ds.json")
    assert columns(job, stage=1)["tp"][0] == 2
    whole, _ = started(f"{flags} --deepspeed_config ds.json")
    assert of(job, stage=1, mbs=1).memory.parts["weights"] < 0.6 * of(whole, stage=1, mbs=1).memory.parts["weights"]


def test_hyphens_are_underscores(started):
    """Neither batch nor length was read, and both flags of the batch were there twice with other numbers."""
    auto = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}
    sizes = "--max_seq_length 2048 --per_device_train_batch_size 4 --gradient_accumulation_steps 2"
    line = f"--model_name_or_path llama {sizes} --gradient_checkpointing True --bf16 True --deepspeed ds.json"
    known, told = (started(each, auto)[0] for each in (line, re.sub(r"(?<=\w)_(?=\w+ )", "-", line)))
    assert (told.traffic, told.model) == (known.traffic, known.model)
    assert of(told, mbs=4).value == of(known, mbs=4).value
    words = target_of(told).launch(told, JobSpace.of_job(told).reference).program
    assert words[words.index("--per-device-train-batch-size") + 1] == "4"
    assert "--per_device_train_batch_size" not in words


@pytest.mark.parametrize(
    ("micro", "takes"), [({"train_micro_batch_size_per_gpu": 8}, 8), ({"gradient_accumulation_steps": 2}, 16), ({}, 32)]
)
def test_a_micro_batch_that_stands_in_the_ds_config_is_predicted(started, micro, takes):
    """One sample at once was predicted of it, at a fifth of the speed."""
    stands = {"train_batch_size": 256, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2}, **micro}
    told, tuned = of(started(LINE, stands)[0]), of(started(LINE)[0], stage=2, mbs=takes)
    assert told.memory.parts["logits"] == pytest.approx(tuned.memory.parts["logits"], rel=1e-4)


def test_ranks_that_share_a_model_take_the_same_samples(started):
    """The accumulation was divided by all ranks, which DeepSpeed refuses (Check batch related parameters)."""
    flags = "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --vocab-size 50257"
    degrees = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"
    stands = {"train_batch_size": 256, "train_micro_batch_size_per_gpu": 16, "bf16": {"enabled": True}}
    job, _ = started(f"{flags} {degrees} --deepspeed_config ds.json", stands)
    (text,) = target_of(job).launch(job, JobSpace.of_job(job).reference).files.values()
    assert json.loads(text)["gradient_accumulation_steps"] == 256 // (16 * 2)
    lists = {**stands, "train_micro_batch_size_per_gpu": [32, 64, 128, 256]}  # on two replicas
    space = JobSpace.of_job(started(f"{flags} {degrees} --deepspeed_config ds.json", lists)[0])
    assert sorted(c.knobs["mbs"] for c in space.configurations()) == [32, 64, 128]
    with pytest.raises(AutoscoutError, match="splits the model over 16 ranks, but the job has 8 devices"):
        started(f"{flags} --tensor-model-parallel-size 16 --deepspeed_config ds.json", stands)


def test_the_advice_is_the_lowest_stage_and_the_largest_micro_batch_that_fit(started):
    """Without a memory model a session began with the largest micro batch of the list, whether it fits or not."""
    job, _ = started(LINE)
    space = JobSpace.of_job(job)
    advised = space.reference.knobs
    assert (advised["stage"], advised["mbs"], advised["offload_optimizer"]) == (1, 8, "none")
    memory = memory_of(job, space, [])
    assert memory is not None
    assert memory.oom_probability(columns(job, **{**advised, "mbs": 32}))[0] > 0.5
    auto = {**CONFIG, "zero_optimization": {**CONFIG["zero_optimization"], "stage": "auto"}}
    again = JobSpace.of_job(started(LINE, auto)[0]).reference.knobs  # without stage 0, which trains otherwise in bf16
    assert (again["stage"], again["mbs"]) == (1, 8)
    large, _ = started("--model_name_or_path llama-3.1-70b --gradient_checkpointing --deepspeed_config ds.json")
    assert JobSpace.of_job(large).reference.knobs["offload_optimizer"] == "cpu"
    assert JobSpace.of_job(large).reference.knobs["stage"] == 3


def test_sizes_that_hold_all_of_a_small_model_forbid_no_stage(place):
    """With a [model] of a million parameters no stage but 0 was valid: DeepSpeed's default buckets hold all of it."""
    more = '[model]\nlayers = 4\nhidden = 128\nheads = 8\nvocab = 2048\ndtype = "fp32"'
    path = place.job_file(more=more)
    path.write_text(path.read_text().replace("[traffic]", "[traffic]\nseq_len = 128"))
    space = JobSpace.of_job(load_job(path))
    assert space.domain("stage") == (0, 1, 2, 3)
    assert space.count == JobSpace.of_job(place.job()).count
    assert simulators_of(space.job)
    zero = {"stage": [0, 2], "reduce_bucket_size": [500_000_000, 1_000_000_000]}
    path = place.job_file({"train_micro_batch_size_per_gpu": [1, 2], "zero_optimization": zero}, more=more)
    path.write_text(path.read_text().replace("[traffic]", "[traffic]\nseq_len = 128"))
    assert JobSpace.of_job(load_job(path)).domain("reduce_bucket") == (500_000_000,)


def test_what_no_simulator_knows_is_said(started):
    zero = {**CONFIG["zero_optimization"], "zero_quantized_weights": True, "offload_optimizer": {"device": "nvme"}}
    job, _ = started(LINE, {**CONFIG, "zero_optimization": zero})
    said = next(note for note in target_of(job).notes_on_job(job) if note.startswith("predictions leave out"))
    assert "zero_quantized_weights" in said
    assert "'nvme'" in said
    objects = {**CONFIG["zero_optimization"], "offload_optimizer": [{"device": "cpu"}, None]}
    job, _ = started(LINE, {**CONFIG, "zero_optimization": objects})
    assert not any("predictions know nothing" in note for note in target_of(job).notes_on_job(job))
    assert {columns(job, stage=2, offload_optimizer=v)["offload"][0] for v in ('{"device": "cpu"}', "none")} == {0, 1}
    listed = {**CONFIG["zero_optimization"], "allgather_bucket_size": [50_000_000, 500_000_000]}
    job, _ = started(LINE, {**CONFIG, "zero_optimization": listed})
    assert of(job, stage=1, mbs=1, allgather_bucket=50_000_000).unpriced == ["allgather_bucket"]


def test_other_metrics_of_deepspeed_are_of_the_same_step(started):
    job, _ = started(LINE)
    step = seconds(job, stage=2, mbs=4).value
    assert of(job, stage=2, mbs=4).value == pytest.approx(256 / step)
    flops = msgspec.structs.replace(job, objective=Objective(maximize="flops_per_gpu"))
    params = JobSpace.of_job(job).attributes["params"]
    whole = 3 * 256 * 2048 * (2 * params + 4 * 28 * 3072 * 2048) / 8
    assert of(flops, stage=2, mbs=4).value == pytest.approx(whole / step)


def test_a_users_catalog_says_what_its_knobs_mean_and_columns_are_checked(started, tmp_path):
    (tmp_path / "own.toml").write_text(
        "extends = \"deepspeed\"\n[simulated]\nar = \"'full' if again else 'none'\"\n"
        '[[knob]]\nname = "again"\nkind = "sparse"\nlayer = "memory"\nvalues = [false, true]\ndefault = false\n'
        'meaning = "recomputes"\nsets = "--again"\n'
    )
    job, _ = started(LINE)
    job = msgspec.structs.replace(job, space=msgspec.structs.replace(job.space, catalog=[str(tmp_path / "own.toml")]))
    kept, again = (of(job, stage=2, mbs=1, again=on).memory.parts["activations"] for on in (False, True))
    assert again < kept / 5
    text = (tmp_path / "own.toml").read_text()
    (tmp_path / "own.toml").write_text(text.replace("[simulated]\nar", "[simulated]\narr"))
    with pytest.raises(AutoscoutError, match=r"simulated\.arr.*did you mean 'ar'"):
        JobSpace.of_job(job)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    return {model: published.Predicted(model, folder, published.EAGER) for model in published.SIZES}


def test_published_runs_of_gpt_2_are_near_the_predictions(measured):
    """Eleven runs of DeepSpeed's own autotuner, none of which a constant was fitted to."""
    off = [np.log(measured[m].speed(stage, mbs)[0] / speed) for m, stage, mbs, speed in published.MEASURED]
    assert np.mean(np.abs(np.expm1(off))) < 0.15
    for model, stage, mbs, _ in published.MEASURED:
        assert measured[model].chance(stage, mbs) < 0.5  # it ran
        assert measured[model].largest(stage) <= 2 * mbs
    assert measured["gpt2-xl"].chance(0, 1) > 0.5  # it did not


def test_a_described_line_keeps_its_own_traffic(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": "auto"}}))
    (tmp_path / "train.py").touch()
    line = "deepspeed train.py --model_name_or_path llama-3.2-3b --per_device_train_batch_size 4 --deepspeed ds.json"
    made, _ = described(shlex.split(line), tmp_path)
    assert made["traffic"]["seq_len"] == 1024


def test_a_large_model_with_a_host_to_offload_to_is_not_refused(started):
    """Of stages left to AutoScout none fits 70 billion parameters on eight A100, unless the optimizer's state is the
    host's; and CPU ranks, which `init` writes where it sees no GPU, hold what they hold."""
    auto = {**CONFIG, "zero_optimization": {**CONFIG["zero_optimization"], "stage": "auto"}}
    flags = "--model_name_or_path llama-3.1-70b --gradient_checkpointing --deepspeed_config ds.json"
    knobs = JobSpace.of_job(started(flags, auto)[0]).reference.knobs
    assert (knobs["stage"], knobs["offload_optimizer"]) == (3, "cpu")
    alone = {**CONFIG, "zero_optimization": {"stage": "auto"}}
    with pytest.raises(AutoscoutError, match="no ZeRO stage fits"):
        JobSpace.of_job(started(flags, alone)[0])
    assert JobSpace.of_job(started(flags, alone, device="cpu")[0]).count
