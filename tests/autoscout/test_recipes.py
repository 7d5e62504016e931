"""Expert recipes: what an expert would sign, in the order in which experts think."""

import re
import sys
from pathlib import Path

import msgspec
import pytest

from autoscout.job.presets import models
from autoscout.simulate.training.memory import estimate_gib
from autoscout.space.explain import completed
from autoscout.targets.jobs import JobSpace
from autoscout.targets.megatron.expert import recommended
from autoscout.targets.target import target_of
from autoscout.tuning.best_predicted import predicts, ranking
from autoscout.tuning.fitting import fits_nowhere
from autoscout.tuning.predict import predict
from kb.records import AutoscoutError, Cluster, Job, LaunchSettings, Model, Node, Objective, SpaceLimits, Traffic

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from published_recipes import FRESH, HELD_OUT, SIGHT, predicted


def space(model: str, device: str, nodes: int, seq_len: int, batch: int) -> JobSpace:
    job = Job(
        name="case",
        target="megatron",
        objective=Objective(minimize="step_time_s"),
        model=msgspec.convert(models()[model], Model),
        traffic=Traffic(seq_len=seq_len, global_batch=batch),
        cluster=Cluster(nodes=[Node(device=device, count=8)] * nodes),
        launch=LaunchSettings(transformer_engine=True),
    )
    return JobSpace.of_job(job)


@pytest.mark.parametrize("batch", [8, 16, 24])
def test_a_small_batch_is_no_reason_for_context_parallel(batch):
    knobs = space("llama-3.1-8b", "a100", 1, 2048, batch).reference.knobs
    assert (knobs["cp"], knobs["ar"]) == (1, "none")


@pytest.mark.parametrize(
    ("model", "nodes", "seq_len", "batch"),
    [("llama-3.1-405b", 64, 8192, 512), ("llama-3.1-70b", 2, 4096, 64), ("llama-3.1-8b", 8, 131072, 64)],
)
def test_tensor_parallel_stays_inside_a_node_and_everything_fits(model, nodes, seq_len, batch):
    found = space(model, "h100", nodes, seq_len, batch)
    for recipe in found.recipes:
        assert int(recipe.knobs["tp"]) <= 8
        assert estimate_gib(found.attributes, recipe) < 80


def test_the_guide_splits_before_it_recomputes_and_dp_first_does_not():
    guide, dp_first = space("llama-3.1-8b", "a100", 1, 8192, 128).recipes
    assert (guide.knobs["tp"], guide.knobs["ar"]) == (2, "none")
    assert (dp_first.knobs["dp"], dp_first.knobs["ar"]) == (8, "full")


def test_a_kind_alone_is_filled_as_far_as_the_job_says():
    """What fits into 80 GiB was advised for those of 40."""
    job = space("llama-3.1-8b", "h100", 1, 8192, 128).job
    nodes = [Node(device="h100", count=8), Node(device="a100", count=8, memory_gib=40)]
    mixed = JobSpace.of_job(msgspec.structs.replace(job, cluster=Cluster(nodes=nodes)))
    alone = recommended(mixed, "guide", [{"h100": 0, "a100": 8}])
    assert estimate_gib(mixed.attributes, alone) < 40


def test_what_has_no_bf16_is_said():
    """Predicted as fast as fp16, which no job can ask for."""
    old, new = (space("llama-3.2-3b", device, 1, 2048, 64).job for device in ("v100", "a100"))
    assert "v100: the tensor cores have no bf16" in " ".join(target_of(old).notes_on_job(old))
    assert target_of(new).notes_on_job(new) == []


def test_long_sequences_are_split():
    assert int(space("llama-3.1-8b", "h100", 8, 131072, 64).reference.knobs["cp"]) > 1


@pytest.mark.parametrize("recipe", [SIGHT[4], HELD_OUT[6], FRESH[7], HELD_OUT[13]], ids=lambda r: r.model)
def test_published_recipes_are_configurations_and_ours_are_predicted_to_be_as_fast(recipe):
    _, theirs, _, ours, _ = predicted(recipe)
    assert ours < 1.25 * theirs


def test_a_model_that_fits_nowhere_is_said_by_how_much_and_what_would_hold_it():
    said = fits_nowhere(space("llama-3.1-405b", "h100", 1, 8192, 64))
    assert re.search(
        r"fits nowhere on 8 devices of 79.1 GiB: .* takes \d{3,} GiB on one rank "
        r"\(probability of running out of memory 100%\); about \d{2,}",
        said,
    )
    assert fits_nowhere(space("llama-3.1-8b", "h100", 1, 8192, 64)) == ""


def test_what_would_fit_if_the_job_allowed_it_is_said_wherever_nothing_fits():
    """`predict --best` said only that nothing runs; the state that is offloaded counted as on the device."""
    job = space("llama-3.1-70b", "a100", 4, 8192, 256).job
    cluster = Cluster(nodes=[Node(device="a100", count=8, memory_gib=40)] * 4)
    tight = JobSpace.of_job(msgspec.structs.replace(job, cluster=cluster))
    assert fits_nowhere(tight).endswith(", or use these devices with [space] allow = ['offload']")
    with pytest.raises(AutoscoutError, match=r"fits nowhere on 32 devices .* allow = ") as refused:
        ranking(tight, tight.job, None, 3)
    assert refused.value.exit_code == 3
    allowed = msgspec.structs.replace(tight.job, space=SpaceLimits(allow=["offload"]))
    found = ranking(JobSpace.of_job(allowed), allowed, None, 3)
    assert found.best[0].memory_gib is not None
    assert found.best[0].memory_gib < 38
    assert found.unpriced == ["offload"]


@pytest.mark.parametrize(
    ("knobs", "saved"),
    [
        ({"offload": 0.5}, 6.0 / 2),  # half of 12 bytes of each parameter that two replicas share
        ({"moments": "bf16"}, 4.0 / 2),
        ({"moments": "fp8"}, 6.0 / 2),
        ({"fsdp": "optim_grads"}, 4.0 / 2),
        ({"fsdp": "optim_grads_params"}, 4.0),  # weights in fp32 are the master weights
    ],
)
def test_what_shards_or_offloads_state_takes_as_much_less(knobs, saved):
    """It was what the job takes without it."""
    job = space("llama-3.1-8b", "h100", 1, 2048, 64).job
    job = msgspec.structs.replace(job, space=SpaceLimits(allow=["offload", "moments", "fsdp"]))
    of = JobSpace.of_job(job)
    plain = completed(of, {"tp": 4, "dp": 2, "distopt": True, "mbs": 1, "ar": "full"}, of.reference).knobs
    before = predict(of, plain, None).memory
    after = predict(of, {**plain, **knobs}, None).memory
    assert before is not None
    assert after is not None
    parameters = before.parts["weights"] / 2
    states = [sum(m.parts[name] for name in ("weights", "gradients", "optimizer")) for m in (before, after)]
    assert states[0] - states[1] == pytest.approx(saved * parameters, rel=0.01)


def test_copies_of_what_only_fits_when_it_is_sharded_fit_nowhere_until_that_is_allowed():
    """Eight billion parameters, each rank with all of them in 32 bits, their gradients twice and two moments."""
    job = space("llama-3.1-8b", "a100", 1, 4096, 64).job
    launch = msgspec.structs.replace(
        job.launch, script="hf-trainer", command="torchrun --nproc-per-node {gpus} run_clm.py"
    )
    job = msgspec.structs.replace(job, target="command", launch=launch)
    assert "fits nowhere on 8 devices" in fits_nowhere(JobSpace.of_job(job))
    allowed = msgspec.structs.replace(job, space=SpaceLimits(allow=["fsdp"]))
    assert fits_nowhere(JobSpace.of_job(allowed)) == ""


@pytest.mark.parametrize("script", ["torchtitan"])
def test_what_shards_by_knobs_of_its_own_is_not_said_to_fit_nowhere(script):
    """FSDP of 8 billion parameters was said to need 161 GiB a device of eight, and 18 such devices: states were not
    sharded, as no knob is called dp or distopt there."""
    job = space("llama-3.1-8b", "a100", 1, 4096, 64).job
    line = "torchrun --nproc-per-node {gpus} train.py"
    launch = msgspec.structs.replace(job.launch, script=script, command=line)
    theirs = JobSpace.of_job(msgspec.structs.replace(job, target="command", launch=launch))
    assert fits_nowhere(theirs) == ""
    assert not predicts(theirs)
    with pytest.raises(AutoscoutError, match="nothing can predict step_time_s"):
        predict(theirs, {}, None)


def test_what_a_persons_catalog_says_of_its_knobs_is_predicted(tmp_path):
    """The same job with a catalog whose `[simulated]` says which knob shards: FSDP of 8 billion parameters on eight."""
    own = """extends = "command"
[simulated]
zero = "3 if shard else 0"
mbs = "micro"
[[knob]]
name = "shard"
kind = "sparse"
layer = "parallelism"
values = [false, true]
sets = "--shard"
meaning = "FSDP"
[[knob]]
name = "micro"
kind = "dense"
layer = "schedule"
values = [1, 2]
sets = "--micro"
meaning = "samples at once"
"""
    (tmp_path / "own.toml").write_text(own)
    job = space("llama-3.1-8b", "a100", 1, 4096, 64).job
    launch = msgspec.structs.replace(job.launch, command="torchrun --nproc-per-node {gpus} train.py")
    limits = SpaceLimits(catalog=[str(tmp_path / "own.toml")])
    theirs = JobSpace.of_job(msgspec.structs.replace(job, target="command", launch=launch, space=limits))
    whole, sharded = (predict(theirs, {"shard": on, "micro": 1}, None).memory for on in (False, True))
    assert whole is not None
    assert sharded is not None
    assert whole.oom_probability > 0.9
    assert sharded.oom_probability < 0.5
    assert predict(theirs, {"shard": True, "micro": 2}, None).value > 0


def test_on_a_device_that_no_hardware_file_describes_nothing_is_said_to_fit_nowhere():
    """It was said of a model that needs 7 GiB of 40."""
    job = space("llama-3.1-8b", "h100", 1, 8192, 64).job
    for others in ([], [Node(device="h100", count=8)]):
        cluster = Cluster(nodes=[*others, Node(device="nobodys", count=8, memory_gib=40)])
        strange = JobSpace.of_job(msgspec.structs.replace(job, cluster=cluster))
        assert fits_nowhere(strange) == ""
        with pytest.raises(AutoscoutError, match="no constants for device nobodys"):
            predict(strange, {}, None)
        assert not predicts(strange), "`check` and `tune` named `predict --best` as what helps"
    assert predicts(JobSpace.of_job(job))
