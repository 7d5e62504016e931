"""A job whose model has multi-head latent attention: read, laid out, launched, predicted, held against its shadow."""

import importlib.util
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from job_files import changed

from autoscout.simulate.hardware.device import hardware
from autoscout.simulate.shadow.traced import Rank
from autoscout.simulate.training.inputs import complete
from autoscout.simulate.training.memory import Memory
from autoscout.simulate.training.rank_parameters import rank_weights
from autoscout.simulate.training.step import Training
from autoscout.space.attributes import attributes_of
from autoscout.space.explain import explain
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.targets.megatron.arguments import flags
from autoscout.targets.megatron.shadow import ask, question_of
from autoscout.targets.target import target_of
from kb.records import AutoscoutError, Configuration, Job, identity
from kb.sizes import parameters

JOB = """
name = "latent"
target = "megatron"
[model]
layers = 2
hidden = 256
heads = 8
ffn = 512
vocab = 1024
gated = true
norm = "rmsnorm"
bias = false
position = "rope"
[model.latent]
q_lora_rank = 96
kv_lora_rank = 64
qk_nope_head_dim = 32
qk_rope_head_dim = 16
v_head_dim = 32
[traffic]
seq_len = 512
global_batch = 4
[cluster]
nodes = [{ device = "h100", count = 2 }]
[launch]
transformer_engine = true
[objective]
minimize = "step_time_s"
"""
WHOLE: dict = {"dp": 2, "mbs": 2}
SPLIT: dict = {"tp": 2, "sp": True, "mbs": 2}
UP: dict = {"ar": "selective", "ar_modules": "mla_up_proj"}
THREE, DIRECT = ("layers = 2", "layers = 3"), ("q_lora_rank = 96\n", "")


def job(folder: Path, *changes: tuple[str, str]) -> Job:
    return changed(folder, JOB, *changes)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("transformer_engine = true", "", "model.latent needs launch.transformer_engine = true"),
        ("v_head_dim = 32", "v_head_dim = 0", "model.latent.v_head_dim = 0 must be from 1 to 1,048,576"),
        ("q_lora_rank = 96", "q_lora_rank = -1", "model.latent.q_lora_rank = -1 must be from 0"),
        ("qk_rope_head_dim = 16", "qk_rope_head_dim = 15", "an even model.latent.qk_rope_head_dim; here it is 15"),
        ("heads = 8", "heads = 8\nkv_heads = 2", "model.kv_heads = 2, but latent attention has keys for every head"),
        ("heads = 8", "heads = 8\nhead_dim = 32", "model.head_dim = 32, but model.latent gives the sizes"),
        ('position = "rope"', 'position = "learned"', "latent attention has rotary positions"),
        ("[model.latent]", "[model.lora]\n[model.latent]", "model.lora"),
        ("v_head_dim = 32", "v_dim = 32", "v_head_dim"),
        (
            '"megatron"',
            '"deepspeed"',
            "model.latent is supported by the targets megatron and command and by servers, not by",
        ),
    ],
)
def test_what_is_wrong_with_it_is_said_in_a_sentence(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(AutoscoutError) as refused:
        job(tmp_path, (old, new))
    assert refused.value.exit_code == 2
    assert said in str(refused.value)


def test_heads_need_not_divide_the_hidden_size(tmp_path: Path) -> None:
    assert job(tmp_path, ("heads = 8", "heads = 6")).model.heads == 6


def test_its_space_has_what_only_it_can_do_and_not_what_it_cannot(tmp_path: Path) -> None:
    space = JobSpace.of_job(job(tmp_path))
    assert "mla_up_proj" in space.knob["ar_modules"].values
    assert "tp_comm_overlap" not in {name for c in some(space) for name in c.knobs}
    assert all(c.knobs.get("cp", 1) == 1 for c in some(space))
    refused = explain(space, {"cp": 2, "mbs": 1}, space.reference)
    assert [broken.rule for broken in refused.violations] == ["C8"]
    plain = JOB[: JOB.index("[model.latent]")] + JOB[JOB.index("[traffic]") :]
    (tmp_path / "plain.toml").write_text(plain)
    assert "mla_up_proj" not in JobSpace.of_job(load_job(tmp_path / "plain.toml")).knob["ar_modules"].values


def some(space: JobSpace) -> list[Configuration]:
    return [space.sample(np.random.default_rng(seed)) for seed in range(200)]


def test_experiment_and_export_are_given_its_sizes(tmp_path: Path) -> None:
    found = job(tmp_path)
    given = flags(found, Configuration(knobs=WHOLE))
    sizes = {"--q-lora-rank": 96, "--kv-lora-rank": 64, "--qk-head-dim": 32, "--qk-pos-emb-head-dim": 16}
    expected = {"--multi-latent-attention": True, **sizes, "--v-head-dim": 32, "--qk-layernorm": True}
    assert {name: given.get(name) for name in expected} == expected
    assert "--group-query-attention" not in given
    assert target_of(found).launch(found, Configuration(knobs=WHOLE)).arguments.items() >= expected.items()
    direct = flags(job(tmp_path, DIRECT), Configuration(knobs=WHOLE))
    assert "--q-lora-rank" not in direct, "Megatron-LM's default is none"


def columns(of: Job, knobs: dict) -> dict:
    return {name: v for name, v in attributes_of(of).items() if name != "degrees"} | {"gpus": 2} | knobs


def test_latents_cost_less_time_than_whole_projections(tmp_path: Path) -> None:
    """And going up again costs the time of doing so."""
    large = job(tmp_path, ("hidden = 256", "hidden = 4096"), ("heads = 8", "heads = 64"))
    wide = job(tmp_path, ("hidden = 256", "hidden = 4096"), ("heads = 8", "heads = 64"), DIRECT)
    assert hardware("h100") is not None

    def seconds(of: Job, **more: object) -> float:
        return float(Training.of_job(of).predict(columns(of, {**WHOLE, **more})).value[0])

    assert seconds(large) < seconds(wide)
    again = seconds(large, **UP)
    assert seconds(large) < again < seconds(large, ar="full")


def traced(folder: Path, **asked: tuple[dict, tuple[tuple[str, str], ...]]) -> dict[str, Rank]:
    """Megatron's own model of these knobs and changes of the job."""
    if importlib.util.find_spec("megatron") is None:
        pytest.skip("needs the megatron extra")
    questions = [
        {**question_of(job(folder, *changes), Configuration(knobs=knobs)), "rank": 0}
        for knobs, changes in asked.values()
    ]
    found = ask(questions, [sys.executable], 300.0)
    assert [rank.verdict for rank in found] == ["starts"] * len(found), [rank.message for rank in found]
    return dict(zip(asked, found, strict=True))


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rank]:
    folder = tmp_path_factory.mktemp("latent")
    return traced(folder, two=(WHOLE, ()), three=(WHOLE, (THREE,)), up=({**WHOLE, **UP}, (THREE,)))


@pytest.mark.engine
def test_weights_are_counted_as_megatron_has_them(told: dict[str, Rank], tmp_path: Path) -> None:
    of = job(tmp_path)
    assert rank_weights(complete(columns(of, WHOLE)))[0][0] + 256 == told["two"].parameters, "and the last norm"
    assert parameters(of.model) == told["two"].parameters - 5 * 256 - 2 * (64 + 96), "norms are left out"


@pytest.mark.engine
@pytest.mark.thorough
def test_tensor_parallel_ranks_have_the_way_down_each(tmp_path: Path) -> None:
    found = traced(tmp_path, split=(SPLIT, ()), direct=(SPLIT, (DIRECT,)))
    for name, changes in (("split", ()), ("direct", (DIRECT,))):
        counted = rank_weights(complete(columns(job(tmp_path, *changes), SPLIT)))[0][0]
        assert counted + 256 + 2 * 2 * 256 / 2 == found[name].parameters, "and norms, which are not split"


@pytest.mark.engine
def test_activations_of_a_layer_are_counted_as_it_keeps_them(told: dict[str, Rank], tmp_path: Path) -> None:
    two, three = ({**columns(job(tmp_path, *changes), WHOLE)} for changes in ((), (THREE,)))
    kept = [Memory().predict(each).parts["activations"][0] * 2**30 for each in (two, three)]
    assert kept[1] - kept[0] == pytest.approx(_activations(told["three"]) - _activations(told["two"]), rel=0.03)
    again = Memory().predict({**three, **UP}).parts["activations"][0] * 2**30
    saved = (_activations(told["three"]) - _activations(told["up"])) / 3
    assert kept[1] - again == pytest.approx(2 * saved, rel=0.04), "one of the layers is being made again"


@pytest.mark.engine
def test_what_is_projected_up_again_is_not_kept(told: dict[str, Rank]) -> None:
    """Megatron discards it by resizing its storage, which no operator shows: of each of three layers queries, keys and
    values, what norms return and keep of a token, and the cosines and sines of two rotations. 1,024 tokens, bf16."""
    layer = 1024 * 2 * (8 * (48 + 48 + 32) + 96 + 64) + 2 * 1024 * 4 + 4 * 512 * 16 * 2
    assert _activations(told["three"]) - _activations(told["up"]) == 3 * layer


def _activations(rank: Rank) -> int:
    return rank.at_peak["activations"]


def test_a_job_without_it_is_the_job_that_it_was(tmp_path: Path) -> None:
    """Ids are as they were before there was any."""
    plain = msgspec.structs.replace(job(tmp_path).model, latent=None)
    assert "latent" not in msgspec.json.encode(identity(plain)).decode()
