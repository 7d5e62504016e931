"""A job whose mixture has shared experts and first layers without any: read, laid out, launched, predicted, and held
against Megatron-core's own model."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from job_files import changed

from autoscout.simulate.hardware.device import Hardware, hardware
from autoscout.simulate.training.inputs import complete
from autoscout.simulate.training.layer import Times, layer_times
from autoscout.simulate.training.memory import Memory
from autoscout.simulate.training.rank_memory import GIB, of_stage, rank_bytes
from autoscout.simulate.training.rank_parameters import rank_weights, without_experts
from autoscout.simulate.training.step import Training, topology
from autoscout.space.attributes import attributes_of
from autoscout.space.explain import explain
from autoscout.studies.bench.job_landscape import ranks_gib
from autoscout.targets.jobs import JobSpace, check_of
from autoscout.targets.megatron import shadow_parts
from autoscout.targets.megatron.arguments import flags
from autoscout.targets.megatron.environment import WORKER
from autoscout.targets.megatron.profiler import profiler
from autoscout.targets.megatron.shadow import ask, question_of
from autoscout.targets.tracing import ShadowAsked
from kb.records import AutoscoutError, Configuration, Job, identity
from kb.sizes import active_parameters, parameters

JOB = """
name = "mixture"
target = "megatron"
[model]
layers = 4
hidden = 256
heads = 4
ffn = 512
vocab = 1024
gated = true
norm = "rmsnorm"
bias = false
position = "rope"
experts = 8
topk = 2
expert_ffn = 128
shared_ffn = 192
dense_layers = 1
[traffic]
seq_len = 512
global_batch = 16
[cluster]
nodes = [{ device = "h100", count = 8 }]
[launch]
transformer_engine = true
[objective]
minimize = "step_time_s"
"""
SPREAD: dict = {"dp": 8, "ep": 4, "mbs": 2}
SPLIT: dict = {"tp": 2, "sp": True, "etp": 1, "ep": 4, "dp": 4, "mbs": 2}
TWO, ALONE = ("dense_layers = 1", "dense_layers = 2"), ("shared_ffn = 192\n", "")
NONE = ("dense_layers = 1\n", "")
BOTH = ("dense_layers = 1", "dense_layers = 1\nqk_norm = true\nqkv_bias = true")
# One layer's, by hand: grouped queries of 4 heads of 64, two norms; a dense block; a router and 8 experts; the shared.
ATTENTION, DENSE = 4 * 256 * 256 + 2 * 256, 3 * 256 * 512
EXPERTS, SHARED = 8 * 3 * 256 * 128, 3 * 256 * 192
ENDS = 2 * 1024 * 256


def job(folder: Path, *changes: tuple[str, str]) -> Job:
    return changed(folder, JOB, *changes)


def columns(of: Job, knobs: dict) -> dict:
    ranks = int(np.prod([knobs.get(name, 1) for name in ("tp", "pp", "dp")]))
    return {name: v for name, v in attributes_of(of).items() if name != "degrees"} | {"gpus": ranks} | knobs


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "experts = 8\n",
            "",
            "model.shared_ffn = 192 (the experts that every token takes) applies to mixtures of experts only",
        ),
        ("shared_ffn = 192", "shared_ffn = -1", "model.shared_ffn = -1 must not be negative"),
        ("shared_ffn = 192", "shared_ffn = 100000000", "model.shared_ffn = 100000000 is more than any model has"),
        ("dense_layers = 1", "dense_layers = 4", "model.dense_layers = 4 must be less than model.layers = 4"),
        ("dense_layers = 1", "dense_layers = 1.5", "model.dense_layers: expected `int`"),
    ],
)
def test_what_is_wrong_with_it_is_said_in_a_sentence(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(AutoscoutError) as refused:
        job(tmp_path, (old, new))
    assert refused.value.exit_code == 2
    assert said in str(refused.value)


def test_a_job_without_either_is_the_job_that_it_was(tmp_path: Path) -> None:
    plain = json.loads(msgspec.json.encode(identity(job(tmp_path, ALONE, NONE).model)))
    assert not {"shared_ffn", "dense_layers"} & plain.keys()
    assert {"shared_ffn", "dense_layers"} <= json.loads(msgspec.json.encode(identity(job(tmp_path).model))).keys()


def test_parameters_by_hand(tmp_path: Path) -> None:
    norms = 4 * 2 * 256
    every = 4 * ATTENTION - norms + DENSE + 3 * (EXPERTS + 8 * 256 + SHARED) + ENDS
    assert parameters(job(tmp_path).model) == every
    assert active_parameters(job(tmp_path).model) == every - 3 * EXPERTS * 6 // 8 - ENDS // 2
    assert attributes_of(job(tmp_path))["expert_params"] == 3 * EXPERTS


def test_experiment_and_export_are_given_them(tmp_path: Path) -> None:
    given = flags(job(tmp_path), Configuration(SPREAD))
    assert given["--moe-shared-expert-intermediate-size"] == 192
    assert given["--moe-layer-freq"] == "([0]*1+[1]*3)"
    without = flags(job(tmp_path, ALONE, NONE), Configuration(SPREAD))
    assert not {"--moe-shared-expert-intermediate-size", "--moe-layer-freq"} & without.keys()


def test_shared_experts_split_over_tensor_parallel_ranks(tmp_path: Path) -> None:
    space = JobSpace.of_job(job(tmp_path, ("shared_ffn = 192", "shared_ffn = 190")))
    refused = explain(space, {**SPLIT, "tp": 4, "dp": 2}, space.reference)
    assert "T6" in [broken.rule for broken in refused.violations]
    assert "190 (shared experts)" in str(refused.violations)


@pytest.mark.parametrize(
    ("line", "changes", "said"),
    [
        ("--moe-shared-expert-intermediate-size 256", (), "has --moe-shared-expert-intermediate-size 256"),
        ("--moe-shared-expert-intermediate-size 192", (ALONE,), "but the job has no model.shared_ffn"),
        ("--moe-layer-freq ([0]*1+[1]*3)", (NONE,), "but the job has no model.dense_layers"),
        (
            "--moe-layer-freq ([0]*2+[1]*2)",
            (),
            "has --moe-layer-freq ([0]*2+[1]*2), but the job has model.dense_layers",
        ),
        ("--moe-layer-freq ([1,0]*2)", (), "has --moe-layer-freq ([1,0]*2), which neither [model] nor a knob"),
        ("--multi-latent-attention", (), "has --multi-latent-attention, but the job has no model.latent"),
        ("--moe-layer-freq ([0]+[1]*3)", (), ""),
        ("--moe-layer-freq 1", (NONE,), ""),
    ],
)
def test_a_line_that_trains_another_model_is_refused(
    tmp_path: Path, line: str, changes: tuple[tuple[str, str], ...], said: str
) -> None:
    current = f'[launch]\ncurrent = "torchrun pretrain_gpt.py --num-layers 4 {line}"'
    if not said:
        assert job(tmp_path, *changes, ("[launch]", current)).launch.current
        return
    with pytest.raises(AutoscoutError) as refused:
        job(tmp_path, *changes, ("[launch]", current))
    assert said in str(refused.value)


def test_parts_say_nothing_of_layers_that_differ(tmp_path: Path) -> None:
    with pytest.raises(AutoscoutError, match="its first layers have no experts"):
        shadow_parts.from_parts(ShadowAsked(job(tmp_path), Configuration(SPREAD), "x", None))


def test_the_first_layers_lie_in_the_first_chunks_of_the_pipeline() -> None:
    """Eight layers over two stages of two chunks: 0 1 | 2 3 | 4 5 | 6 7, the first and third on the first stage."""
    shape = {"layers": 8, "hidden": 256, "heads": 4, "seq_len": 512, "experts": 8, "pp": 2}

    def both(first: int, **more: float) -> list[float]:
        x = complete({**shape, "dense_layers": first, **more})
        return [float(without_experts(x, np.full(1, 4.0), np.full(1, at))[0]) for at in (0.0, 1.0)]

    assert both(3) == [3, 0]
    assert both(5) == [4, 1]
    assert both(1, vpp=2) == [1, 0]
    assert both(3, vpp=2) == [2, 1]
    assert both(5, vpp=2) == [3, 2]


def test_a_stage_holds_its_own_layers(tmp_path: Path) -> None:
    """Weights of three stages of two layers, bf16: in this model a layer with experts is larger than one without."""
    of = job(tmp_path, ("layers = 4", "layers = 6"), ("count = 8", "count = 3"), ("vocab = 1024", "vocab = 64"), TWO)
    x = complete(columns(of, {"pp": 3, "dp": 1, "mbs": 1}))
    sparse = ATTENTION + EXPERTS + 8 * 256 + SHARED
    held = [2 * (ATTENTION + DENSE) + 64 * 256, 2 * sparse, 2 * sparse + 64 * 256]
    assert list(of_stage(x, np.arange(3))["weights"]) == [2 * each for each in held]
    peaks = ranks_gib(attributes_of(of), Configuration({"pp": 3, "dp": 1, "mbs": 1}))
    assert peaks == pytest.approx(rank_bytes(of_stage(x, np.arange(3))) / GIB)
    assert peaks[1] == max(peaks), "the stage that neither the embedding nor the loss makes large"
    whole = Memory().predict(columns(of, {"pp": 3, "dp": 1, "mbs": 1}))
    assert whole.value[0] == pytest.approx(max(peaks))


def times(of: Job, knobs: dict) -> Times:
    hw = hardware("h100")
    assert isinstance(hw, Hardware)
    x = complete(columns(of, knobs))
    return layer_times(hw, topology(hw, x), x)


def test_a_layer_takes_the_mean_of_those_with_and_without_experts(tmp_path: Path) -> None:
    of_kinds = [times(job(tmp_path, *changes), SPREAD) for changes in ((NONE,), (TWO,))]
    dense = msgspec.structs.replace(job(tmp_path), model=msgspec.structs.replace(job(tmp_path).model, experts=0))
    plain = times(dense, {"dp": 8, "mbs": 2})
    for name in ("forward", "backward", "ep", "host_forward"):
        with_, half, without = (float(np.ravel(getattr(t, name))[0]) for t in (*of_kinds, plain))
        assert half == pytest.approx((with_ + without) / 2), name


def test_shared_experts_take_the_time_of_a_block_as_wide(tmp_path: Path) -> None:
    """Without experts' communication in the way: their two products are those of a dense block of that width."""
    one, none = times(job(tmp_path, NONE), SPREAD), times(job(tmp_path, NONE, ALONE), SPREAD)
    model = msgspec.structs.replace(job(tmp_path, NONE).model, experts=0, shared_ffn=0)
    wide, narrow = (
        times(msgspec.structs.replace(job(tmp_path), model=msgspec.structs.replace(model, ffn=ffn)), SPREAD)
        for ffn in (192, 1)
    )
    assert 0 < float(one.forward[0] - none.forward[0]) < float(wide.forward[0])
    assert float(one.forward[0] - none.forward[0]) > float(wide.forward[0] - narrow.forward[0])
    assert float(times(job(tmp_path), SPLIT).tp_forward[0]) > float(times(job(tmp_path, ALONE), SPLIT).tp_forward[0])


def test_a_step_costs_more_with_what_every_token_takes_beside_its_experts(tmp_path: Path) -> None:
    wide = (
        ("hidden = 256", "hidden = 4096"),
        ("shared_ffn = 192", "shared_ffn = 2048"),
        ("expert_ffn = 128", "expert_ffn = 2048"),
    )
    bare = (*wide[::2], ALONE)
    steps = [
        Training.of_job(job(tmp_path, *changes)).predict(columns(job(tmp_path, *changes), SPREAD)).value[0]
        for changes in (bare, wide)
    ]
    assert steps[0] < steps[1] < 2 * steps[0]


def test_norms_of_queries_and_biases_of_projections_are_said(tmp_path: Path) -> None:
    given = flags(job(tmp_path, BOTH), Configuration(SPREAD))
    assert given["--qk-layernorm"] is given["--add-qkv-bias"] is True
    assert not {"--qk-layernorm", "--add-qkv-bias"} & flags(job(tmp_path), Configuration(SPREAD)).keys()
    slower, plain = times(job(tmp_path, BOTH), SPREAD), times(job(tmp_path), SPREAD)
    assert plain.forward[0] < slower.forward[0] < 1.1 * plain.forward[0]


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Job, dict, object]]:
    """(job, knobs, Megatron's own rank 0)"""
    if importlib.util.find_spec("megatron") is None:
        pytest.skip("needs the megatron extra")
    folder = tmp_path_factory.mktemp("mixture")
    again = {**SPREAD, "ar": "selective", "ar_modules": "moe"}
    wanted = [((), SPREAD), ((TWO,), SPREAD), ((ALONE,), SPREAD), ((), again), ((), SPLIT)]
    wanted += [((BOTH,), SPREAD), ((BOTH,), SPLIT)]
    asked = [(job(folder, *changes), knobs) for changes, knobs in wanted]
    found = ask([{**question_of(of, Configuration(k)), "rank": 0} for of, k in asked], [sys.executable], 300.0)
    assert [rank.verdict for rank in found] == ["starts"] * len(found), [rank.message for rank in found]
    return [(of, knobs, rank) for (of, knobs), rank in zip(asked, found, strict=True)]


@pytest.mark.engine
def test_weights_are_counted_as_megatron_has_them(traced: list) -> None:
    for of, knobs, rank in traced:
        x = complete(columns(of, knobs))
        dense, expert = rank_weights(x)
        tp = knobs.get("tp", 1)
        whole = 4 * (2 * 256 + 8 * 256) - of.model.dense_layers * 8 * 256  # norms and routers are not split
        assert dense[0] + expert[0] + whole * (1 - 1 / tp) + 256 == rank.parameters, "and the last norm"
    more = [traced[i][2].parameters - traced[j][2].parameters for i, j in ((5, 0), (6, 4))]
    assert more == [4 * (3 * 256 + 2 * 64), 4 * (3 * 256 / 2 + 2 * 64)]


@pytest.mark.engine
def test_what_shared_experts_keep_is_counted_as_they_keep_it(traced: list) -> None:
    kept = [Memory().predict(columns(of, knobs)).parts["activations"][0] * GIB for of, knobs, _ in traced]
    theirs = [rank.at_peak["activations"] for _, _, rank in traced]
    assert kept[0] - kept[2] == theirs[0] - theirs[2] == 3 * 2 * 512 * 192 * 3 * 2, "three layers, 1,024 tokens, bf16"
    assert kept[1] < kept[0], "this dense block keeps less than what goes to experts"
    assert theirs[1] < theirs[0]
    assert kept[0] - kept[3] == pytest.approx(theirs[0] - theirs[3], rel=0.06), "the first layer is not made again"
    assert kept[5] - kept[0] == theirs[5] - theirs[0] == 4 * 1024 * (3 * 256 * 2 + 8 * 4), "what norms are of"
    assert kept == pytest.approx(theirs, rel=0.05)


@pytest.mark.engine
@pytest.mark.thorough
def test_interleaved_stages_have_the_layers_that_megatron_gives_them(tmp_path: Path) -> None:
    if importlib.util.find_spec("megatron") is None:
        pytest.skip("needs the megatron extra")
    of = job(tmp_path, ("layers = 4", "layers = 8"), TWO)
    knobs = {"pp": 2, "vpp": 2, "overlap_p2p": True, "dp": 1, "mbs": 1}
    question = question_of(of, Configuration(knobs))
    found = ask([{**question, "rank": rank} for rank in (0, 1)], [sys.executable], 300.0)
    assert [rank.verdict for rank in found] == ["starts", "starts"], [rank.message for rank in found]
    x = complete(columns(of, knobs))
    layers = np.full(2, 4.0)
    dense, expert = rank_weights(x, layers, without_experts(x, layers, np.arange(2)))
    assert list(dense + expert + np.array([0, 256])) == [rank.parameters for rank in found], "and the last norm"


ON_CPU = (
    ('device = "h100", count = 8', 'device = "cpu", count = 2'),
    ("transformer_engine = true", "iterations = 2\ntimeout_s = 120"),
    ("[traffic]", 'dtype = "fp32"\n[traffic]'),
    ("seq_len = 512", "seq_len = 64"),
    ("global_batch = 16", "global_batch = 4"),
)


@pytest.mark.engine
def test_a_cpu_rank_has_as_many_parameters(tmp_path: Path) -> None:
    """Megatron-core's model with real tensors in a process of one rank."""
    if importlib.util.find_spec("megatron") is None:
        pytest.skip("needs the megatron extra")
    of = job(tmp_path, *ON_CPU, BOTH)
    asked = {"arguments": flags(of, Configuration({"mbs": 1})), "device": "cpu", "group_timeout_s": 60}
    code = (
        f"import json, sys; sys.path.insert(0, {str(WORKER)!r})\n"
        "import train\n"
        "train.load('cpu')\n"
        "import building, configs\n"
        "config = configs.read(json.loads(sys.argv[1]))\n"
        "device = building.make_groups(config)\n"
        "chunks, _ = building.build(config, building.transformer_config(config), device)\n"
        "print(json.dumps({n: p.numel() for c in chunks for n, p in c.named_parameters()}))"
    )
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    alone |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-W", "ignore", "-c", code, json.dumps(asked)]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **alone}, timeout=1800, check=True)
    sizes = json.loads(done.stdout.splitlines()[-1])
    assert sum(sizes.values()) == parameters(of.model) + 9 * 256 + 4 * (3 * 256 + 2 * 64), "norms and biases"
    shared = {name: size for name, size in sizes.items() if "shared_experts" in name}
    assert sum(shared.values()) == 3 * SHARED
    assert not [name for name in sizes if "layers.0." in name and "experts" in name]


@pytest.mark.engine
@pytest.mark.thorough
def test_layouts_train_the_same_model(tmp_path: Path) -> None:
    if importlib.util.find_spec("megatron") is None:
        pytest.skip("needs the megatron extra")
    of = job(tmp_path, *ON_CPU, BOTH)
    run = profiler(of).run
    knobs: list[dict] = [
        {"dp": 2, "mbs": 1},
        {"pp": 2, "mbs": 1},
        {"dp": 2, "ep": 2, "dispatcher": "allgather", "mbs": 1},
        {"tp": 2, "sp": True, "etp": 2, "mbs": 1},
    ]
    found = [run(Configuration(each), f"c{i}", tmp_path / str(i)) for i, each in enumerate(knobs)]
    assert [each.status for each in found] == ["ok"] * 4, [each.evidence for each in found]
    check = check_of(of)
    assert [check.compare(found[0], each) for each in found[1:]] == ["", "", ""]
