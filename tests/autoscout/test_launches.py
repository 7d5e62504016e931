"""One mapping: what an experiment is given is what an export carries, and no two configurations are the same launch."""

import functools
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscout.deploy.rendering import formats, render
from autoscout.targets.jobs import JobSpace, catalog_of, load_job
from autoscout.targets.launch import Launch
from autoscout.targets.megatron.profiler import worker_config
from autoscout.targets.target import Target, names, target, target_of
from kb.records import AutoscoutError, Cluster, Configuration, Draft, Job, Node, SpaceLimits

JOBS = (
    "tiny-gpt-cpu",
    "tiny-moe-cpu",
    "llama-3.2-3b",
    "qwen3-30b-a3b",
    "tiny-llama-serve-cpu",
    "llama-3-8b-serve",
    "fixtures/spaces/own-knob.toml",
)
ALLOWED = {  # knobs that a job has to allow, in spaces small enough for a test: job → [space]
    "newer-dense": ("llama-3.2-3b", {"ar": "none", "vpp": 1, "mbs": 1, "overlap_grad": False, "ce_fusion": False}),
    "newer-experts": ("qwen3-30b-a3b", {"ar": "none", "mbs": 1, "vpp": 1, "permute_fusion": False, "etp": 1}),
    "newer-serving": ("llama-3-8b-serve", {"block_size": 16, "long_prefill": 0, "graph_size": 512, "tp": 1}),
}


@functools.cache
def job_of(name: str) -> Job:
    if name in ALLOWED:
        return _allowing_all(*ALLOWED[name])
    job = load_job(name if name.endswith(".toml") else f"fixtures/jobs/{name}.toml")
    if job.target == "megatron" and any(node.device != "cpu" for node in job.cluster.nodes):
        # Everything that Transformer Engine activates, in a space small enough for a test.
        launch = msgspec.structs.replace(job.launch, transformer_engine=True)
        fix = {"vpp": 1, "ar_method": "block"} if job.model.experts else {}
        job = msgspec.structs.replace(job, launch=launch, space=SpaceLimits(fix=fix))
    return job


def _allowing_all(name: str, fix: dict) -> Job:
    job = load_job(f"fixtures/jobs/{name}.toml")
    asking = [knob.name for knob in catalog_of(job).knob if knob.asks]
    serving = {"draft": Draft(method="eagle3", model="folder"), "kv_folder": "/tmp/kv"} if job.task == "serve" else {}
    launch = msgspec.structs.replace(job.launch, transformer_engine=job.task != "serve", **serving)
    traffic = msgspec.structs.replace(job.traffic, **({"shared_prefix": 256} if serving else {}))
    cluster = Cluster(nodes=[Node(device="h100", count=8)])
    space = SpaceLimits(fix=fix, allow=asking)
    return msgspec.structs.replace(job, launch=launch, cluster=cluster, traffic=traffic, space=space)


@functools.cache
def space_of(name: str) -> JobSpace:
    return JobSpace.of_job(job_of(name))


def launched(name: str, configuration: Configuration) -> Launch:
    return target_of(job_of(name)).launch(job_of(name), configuration)


def same(one: Launch, other: Launch) -> bool:
    return msgspec.json.encode(one) == msgspec.json.encode(other)


@pytest.mark.parametrize("name", [*JOBS, *ALLOWED])
@given(seed=st.integers(0, 2**32))
def test_configurations_that_differ_are_launches_that_differ(name: str, seed: int) -> None:
    space, rng = space_of(name), np.random.default_rng(seed)
    one = space.sample(rng)
    launch = launched(name, one)
    near = space.neighbours(one)
    some = [near[i] for i in rng.permutation(len(near))[:8]]
    for other in [*some, space.sample(rng)]:
        assert same(launch, launched(name, other)) == (one == other), (one.knobs, other.knobs)


@pytest.mark.parametrize("name", [*JOBS, *ALLOWED])
def test_every_knob_reaches_the_launch(name: str) -> None:
    """For each knob two configurations that differ in it alone, or as little as the space allows."""
    space = space_of(name)
    rows = [space.sample(np.random.default_rng(i)) for i in range(400)]
    for knob in space.knobs:
        changed = 0
        for row in rows:
            if knob.name not in row.knobs:
                continue
            for value in knob.values:
                other = space.nearest({**row.knobs, knob.name: value}, firm={knob.name: value})
                if other is not None and other.knobs.get(knob.name) != row.knobs[knob.name]:
                    assert not same(launched(name, row), launched(name, other)), (knob.name, row.knobs, other.knobs)
                    changed += 1
            if changed > 5:
                break


@pytest.mark.parametrize("name", [name for name in (*JOBS, *ALLOWED) if "serv" not in name])
def test_the_worker_is_given_what_is_exported(name: str) -> None:
    job, space = job_of(name), space_of(name)
    for seed in range(20):
        configuration = space.sample(np.random.default_rng(seed))
        given = dict(worker_config(job, configuration, [])["arguments"])
        exported = dict(launched(name, configuration).arguments)
        if "--tp-comm-overlap-cfg" in given:  # a file of the same number for each GEMM
            assert f"num_sm: {given.pop('--tp-comm-overlap-cfg')}\n" in "".join(
                launched(name, configuration).files.values()
            )
            exported.pop("--tp-comm-overlap-cfg")
        assert given == exported


@pytest.mark.parametrize("name", [*JOBS, *ALLOWED])
def test_every_format_carries_every_argument(name: str) -> None:
    job = job_of(name)
    launch = launched(name, space_of(name).sample(np.random.default_rng(1)))
    for form in formats(target_of(job)):
        text = render(target_of(job), launch, form)
        for flag in launch.arguments:
            word = flag.removeprefix("--").removeprefix("no-")
            assert word in text, (form, flag)
    assert json.loads(render(target_of(job), launch, "json"))["arguments"].keys() == launch.arguments.keys()
    with pytest.raises(AutoscoutError, match="--format 'ymal' is unknown; did you mean 'yaml'"):
        render(target_of(job), launch, "ymal")


def test_a_knob_that_no_flag_says_is_refused() -> None:
    job = job_of("tiny-gpt-cpu")
    with pytest.raises(AutoscoutError, match="no flag of Megatron-LM is known for the knob moonlight"):
        target_of(job).launch(job, Configuration({"mbs": 1, "moonlight": True}))


def test_an_activation_that_megatron_fuses_with_a_bias_only_is_not_fused_without() -> None:
    """ValueError otherwise: "when bias_activation_fusion is True, gated_linear_unit is False and activation function is
    gelu, add_bias_linear must also be True"."""
    job = job_of("llama-3.2-3b")
    asked = {}
    for bias in (False, True):
        plain = msgspec.structs.replace(job, model=msgspec.structs.replace(job.model, gated=False, bias=bias))
        configuration = space_of("llama-3.2-3b").sample(np.random.default_rng(0))
        asked[bias] = worker_config(plain, configuration, [])["arguments"]
    assert asked[False]["--transformer-impl"] == "transformer_engine"
    assert asked[False].get("--no-bias-gelu-fusion")
    assert "--no-bias-gelu-fusion" not in asked[True]


def test_a_mixed_cluster_starts_on_each_node_what_it_has() -> None:
    job = job_of("llama-3.2-3b")
    both = Configuration({"a100": 8, "a40": 4, "tp": 1, "pp": 1, "cp": 1, "dp": 12, "mbs": 1})
    launch = target_of(job).launch(job, both)
    assert (launch.devices, launch.ranks, launch.nodes) == ([8, 4], [8, 4], 2)
    command, script = (render(target_of(job), launch, form) for form in ("command", "slurm"))
    assert "RANKS=(8 4)" in command
    assert "export RANKS='8 4'" in script
    alone = target_of(job).launch(job, Configuration({"a100": 8, "a40": 0, "tp": 1, "dp": 8, "mbs": 1}))
    assert (alone.devices, alone.nodes) == ([8], 1)
    assert "--nproc-per-node 8 --nnodes 1" in render(target_of(job), alone, "command")


@pytest.mark.parametrize("name", names())
def test_targets_are_found_by_name(name: str) -> None:
    found = target(name)
    assert isinstance(found, Target)
    assert found.name == name
    assert found.about


def test_an_unknown_target_is_one_sentence(tmp_path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(Path("fixtures/jobs/tiny-gpt-cpu.toml").read_text().replace('"megatron"', '"megatorn"'))
    with pytest.raises(AutoscoutError, match="did you mean 'megatron'"):
        load_job(path)


def test_a_dry_run_says_what_each_of_several_nodes_starts() -> None:
    mixed, alone = (job_of("llama-3.2-3b"), job_of("tiny-gpt-cpu"))
    both = Configuration({"a100": 8, "a40": 4, "tp": 1, "pp": 1, "cp": 1, "dp": 12, "mbs": 1})
    lines = target_of(mixed).probe_line(mixed, both, Path("experiment.json")).splitlines()
    for node, (line, ranks) in enumerate(zip(lines, (8, 4), strict=True)):
        assert f"--nproc-per-node {ranks} --nnodes 2 --node-rank {node} --master-addr" in line
    nodes = Cluster(nodes=[Node(device="h100", count=8)] * 4)
    alike = msgspec.structs.replace(mixed, cluster=nodes)
    (line,) = target_of(alike).probe_line(alike, Configuration({"dp": 32, "mbs": 1}), Path("e.json")).splitlines()
    assert '--nproc-per-node 8 --nnodes 4 --node-rank "$NODE" --master-addr "$HEAD"' in line
    assert "--nnodes" not in target_of(alone).probe_line(alone, Configuration({"dp": 4, "mbs": 1}), Path("e.json"))
