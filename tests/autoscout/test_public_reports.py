"""Lines of public reports: what they really run on, and what in them contradicts itself, is said at `init`."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from autoscout.machine.starting import job_file
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.targets.launch import words
from autoscout.targets.target import target_of
from kb.records import AutoscoutError, Job

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
SERVE = "vllm serve meta-llama/Llama-3.1-8B-Instruct"


def begun(given: str, folder: Path, engine: str = "") -> tuple[Job, list[str]]:
    """The job of a line, or of a file of that name, and what a person is asked to review."""
    (folder / "config.json").write_text(json.dumps(LLAMA))
    path = folder / given if len(given) < 100 else folder
    text, notes = job_file([str(path)] if path.is_file() else shlex.split(given), folder, engine)
    (folder / "job.toml").write_text(text.replace('"GPU"', '"h100"').replace('"cpu"', '"h100"'))
    assert tomllib.loads(text)
    return load_job(str(folder / "job.toml")), notes


def counts(job: Job) -> list[int]:
    return [node.count for node in job.cluster.nodes]


def test_the_smallest_line_is_a_line(tmp_path: Path) -> None:
    """It was refused as having none of vLLM's flags, and with --port 8001 it was not."""
    job, _ = begun(SERVE, tmp_path)
    assert not [*target_of(job).problems(job)]
    assert JobSpace.of_job(job).reference.knobs.get("tp", 1) == 1


@pytest.mark.parametrize(
    "line",
    [
        f"CUDA_VISIBLE_DEVICES=0,1,2,3 {SERVE}",
        f"srun --gpus-per-node=h100:4 {SERVE}",
        "docker run --gpus 4 vllm/vllm-openai:v0.20.0 --model meta-llama/Llama-3.1-8B-Instruct",
    ],
)
def test_a_server_without_parallelism_runs_on_one_of_the_gpus_that_it_sees(line: str, tmp_path: Path) -> None:
    """The baseline was one over all of them, which nobody runs."""
    job, notes = begun(line, tmp_path)
    assert counts(job) == [1]
    assert [note for note in notes if "uses 1 of the 4 GPUs" in note]


def test_a_composed_server_without_parallelism_runs_on_one_of_its_two(tmp_path: Path) -> None:
    gpus = "deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 2, capabilities: [gpu]}]}}}"
    image, command = "vllm/vllm-openai:v0.20.0", "--model meta-llama/Llama-3.1-8B-Instruct"
    (tmp_path / "c.yaml").write_text(f"services:\n  vllm:\n    image: {image}\n    command: {command}\n    {gpus}\n")
    job, notes = begun("c.yaml", tmp_path)
    assert counts(job) == [1]
    assert [note for note in notes if "uses 1 of the 2 GPUs" in note]


@pytest.mark.parametrize("given", ["--gpus 4", "--gpus=4", "--gpus '\"device=0,1,2,3\"'"])
def test_a_container_has_as_many_gpus_as_it_is_given(given: str, tmp_path: Path) -> None:
    job, notes = begun(f"docker run {given} pytorch/pytorch python train.py --mbs 2", tmp_path)
    assert counts(job) == [4]
    assert not [note for note in notes if "does not give the number" in note]


SCRIPTS = {
    "eight ranks on four": (
        "#SBATCH --gres=gpu:h100:4\ntorchrun --nproc_per_node=8 train.py --mbs 2",
        [4],
        "starts 8 ranks on a node with 4 GPUs",
    ),
    "ranks of ranks": (
        "#SBATCH --gpus-per-node=h100:8 --ntasks-per-node=8\nsrun torchrun --nproc_per_node=8 train.py --mbs 2",
        [8],
        "Slurm starts 8 tasks per node, and each task starts the line's 8 ranks",
    ),
    "a variable in a directive": (
        "#SBATCH --nodes=$NUM --gpus-per-task=8 --ntasks-per-node=1\nexport NUM=4\n"
        "srun torchrun --nnodes $NUM --nproc-per-node 8 train.py --mbs 2",
        [8] * 4,
        "Slurm does not expand variables in #SBATCH --nodes=$NUM",
    ),
    "a kind that is a variable": (
        "#SBATCH --gpus-per-node=${GPUS}\ntorchrun --nproc-per-node 8 train.py --mbs 2",
        [8],
        "Slurm does not expand variables in #SBATCH --gpus-per-node=${GPUS}",
    ),
}


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_who_starts_ranks_and_who_gives_gpus_are_compared(name: str, tmp_path: Path) -> None:
    text, expected, said = SCRIPTS[name]
    (tmp_path / "run.sbatch").write_text(f"#!/bin/bash\n{text}\n")
    job, notes = begun("run.sbatch", tmp_path)
    assert counts(job) == expected
    assert [note for note in notes if said in note]


@pytest.mark.parametrize("asked", ["--gpus-per-node=${GPUS}", "--gres=gpu:${GPUS}", "--gpus-per-node=h100:$N"])
def test_gpus_that_only_a_shell_knows_are_gpus(asked: str, tmp_path: Path) -> None:
    """CPU ranks were written for them."""
    (tmp_path / "run.sbatch").write_text(f"#!/bin/bash\n#SBATCH {asked}\npython train.py --mbs 2\n")
    text, notes = job_file([str(tmp_path / "run.sbatch")], tmp_path)
    assert tomllib.loads(text)["cluster"]["nodes"] == [{"device": "h100" if "h100" in asked else "GPU", "count": 1}]
    assert [note for note in notes if f"Slurm does not expand variables in #SBATCH {asked}" in note]
    assert [note for note in notes if "does not give the number of devices" in note]


ACCELERATE = """num_processes: 8
parallelism_config:
  parallelism_config_dp_shard_size: 2
  parallelism_config_cp_size: 4
"""
AXOLOTL = """base_model: Qwen/Qwen3-8B
micro_batch_size: 1
gradient_accumulation_steps: 2
context_parallel_size: 4
output_dir: out
"""
BATCH = "--per_device_train_batch_size 1 --gradient_accumulation_steps 2 --output_dir out"


@pytest.mark.parametrize(
    ("line", "samples"),
    [
        (f"NPROC_PER_NODE=8 swift sft --model Qwen/Qwen3-8B {BATCH} --sequence_parallel_size 8", 2),
        ("axolotl train axolotl.yml --num-processes 8", 4),
        (f"accelerate launch --config_file cp.yaml run_clm.py --model_name_or_path Qwen/Qwen3-8B {BATCH}", 4),
        (f"torchrun --nproc-per-node 8 run_clm.py --model_name_or_path Qwen/Qwen3-8B {BATCH}", 16),
    ],
)
def test_ranks_that_share_a_sequence_share_its_samples(line: str, samples: int, tmp_path: Path) -> None:
    """Sixteen were written for each, and the accumulation that an experiment was given followed from them."""
    (tmp_path / "cp.yaml").write_text(ACCELERATE)
    (tmp_path / "axolotl.yml").write_text(AXOLOTL)
    job, _ = begun(line, tmp_path)
    assert job.traffic.global_batch == samples
    space = JobSpace.of_job(job)
    assert space.reference.knobs["mbs"] == 1
    exported = shlex.join(target_of(job).launch(job, space.reference).program)
    assert re.search(r"--gradient[-_]accumulation[-_]steps[ =]2\b", exported)


def test_a_line_runs_on_the_ranks_at_least_that_share_a_sequence(tmp_path: Path) -> None:
    """One device was written where the line says none, and the accumulation of its launch was four times the line's."""
    (tmp_path / "axolotl.yml").write_text(AXOLOTL)
    job, notes = begun("axolotl train axolotl.yml", tmp_path)
    assert counts(job) == [4]
    assert [note for note in notes if "so the 4 devices that share a sample are written" in note]
    assert "--gradient-accumulation-steps=2" in target_of(job).launch(job, JobSpace.of_job(job).reference).program
    notes = begun("axolotl train axolotl.yml --num-processes 6", tmp_path)[1]
    assert [note for note in notes if "6 ranks do not divide into groups of 4" in note]


@pytest.mark.parametrize(("ranks", "starts"), [(2, True), (4, False)])
def test_the_batch_equation_of_deepspeed_is_held_at_init(ranks: int, starts: bool, tmp_path: Path) -> None:
    config = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8}
    (tmp_path / "ds.json").write_text(json.dumps({**config, "zero_optimization": {"stage": 2}}))
    line = f"deepspeed --num_gpus {ranks} train.py --deepspeed --deepspeed_config ds.json"
    notes = job_file(shlex.split(line), tmp_path)[1]
    told = [note for note in notes if "DeepSpeed does not start with this file" in note]
    assert [f"gradient_accumulation_steps 8 × {ranks}" in note for note in told] == ([] if starts else [True])


@pytest.mark.parametrize(("sharing", "samples"), [(0, 64), (4, 16)])
def test_ranks_that_autotp_splits_a_model_over_share_its_samples(sharing: int, samples: int, tmp_path: Path) -> None:
    """Two samples a rank and four steps on eight ranks were 64 samples, and experiments accumulated four times more."""
    config = {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}
    config |= {"zero_optimization": {"stage": 2}, "tensor_parallel": {"autotp_size": sharing}}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    line = "deepspeed --num_gpus 8 train.py --per_device_train_batch_size 2 --gradient_accumulation_steps 4"
    job, _ = begun(f"{line} --deepspeed ds.json", tmp_path)
    assert job.traffic.global_batch == samples
    space = JobSpace.of_job(job)
    assert space.reference.knobs["mbs"] == 2
    assert "--gradient_accumulation_steps 4" in shlex.join(target_of(job).launch(job, space.reference).program)


VERL = """python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.model.path=Qwen/Qwen2.5-1.5B
actor_rollout_ref.rollout.name=vllm trainer.nnodes=1""".replace("\n", " ")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            "data.train_batch_size=512 trainer.n_gpus_per_node=6 actor_rollout_ref.actor.ppo_mini_batch_size=252",
            "its 6 GPUs divide the 512 × 1 samples of a step",
        ),
        ("data.train_batch_size=64 trainer.n_gpus_per_node=8", "64, to be at least ppo_mini_batch_size, 256"),
        ("data.train_batch_size=256 trainer.n_gpus_per_node=1", "1 GPUs do not divide into engines of 2"),
        ("data.train_batch_size=256 trainer.n_gpus_per_node=8", ""),
    ],
)
def test_what_verl_asserts_is_said_at_init_and_by_check(more: str, said: str, tmp_path: Path) -> None:
    """512 samples on 6 GPUs, a mini batch above the batch, and one GPU for engines of two passed."""
    job, notes = begun(f"{VERL} {more}", tmp_path)
    for told in (notes, target_of(job).notes_on_job(job)):
        assert [said in note for note in told if "launch.current does not start: " in note] == ([True] if said else [])


@pytest.mark.parametrize(
    ("more", "device", "starts"),
    [("", "l4", False), ("--max-model-len 8192", "l4", True), ("", "h100", True), ("-tp 8", "l4", True)],
)
@pytest.mark.parametrize("by", ["folder", "name"])
def test_a_request_of_all_positions_has_to_fit_where_the_line_does_not_say_its_length(
    by: str, more: str, device: str, starts: bool, tmp_path: Path
) -> None:
    """131,072 positions of Llama 3.1 take 16 GiB of KV cache, 128 KiB a token, beside 15 GiB of weights. By its name
    alone nothing was said, and its record had the 8192 positions of Llama 3."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    model = tmp_path if by == "folder" else "meta-llama/Llama-3.1-8B-Instruct"
    text = job_file(shlex.split(f"vllm serve {model} {more}"), tmp_path)[0]
    (tmp_path / "job.toml").write_text(text.replace('"GPU"', f'"{device}"').replace('"cpu"', f'"{device}"'))
    job = load_job(str(tmp_path / "job.toml"))
    told = [note for note in target_of(job).notes_on_job(job) if "launch.current does not start: " in note]
    assert [("131072 positions" in note, "16.0 GiB" in note) for note in told] == ([] if starts else [(True, True)])


@pytest.mark.parametrize(("more", "starts"), [("", False), ("--hf-overrides '{\"a\": 1}'", True)])
def test_a_published_model_serves_no_longer_requests_than_its_card_says(
    more: str, starts: bool, tmp_path: Path
) -> None:
    job, _ = begun(f"vllm serve Qwen/Qwen2.5-0.5B-Instruct --max-model-len 35000 {more}", tmp_path)
    said = "it has --max-model-len 35000, but the model has positions for 32768"
    assert [said in note for note in target_of(job).notes_on_job(job) if "not start" in note] == [True] * (not starts)


def test_a_field_of_a_nested_flag_that_has_a_flag_of_its_own_is_exported(tmp_path: Path) -> None:
    """The sizes of CUDA graphs were left out of exports wherever no vLLM was installed, and nothing said so."""
    sizes = '{"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [16, 32]}'
    job, _ = begun(f"{SERVE} --compilation-config '{sizes}'", tmp_path)
    launch = target_of(job).launch(job, JobSpace.of_job(job).reference)
    assert [*words(launch)][-1] == ["--cudagraph-capture-sizes", "16", "32"]


def test_a_job_that_every_verb_refuses_says_so_at_init(tmp_path: Path) -> None:
    """vLLM does not start with more tokens than the model has positions, and no note said that."""
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "max_position_embeddings": 4096}))
    notes = job_file(["vllm", "serve", str(tmp_path), "--max-model-len", "8192"], tmp_path)[1]
    (told,) = [note for note in notes if note.startswith("AutoScout cannot read this job until you fix the following")]
    assert "has positions for 4096, so vLLM refuses to start" in told
    notes = job_file(["vllm", "serve", str(tmp_path), "--max-model-len", "4096"], tmp_path)[1]
    assert not [note for note in notes if note.startswith("no verb")]


BAD = {
    "a value that only a shell knows": ("torchrun --nproc_per_node=$(nvidia-smi -L | wc -l) train.py --mbs 2", "$(…)"),
    "two launches": ("torchrun a.py --mbs 2\ntorchrun b.py --mbs 4", "give its command: 'torchrun a.py --mbs 2'"),
    "a loop over models": (
        "for M in Qwen/Qwen3-8B meta-llama/Llama-3.1-8B; do\n  vllm serve $M --max-num-seqs 32\ndone",
        "for each of Qwen/Qwen3-8B, meta-llama/Llama-3.1-8B, and the last value is used",
    ),
    "a server's degree that only a shell knows": (
        "python3 -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B --tp-size $TP --port 8000",
        "--tp-size $TP is assumed to be 1; if it is more, add those devices to cluster.nodes",
    ),
    "another cluster": (
        "#SBATCH --nodes=64 --gpus-per-node=8\nsrun torchrun --nnodes 64 --nproc_per_node 8 train.py --mbs 2",
        "does not name its GPUs' kind",
    ),
}


@pytest.mark.parametrize("name", sorted(BAD))
def test_what_only_a_person_knows_of_a_script_is_asked_for(name: str, tmp_path: Path) -> None:
    text, said = BAD[name]
    (tmp_path / "run.sh").write_text(f"#!/bin/bash\n{text}\n")
    assert [note for note in job_file([str(tmp_path / "run.sh")], tmp_path)[1] if said in note]


def test_a_binary_is_no_script_and_a_here_document_no_launch(tmp_path: Path) -> None:
    (tmp_path / "binary.sh").write_bytes(Path("/bin/ls").read_bytes()[:5000])
    with pytest.raises(AutoscoutError, match="is not UTF-8"):
        job_file([str(tmp_path / "binary.sh")], tmp_path)
    (tmp_path / "here.sh").write_text("cat > run.py <<EOF\ntorchrun no.py\nEOF\ntorchrun --nproc_per_node 4 run.py\n")
    made = tomllib.loads(job_file([str(tmp_path / "here.sh")], tmp_path)[0])
    assert made["launch"]["current"] == "torchrun --nproc_per_node 4 run.py"


def test_ten_thousand_flags_are_read(tmp_path: Path) -> None:
    line = "torchrun --nproc_per_node 2 train.py " + " ".join(f"--flag-{i} {i}" for i in range(10_000))
    made = tomllib.loads(job_file(shlex.split(line), tmp_path)[0])
    assert made["launch"]["current"] == line


def test_ten_thousand_flags_of_a_script_take_no_longer_than_their_words(tmp_path: Path) -> None:
    """Each word was looked for among all others: the square of 20,000 comparisons."""
    line = "torchrun --nproc_per_node 2 train.py " + " ".join(f"--flag-{i} {i}" for i in range(10_000))
    (tmp_path / "run.sh").write_text(f"{line}\n")
    assert tomllib.loads(job_file([str(tmp_path / "run.sh")], tmp_path)[0])["launch"]["current"] == line


@pytest.mark.parametrize(("then", "launch"), [("echo written", "torchrun a.py"), ("bash serve.sh", "torchrun b.py")])
def test_a_file_that_a_here_document_writes_counts_where_it_is_started(then: str, launch: str, tmp_path: Path) -> None:
    """The name of a *.sh file was taken for a shell that reads the text."""
    text = f"torchrun a.py\ncat > serve.sh <<'EOF'\ntorchrun b.py\nEOF\n{then}\n"
    (tmp_path / "run.sh").write_text(text)
    assert tomllib.loads(job_file([str(tmp_path / "run.sh")], tmp_path)[0])["launch"]["current"] == launch
