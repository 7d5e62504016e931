"""The catalogs that we ship: Megatron, vLLM, DeepSpeed; their rules in words; their expert defaults."""

import re
import string
from pathlib import Path

import msgspec
import numpy as np
import pytest
import verbs

from autoscout.space.attributes import attributes_of
from autoscout.space.explain import explain, parse
from autoscout.targets.jobs import JobSpace
from autoscout.targets.target import shipped
from kb.records import AutoscoutError, Cluster, Configuration, Node, SpaceLimits
from tests.tools.count_spaces import of_catalog

TARGETS = ("megatron", "vllm", "deepspeed")
PAPER = ("llama-3.2-3b", "llama-3.1-nemotron-nano-8b", "qwen3-30b-a3b", "llama-3-8b-serve")
SERVE, DEEPSPEED = "tiny-llama-serve-cpu", "tiny-gpt-deepspeed-cpu"


def job_of(name: str):
    return of_catalog(Path("fixtures/jobs") / f"{name}.toml")


def space_of(name: str, **limits) -> JobSpace:
    job = job_of(name)
    return JobSpace.of_job(msgspec.structs.replace(job, space=SpaceLimits(**limits)) if limits else job)


@pytest.mark.parametrize("target", TARGETS)
def test_what_acts_on_gpus_says_nothing_of_cpus(target):
    """`explain` of a job on GPUs told that pp crashes on CPUs."""
    on_gpus = [knob for knob in shipped(target).knob if "cuda" in f"{knob.when} {knob.values}".replace("not cuda", "")]
    assert on_gpus
    assert [knob.name for knob in on_gpus if "CPU" in knob.meaning or "device is the host" in knob.meaning] == []


@pytest.mark.parametrize("target", TARGETS)
def test_every_entry_says_what_it_is(target):
    catalog = shipped(target)
    assert catalog.target == target
    assert catalog.version
    for knob in catalog.knob:
        assert knob.meaning
        assert knob.sets
        assert knob.layer
    for rule in catalog.rule:
        assert rule.reason
        assert rule.source


@pytest.mark.parametrize("name", [*PAPER, SERVE, DEEPSPEED, "tiny-moe-cpu"])
def test_every_reason_can_be_said(name):
    job = job_of(name)
    space = JobSpace.of_job(job)
    known = {
        *space.knob,
        *space.attributes,
        *space.derived,
        "gpus",
        "device_gib",
    }
    for rule in space.rules:
        assert {field for _, field, _, _ in string.Formatter().parse(rule.reason) if field} <= known


@pytest.mark.parametrize("name", PAPER)
def test_the_jobs_of_the_paper(name):
    space = space_of(name)
    assert space.count > 30_000
    assert space.violations(space.reference) == []
    assert {"a100", "a40"} <= space.knob.keys()


def test_spaces_without_transformer_engine_are_as_they_were():
    """The recorded landscape of smallest-cpu holds every valid configuration: 330."""
    for name, count in {"smallest-cpu": 330, "tiny-gpt-cpu": 4432, "tiny-moe-cpu": 10671}.items():
        space = space_of(name)
        assert space.count == count
        acting = {knob for c in (space.sample(np.random.default_rng(i)) for i in range(200)) for knob in c.knobs}
        assert not acting & {"ar_modules", "cp_comm", "permute_fusion", "ce_fusion", "tp_comm"}


def test_transformer_engine_brings_what_only_it_can_do():
    job = job_of("qwen3-30b-a3b")
    job = msgspec.structs.replace(
        job,
        launch=msgspec.structs.replace(job.launch, transformer_engine=True),
        space=SpaceLimits(fix={"a40": 0, "dp": 1, "ar": "selective", "mbs": 1}),
    )
    space = JobSpace.of_job(job)
    drawn = [space.sample(np.random.default_rng(i)).knobs for i in range(300)]
    assert {"ar_modules", "cp_comm", "permute_fusion"} <= {knob for knobs in drawn for knob in knobs}
    modules = {"core_attn", "moe", "moe_act", "layernorm", "core_attn+layernorm", "layernorm+moe_act"}
    assert {k["ar_modules"] for k in drawn} == modules
    for knobs in drawn:  # Transformer Engine exchanges whole heads: 32 and 4 of them
        assert knobs.get("cp_comm") != "a2a" or 4 % (knobs["tp"] * knobs["cp"]) == 0  # type: ignore[operator]


def test_each_of_megatrons_97_rules_is_in_the_catalog_or_on_the_page():
    catalog = shipped("megatron")
    counts = {"W": 13, "T": 12, "P": 17, "B": 3, "C": 5, "M": 17, "R": 13, "D": 13, "I": 4}
    collected = {f"{letter}{i}" for letter, count in counts.items() for i in range(1, count + 1)}
    assert len(collected) == 97
    here = {r.id for r in catalog.rule} | {rule for knob in catalog.knob for rule in knob.keeps}
    rest = Path("docs/lab/knobs.md").read_text().split("### The other rules of Megatron")[1].split("## vLLM")[0]
    listed = {
        rule for line in rest.splitlines() for rule in re.findall(r"\b[A-Z]\d+\b", line.split("|")[1:2].__str__())
    }
    assert collected - here == listed


EXPLAINED = [
    ("tiny-gpt-cpu", ["tp=2", "pp=2", "dp=2"], "W1", "must equal the 4 devices"),
    ("tiny-gpt-cpu", ["pp=2", "vpp=2", "overlap_p2p=false"], "P9", "trains incorrectly"),
    ("tiny-gpt-cpu", ["mbs=8", "dp=4"], "B1", "does not split into micro batches of 8"),
    (
        "tiny-gpt-cpu",
        ["ar=full", "ar_method=uniform", "pp=4", "ar_layers=8"],
        "R7",
        "groups of 8 layers are more than a chunk has",
    ),
    ("tiny-moe-cpu", ["tp=2", "sp=false"], "M3", "needs sequence parallel"),
    ("llama-3.2-3b", ["tp=8", "a100=8", "a40=4"], "H2", "two kinds of device"),
    (SERVE, ["max_num_seqs=32", "max_num_batched_tokens=64", "chunked_prefill=false"], "VS2", "step of 64 tokens"),
    (SERVE, ["max_num_seqs=256"], "VS3", "24 users never have 256"),
    (SERVE, ["max_num_seqs=128", "max_num_batched_tokens=64"], "VS1", "cannot give each of 128 requests one"),
    ("llama-3-8b-serve", ["a100=8", "a40=4"], "H3", "two kinds of device"),
    ("llama-3-8b-serve", ["graph_size=512", "max_num_batched_tokens=512", "max_num_seqs=16"], "", ""),
    (DEEPSPEED, ["mbs=16"], "DB1", "micro batches of 16 on 2 devices"),
    (DEEPSPEED, ["stage=2", "reduce_bucket=500000000"], "DI1", "the same run as with a smaller one"),
]


@pytest.mark.parametrize(("name", "given", "rule", "words"), EXPLAINED)
def test_explain_has_words_for_every_family_of_rules(name, given, rule, words):
    space = space_of(name)
    explanation = explain(space, parse(space, given), space.reference)
    if not rule:
        assert explanation.configuration is not None
        return
    assert explanation.configuration is None
    assert words in next(v.sentence for v in explanation.violations if v.rule == rule)
    assert explanation.nearest is not None
    assert space.is_valid(explanation.nearest)


def test_groups_of_recomputed_layers_divide_the_ends_of_a_pipeline_too():
    """Shadows found it: Megatron-core takes these degrees, and raises IndexError in the first step."""
    of = job_of("tiny-gpt-cpu")
    space = JobSpace.of_job(msgspec.structs.replace(of, model=msgspec.structs.replace(of.model, layers=6)))
    own = {"pp": 4, "dp": 1, "vpp": 1, "stage_split": "even", "first_layers": 1, "last_layers": 1, "mbs": 1}
    knobs = {**space.reference.knobs, **own, "ar": "full", "ar_method": "uniform"}
    assert "R5" in [v.rule for v in space.violations(Configuration({**knobs, "ar_layers": 2}))]
    assert "R5" not in [v.rule for v in space.violations(Configuration({**knobs, "ar_layers": 1}))]


# ---- vLLM -------------------------------------------------------------------------------------------------


def test_what_vllm_overrides_silently_on_cpus_never_acts_there():
    space = space_of(SERVE)
    overridden = {"async_scheduling", "cudagraph_mode", "graph_size", "gpu_memory_utilization", "kv_offload"}
    for i in range(200):
        assert not overridden & space.sample(np.random.default_rng(i)).knobs.keys()
    explanation = explain(space, parse(space, ["async_scheduling=true"]), space.reference)
    assert explanation.violations[0].sentence == (
        "async_scheduling has no effect here: it needs cuda and spec not in ('ngram', 'medusa', 'mlp_speculator')"
    )


def test_what_cannot_matter_to_vllm_is_absent():
    space = space_of("llama-3-8b-serve")
    for i in range(300):
        knobs = space.sample(np.random.default_rng(i)).knobs
        assert "prefix_caching" not in knobs  # nothing is shared
        assert ("spec_tokens" in knobs) == (knobs["spec"] == "ngram")
        assert ("async_scheduling" in knobs) == (knobs["spec"] == "none")
        assert ("graph_size" in knobs) == (not knobs["eager"])
        assert (knobs["a100"], knobs["a40"]) in ((8, 0), (0, 4))


def test_the_kv_cache_must_hold_one_request_and_a_block():
    """Tried by starting engines: 128 tokens in blocks of 32 need 5 blocks of 64 KiB; in fp8 half of that."""
    job = job_of(SERVE)
    job = msgspec.structs.replace(job, model=msgspec.structs.replace(job.model, dtype="bf16"))
    attributes = attributes_of(job)
    assert attributes["model_len"] == 128
    job = msgspec.structs.replace(job, space=SpaceLimits(allow=["kv_cache_dtype"]))
    rule = next(r for r in JobSpace.of_job(job).rules if r.id == "VK2")
    base = {**attributes, "tp": 1, "pp": 1, "block_size": 32}
    for dtype, enough in (("auto", 327_680), ("fp8", 163_840)):
        assert rule.holds({**base, "kv_cache_dtype": dtype, "kv_cache_mib": enough / 2**20})
        assert not rule.holds({**base, "kv_cache_dtype": dtype, "kv_cache_mib": (enough - 1) / 2**20})


def test_weights_that_do_not_fit_need_more_devices():
    job = job_of("llama-3.1-8b-serve-azure")
    small = msgspec.structs.replace(job, cluster=Cluster(nodes=[Node(device="a40", count=4, memory_gib=12)]))
    space = JobSpace.of_job(small)
    shapes = {(k["tp"], k["pp"]) for k in (space.sample(np.random.default_rng(i)).knobs for i in range(200))}
    assert (1, 1) not in shapes
    assert space.reference.knobs["tp"] == 2
    assert JobSpace.of_job(job).reference.knobs["tp"] == 1


def test_lengths_come_from_the_trace(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0.0,1000,20\n1.5,40,300\n")
    job = job_of(SERVE)
    traced = msgspec.structs.replace(job, traffic=msgspec.structs.replace(job.traffic, trace=str(trace)))
    attributes = attributes_of(traced)
    assert (attributes["longest_input"], attributes["longest"], attributes["model_len"]) == (1000, 1300, 1408)
    trace.write_text("arrival_s,input_tokens\n0.0,1000\n")
    with pytest.raises(AutoscoutError, match="the trace has no column output_tokens"):
        attributes_of(msgspec.structs.replace(traced))


# ---- DeepSpeed --------------------------------------------------------------------------------------------


def test_deepspeed_on_gpus_offloads_and_on_cpus_does_not():
    assert not any("offload_optimizer" in c.knobs for c in space_of(DEEPSPEED).configurations())
    job = job_of(DEEPSPEED)
    on_gpus = JobSpace.of_job(msgspec.structs.replace(job, cluster=Cluster(nodes=[Node(device="a100", count=2)])))
    offloading = [c.knobs for c in on_gpus.configurations() if c.knobs.get("offload_optimizer") == "cpu"]
    assert offloading
    assert all(int(knobs["stage"]) >= 1 for knobs in offloading)


def test_in_bf16_stage_0_trains_something_else():
    job = job_of(DEEPSPEED)
    space = JobSpace.of_job(msgspec.structs.replace(job, model=msgspec.structs.replace(job.model, dtype="bf16")))
    assert not space.is_valid(Configuration({"stage": 0, "ckpt": "none", "mbs": 8}))
    assert space.reference.knobs["stage"] == 1


def test_a_deepspeed_job_without_a_script_is_refused_in_one_sentence(tmp_path):
    done = verbs.run("tune", f"fixtures/jobs/{DEEPSPEED}.toml", "--kb", tmp_path / "kb", "--no-tui")
    assert done.returncode == 2
    assert done.stderr.splitlines()[1].startswith("try: autoscout space ")
    assert done.stderr.count("\n") == 2
    assert "this job has no script to run" in done.stderr
