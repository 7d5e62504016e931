"""Launch lines and tables as people hand them over who never saw AutoScout: each failed once, for the cause that its
name says."""

import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from autoscout.importing.bring_in import ImportOptions, bring_in_all
from autoscout.importing.converting import Done
from autoscout.job.published_models import published
from autoscout.line.shell_commands import unwrapped
from autoscout.line.shell_prints import printed
from autoscout.machine.starting import job_file
from autoscout.targets.jobs import JobSpace, load_job
from kb.records import AutoscoutError


def made(folder: Path, given: str, **files: str) -> tuple[dict[str, Any], str]:
    """(the job of a script's text or, of several lines, the script; its notes)."""
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    (folder / "run.sh").write_text(given)
    text, notes = job_file([str(folder / "run.sh")], folder)
    return tomllib.loads(text), "\n".join(notes)


FLAGS = "openrlhf.cli.train_sft \\\n   --train_batch_size 256 \\\n   --packing_samples\n"


@pytest.mark.parametrize("begins", ["read -r -d '' C <<EOF\n{}EOF\n", "C=$(cat <<'EOF'\n{}EOF\n)\n"])
def test_a_here_document_that_is_a_variable_has_the_lines_flags(begins: str, tmp_path: Path) -> None:
    """All flags were lost."""
    script = f"{begins.format(FLAGS)}deepspeed --num_gpus 8 --module $C\n"
    current = made(tmp_path, script)[0]["launch"]["current"]
    assert "openrlhf.cli.train_sft" in current
    assert "--train_batch_size 256" in current
    assert "--packing_samples" in current


SERVES = """MODEL=Qwen/Qwen3-8B
cat > config.yaml << EOF
max-num-batched-tokens: 8192
served-model-name: $MODEL
EOF
vllm serve $MODEL --config config.yaml --tensor-parallel-size 2 > log 2>&1 &
vllm bench serve --model $MODEL --dataset-name random --random-input-len 8192 --max-concurrency 64
"""


def test_a_settings_file_that_the_script_writes_is_read(tmp_path: Path) -> None:
    """It is not on this machine before the script runs, and the job was refused."""
    job, notes = made(tmp_path, SERVES)
    assert "--max-num-batched-tokens 8192" in job["launch"]["current"]
    assert "--served-model-name Qwen/Qwen3-8B" in job["launch"]["current"]
    assert "cannot be read" not in notes


def test_a_word_of_a_comment_is_no_loop_over_arguments(tmp_path: Path) -> None:
    """`for convenience` in a comment: the script was run as a whole, untuned."""
    script = '# use envs as local overwrites for convenience\ntorchrun --nproc_per_node=8 run_clm.py "$@"\n'
    (tmp_path / "run.sh").write_text(script)
    given = ["bash", "run.sh", "--model_name_or_path", "Qwen/Qwen2.5-7B", "--per_device_train_batch_size", "2"]
    job = tomllib.loads(job_file(given, tmp_path)[0])
    assert job["launch"]["current"].startswith("torchrun --nproc_per_node=8 run_clm.py --model_name_or_path")


def test_an_environments_extra_is_not_the_launcher(tmp_path: Path) -> None:
    """`uv run --extra deepspeed accelerate launch` was a line of DeepSpeed on one device."""
    line = "uv run --extra deepspeed accelerate launch --num_processes 8 sft.py --model_name_or_path Qwen/Qwen2.5-7B"
    text, notes = job_file(shlex.split(line), tmp_path)
    assert tomllib.loads(text)["cluster"]["nodes"][0]["count"] == 8
    assert not [note for note in notes if "ds_config" in note]


def test_a_stage_that_ms_swift_names_is_no_missing_file(tmp_path: Path) -> None:
    line = "swift sft --model Qwen/Qwen2.5-7B-Instruct --train_type full --deepspeed zero3 --output_dir o"
    assert not [note for note in job_file(shlex.split(line), tmp_path)[1] if "ds_config" in note]


def test_an_instance_type_in_a_constraint_is_the_gpu(tmp_path: Path) -> None:
    """A job of four p5.48xlarge was one of CPU ranks."""
    head = '#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --constraint="p5.48xlarge"\n'
    job, _ = made(tmp_path, f"{head}srun torchrun --nproc_per_node=8 --nnodes=$SLURM_JOB_NUM_NODES train.py --lr 1\n")
    assert job["cluster"]["nodes"] == [{"device": "h100", "count": 8}] * 4


PODS = """kind: LeaderWorkerSet
spec:
  leaderWorkerTemplate:
    size: 2
    workerTemplate:
      spec:
        nodeSelector: {node.kubernetes.io/instance-type: p5en.48xlarge}
        containers:
        - image: ghcr.io/llm-d/llm-d-cuda:v0.3.0
          command: [/bin/bash, -c]
          args:
          - >
            exec vllm serve deepseek-ai/DeepSeek-R1-0528 --enable-expert-parallel
            --data-parallel-size $((LWS_GROUP_SIZE * DP)) --data-parallel-size-local $DP
            --data-parallel-start-rank $(( ${LWS_WORKER_INDEX:-0} * DP ))
          env: [{name: DP, value: "8"}]
          resources: {limits: {nvidia.com/gpu: "8"}}
"""


def test_the_pods_of_a_leader_and_its_workers_are_the_nodes(tmp_path: Path) -> None:
    """Sixteen GPUs on two nodes were one, on which nothing fits."""
    (tmp_path / "pods.yaml").write_text(PODS)
    job = tomllib.loads(job_file([str(tmp_path / "pods.yaml")], tmp_path)[0])
    assert job["cluster"]["nodes"] == [{"device": "h200", "count": 8}] * 2
    assert "--data-parallel-size 16" in job["launch"]["current"]
    assert "--data-parallel-start-rank 0" in job["launch"]["current"]


RAY = """kind: RayService
spec:
  serveConfigV2: |
    applications:
    - args:
        llm_configs:
        - model_loading_config: {model_id: small, model_source: Qwen/Qwen2.5-7B-Instruct}
          accelerator_type: H100
          engine_kwargs: {tensor_parallel_size: 2, max_model_len: 4096, enable_prefix_caching: false}
"""


def test_a_model_of_ray_serve_is_a_line_of_vllm(tmp_path: Path) -> None:
    """Its engine's settings are in a text within the manifest, and a line was asked for."""
    (tmp_path / "ray.yaml").write_text(RAY)
    job = tomllib.loads(job_file([str(tmp_path / "ray.yaml")], tmp_path)[0])
    flags = "--tensor-parallel-size 2 --max-model-len 4096 --no-enable-prefix-caching"
    assert job["launch"]["current"] == f"vllm serve Qwen/Qwen2.5-7B-Instruct {flags}"
    assert job["cluster"]["nodes"] == [{"device": "h100", "count": 2}]


def test_a_worker_of_dynamo_is_a_line_of_its_engine(tmp_path: Path) -> None:
    """It was an unknown script."""
    command = "command: [python3, -m, dynamo.vllm], args: [--model, Qwen/Qwen3-32B, --tensor-parallel-size, 4]"
    worker = f"{{resources: {{limits: {{gpu: 4}}}}, pod: {{main: {{image: nvcr.io/vllm-runtime:0.6.0, {command}}}}}}}"
    (tmp_path / "agg.yaml").write_text(f"kind: DynamoGraphDeployment\nspec: {{services: {{Worker: {worker}}}}}\n")
    job = tomllib.loads(job_file([str(tmp_path / "agg.yaml")], tmp_path)[0])
    assert (job["target"], job["cluster"]["nodes"][0]["count"]) == ("vllm", 4)
    assert job["launch"]["current"] == "vllm serve --model Qwen/Qwen3-32B --tensor-parallel-size 4"


def test_an_entry_point_that_is_the_images_own_is_no_model(tmp_path: Path) -> None:
    """The model was called serve."""
    line = "docker run --gpus all --entrypoint vllm vllm/vllm-openai:v0.11.0 serve Qwen/Qwen3-8B -tp 2"
    job = tomllib.loads(job_file(shlex.split(line), tmp_path)[0])
    assert job["launch"]["current"] == "vllm serve Qwen/Qwen3-8B -tp 2"
    assert "vllm" not in job["launch"]["command_prefix"]


def test_a_secret_of_a_container_is_passed_on_by_its_name(tmp_path: Path) -> None:
    """It stood in the job file and in exports."""
    line = "docker run --gpus all -e HF_TOKEN=hf_abcdefgh -e A=1 vllm/vllm-openai:v0.11.0 Qwen/Qwen3-8B"
    text, notes = job_file(shlex.split(line), tmp_path)
    assert "hf_abcdefgh" not in text
    assert '"-e", "HF_TOKEN", "-e", "A=1"' in text
    assert [note for note in notes if "the value of HF_TOKEN looks like a secret" in note]


def test_variables_of_a_file_beside_the_script_are_read(tmp_path: Path) -> None:
    """`cd … &>/dev/null && pwd` was not understood, and the model's flags stayed a variable."""
    own = 'D="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"\nsource "${D}/model.sh"\n'
    job, _ = made(tmp_path, f"{own}torchrun train.py ${{A[@]}}\n", model__sh="A=(\n  --num-layers 36\n)\n")
    assert job["launch"]["current"] == "torchrun train.py --num-layers 36"


@pytest.mark.parametrize(
    ("command", "prints"),
    [
        ("echo \"4,5\" | tr ',' '\\n' | wc -l", "2"),
        ("echo 0,1,2 | awk -F',' '{print NF}'", "3"),
        ("echo 0,1,2 | tr -cd ',' | wc -c", "2"),
        ("echo 0,1,2 | tr , ' ' | wc -w", "3"),
        ("echo -n 0,1 | grep -o , | wc -l", "1"),
        ("echo 0,1 | sed s/,/x/", None),
        ("echo $X | wc -w", None),
        ("echo a > b", None),
    ],
)
def test_filters_of_a_list_count_its_devices(command: str, prints: str | None) -> None:
    assert printed(command) == prints


@pytest.mark.parametrize("quoted", ["TP=$(%s)", 'TP="$(%s)"'])
def test_the_devices_of_a_list_are_the_degree(quoted: str, tmp_path: Path) -> None:
    """--tensor-parallel-size $(echo "$GPUS" | …) was taken for 1."""
    counts = quoted % "echo \"$GPUS\" | tr ',' '\\n' | wc -l"
    script = f'GPUS="${{GPUS:-4,5}}"\n{counts}\nCUDA_VISIBLE_DEVICES=$GPUS vllm serve Qwen/Qwen3-8B -tp $TP\n'
    job, notes = made(tmp_path, script)
    assert job["launch"]["current"] == "vllm serve Qwen/Qwen3-8B -tp 2"
    assert job["cluster"]["nodes"][0]["count"] == 2
    assert "is assumed to be 1" not in notes


def test_a_value_that_bash_expands_after_the_script_stays_in_its_text() -> None:
    """The whole line was an unknown script: its variables were in the way."""
    text = "export RANK=$SLURM_PROCID; python pretrain_gpt.py \\\n --tp 2 --data-path 1 $DATA --lr 1"
    told = unwrapped(["srun", "bash", "-c", text])
    assert told[:3] == ["srun", "bash", "-c"]
    assert told[3] == 'export RANK=$SLURM_PROCID; exec "$@" --data-path 1 $DATA'
    assert told[4:] == ["bash", "python", "pretrain_gpt.py", "--tp", "2", "--lr", "1"]


BRIDGE = "torchrun --nproc-per-node=8 examples/my_recipe.py --config-file over.yaml model.tensor_model_parallel_size=4"


def test_overrides_of_a_recipe_say_its_batch_and_length(tmp_path: Path) -> None:
    """Only three names of scripts were known, and nothing was read."""
    file = "model: {seq_length: 8192}\ntrain: {global_batch_size: 256, micro_batch_size: 2}\n"
    job, _ = made(tmp_path, f"{BRIDGE} train.global_batch_size=512\n", over__yaml=file)
    assert job["launch"]["script"] == "megatron-bridge"
    assert job["traffic"] == {"seq_len": 8192, "global_batch": 512}
    (tmp_path / "job.toml").write_text((job_file([str(tmp_path / "run.sh")], tmp_path)[0]).replace('"cpu"', '"h100"'))
    assert JobSpace.load(tmp_path / "job.toml").reference.knobs["mbs"] == 2


def test_a_line_of_nemo_is_known(tmp_path: Path) -> None:
    words = "trainer.devices=8 trainer.num_nodes=2 model.tensor_model_parallel_size=4 model.micro_batch_size=4"
    script = f"python megatron_gpt_pretraining.py {words} model.global_batch_size=256 model.encoder_seq_length=2048\n"
    job, _ = made(tmp_path, script)
    assert (job["launch"]["script"], len(job["cluster"]["nodes"])) == ("nemo", 2)
    assert job["traffic"] == {"seq_len": 2048, "global_batch": 256}


@pytest.mark.parametrize(
    "name",
    ["mistralai/Mistral-Small-3.2-24B-Instruct-2506", "microsoft/phi-4", "Qwen/Qwen2.5-Coder-7B-Instruct"],
)
def test_more_models_are_known_by_name(name: str) -> None:
    assert published(name)


JOB = Path("fixtures/jobs/llama-3.2-3b.toml")  # 12 devices, A100 and A40; tp and mbs among its knobs


def imported(tmp_path: Path, name: str, text: str) -> Done:
    (tmp_path / name).write_text(text)
    options = ImportOptions(dry_run=True)
    [done] = bring_in_all(tmp_path / "kb.duckdb", tmp_path / name, load_job(JOB), options).imports
    return done


def seconds(done: Done) -> list[float]:
    return [round(row.metrics["step_time_s"], 3) for row in done.shown if row.status == "ok"]


def test_a_table_of_markdown_is_read(tmp_path: Path) -> None:
    text = "# Ours\n\n| #GPUs | TP | MBS | Step time (s) | Tokens |\n|:--|--:|--:|--:|--:|\n"
    rows = "| 12 | 2 | 1 | 5.32 | 12,319 |\n| 12 | 1 | 2 | **5.11** | 12,825 |\n| 12 | 4 | 1 | OOM | - |\n"
    done = imported(tmp_path, "r.md", text + rows + "\nAnd:\n\n| a | b |\n|---|---|\n| 1 | 2 |\n")
    assert seconds(done) == [5.32, 5.11]
    assert [row.status for row in done.shown] == ["ok", "ok", "oom"]
    assert "further table" in done.bad[0].reason


def test_a_page_without_a_table_is_none(tmp_path: Path) -> None:
    with pytest.raises(AutoscoutError, match="no reader recognizes this"):
        imported(tmp_path, "r.md", "# Ours\n\n5.3 s a step\n")


@pytest.mark.parametrize(
    ("header", "cells", "found"),
    [
        ("sec/iter", ("5.321", "5.11"), [5.321, 5.11]),
        ("ms per step", ("5321", "5110"), [5.321, 5.11]),
        ("Time per step", ("5.32 s", "5110 ms"), [5.32, 5.11]),
        ("steps/s", ("0.5", "0.25"), [2.0, 4.0]),
        ("train_samples_per_second", ("24", "48"), [4.0, 2.0]),  # 96 samples a step
        ("tok/s/GPU", ("8.192k", "16384"), [2.0, 1.0]),  # 96 × 2048 tokens on 12 devices
        ("tokens_per_s", ('"98,304.0"', "196608"), [2.0, 1.0]),
    ],
)
def test_ways_to_say_a_step_time(header: str, cells: tuple[str, str], found: list[float], tmp_path: Path) -> None:
    done = imported(tmp_path, "t.csv", f"tp,mbs,{header}\n" + "".join(f"{2**i},1,{c}\n" for i, c in enumerate(cells)))
    assert seconds(done) == found


def test_arguments_within_a_row_are_its_knobs(tmp_path: Path) -> None:
    row = '{"args": {"tensor_model_parallel_size": 2, "micro_batch_size": 1}, "elapsed time per iteration (ms)": 5321}'
    assert seconds(imported(tmp_path, "t.json", f"[{row}]")) == [5.321]


def test_a_row_of_another_gpu_is_of_another_job(tmp_path: Path) -> None:
    """A row of an H100 was a measurement of the job on A100."""
    done = imported(
        tmp_path, "t.csv", "GPU,tp,mbs,step_time_s\nNVIDIA A100-SXM4-80GB,2,1,5\nH100 SXM,2,1,3\nours,1,1,4\n"
    )
    assert seconds(done) == [5.0, 4.0]
    assert "measured on H100 SXM, but the job has a100, a40" in done.bad[0].reason
