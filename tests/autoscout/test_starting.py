"""`init` and `check`: a job from what a person has, and what can be known before it runs."""

import json
import re
import shlex
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from autoscout.line.batch_lines import Batch
from autoscout.line.script_launch import launch_in
from autoscout.machine.devices_here import here
from autoscout.machine.new_job import JobAnswers, drafted
from autoscout.machine.preflight import preflight
from autoscout.machine.starting import job_file
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.targets.target import reference_of, target_of
from autoscout.tuning.repeats import most_rounds
from kb.records import AutoscoutError
from tui.cli import cli

MEGATRON = shlex.split(
    "torchrun --nproc-per-node 4 pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 "
    "--vocab-size 512 --seq-length 64 --global-batch-size 16 --micro-batch-size 2 --mock-data"
)
BATCH = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=h100:8
export NCCL_DEBUG=WARN
MBS=4
ARGS="--micro-batch-size $MBS --num-workers 2"
srun --container-image=registry/image:tag torchrun --nnodes 2 \\
    --nproc-per-node 8 train.py $ARGS
"""


def written(tmp_path: Path, given: list[str]) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(job_file(given, tmp_path)[0])
    return path


def test_a_launch_line_becomes_the_reference(tmp_path):
    job = load_job(written(tmp_path, MEGATRON))
    assert job.launch.script == "megatron-lm"
    assert (job.model.layers, job.traffic.global_batch, job.devices) == (4, 16, 4)
    space = JobSpace.of_job(job)
    assert space.reference.knobs["mbs"] == 2
    assert all(int(c.knobs["tp"]) * int(c.knobs["pp"]) in (1, 2, 4) for c in space.configurations())


def test_experts_of_a_launch_line_are_the_models(tmp_path):
    more = ["--num-experts", "8", "--moe-router-topk", "4", "--moe-ffn-hidden-size", "32"]
    model = load_job(written(tmp_path, [*MEGATRON, *more, "--moe-shared-expert-intermediate-size", "48"])).model
    assert (model.experts, model.topk, model.expert_ffn, model.shared_ffn) == (8, 4, 32, 48)


def test_an_sbatch_file_keeps_its_container_and_its_environment(tmp_path):
    words, exported, devices = launch_in(BATCH, "s")[:3]
    assert words[:2] == ["srun", "--container-image=registry/image:tag"]
    assert words[-4:] == ["--micro-batch-size", "4", "--num-workers", "2"]
    assert (exported, devices) == ({"NCCL_DEBUG": "WARN"}, Batch(2, 8, "h100"))
    script = tmp_path / "run.sbatch"
    script.write_text(BATCH)
    job = load_job(written(tmp_path, [str(script)]))
    assert job.devices == 16
    assert JobSpace.of_job(job).reference.knobs == {"micro_batch_size": 4, "num_workers": 2}


def test_slurms_variables_are_the_jobs_devices_and_others_are_asked_for(tmp_path):
    """They stood in the command as they were, quoted, where no shell fills them in."""
    script = tmp_path / "run.sbatch"
    head = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=a40:8\n"
    script.write_text(
        f"{head}srun torchrun --nnodes=$SLURM_NNODES --nproc_per_node=${{SLURM_GPUS_ON_NODE}} "
        "--rdzv_endpoint=$MASTER_ADDR:29500 train.py --num-workers 2\n"
    )
    text, notes = job_file([str(script)], tmp_path)
    made = tomllib.loads(text)
    assert "--nnodes=2 --nproc_per_node=8" in made["launch"]["current"]
    assert [node["count"] for node in made["cluster"]["nodes"]] == [8, 8]
    (told,) = (
        note
        for note in notes
        if "replace $MASTER_ADDR with the value, because no shell expands variables here; or" in note
    )
    assert "cluster.hosts = 'slurm', and replace srun" in told
    assert "--node-rank {node} --nproc-per-node {ranks} --master-addr {head}" in told


def test_a_config_json_is_a_model(tmp_path):
    config = tmp_path / "config.json"
    shape = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 512}
    config.write_text(json.dumps({**shape, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "hidden_act": "silu"}))
    model = load_job(written(tmp_path, [str(config)])).model
    assert (model.layers, model.kv_heads, model.gated, model.norm) == (2, 2, True, "rmsnorm")


def test_a_config_json_with_experts_and_latents_is_named_as_it_is(tmp_path):
    """Its shared experts and first layers were left out: a job of another model."""
    shape = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 512}
    mixture = {"n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
    mixture |= {"intermediate_size": 256, "first_k_dense_replace": 1}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**shape, **mixture, "model_type": "glm4_moe"}))
    model = load_job(written(tmp_path, [str(config)])).model
    assert (model.experts, model.shared_ffn, model.dense_layers) == (8, 96, 1)
    config.write_text(json.dumps({**shape, **mixture, "model_type": "deepseek_v3", "kv_lora_rank": 32}))
    made = tomllib.loads(job_file([str(config)], tmp_path)[0])
    assert made.get("launch") == (None if here()[0] == "cpu" else {"transformer_engine": True, "timeout_s": 900})
    config.write_text(json.dumps({**shape, **mixture, "model_type": "nobodys_moe"}))
    with pytest.raises(AutoscoutError, match="the architecture 'nobodys_moe' is not known"):
        load_job(written(tmp_path, [str(config)]))


SHAPE = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 512}


def of_config(tmp_path, **fields):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**SHAPE, "rms_norm_eps": 1e-6, "hidden_act": "silu", **fields}))
    return job_file([str(config)], tmp_path)


@pytest.mark.parametrize(
    ("kind", "field"), [("qwen3", "qk_norm"), ("qwen2", "qkv_bias")], ids=["norms of queries", "biases of queries"]
)
def test_what_an_architecture_implies_is_part_of_the_model(tmp_path, kind, field):
    """Only the sizes were copied, and what was exported trained another model."""
    of_config(tmp_path, model_type=kind)
    model = load_job(written(tmp_path, [str(tmp_path / "config.json")])).model
    assert getattr(model, field) is True


def test_an_architecture_that_nobody_knows_is_to_be_compared(tmp_path):
    text, notes = of_config(tmp_path, model_type="nobodys")
    assert tomllib.loads(text)["model"]["hidden"] == 64
    assert any(note.startswith("model: the architecture 'nobodys' is unknown") for note in notes)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (
            {"model_type": "gpt_oss", "num_local_experts": 8},
            "gpt_oss is supported for serving only: .* preset = 'gpt-oss-20b'",
        ),
        ({"model_type": "nobodys_moe", "num_experts": 8}, "the architecture 'nobodys_moe' is not known"),
    ],
)
def test_a_model_that_no_job_of_training_can_have_is_refused_at_once(tmp_path, fields, told):
    """A job was written that every verb then refused."""
    with pytest.raises(AutoscoutError, match=told):
        of_config(tmp_path, **fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"mamba_d_state": 64, "layers_block_type": ["mamba", "hybrid"]}, "state-space layers (mamba_d_state)"),
        ({"layer_types": ["mamba", "attention"]}, "state-space layers (mamba)"),
        ({"linear_num_value_heads": 32}, "linear attention in most layers (linear_num_value_heads)"),
        ({"layer_types": ["conv", "full_attention"]}, "convolutions instead of attention (conv)"),
    ],
)
def test_layers_that_are_no_transformers_are_refused_whatever_the_architecture_is_called(tmp_path, fields, said):
    """Of hybrids that nobody knew by their model_type a dense transformer of those sizes was to be trained."""
    with pytest.raises(AutoscoutError) as refused:
        of_config(tmp_path, model_type="nobodys", **fields)
    assert str(refused.value).endswith(f"nobodys has {said}, which [model] cannot describe")
    with pytest.raises(AutoscoutError, match="which \\[model\\] cannot describe"):
        job_file(["vllm", "serve", str(tmp_path)], tmp_path)


def test_a_model_that_a_job_can_have_needs_no_review(tmp_path):
    assert not [note for note in of_config(tmp_path, model_type="qwen3")[1] if note.startswith("model: ")]


def test_stored_weights_are_read_where_they_are_said(tmp_path):
    text, _ = of_config(tmp_path, model_type="llama", quantization_config={"quant_method": "fp8"})
    assert tomllib.loads(text)["model"]["from"] == str(tmp_path / "config.json")


def test_a_job_for_gpus_has_transformer_engine_and_one_for_cpus_single_precision(tmp_path, driver):
    """Without it every experiment on a GPU is refused; single precision stayed when a person wrote their GPUs in."""
    of_config(tmp_path, model_type="llama")
    if here()[0] == "cpu":
        notes = job_file([str(tmp_path / "config.json")], tmp_path)[1]
        assert any("these are CPU ranks; for GPUs write nodes" in note for note in notes), (
            "a job of GPUs lacked the rest"
        )
    draft = drafted(JobAnswers(source=str(tmp_path), engine="megatron", device="h100", count=8), tmp_path)
    assert not any("CPU ranks" in note for note in draft.notes)
    assert draft.job["launch"] == {"transformer_engine": True, "timeout_s": 900}
    served = drafted(JobAnswers(source=str(tmp_path), engine="vllm", device="h100", count=8), tmp_path)
    assert served.job["launch"] == {"timeout_s": 900, "measure_s": 60}
    assert "launch" not in drafted(JobAnswers(source=str(tmp_path), engine="vllm"), tmp_path).job
    driver("for i in 0 1 2 3 4 5 6 7; do echo $i, GPU-$i, NVIDIA H100 80GB HBM3, 0, 81559; done")
    text, _ = of_config(tmp_path, model_type="llama")
    assert tomllib.loads(text)["launch"] == {"transformer_engine": True, "timeout_s": 900}
    line = job_file(shlex.split("torchrun --nproc-per-node 8 train.py --num-workers 4"), tmp_path)[0]
    assert tomllib.loads(line)["launch"]["timeout_s"] == 900
    line = job_file(shlex.split("vllm serve nobody/Llama-3.1-8B -tp 8"), tmp_path)[0]
    assert tomllib.loads(line)["launch"]["measure_s"] == 60
    (tmp_path / "job.toml").write_text(text)
    job = load_job(tmp_path / "job.toml")
    assert target_of(job).notes_on_job(job) == []
    changed = text.replace("transformer_engine = true", "").replace("[traffic]", 'dtype = "fp32"\n[traffic]', 1)
    (tmp_path / "job.toml").write_text(changed)
    job = load_job(tmp_path / "job.toml")
    notes = target_of(job).notes_on_job(job)
    assert ["transformer_engine = true" in note for note in notes] == [True, False]
    assert notes[1].startswith("model.dtype = 'fp32': ")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
            "500000, --norm-epsilon 1e-06, --use-rope-scaling --rope-scaling-factor 8.0",
        ),
        ({"rope_parameters": {"rope_theta": 1000000, "rope_type": "default"}}, "1000000, --norm-epsilon 1e-06"),
        ({"rope_theta": 10000.0, "rms_norm_eps": 1e-5}, ""),
        ({"rope_scaling": {"type": "yarn", "factor": 40}}, "--norm-epsilon 1e-06, positions scaled by yarn"),
    ],
)
def test_what_a_shape_does_not_say_is_told_as_flags(tmp_path, fields, said):
    notes = [note for note in of_config(tmp_path, model_type="llama", **fields)[1] if note.startswith("export: ")]
    assert notes[0].endswith(said) if said else notes == [], notes


@pytest.mark.parametrize(("ranks", "batch"), [("--num_gpus 2 ", 16), ("", 8)], ids=["said", "unsaid"])
def test_a_trainers_batch_under_deepspeed_is_that_of_its_flags(tmp_path, ranks, batch):
    """Each configuration trained a batch of its own, and 1024 samples a rank stood for the present launch."""
    config = dict.fromkeys(("train_micro_batch_size_per_gpu", "train_batch_size", "gradient_clipping"), "auto")
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({**config, "zero_optimization": {"stage": "auto"}}))
    flags = "--per_device_train_batch_size 2 --gradient_accumulation_steps 4"
    job = load_job(written(tmp_path, shlex.split(f"deepspeed {ranks}train.py --deepspeed {path} {flags}")))
    assert job.traffic.global_batch == batch
    assert {c.knobs["mbs"] for c in JobSpace.of_job(job).configurations()} == {1, 2, 4, 8}
    assert reference_of(job) == "the reference", "advice within the ds_config's lists, not what runs today"


@pytest.mark.parametrize("before", ["A=1 B='x y'", "env A=1 B='x y'"])
def test_variables_before_a_command_are_its_environment(tmp_path, before):
    script = tmp_path / "run.sh"
    script.write_text(f"C=3\nexport D=$C\n{before} torchrun --nproc-per-node 2 train.py --batch 4\n")
    for given in ([str(script)], shlex.split(f"{before} torchrun --nproc-per-node 2 train.py --batch 4")):
        made = tomllib.loads(job_file(given, tmp_path)[0])
        expected = {"A": "1", "B": "x y"} | ({"D": "3"} if len(given) == 1 else {})
        assert made["launch"]["environment"] == expected
        assert made["launch"]["current"] == "torchrun --nproc-per-node 2 train.py --batch 4"


def test_a_script_that_starts_a_server_beside_its_last_line_is_run_as_a_whole(tmp_path):
    script = tmp_path / "serve.sh"
    script.write_text("python -m sglang.launch_server --model x &\npython -m sglang.bench_serving --num-prompts 9\n")
    text, notes = job_file([str(script)], tmp_path)
    made = tomllib.loads(text)
    assert (made["launch"]["script"], made["launch"]["current"]) == ("sglang-bench", "bash serve.sh")
    assert any("run unchanged" in note for note in notes)


@pytest.mark.parametrize("micro", ["auto", None])
def test_a_deepspeed_line_with_its_config_is_tuned_by_it(tmp_path, monkeypatch, micro):
    """Whose micro batch is left to us, or which DeepSpeed fills in: both ended in a sentence about an expression."""
    monkeypatch.chdir(tmp_path)
    config = {"train_batch_size": 16, "zero_optimization": {"stage": [0, 1]}}
    config |= {"train_micro_batch_size_per_gpu": micro} if micro else {}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    (tmp_path / "train.py").touch()
    line = shlex.split("deepspeed --num_gpus 2 train.py --layers 4 --deepspeed --deepspeed_config ds.json")
    job = load_job(written(tmp_path, line))
    assert (job.target, job.devices, job.traffic.global_batch, job.launch.current) == ("deepspeed", 2, 16, "")
    assert "train.py --layers 4 --deepspeed --deepspeed_config" in job.launch.command
    space = JobSpace.of_job(job)
    assert {knob.name for knob in space.knobs} == ({"mbs", "stage"} if micro else {"stage"})
    assert "train.py --layers 4" in target_of(job).probe_line(job, space.reference, tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("c.json", "{", "is not JSON"),
        ("c.json", "[" * 9999, "is not JSON"),
        ("c.json", "{}", "does not describe a transformer"),
        ("s.sh", "echo hello", "no command of the script starts a known framework"),
        (
            "image.sh",
            "docker build -t x .\nenroot import -o x.sqsh dockerd://x",
            "no command of the script starts a known framework",
        ),
        ("gone.sh", None, "cannot be read"),
    ],
)
def test_files_that_say_nothing_are_one_sentence(tmp_path, name, text, sentence):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(AutoscoutError, match=sentence):
        job_file([str(path)], tmp_path)


def test_from_a_launch_line_to_a_session_in_one_pipe(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    trainer = Path(__file__).parent / "command" / "trainer.py"
    made = CliRunner().invoke(cli, ["init", "--", sys.executable, "-S", str(trainer), "--mbs", "2", "--workers", "2"])
    assert made.exit_code == 0
    job = tomllib.loads(made.stdout)
    assert job["launch"]["current"].endswith("--mbs 2 --workers 2")
    text = made.stdout.replace("[launch]", "[budget]\nprofiles = 1\n[launch]\nmeasure_s = 0.3\nrepeats = 1")
    tuned = CliRunner().invoke(
        cli, ["tune", "-", "--kb", str(tmp_path / "kb.duckdb"), "--no-tui", "--json"], input=text
    )
    assert tuned.exit_code == 0, tuned.output
    assert json.loads(tuned.stdout)["session"]["experiments"] >= 1


@pytest.mark.parametrize(
    ("measured", "load", "told"),
    [("measure_s = 60", "rate = 8.0", False), ("", "rate = 8.0", True), ("", "concurrency = 64", False)],
)
def test_a_server_on_gpus_is_to_be_loaded_for_longer_than_its_answers_take(tmp_path, measured, load, told):
    """Eight seconds at eight requests a second: 1,380 tokens/s of a server that keeps up with 2,280."""
    text = Path("fixtures/jobs/llama-3-8b-serve.toml").read_text()
    text = text.replace("measure_s = 60", measured).replace("concurrency = 64", load)
    (tmp_path / "job.toml").write_text(text)
    job = load_job(tmp_path / "job.toml")
    assert any("set launch.measure_s = 60" in note for note in target_of(job).notes_on_job(job)) == told


@pytest.mark.parametrize(("limit", "ok"), [("timeout_s = 120", False), ("", False), ("timeout_s = 600", None)])
def test_check_says_that_the_default_limit_is_short_for_gpus(tmp_path, limit, ok):
    text = Path("fixtures/jobs/llama-3-8b-serve.toml").read_text()
    (tmp_path / "job.toml").write_text(text.replace("timeout_s = 900", limit))
    found = preflight(load_job(tmp_path / "job.toml"), tmp_path / "kb.duckdb")
    time = next(finding for finding in found if finding.subject == "time")
    assert (time.ok, "timeout_s = 900" in time.remedy) == (ok, ok is False)
    assert ok is False or "about 840 minutes" in time.found, "of 60 experiments and 4 in each of 6 rounds; it was 720"


def test_a_small_space_takes_no_longer_than_its_configurations(tmp_path):
    """108 minutes of 30 experiments were said where there are three configurations."""
    text = Path("fixtures/own/ddp.toml").read_text()
    limited = text.replace("[space]\n", "[space]\nlimit = { mbs = [4], buckets = [25] }\n")
    assert limited != text
    (tmp_path / "job.toml").write_text(limited)
    job = load_job(tmp_path / "job.toml")
    time = next(f for f in preflight(job, tmp_path / "kb.duckdb") if f.subject == "time")
    limit = job.launch.timeout_s / 60
    rounds = 2 * most_rounds(job.launch.repeats, 2)
    assert time.found.startswith(f"about {(2 + rounds) * limit:.0f} minutes"), time.found


def test_check_says_what_decides_where_memory_is_not_estimated(tmp_path):
    found = preflight(load_job(Path("fixtures/jobs/llama-3-8b-serve.toml")), tmp_path / "kb.duckdb")
    memory = next(finding for finding in found if finding.subject == "memory")
    assert memory.ok is None
    assert memory.found.startswith(
        "not estimated: an engine takes the share of a GPU's memory that gpu_memory_utilization sets"
    )


@pytest.mark.parametrize(
    ("model", "folder", "told"),
    [
        ('"llama-3.1-70b"', "", True),
        ('"llama-3.1-70b"', "/models/x", False),
        ('"llama-3.1-8b"', "", False),
        ('"llama-3.1-405b"\nstored = "fp8"', "", False),  # such are not made: another line says so
    ],
)
def test_check_says_how_much_random_weights_take(tmp_path, model, folder, told):
    """131 GiB of them were made in memory and on disk, unasked."""
    text = Path("fixtures/jobs/llama-3-8b-serve.toml").read_text()
    text = text.replace('preset = "llama-3-8b"', f"preset = {model}")
    (tmp_path / "job.toml").write_text(text.replace("[launch]", f'[launch]\nmodel_path = "{folder}"'))
    job = load_job(tmp_path / "job.toml")
    said = [note for note in target_of(job).notes_on_job(job) if "GiB of random weights" in note]
    assert bool(said) == told


@pytest.mark.parametrize(
    ("text", "subject", "said"),
    [
        ('[launch]\nmodel_path = "/models/none"', "model", "/models/none is not on this machine"),
        ('[objective]\nconstraints = ["peak_memory_gib <= 76000"]', "constraint", "so this limit has no effect"),
    ],
)
def test_check_refuses_a_model_that_is_not_here_and_a_limit_in_another_unit(tmp_path, text, subject, said):
    job = Path("fixtures/jobs/llama-3-8b-serve.toml").read_text()
    job = re.sub(r"^constraints = .*$", "", job, flags=re.MULTILINE)
    (tmp_path / "job.toml").write_text(job.replace(text.split("\n")[0], text))
    found = preflight(load_job(tmp_path / "job.toml"), tmp_path / "kb.duckdb")
    (wrong,) = [each for each in found if each.subject == subject and each.ok is False]
    assert said in wrong.found


def test_check_says_what_is_missing_before_anything_runs(tmp_path):
    job = written(tmp_path, ["torchrun-of-nobody", "--batch", "2"])
    done = CliRunner().invoke(cli, ["check", str(job), "--kb", str(tmp_path / "kb.duckdb")])
    assert done.exit_code == 1
    assert "'torchrun-of-nobody' cannot be run here" in done.output
    assert "no loss is read from the script's output" in done.output
    assert "– noise " in done.output, "of a new job nothing is wrong, only not known"
    assert "not measured yet; if runs vary by 3%" in done.output


def test_check_counts_one_experiment_beyond_the_wall_clock(tmp_path):
    """Eight hours were announced for a budget of two, as if all rounds came after it: they end within it."""
    text = Path("fixtures/jobs/smallest-cpu.toml").read_text()
    assert 'wall = "5m"' in text
    (tmp_path / "job.toml").write_text(text.replace("timeout_s = 60", "timeout_s = 300"))
    time = next(f for f in preflight(load_job(tmp_path / "job.toml"), tmp_path / "kb.duckdb") if f.subject == "time")
    assert "; about 10 minutes if every run takes launch.timeout_s: budget.wall = 5m, then" in time.found


@pytest.mark.parametrize(("visible", "count"), [("", 4), ("1,GPU-c", 2), ("MIG-x", 4)])
def test_of_a_nodes_gpus_those_are_ours_that_were_given(visible, count, driver, monkeypatch):
    """All of the node's were asked for, of which torch shows fewer."""
    driver("printf '%s, GPU-%s, NVIDIA H100 80GB HBM3, 5, 81559\\n' 0 a 1 b 2 c 3 d")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert here() == ("h100", count)
