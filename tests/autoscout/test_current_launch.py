"""`[launch] current`: what a person runs today, read as a configuration of the target that they name."""

import msgspec
import numpy as np
import pytest
from landscape import job_of

from autoscout.job.presets import models
from autoscout.targets.jobs import JobSpace
from autoscout.targets.target import reference_of, target_of
from kb.records import (
    Cluster,
    Configuration,
    Job,
    LaunchSettings,
    Model,
    Node,
    Objective,
    OwnKnob,
    SpaceLimits,
    Traffic,
)


def training(line: str = "", nodes: int = 4) -> Job:
    return Job(
        name="mine",
        target="megatron",
        objective=Objective(minimize="step_time_s"),
        model=msgspec.convert(models()["llama-3.1-70b"], Model),
        traffic=Traffic(seq_len=8192, global_batch=128),
        cluster=Cluster(nodes=[Node(device="h100", count=8)] * nodes),
        launch=LaunchSettings(transformer_engine=True, current=line),
    )


def line_of(job: Job, configuration: Configuration, program: str = "torchrun pretrain_gpt.py") -> str:
    flags = target_of(job).launch(job, configuration).arguments
    words = []
    for flag, value in flags.items():
        words += [flag] if value is True else [flag, *map(str, value if isinstance(value, list) else [value])]
    return " ".join([program, *words])


def with_current(job: Job, line: str) -> Job:
    return msgspec.structs.replace(job, launch=msgspec.structs.replace(job.launch, current=line))


def test_the_line_that_a_configuration_launches_is_read_as_that_configuration():
    job = training()
    space = JobSpace.of_job(job)
    for seed in range(6):
        wanted = space.sample(np.random.default_rng(seed))
        found = target_of(job).recipes(JobSpace.of_job(with_current(job, line_of(job, wanted))))
        assert next(iter(found)).knobs == {**wanted.knobs, **({"tp_comm": 16} if "tp_comm" in wanted.knobs else {})}


def test_the_line_that_vllm_serves_with_is_read_as_that_configuration():
    job = job_of("llama-3-8b-serve")
    job = msgspec.structs.replace(job, cluster=Cluster(nodes=[Node(device="h100", count=2)]))
    space = JobSpace.of_job(job)
    for seed in range(3):
        wanted = space.sample(np.random.default_rng(seed))
        line = target_of(job).probe_line(job, wanted, None)  # type: ignore[arg-type]
        found = target_of(job).recipes(JobSpace.of_job(with_current(job, line)))
        assert next(iter(found)) == wanted


def test_older_spellings_and_what_is_not_said():
    line = (
        "torchrun --nnodes 4 --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size=4 --sequence-parallel "
        "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 4 --micro-batch-size 1 "
        "--recompute-activations --context-parallel-size 2"
    )
    job = training(line)
    knobs = JobSpace.of_job(job).reference.knobs
    assert {n: knobs[n] for n in ("tp", "pp", "cp", "dp", "vpp", "sp", "ar", "ar_modules", "distopt")} == {
        **{"tp": 4, "pp": 4, "cp": 2, "dp": 1, "vpp": 5, "sp": True},
        **{"ar": "selective", "ar_modules": "core_attn", "distopt": False},
    }
    assert len(JobSpace.of_job(job).recipes) == 3  # and the experts'
    assert target_of(job).notes_on_job(job) == []
    assert reference_of(job) == "your present launch"
    foreign = msgspec.structs.replace(job, target="nobodys")  # in the journal of a target that is not installed here
    assert reference_of(foreign) == "your present launch"


@pytest.mark.parametrize(
    ("old", "layers"),
    [
        ("--checkpoint-activations", 1),
        ("--activations-checkpoint-method uniform", 1),
        ("--activations-checkpoint-method uniform --activations-checkpoint-num-layers 2", 2),
    ],
)
def test_recomputation_by_its_oldest_names_is_read(old, layers):
    """It was predicted to keep all activations."""
    job = training(f"torchrun pretrain_gpt.py --tensor-model-parallel-size 4 --micro-batch-size 1 {old}")
    knobs = JobSpace.of_job(job).reference.knobs
    assert (knobs["ar"], knobs["ar_method"], knobs["ar_layers"]) == ("full", "uniform", layers)


@pytest.mark.parametrize(("more", "share"), [("", 1.0), ("--optimizer-offload-fraction 0.5", 0.5)])
def test_an_optimizer_is_offloaded_whole_unless_the_line_says_how_much(more, share):
    """A quarter was taken for what the line does."""
    line = f"torchrun pretrain_gpt.py --tensor-model-parallel-size 4 --optimizer-cpu-offload {more}"
    job = training(f"{line} --use-precision-aware-optimizer --use-distributed-optimizer --micro-batch-size 1")
    job = msgspec.structs.replace(job, space=SpaceLimits(allow=["offload", "moments"]))
    assert JobSpace.of_job(job).reference.knobs["offload"] == share


@pytest.mark.parametrize(("more", "kept"), [("", "fp32"), ("--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16", "bf16")])
def test_moments_are_whole_unless_the_line_says_otherwise(more, kept):
    """bf16 was taken for what the line does, 4 bytes a parameter less."""
    line = f"torchrun pretrain_gpt.py --tensor-model-parallel-size 4 --use-distributed-optimizer {more}"
    job = training(f"{line} --use-precision-aware-optimizer --micro-batch-size 1")
    job = msgspec.structs.replace(job, space=SpaceLimits(allow=["moments"]))
    assert JobSpace.of_job(job).reference.knobs["moments"] == kept


def test_gradients_in_16_bits_keep_the_optimizer_that_they_need():
    """Without it Megatron-LM refuses --main-grads-dtype bf16."""
    line = "torchrun pretrain_gpt.py --tensor-model-parallel-size 4 --use-distributed-optimizer --micro-batch-size 1"
    for dtypes, kept in (("--main-grads-dtype bf16", True), ("", None)):
        job = training(f"{line} --use-precision-aware-optimizer {dtypes}")
        job = msgspec.structs.replace(job, space=SpaceLimits(allow=["moments"]))
        launch = target_of(job).launch(job, JobSpace.of_job(job).reference)
        assert launch.arguments.get("--use-precision-aware-optimizer") is kept


def test_what_of_a_line_no_configuration_has_is_told():
    """Uneven stages became even ones in silence."""
    line = "pretrain_gpt.py --pipeline-model-parallel-size 4 --tensor-model-parallel-size 8 --micro-batch-size 1"
    job = training(f"{line} --decoder-first-pipeline-num-layers 19 --decoder-last-pipeline-num-layers 19")
    (note,) = [note for note in target_of(job).notes_on_job(job) if "is ignored" in note]
    assert "--decoder-first-pipeline-num-layers, --decoder-last-pipeline-num-layers" in note
    assert not [note for note in target_of(training(line)).notes_on_job(training(line)) if "is ignored" in note]


def test_a_line_that_the_space_cannot_have_is_told():
    job = training("pretrain_gpt.py --tensor-model-parallel-size 32 --micro-batch-size 3")
    (note,) = target_of(job).notes_on_job(job)
    assert note.startswith("launch.current is not valid: the nearest valid configuration is used instead, with ")
    assert "--micro-batch-size" in note


def test_a_line_that_another_configuration_runs_alike_is_measured_as_that_one():
    """It was said that the line cannot be had."""
    job = job_of("llama-3-8b-serve")
    job = msgspec.structs.replace(job, traffic=Traffic(concurrency=32, input_len=1024, output_len=256))
    job = with_current(job, "vllm serve M --max-num-seqs 256")
    (note,) = target_of(job).notes_on_job(job)
    assert note == (
        "launch.current is measured with --max-num-seqs 32: 32 users never have 256 requests running: the same run "
        "as with a smaller limit"
    )


def test_a_line_that_contradicts_what_is_fixed_is_told():
    job = training("pretrain_gpt.py --tensor-model-parallel-size 8 --sequence-parallel --micro-batch-size 1")
    job = msgspec.structs.replace(job, space=SpaceLimits(fix={"tp": 4}))
    (note,) = target_of(job).notes_on_job(job)
    assert "--tensor-model-parallel-size 4" in note


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("pretrain_gpt.py --micro-batch-size 1 --num-layers 32", "--num-layers 32, but the job has 80"),
        ("torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py --micro-batch-size 1", "2 × 8 ranks, but the cluster"),
        ("bash train.sh", "none of Megatron-LM's flags"),
        ("pretrain_gpt.py --micro-batch-size '1", "a quote is opened and never closed"),
        ("pretrain_gpt.py --micro-batch-size 1 --use-torch-fsdp2", "has --use-torch-fsdp2, which neither"),
    ],
)
def test_a_line_that_contradicts_the_job_is_refused(line, said):
    (problem,) = target_of(training(line)).problems(training(line))
    assert said in problem


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("torchrun train.py --mbs 2 --data '$DATA/$(date)'", "$(…), $DATA"),
        ("torchrun train.py --mbs 2 a=${b.c} --pattern 'x$'", ""),
        ("bash -c 'torchrun train.py --mbs {mbs} $DATA'", ""),
    ],
)
def test_what_no_shell_fills_in_is_said_by_check_too(line, said):
    """It stood at the head of the job's file alone, and every run ended in a file that is not there."""
    knob = [OwnKnob(name="mbs", values=[1, 2], sets="{mbs}" if "{mbs}" in line else "--mbs")]
    job = Job(
        name="mine",
        target="command",
        objective=Objective(minimize="step_time_s"),
        cluster=Cluster(nodes=[Node(device="cpu", count=1)]),
        launch=LaunchSettings(command=line, metrics={"step_time_s": "s ([0-9.]+)"}),
        space=SpaceLimits(knob=knob),
    )
    notes = [note for note in target_of(job).notes_on_job(job) if "which no shell expands here" in note]
    assert [note.split(" has ")[1].split(", which")[0] for note in notes] == ([said] if said else [])
