"""What a line of Hugging Face's trainers says of its model and how it is trained, and what is predicted of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from autoscout.line.launch_line import Line
from autoscout.targets.command.preset import preset
from autoscout.targets.command.recognised import job_of
from autoscout.targets.command.trained_columns import lacking, not_modelled, simulated
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.tuning.best_predicted import ranking
from autoscout.tuning.predict import predict
from kb.records import Job
from tui.cli import cli

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256,
    "tie_word_embeddings": True, "head_dim": 64, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
}  # fmt: skip
CLM = (
    "torchrun --nproc_per_node 8 run_clm.py --model_name_or_path model --output_dir out --per_device_train_batch_size 2"
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(LLAMA))
    return tmp_path


def written(line: str, *settings: str) -> Job:
    """The job that `init` writes of a line, on H100s. `settings`: lines of [space]."""
    Path("job.toml").unlink(missing_ok=True)
    assert CliRunner().invoke(cli, ["init", "--out", "job.toml", "--", *line.split()]).exit_code == 0
    text = Path("job.toml").read_text().replace('device = "cpu"', 'device = "h100"')
    if settings:
        text += "\n[space]\n" + "\n".join(settings) + "\n"
    Path("job.toml").write_text(text)
    return load_job(Path("job.toml"))


def columns(job: Job) -> dict[str, str]:
    return simulated(job, preset(job.launch.script))


def test_a_line_that_says_all_of_it_is_predicted_by_every_verb() -> None:
    job = written(f"{CLM} --block_size 2048 --bf16 --torch_dtype bfloat16 --gradient_checkpointing")
    assert (job.model.layers, job.model.dtype, job.traffic.seq_len) == (16, "bf16", 2048)
    assert columns(job)["hub"] == "2"
    space = JobSpace.of_job(job)
    said = predict(space, {}, None)
    assert said.memory is not None
    assert 15 < said.memory.gib < 30
    assert said.value is not None
    best = CliRunner().invoke(cli, ["predict", "job.toml", "--best", "3", "--kb", "none.duckdb"])
    assert best.exit_code == 0, best.output
    assert "no-checkpointing" in best.output


def test_a_model_s_config_is_no_file_of_settings(here: Path) -> None:
    """What --config names in JSON was read for a moment, and a batch that stood in it."""
    (here / "other.json").write_text('{"per_device_train_batch_size": 7}')
    job = written(f"{CLM.removesuffix(' --per_device_train_batch_size 2')} --config other.json --bf16")
    assert "7" not in job.launch.current


def test_of_too_few_layouts_others_follow() -> None:
    """One was told, with today's launch, however many were asked for."""
    job = written(f"{CLM} --block_size 2048 --bf16 --gradient_checkpointing")
    found = ranking(JobSpace.of_job(job), job, None, 4)
    assert (len(found.best), found.layouts) == (4, False)
    assert len({round(row.value, 3) for row in found.best}) == 4
    assert [row.value for row in found.best] == sorted(row.value for row in found.best)


@pytest.mark.parametrize(
    ("more", "bytes_each"),
    [
        ("--bf16", "2"),
        ("--bf16 --dtype bfloat16", "2"),
        ("--fp16 --torch_dtype float32", "4"),
        ("--dtype float32", "0"),
        ("", "2"),
        ("--bf16 False", "2"),
    ],
)
def test_weights_have_the_bits_that_they_are_loaded_in(more: str, bytes_each: str) -> None:
    """Transformers 5 loads what the checkpoint has where nobody names a type; 32 bits were priced, twice the memory."""
    assert columns(written(f"{CLM} {more}"))["hub"] == bytes_each


def test_what_is_guessed_is_said() -> None:
    notes = job_of(Line((*CLM.split(), "--bf16")))["notes"]
    assert (
        "traffic.seq_len: 1024 tokens per sample are assumed, because the launch line does not give the length" in notes
    )
    assert "model: weights are assumed to be in 16 bits, because the launch line gives no --dtype" in notes
    told = job_of(Line(("trl", "sft", "--model_name_or_path", "model", "--output_dir", "out")))["notes"]
    assert any(note.startswith("launch.current: write --gradient_checkpointing") for note in told)


def test_adapters_are_those_of_the_line() -> None:
    sft = "trl sft --model_name_or_path model --output_dir out --use_peft --lora_r 32"
    lora = written(f"{sft} --lora_target_modules q_proj up_proj --max_length 4096").model.lora
    assert lora is not None
    assert (lora.rank, lora.modules, lora.bits) == (32, ["q_proj", "up_proj"], 16)
    whole = written(f"{sft} --lora_target_modules all-linear --load_in_4bit").model.lora
    assert whole is not None
    assert (len(whole.modules), whole.bits) == (7, 4)
    plain = written("trl sft --model_name_or_path model --output_dir out --lora_r 32").model
    assert plain.lora is None  # TRL has adapters only with --use_peft
    notes = job_of(Line(("trl", "sft", "--model_name_or_path", "model", "--lora_r", "32")))["notes"]
    assert "model: all weights are assumed to be trained, because the launch line has lora_r, but not use_peft" in notes


def test_settings_of_a_file_count_where_the_line_says_nothing(here: Path) -> None:
    (here / "sft.yaml").write_text(
        "model_name_or_path: model\nstage: sft\nfinetuning_type: lora\nlora_target: all\nlora_rank: 64\n"
        "cutoff_len: 4096\nbf16: true\nper_device_train_batch_size: 2\ngradient_accumulation_steps: 4\n"
    )
    job = written("llamafactory-cli train sft.yaml lora_rank=16")
    assert job.model.lora is not None
    assert (job.model.lora.rank, job.traffic.seq_len, columns(job)["hub"]) == (16, 4096, "2")
    (here / "lora.yml").write_text(
        "base_model: model\nsequence_len: 2048\nadapter: qlora\nlora_r: 8\nlora_target_modules:\n  - q_proj\n"
        "  - v_proj\nmicro_batch_size: 2\ngradient_accumulation_steps: 2\nbf16: auto\n"
    )
    job = written("axolotl train lora.yml")
    assert job.model.lora is not None
    assert (job.model.lora.bits, job.model.lora.modules) == (4, ["q_proj", "v_proj"])


def test_ms_swift_has_defaults_of_its_own(here: Path) -> None:
    line = "swift sft --model model --max_length 4096 --gradient_accumulation_steps 2"
    job = written(line)
    assert job.model.lora is not None, "its default"
    assert (job.model.lora.rank, len(job.model.lora.modules), job.traffic.seq_len) == (8, 7, 4096)
    assert (columns(job)["hub"], columns(job)["ar"]) == ("2", "'full' if checkpointing else 'none'")
    assert predict(JobSpace.of_job(job), {}, None).value is not None
    full = written(f"{line} --train_type full --torch_dtype float32 --fsdp fsdp2 --attn_impl eager")
    assert full.model.lora is None
    assert (columns(full)["zero"], columns(full)["attention"]) == ("3", "'unfused'")
    said = "model: model\ntuner_type: full\nmax_length: 1024\nper_device_train_batch_size: 4\n"
    (here / "sft.yaml").write_text(said)
    filed = written("swift sft sft.yaml --gradient_accumulation_steps 2")
    assert (filed.model.lora, filed.model.layers, filed.traffic.seq_len) == (None, 16, 1024)
    assert (filed.traffic.global_batch, JobSpace.of_job(filed).reference.knobs["mbs"]) == (8, 4)
    (here / "sft.json").write_text('{"model": "model", "max_length": 512, "per_device_train_batch_size": 4}')
    filed = written("swift sft sft.json --gradient_accumulation_steps 2")
    assert (filed.model.layers, filed.traffic.seq_len, filed.traffic.global_batch) == (16, 512, 8)
    for other in ("--tuner_type adalora", "--task_type embedding", "--sequence_parallel_size 2", "--deepspeed zero2"):
        assert not columns(written(f"{line} {other}"))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("trl dpo --model_name_or_path model --output_dir out", "so dpo cannot be predicted"),
        (f"{CLM} --bf16 --deepspeed gone.json", "no simulator models --deepspeed"),
        (CLM.replace("torchrun --nproc_per_node 8", "accelerate launch --config_file ds.yaml"), "DEEPSPEED"),
        ("torchrun --nproc_per_node 8 run_clm.py --output_dir out --bf16", "no [model]"),
    ],
)
def test_what_no_model_is_of_is_not_predicted(here: Path, line: str, why: str) -> None:
    (here / "ds.yaml").write_text("distributed_type: DEEPSPEED\nnum_processes: 8\n")
    job = written(line)
    assert why in lacking(job, preset(job.launch.script))
    assert columns(job) == {}


def test_shards_of_accelerates_file_are_those_of_fsdp(here: Path) -> None:
    (here / "fsdp.yaml").write_text("distributed_type: FSDP\nnum_processes: 8\n")
    line = f"{CLM} --bf16 --block_size 2048"
    copies = predict(JobSpace.of_job(written(line)), {}, None).memory
    line = line.replace("torchrun --nproc_per_node 8", "accelerate launch --config_file fsdp.yaml")
    shards = predict(JobSpace.of_job(written(line)), {}, None).memory
    assert copies is not None
    assert shards is not None
    assert shards.parts["optimizer"] == pytest.approx(copies.parts["optimizer"] / 8)
    allowed = predict(JobSpace.of_job(written(CLM, 'allow = ["fsdp"]')), {"fsdp": True}, None).memory
    assert allowed is not None


def test_settings_of_unknown_effect_are_named() -> None:
    job = written(f"{CLM} --bf16 --use_liger_kernel --optim adamw_8bit")
    assert not_modelled(job, preset("hf-trainer")) == ["--use_liger_kernel", "--optim"]


def test_a_file_that_is_elsewhere_is_passed_over(here: Path) -> None:
    (here / "sft.yaml").write_text("model_name_or_path: model\nstage: sft\nfinetuning_type: full\nbf16: true\n")
    job = written("llamafactory-cli train sft.yaml")
    (here / "sft.yaml").unlink()
    told: dict[str, Any] = columns(job)
    assert told["hub"] == "4"


@pytest.mark.parametrize(
    ("more", "stage"),
    [("full_shard auto_wrap", "3"), ("shard_grad_op", "2"), ("no_shard", "0"), ("True", "3 if fsdp else 0")],
)
def test_shards_are_those_that_the_line_names(more: str, stage: str) -> None:
    assert columns(written(f"{CLM} --bf16 --fsdp {more}"))["zero"] == stage


def test_types_by_their_other_names(here: Path) -> None:
    assert columns(written(f"{CLM} --torch_dtype bfloat16"))["hub"] == "2"
    assert columns(written(f"{CLM} --bf16 --torch_dtype auto"))["hub"] == "2"
    (here / "bf16.yaml").write_text("distributed_type: MULTI_GPU\nmixed_precision: bf16\n")
    for launcher in ("--config_file bf16.yaml", "--mixed_precision bf16 --num_processes 8"):
        line = CLM.replace("torchrun --nproc_per_node 8", f"accelerate launch {launcher}")
        assert columns(written(f"{line} --dtype float32"))["hub"] == "4"


@pytest.mark.parametrize(
    ("more", "rank"), [("--use_lora", 16), ("--use_lora False --lora_r 8", 0), ("--lora_r 8", 8), ("--lora_r 0", 0)]
)
def test_adapters_of_a_script_of_ones_own(more: str, rank: int) -> None:
    lora = written(f"{CLM} --bf16 {more}").model.lora
    assert (lora.rank if lora else 0) == rank
    told = any("all weights are assumed" in note for note in job_of(Line((*CLM.split(), *more.split())))["notes"])
    assert told == ("False" in more)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (CLM.replace("run_clm.py", "traindpo.py") + " --save_strategy no", "traindpo.py"),
        (CLM.replace("run_clm.py", "run_glue.py") + " --save_strategy no", "run_glue.py"),
        ("trl sft --accelerate_config zero3 --model_name_or_path model --output_dir out", "DEEPSPEED"),
        (f"{CLM} --bf16 --fsdp hybrid_shard", "hybrid_shard"),
        ("trl sft --load_in_8bit --use_peft --model_name_or_path model --output_dir out", "load_in_8bit"),
    ],
)
def test_more_that_no_model_is_of(line: str, why: str) -> None:
    job = written(line)
    assert why in lacking(job, preset(job.launch.script))


def test_sections_of_a_file_are_read(here: Path) -> None:
    """Axolotl's FSDP2 was taken for copies, since its keys are indented."""
    (here / "full.yml").write_text(
        "base_model: model\nsequence_len: 2048\nmicro_batch_size: 1\ngradient_accumulation_steps: 1\nbf16: true\n"
        "fsdp_version: 2\nfsdp_config:\n  reshard_after_forward: true\n"
    )
    assert columns(written("axolotl train full.yml"))["zero"] == "3"
    (here / "freeze.yaml").write_text("model_name_or_path: model\nstage: sft\nfinetuning_type: freeze\nbf16: true\n")
    frozen = written("llamafactory-cli train freeze.yaml")
    assert "freeze" in lacking(frozen, preset("llamafactory"))
    (here / "plain.yaml").write_text("model_name_or_path: model\nstage: sft\nbf16: true\n")
    assert written("llamafactory-cli train plain.yaml").model.lora is not None  # its default


def test_a_file_with_tags_of_its_own_leaves_the_job_without_a_model(here: Path) -> None:
    (here / "sft.yaml").write_text("model_name_or_path: model\nbf16: true\nseed: !env SEED\n")
    job = written("llamafactory-cli train sft.yaml")
    assert not job.model.layers
    assert columns(job) == {}
