"""Knobs that newer versions of Megatron-core have: off unless allowed, as Megatron's own classes and parser have them,
and one sentence where the installed version lacks one."""

from pathlib import Path

import msgspec
import pytest

from autoscout.space.explain import explain, parse
from autoscout.targets.jobs import JobSpace, load_job, notes
from autoscout.targets.megatron import arguments, newer
from autoscout.targets.target import shipped
from autoscout.tuning.predict import predict
from kb.records import AutoscoutError, Cluster, Configuration, Job, Node, SpaceLimits, Value

DENSE = ("fp8", "cuda_graph", "fsdp", "moments", "instances", "offload", "cp_comm")
NCCL = ("nccl_ctas", "nccl_nvls", "nccl_proto", "nccl_buffer")


FEW = {"ar": "none", "vpp": 1, "mbs": 1, "overlap_grad": False, "ce_fusion": False}  # small spaces: quick tests


def on_gpus(name: str = "llama-3.2-3b", count: int = 8, fix: dict | None = None, **limits) -> Job:
    job = load_job(f"fixtures/jobs/{name}.toml")
    launch = msgspec.structs.replace(job.launch, transformer_engine=True)
    cluster = Cluster(nodes=[Node(device="h100", count=count)])
    return msgspec.structs.replace(
        job, launch=launch, cluster=cluster, space=SpaceLimits(fix=FEW if fix is None else fix, **limits)
    )


def flags_of(job: Job, *given: str) -> dict:
    space = JobSpace.of_job(job)
    found = explain(space, parse(space, given), space.reference).configuration
    assert found is not None, given
    return arguments.flags(job, found)


def test_nothing_new_is_searched_unless_it_is_allowed():
    space = JobSpace.of_job(on_gpus())
    assert {*DENSE, *NCCL} - {"cp_comm"} <= space.closed.keys()
    assert not space.knob.keys() & space.closed.keys()
    assert "a2a2+p2p" not in space.domain("cp_comm")
    with pytest.raises(AutoscoutError, match="moments is not allowed by default, because it changes"):
        parse(space, ["moments=bf16"])
    opened = JobSpace.of_job(on_gpus(allow=["moments"]))
    assert opened.count > space.count
    assert opened.domain("moments", {"distopt": True}) == ("fp32", "bf16", "fp8")
    assert opened.reference.knobs.get("moments", "fp32") == "fp32"


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        (["cuda_graph=layer"], {"--cuda-graph-impl": "transformer_engine", "--cuda-graph-scope": ["attn", "mlp"]}),
        (["fsdp=optim_grads_params"], {"--data-parallel-sharding-strategy": "optim_grads_params"}),
        (["moments=bf16"], {"--use-precision-aware-optimizer": True, "--exp-avg-dtype": "bf16"}),
        (["offload=0.5"], {"--optimizer-cpu-offload": True, "--optimizer-offload-fraction": 0.5}),
        (["instances=2"], {"--num-distributed-optimizer-instances": 2}),
        (["cp=8", "cp_comm=a2a2+p2p"], {"--hierarchical-context-parallel-sizes": ["2", "4"]}),
    ],
)
def test_each_becomes_megatron_lms_flags(given, flags, tmp_path):
    name = given[-1].partition("=")[0]
    job = with_megatron("0.16.1", on_gpus(allow=[name]), tmp_path)
    found = flags_of(job, *given, *(["distopt=true"] if name not in ("cuda_graph", "cp_comm") else []))
    assert {name: found.get(name) for name in flags} == flags


def test_a_knob_that_another_wakes_keeps_its_default_unless_it_is_given(tmp_path):
    """The expert default has no DeepEP, and so no value of its multiprocessors: the first of its domain was taken."""
    job = with_megatron("0.16.1", on_gpus("qwen3-30b-a3b", allow=["dispatcher", "deepep_sms"]), tmp_path)
    space = JobSpace.of_job(job)
    assert "deepep_sms" not in space.reference.knobs
    found = explain(space, parse(space, ["ep=8", "dispatcher=flex"]), space.reference).configuration
    assert found is not None
    assert found.knobs["deepep_sms"] == space.knob["deepep_sms"].default == 20


def test_the_exchange_of_experts_overlaps_where_megatron_can():
    job = on_gpus("qwen3-30b-a3b", allow=["overlap_experts", "delay_wgrad", "dispatcher", "cuda_graph"])
    found = flags_of(job, "ep=8", "dispatcher=hybridep", "overlap_experts=true", "delay_wgrad=true")
    assert found["--overlap-moe-expert-parallel-comm"] is True
    assert found["--delay-wgrad-compute"] is True
    assert (found["--moe-token-dispatcher-type"], found["--moe-flex-dispatcher-backend"]) == ("flex", "hybridep")
    space = JobSpace.of_job(job)
    assert not space.is_valid(Configuration({**space.reference.knobs, "overlap_experts": True, "ep": 1}))


def test_what_megatron_lm_019_refuses_beside_overlapping_experts():
    """0.16.1 takes both: it keeps what ar_modules moe would save, and asks nothing of Transformer Engine's version."""
    allow = ["overlap_experts", "delay_wgrad", "cuda_graph"]
    space = JobSpace.of_job(on_gpus("qwen3-30b-a3b", fix={"tp": 1, "pp": 1, "cp": 1, "mbs": 1}, allow=allow))
    overlapping = {"ep": 8, "overlap_experts": True, "ar": "selective"}
    assert _broken(space, {**overlapping, "ar_modules": "moe"}) == {"M19"}
    assert not _broken(space, {**overlapping, "ar_modules": "moe_act"})
    later = {**overlapping, "ar_modules": "moe_act", "delay_wgrad": True, "distopt": True}
    assert _broken(space, {**later, "cuda_graph": "attn", "overlap_grad": True}) == {"G2"}
    assert not _broken(space, {**later, "cuda_graph": "attn", "overlap_grad": False, "overlap_param": False})


def _broken(space: JobSpace, given: dict[str, Value]) -> set[str]:
    return {violation.rule for violation in explain(space, given, space.reference).violations}


def test_settings_of_nccl_are_variables():
    job = on_gpus(allow=[*NCCL])
    space = JobSpace.of_job(job)
    asked = parse(space, ["nccl_ctas=16", "nccl_nvls=false", "nccl_proto=Simple", "nccl_buffer=8"])
    found = explain(space, asked, space.reference).configuration
    assert found is not None
    said = {k: v for k, v in arguments.variables(job, found).items() if k.startswith("NCCL")}
    assert said == {"NCCL_MAX_CTAS": "16", "NCCL_NVLS_ENABLE": "0", "NCCL_PROTO": "Simple", "NCCL_BUFFSIZE": "8388608"}


@pytest.mark.parametrize(
    ("layers", "chunks", "counted"), [(61, 32, 2), (61, 16, 1), (126, 16, 0), (7, 8, 1), (13, 5, 2)]
)
def test_a_layout_string_has_every_layer_once(layers, chunks, counted):
    text = newer.layout(layers, chunks, counted)
    parts = text.split("|")
    assert len(parts) == chunks
    assert text.count("t") == layers
    assert parts[0].startswith("E")
    assert parts[-1].endswith("L")
    sizes = [part.count("t") for part in parts]
    assert max(sizes) - min(sizes[:-1]) <= 1
    assert sizes[-1] <= max(sizes) - min(counted, max(sizes))


def test_a_prediction_says_what_it_does_not_know():
    job = on_gpus(allow=["moments", "nccl_ctas"])
    space = JobSpace.of_job(job)
    usual = predict(space, {"distopt": True}, None)
    other = predict(space, {"distopt": True, "moments": "bf16", "nccl_ctas": 8}, None)
    assert (usual.unpriced, other.unpriced) == ([], ["moments", "nccl_ctas"])
    assert usual.value == other.value


def test_deepseeks_layout_can_be_said():
    job = on_gpus("qwen3-30b-a3b", 16, {"ar": "none", "mbs": 1, "tp": 1, "pp": 8, "cp": 1}, allow=["stage_split"])
    job = msgspec.structs.replace(job, model=msgspec.structs.replace(job.model, layers=61))
    found = flags_of(job, "vpp=4", "stage_split=spread+2loss", "overlap_p2p=true")
    assert found["--pipeline-model-parallel-layout"].count("|") == 31
    assert "--num-virtual-stages-per-pipeline-rank" not in found


def with_megatron(version: str, job: Job, folder: Path) -> Job:
    python = folder / "python"
    python.write_text(f"#!/bin/sh\necho {version}\n")
    python.chmod(0o755)
    return msgspec.structs.replace(job, launch=msgspec.structs.replace(job.launch, python=str(python)))


def test_a_knob_that_the_installed_version_lacks_is_said_in_one_sentence(tmp_path):
    said = "megatron-core 0.10.1 has no account_for_embedding_in_pipeline_split, which came with 0.11"
    (tmp_path / "old").mkdir()
    assert notes(with_megatron("0.10.1", on_gpus(), tmp_path / "old")) == [f"stage_split is left out: {said}"]
    job = with_megatron("0.12.3", on_gpus(), tmp_path)
    space = JobSpace.of_job(job)
    assert notes(job) == []
    with pytest.raises(AutoscoutError, match=r"cuda_graph is left out: megatron-core 0\.12\.3 has no cuda_graph_impl"):
        parse(space, ["cuda_graph=attn"])
    with pytest.raises(AutoscoutError, match=r"\[space\] names 'fsdp': fsdp is left out") as refused:
        JobSpace.of_job(msgspec.structs.replace(job, space=SpaceLimits(fix={"fsdp": "optim"})))
    assert refused.value.exit_code == 2


def test_a_knob_that_a_later_megatron_refuses_is_left_out(tmp_path):
    free = on_gpus(fix={"pp": 1, "tp": 1})
    job = with_megatron("0.18.2", free, tmp_path)
    assert "ce_fusion" not in JobSpace.of_job(job).knob
    assert notes(job) == [
        "ce_fusion is left out: Megatron-LM's own script refuses it since 0.18.2 (megatron-core is 0.18.2)"
    ]
    (tmp_path / "before").mkdir()
    assert "ce_fusion" in JobSpace.of_job(with_megatron("0.18.0", free, tmp_path / "before")).knob
    assert notes(with_megatron("0.18.2", load_job("fixtures/jobs/tiny-gpt-cpu.toml"), tmp_path)) == []  # nor before


def test_what_a_later_megatron_does_anyway_may_stay_fixed(tmp_path):
    """A job file of an earlier release was refused."""
    off, on = (on_gpus(fix={"pp": 1, "tp": 1, "ce_fusion": fused}) for fused in (False, True))
    space = JobSpace.of_job(with_megatron("0.18.2", off, tmp_path))
    assert "ce_fusion" not in space.knob
    with pytest.raises(AutoscoutError, match=r"\[space\] names 'ce_fusion'"):
        JobSpace.of_job(with_megatron("0.18.2", on, tmp_path))
    before = JobSpace.of_job(with_megatron("0.16.1", off, tmp_path))
    one, other = (predict(each, dict(each.reference.knobs), None) for each in (space, before))
    assert one.value == other.value  # the loss is as unfused as before; nothing was known of it


@pytest.mark.parametrize(("version", "name"), [("0.17.1", "scope"), ("0.18.0", "modules"), ("0.19.2", "modules")])
def test_a_flag_has_the_name_of_the_release_that_trains(tmp_path, version, name):
    """0.18 warned of the old one, and read it back as unset."""
    free = on_gpus(fix={"pp": 1, "tp": 1, "mbs": 1}, allow=["cuda_graph"])
    found = flags_of(with_megatron(version, free, tmp_path), "cuda_graph=attn")
    assert [flag for flag in found if flag.startswith("--cuda-graph-")] == [
        "--cuda-graph-impl",
        f"--cuda-graph-{name}",
        "--cuda-graph-warmup-steps",
    ]


SINCE = [
    ("llama-3.2-3b", ["overlap_grad=true", "ddp_buckets=8"], {"--ddp-num-buckets": 8}),
    ("llama-3.2-3b", ["mlp_chunks=4"], {"--mlp-chunks-for-training": 4}),
    (
        "llama-3.2-3b",
        ["offload_acts=core_attn+attn_proj", "offload_acts_share=0.5"],
        {
            "--fine-grained-activation-offloading": True,
            "--offload-modules": ["core_attn", "attn_proj"],
            "--activation-offload-fraction": 0.5,
        },
    ),
    ("qwen3-30b-a3b", ["ep=8", "dispatcher=flex", "deepep_sms=24"], {"--moe-flex-dispatcher-num-sms": 24}),
    ("qwen3-30b-a3b", ["ep=8", "experts_wgrad=true"], {"--overlap-dispatch-backward-with-experts-wgrad": True}),
]


@pytest.mark.parametrize(("name", "given", "flags"), SINCE, ids=[given[-1] for _, given, _ in SINCE])
def test_knobs_of_later_releases_are_their_flags_and_act_in_no_earlier_one(tmp_path, name, given, flags):
    wanted = [word.partition("=")[0] for word in given]
    asking = [knob.name for knob in shipped("megatron").knob if knob.asks and knob.name in wanted]
    fix = {"pp": 1, "tp": 1, "cp": 1, "mbs": 1, "cuda_graph": "none", "ar": "none"}
    job = with_megatron("0.19.2", on_gpus(name, fix=fix, allow=asking), tmp_path)
    assert flags.items() <= flags_of(job, *given).items()
    assert not {"--ddp-num-buckets", "--ddp-bucket-size"} <= flags_of(job, *given).keys()
    (tmp_path / "before").mkdir()
    before = with_megatron("0.12.0", on_gpus(name, fix={"pp": 1, "tp": 1}, allow=asking[-1:]), tmp_path / "before")
    if asking[-1] != "deepep_sms":  # a flag of 0.12, too
        with pytest.raises(AutoscoutError, match=f"{asking[-1]} is left out: megatron-core 0.12.0 has no --"):
            JobSpace.of_job(before)


def test_activations_wait_on_the_host_where_transformer_engine_leaves_weights_alone(tmp_path):
    few = {"pp": 1, "tp": 1, "mbs": 1}
    job = with_megatron("0.19.2", on_gpus(fix=few, allow=["offload_acts"]), tmp_path)
    space = JobSpace.of_job(job)
    found = explain(space, parse(space, ["offload_acts=core_attn"]), space.reference).configuration
    assert found is not None
    assert arguments.variables(job, found)["NVTE_CPU_OFFLOAD_V1"] == "1"


@pytest.mark.parametrize(("version", "has"), [("0.19.0rc1", True), ("0.19.2+fork", True), ("0.18.9.dev3+gabc", False)])
def test_a_candidate_a_fork_and_a_checkout_have_what_their_release_has(tmp_path, version, has):
    job = with_megatron(version, on_gpus("qwen3-30b-a3b", fix={"pp": 1, "tp": 1, "mbs": 1}), tmp_path)
    closed = JobSpace.of_job(job).closed["offload_acts_share"]
    assert ("set [space] allow" in closed) == has
    assert ("which came with 0.19" in closed) != has


def test_a_checkout_that_is_launched_says_its_version_itself(tmp_path):
    """That of the interpreter's megatron-core counted, which a checkout does not import."""
    told = tmp_path / "megatron" / "core" / "package_info.py"
    told.parent.mkdir(parents=True)
    told.write_text("MAJOR = 0\nMINOR = 19\nPATCH = 0\n")
    job = with_megatron("0.16.1", on_gpus(fix={"pp": 1, "tp": 1}), tmp_path)
    job = msgspec.structs.replace(job, launch=msgspec.structs.replace(job.launch, path=str(tmp_path)))
    assert "ce_fusion" not in JobSpace.of_job(job).knob


def test_a_value_that_the_installed_version_lacks_is_no_choice_and_says_why(tmp_path):
    job = with_megatron("0.15.0", on_gpus("qwen3-30b-a3b", allow=["dispatcher"]), tmp_path)
    space = JobSpace.of_job(job)
    assert {"flex", "hybridep"}.isdisjoint(space.domain("dispatcher"))
    lacks = "megatron-core 0.15.0 has no dispatcher = flex, which came with 0.16"
    assert lacks in notes(job)
    found = explain(space, parse(space, ["ep=8", "dispatcher=flex"]), space.reference)
    assert [v.sentence for v in found.violations if v.rule == "L-dispatcher=flex"] == [lacks]
    fixed = msgspec.structs.replace(job, space=SpaceLimits(fix={"dispatcher": "flex", "ep": 8}))
    with pytest.raises(AutoscoutError, match=r"came with 0\.16") as refused:
        JobSpace.of_job(fixed)
    assert refused.value.exit_code == 3
    (tmp_path / "new").mkdir()
    newer = with_megatron("0.16.1", job, tmp_path / "new")
    assert "flex" in JobSpace.of_job(newer).domain("dispatcher")
