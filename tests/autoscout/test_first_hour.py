"""What a newcomer's first commands give, on a machine without GPUs."""

import math
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import msgspec
import pytest
import verbs

from autoscout.deploy.export import flags_against, of_job
from autoscout.deploy.rendering import render
from autoscout.line.launch_line import Line
from autoscout.line.recognition import recognised
from autoscout.machine.new_job import JobAnswers, drafted
from autoscout.machine.preflight import preflight
from autoscout.machine.starting import job_file
from autoscout.simulate.ensemble import Simulators
from autoscout.space.explain import completed, parse
from autoscout.targets.jobs import JobSpace, load_job, simulators_of
from autoscout.targets.target import target_of
from autoscout.tuning.best_predicted import ranking
from autoscout.tuning.predict import predict
from kb.records import AutoscoutError, Configuration, Measurement

SBATCH = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gres=gpu:h100:8
RANKS="--nproc_per_node 8 --nnodes $SLURM_NNODES --rdzv_backend c10d --rdzv_endpoint $HEAD:6000"
srun torchrun $RANKS pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 \\
  --num-attention-heads 32 --group-query-attention --num-query-groups 8 --seq-length 8192 --swiglu --bf16 \\
  --max-position-embeddings 8192 --position-embedding-type rope --normalization RMSNorm --disable-bias-linear \\
  --untie-embeddings-and-output-weights --micro-batch-size 1 --global-batch-size 128 --use-distributed-optimizer \\
  --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel --overlap-grad-reduce \\
  --tokenizer-type HuggingFaceTokenizer --tokenizer-model meta-llama/Meta-Llama-3-8B {more}
"""


def of_script(folder, more: str, engine: str = "", text: str = SBATCH) -> JobSpace:
    script, file = folder / "run.sbatch", folder / f"{engine or 'plain'}.toml"
    script.write_text(text.format(more=more))
    file.write_text(job_file([str(script)], folder, engine)[0])
    return JobSpace.of_job(load_job(file))


@pytest.mark.parametrize(
    "more",
    [
        "",
        "--vocab-size 128256 --kv-channels 64",
        "--overlap-param-gather",
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 4",
        "--recompute-activations",
        "--context-parallel-size 2",
        "--num-layers-per-virtual-pipeline-stage 4 --overlap-param-gather",
        "--fp8-format hybrid",
        "--num-experts 8 --expert-model-parallel-size 4 --moe-router-topk 2 --moe-token-dispatcher-type alltoall",
        "--multi-latent-attention --num-query-groups 32 --num-experts 8 --moe-layer-freq [0]*4+[1]*28 --vocab-size 999",
    ],
)
def test_a_line_is_predicted_alike_with_and_without_a_target(tmp_path, more):
    """Without --target megatron nothing could be predicted. The two differ by the gradient buckets, which the line does
    not give."""
    plain, asked = (predict(of_script(tmp_path, more, engine), {}, None) for engine in ("", "megatron"))
    assert math.isclose(plain.value, asked.value, rel_tol=0.01)
    assert plain.memory
    assert asked.memory
    assert math.isclose(plain.memory.gib, asked.memory.gib, rel_tol=0.01)


def test_a_line_with_what_no_model_knows_is_not_predicted(tmp_path):
    with pytest.raises(AutoscoutError, match="no simulator models --use-megatron-fsdp"):
        predict(of_script(tmp_path, "--use-megatron-fsdp"), {}, None)


@pytest.mark.parametrize("more", ["--hybrid-override-pattern M-M*", "--mtp-num-layers 1", "--window-size 128,0"])
def test_a_line_of_a_model_that_no_job_has_is_not_predicted(tmp_path, more):
    """With its vocabulary on the line it was a plain Transformer without gates, also under another script's name."""
    text = SBATCH.replace("pretrain_gpt", "pretrain_mamba")
    space = of_script(tmp_path, f"--vocab-size 128256 {more}", text=text)
    assert not space.job.model.layers
    file = tmp_path / "plain.toml"
    file.write_text(f"{file.read_text()}\n[model]\npreset = 'llama-3-8b'\n")
    with pytest.raises(AutoscoutError, match=f"no simulator models {re.escape(more)}"):
        predict(JobSpace.of_job(load_job(file)), {}, None)


def test_a_script_of_another_name_has_the_model_of_its_flags(tmp_path):
    """Its MLP had two products of three, and its heads the width of hidden over their number."""
    text = SBATCH.replace("pretrain_gpt", "pretrain_qwen")
    model = of_script(tmp_path, "--vocab-size 128256 --kv-channels 64", text=text).job.model
    assert (model.gated, model.tied, model.bias, model.head_dim) == (True, False, False, 64)


def test_a_line_whose_model_is_not_read_names_what_is_missing(tmp_path):
    of_script(tmp_path, "")
    file = tmp_path / "plain.toml"
    file.write_text(re.sub(r"\[model\].*?\n\n", "", file.read_text(), flags=re.DOTALL))
    with pytest.raises(AutoscoutError, match=r"the job has no \[model\]"):
        predict(JobSpace.of_job(load_job(file)), {}, None)


def test_check_counts_the_minutes_of_predicted_steps(tmp_path):
    """It gave only what every run would take at launch.timeout_s: 810 minutes for steps of 8 s."""
    space = of_script(tmp_path, "")
    took = predict(space, {}, None).value
    time = next(found for found in preflight(space.job, tmp_path / "kb.duckdb") if found.subject == "time")
    minutes, runs = map(int, re.findall(r"(\d+) minutes of measuring are predicted, plus (\d+) starts", time.found)[0])
    least, most = (runs * (space.job.launch.warmup + steps) * took / 60 for steps in (2, 10))
    assert least - 1 < minutes < most


SERVED = """name = "chat"
task = "serve"
target = "vllm"
model = { preset = "qwen3-32b" }
traffic = { LOAD, input_len = 1024, output_len = 256 }
objective = { maximize = "requests_per_s", constraints = [LIMITS] }
launch = { current = "vllm serve Qwen/Qwen3-32B --tensor-parallel-size 4 --max-model-len 8192", timeout_s = 900 }
cluster = { nodes = [{ device = "h100", count = 4 }] }
"""


def served(folder, load: str, limits: str = "") -> JobSpace:
    file = folder / "serve.toml"
    file.write_text(SERVED.replace("LOAD", load).replace("LIMITS", limits))
    return JobSpace.of_job(load_job(file))


@pytest.mark.parametrize(("load", "requests"), [("concurrency = 32", 128), ("rate = 8.0, requests = 240", 240)])
def test_check_counts_the_minutes_of_predicted_answers(tmp_path, load, requests):
    """It gave 810 minutes, every run's timeout, for a load that a server answers in a minute."""
    space = served(tmp_path, load)
    rate = predict(space, {}, None).value
    time = next(found for found in preflight(space.job, tmp_path / "kb.duckdb") if found.subject == "time")
    minutes, runs = map(int, re.findall(r"(\d+) minutes of measuring are predicted, plus (\d+) starts", time.found)[0])
    passes = 60 * minutes / runs / (requests / rate)
    assert space.job.launch.warmup + 0.5 < passes < space.job.launch.warmup + space.job.launch.iterations + 0.5


def test_limits_inside_the_interval_of_a_prediction_rank_by_the_chance_to_keep_them(tmp_path):
    """All was refused for 16.2 ms of 16, by a prediction of 11 to 24 ms."""
    space = served(tmp_path, "rate = 8.0, requests = 100", "'ttft_p99_ms <= 200', 'tpot_p99_ms <= 15'")
    tpot = predict(space, {}, None).bounds[1]
    assert tpot.low < 15 < tpot.value
    found = ranking(space, space.job, None, 2)
    chances = [row.kept_probability or 0.0 for row in found.best]
    assert chances == sorted(chances, reverse=True)
    assert 0.05 < chances[0] < 0.5
    assert found.reference
    assert re.fullmatch(r"with traffic.rate = \d\S*, your present launch is expected to meet the limits", found.fits)


def test_a_present_launch_that_breaks_a_limit_is_listed_with_its_chance(tmp_path):
    """It "has no prediction, or is predicted to fail or to violate a constraint", and no row had a gain."""
    space = served(tmp_path, "concurrency = 32, requests = 100", "'ttft_p99_ms <= 500'")
    found = ranking(space, space.job, None, 1)
    assert found.reference
    assert (found.reference.kept_probability or 0.0) < 0.05


def test_limits_that_nothing_can_keep_are_refused_with_the_load_that_would_fit(tmp_path):
    space = served(tmp_path, "concurrency = 64, requests = 100", "'ttft_p99_ms <= 1', 'tpot_p99_ms <= 1'")
    with pytest.raises(
        AutoscoutError, match=r"is not expected to meet the limits even with traffic.concurrency = 1$"
    ) as refused:
        ranking(space, space.job, None, 1)
    assert refused.value.exit_code == 3


def test_the_highest_rate_needs_no_rate_to_begin_with(tmp_path):
    text = SERVED.replace("LOAD", "requests = 100").replace("LIMITS", "'ttft_p99_ms <= 2000'")
    (tmp_path / "job.toml").write_text(text.replace("requests_per_s", "max_rate_rps"))
    space = JobSpace.of_job(load_job(tmp_path / "job.toml"))
    best = ranking(space, space.job, None, 1).best[0]
    assert not best.configuration.get("eager"), "graphs are faster there, one knob nearer to the reference"
    assert space.job.traffic.rate == 1.0


def test_an_exported_line_of_a_script_is_filled_in_by_its_shell(tmp_path):
    """'$HEAD:6000' and '$(scontrol …)' stood in single quotes, so that no two nodes met; so did exported ones."""
    exports = 'RANKS=""\nexport MASTER_PORT=$(expr 10000 + $(echo $SCRATCH | tail -c 2))'
    more = '--save "$(scontrol show "$SCRATCH" | head -n1)/out" --load ${PARTS[1]}'
    space = of_script(tmp_path, more, text=SBATCH.replace("RANKS=", f"{exports}\nRANKS=", 1))
    launch = of_job(space.job, [])
    assert launch.variables == ["$(…)", "$HEAD", "$SCRATCH", "${PARTS[1]}"]
    script = render(target_of(space.job), launch, "slurm")
    assert "the shell that runs this expands $(…), $HEAD, $SCRATCH, ${PARTS[1]}" in script
    script = script.replace("srun", "PARTS=(a b); echo PORT $MASTER_PORT; srun")
    for name, text in {"srun": "echo HEARD $*", "scontrol": "echo node7"}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HEAD": "node7", "SCRATCH": "x5"}
    heard = subprocess.run(["bash", "-c", script], env=variables, capture_output=True, text=True, check=True).stdout
    assert "--rdzv_endpoint node7:6000 " in heard
    assert "--save node7/out" in heard
    assert "PORT 10005" in heard


def test_a_measured_line_is_exported_as_it_ran(tmp_path):
    space = of_script(tmp_path, "")
    launch = target_of(space.job).launch(space.job, space.reference)
    script = render(target_of(space.job), launch, "slurm")
    assert "'$HEAD:6000'" in script
    assert "add: the values of $HEAD, because these are quoted and no shell expands them" in script


@pytest.mark.parametrize(
    ("source", "config", "script"),
    [
        ("from transformers import HfArgumentParser, Trainer, TrainingArguments", "", "hf-trainer"),
        ("from transformers import HfArgumentParser, Trainer, TrainingArguments", "settings.yaml", ""),  # reads that
        ("from transformers import Trainer", "", ""),  # may not know the flags that experiments need
    ],
)
def test_a_script_s_imports_are_enough(tmp_path, source, config, script):
    (tmp_path / "finetune.py").write_text(source)
    line = Line(tuple(f"torchrun --nproc-per-node 2 finetune.py {config}".split()), place=tmp_path)
    assert recognised(line) == script


def test_a_trainer_s_script_with_a_parser_of_its_own_has_its_losses_compared(tmp_path):
    """Its log had the losses, and no loss was read."""
    source = "import argparse\nfrom transformers import Trainer, TrainingArguments\n"
    (tmp_path / "own.py").write_text(f"{source}argparse.ArgumentParser().add_argument('--batch_size')")
    line = ["torchrun", "--nproc-per-node", "2", "own.py", "--batch_size", "4"]
    text, notes = job_file(line, tmp_path)
    (tmp_path / "job.toml").write_text(text)
    pattern = load_job(tmp_path / "job.toml").launch.metrics["loss"]
    assert re.findall(str(pattern), "{'loss': 2.3079, 'grad_norm': 1.1, 'learning_rate': 5e-05}") == ["2.3079"]
    assert any(note.startswith("launch.metrics.loss: ") for note in notes)
    (tmp_path / "own.py").write_text("import argparse")
    assert "loss" not in job_file(line, tmp_path)[0]


def test_a_line_without_knobs_learns_nothing_from_other_jobs(tmp_path):
    """`check` ended in an internal error once two other jobs were measured."""
    (tmp_path / "other.py").write_text("")
    (tmp_path / "job.toml").write_text(job_file(["python", "other.py"], tmp_path)[0])
    space = JobSpace.of_job(load_job(tmp_path / "job.toml"))
    others = [msgspec.structs.replace(space.job, name=name) for name in ("one", "two", "three")]
    rows = [
        Measurement(
            configuration=Configuration({"workers": n}), name=f"workers{n}", context="c", status="ok",
            metrics={"step_time_s": float(n)},
        )
        for n in (1, 2, 4)
    ]  # fmt: skip
    past, bases = [(other, rows) for other in others], partial(simulators_of, space.job)
    assert Simulators(space.job, space, [], past=past, bases=bases).predictor() is None


def test_a_line_without_knobs_has_a_name_in_its_verdict(tmp_path):
    """The sentence ended in "none is expected to be better than "."""
    script, job = tmp_path / "steps.py", tmp_path / "job.toml"
    script.write_text("import time\nfor i in range(12):\n    time.sleep(0.02)\n    print('step', i, flush=True)\n")
    job.write_text(job_file([sys.executable, str(script)], tmp_path)[0])
    done = verbs.run("tune", job, "--no-tui", "--kb", tmp_path / "kb.duckdb")
    assert "details of the best measured configuration, the plain run:" in done.stdout, done.stderr
    assert "expected to be better than the plain run" in done.stdout


FLAGS = "--output_dir out --per_device_train_batch_size 2 --gradient_accumulation_steps 4"


@pytest.mark.parametrize("launcher", ["accelerate launch --num_processes 2", "torchrun --nproc-per-node 2"])
def test_flags_alone_show_a_trainer_s_script_that_is_not_here(tmp_path, launcher):
    """It was an unknown script, with three configurations and no check of its losses."""
    text, notes = job_file(f"{launcher} other.py {FLAGS}".split(), tmp_path)
    assert 'script = "hf-trainer"' in text
    assert any("the flags are those of hf-trainer, but other.py is not on this machine" in note for note in notes)


@pytest.mark.parametrize("line", ["run_clm_no_trainer.py", "main.py --zero_stage 2", "t.py --num_warmup_steps 9"])
def test_flags_of_scripts_with_their_own_loop_do_not(tmp_path, line):
    assert recognised(Line(tuple(f"torchrun --nproc-per-node 2 {line} {FLAGS}".split()), place=tmp_path)) == ""


def test_a_script_that_is_here_is_known_by_its_imports(tmp_path):
    (tmp_path / "other.py").write_text("import argparse")
    assert recognised(Line(tuple(f"torchrun --nproc-per-node 2 other.py {FLAGS}".split()), place=tmp_path)) == ""


def test_a_script_leads_to_the_line_that_starts_it(tmp_path):
    """`tune` named `init SCRIPT`, which then knew no line of it."""
    (tmp_path / "train.py").write_text("print(1)\n")
    for refused in (lambda: load_job(tmp_path / "train.py"), lambda: job_file([str(tmp_path / "train.py")], tmp_path)):
        with pytest.raises(AutoscoutError, match=r"-- torchrun --nproc-per-node 2 .*train.py …"):
            refused()


def test_a_time_that_is_none_is_asked_for_again(tmp_path):
    """`init` alone wrote it into the job, which then could not be read."""
    with pytest.raises(AutoscoutError, match="is not a duration"):
        drafted(JobAnswers(source="vllm serve Qwen/Qwen3-8B", wall="ttft_p99_ms <= 500"), tmp_path)


@pytest.mark.parametrize(
    ("line", "change", "flags"),
    [
        ("torchrun --nproc-per-node 8 pretrain_gpt.py --micro-batch-size 1 --global-batch-size 64 "
         "--overlap-grad-reduce",
         "mbs=4 overlap_grad=false", "--micro-batch-size 4 without --overlap-grad-reduce"),
        ("vllm serve Qwen/Qwen3-8B --max-num-batched-tokens 2048 --max-num-seqs 64", "max_num_batched_tokens=1024",
         "--max-num-batched-tokens 1024"),
    ],
)  # fmt: skip
def test_a_configuration_is_told_by_its_flags_that_the_line_has_not(tmp_path, line, change, flags):
    """A predicted row was a name, from which no way led to flags."""
    (tmp_path / "job.toml").write_text(job_file(line.split(), tmp_path)[0].replace('"GPU"', '"h100"'))
    space = JobSpace.of_job(load_job(tmp_path / "job.toml"))
    other = completed(space, parse(space, change.split()), space.reference)
    assert flags_against(space.job, other, space.reference) == flags


@pytest.mark.parametrize(
    ("job", "name", "knob"),
    [
        ("smallest-cpu", "zero", "distopt"),
        ("smallest-cpu", "gradient_checkpointing", "ar"),
        ("smallest-cpu", "gradient_accumulation_steps", "mbs"),
        ("smallest-cpu", "tensor_parallel", "tp"),
        ("tiny-gpt-deepspeed-cpu", "zero_stage", "stage"),
        ("tiny-llama-serve-cpu", "tensor_parallel", "tp"),  # it was prefill_tp
        ("tiny-llama-serve-cpu", "max-batch-size", "max_num_seqs"),
        ("tiny-llama-serve-cpu", "batch", "max_num_seqs"),  # it was max_num_batched_tokens, as for max_batch
        ("tiny-llama-serve-cpu", "max_batch", "max_num_seqs"),
    ],
)
def test_usual_names_of_knobs_lead_to_ours(job, name, knob):
    """zero and gradient_checkpointing were answered by the list of all knobs."""
    with pytest.raises(AutoscoutError, match=f"did you mean '{knob}'"):
        parse(JobSpace.load(Path(f"fixtures/jobs/{job}.toml")), [f"{name}=2"])
