"""The person's own Megatron-LM, and what their present command says of training that no knob decides."""

import os
from pathlib import Path

import msgspec
import pytest

from autoscout.running.equivalence import SETTINGS, Losses
from autoscout.running.interfaces import Confirming
from autoscout.simulate.training.memory import estimate_gib
from autoscout.space.attributes import attributes_of
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.targets.megatron import arguments, persons
from autoscout.targets.megatron.environment import checkout, describe, launcher
from autoscout.targets.megatron.profiler import MegatronProfiler, settings, worker_config
from autoscout.targets.target import target_of
from kb.records import AutoscoutError, Configuration, Job, Measurement
from kb.sizes import parameters

CURRENT = """torchrun --nproc-per-node 8 /opt/Megatron-LM/pretrain_gpt.py \\
    --tensor-model-parallel-size 4 --num-layers 8 --hidden-size 128 --seq-length 128 --micro-batch-size 1 --bf16 \\
    --no-rope-fusion --overlap-grad-reduce --lr 3e-4 --min-lr 3e-5 --lr-warmup-iters 200 --optimizer sgd \\
    --clip-grad=0.5 --hidden-dropout 0.1 --moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-2 \\
    --data-path 0.3 /data/a 0.7 /data/b --tokenizer-type HuggingFaceTokenizer --tokenizer-model /m \\
    --save /ckpt --train-iters 100000 --tensorboard-dir /tb --attention-backend flash"""
MINE = Configuration({"mbs": 2, "tp": 2, "dp": 2})


def job(current: str = CURRENT, path: str = "") -> Job:
    found = load_job("fixtures/jobs/tiny-gpt-cpu.toml")
    return msgspec.structs.replace(found, launch=msgspec.structs.replace(found.launch, current=current, path=path))


def test_what_no_knob_decides_is_the_persons() -> None:
    said = persons.persons_flags(job())
    assert said["--data-path"] == ["0.3", "/data/a", "0.7", "/data/b"]
    assert (said["--clip-grad"], said["--lr"], said["--train-iters"]) == (0.5, 3e-4, 100000)
    decided = {
        "--tensor-model-parallel-size",
        "--micro-batch-size",
        "--bf16",
        "--no-rope-fusion",
        "--overlap-grad-reduce",
    }
    assert not decided & said.keys()
    assert persons.persons_flags(job("")) == persons.persons_flags(job("torchrun other.py --lr 1")) == {}
    with pytest.raises(AutoscoutError, match=r"launch.current: a quote is opened and never closed"):
        persons.persons_flags(job("torchrun pretrain_gpt.py --lr '1"))


def test_a_knob_of_a_newer_release_decides_its_flag_once_it_is_allowed() -> None:
    theirs = job(f"{CURRENT} --mlp-chunks-for-training 4")
    assert persons.persons_flags(theirs)["--mlp-chunks-for-training"] == 4
    allowing = msgspec.structs.replace(theirs.space, allow=["mlp_chunks"])
    assert "--mlp-chunks-for-training" not in persons.persons_flags(msgspec.structs.replace(theirs, space=allowing))


@pytest.mark.parametrize("name", ["tiny-gpt-cpu", "tiny-moe-cpu", "llama-3.2-3b", "qwen3-30b-a3b"])
def test_no_flag_of_a_layout_is_taken_for_the_persons(name: str) -> None:
    """Nor would one in their command overrule a knob."""
    import numpy as np

    shared = {"--attention-dropout", "--hidden-dropout", "--moe-router-load-balancing-type", "--moe-router-dtype"}
    shared |= {"--max-position-embeddings"}
    one = load_job(f"fixtures/jobs/{name}.toml")
    space = JobSpace.of_job(one)
    for seed in range(10):
        flags = arguments.flags(one, space.sample(np.random.default_rng(seed)))
        line = "pretrain_gpt.py " + " ".join(f"{flag} 1" for flag in flags)
        theirs = msgspec.structs.replace(one, launch=msgspec.structs.replace(one.launch, current=line))
        assert persons.persons_flags(theirs).keys() <= shared


def test_layouts_are_searched_with_comparable_losses_and_confirmed_as_the_person_trains() -> None:
    searching, final = (worker_config(job(), MINE, [], final=end)["arguments"] for end in (False, True))
    assert (searching["--optimizer"], searching["--clip-grad"]) == ("sgd", 0.5), "its state takes memory"
    assert searching["--hidden-dropout"] == 0.0
    assert "--lr" not in searching
    assert "--moe-aux-loss-coeff" not in searching
    assert (final["--hidden-dropout"], final["--lr"], final["--moe-router-load-balancing-type"]) == (
        0.1,
        3e-4,
        "aux_loss",
    )
    assert not {"--data-path", "--save", "--attention-backend"} & {*searching, *final}, (
        "only Megatron-LM's script has them"
    )
    assert all(final[flag] == value for flag, value in searching.items() if "-dropout" not in flag)


def test_the_exported_launch_trains_as_the_person_does() -> None:
    launch = target_of(job()).launch(job(), MINE)
    assert (launch.arguments["--hidden-dropout"], launch.arguments["--save"]) == (0.1, "/ckpt")
    assert launch.arguments["--tensor-model-parallel-size"] == 2
    assert [text.partition(", which")[0] for text in launch.missing] == ["no experiment uses --attention-backend"], (
        "only Megatron-LM's own script has it"
    )
    plain = target_of(job("")).launch(job(""), MINE)
    assert "--lr" in plain.missing
    assert target_of(job(path="/opt/M")).launch(job(path="/opt/M"), MINE).folder == "/opt/M"


def test_what_a_newer_megatron_lm_refuses_is_said_where_nobody_could_ask_it() -> None:
    fused = Configuration({**MINE.knobs, "ce_fusion": True})
    told = [
        any("no --cross-entropy-loss-fusion with" in text for text in target_of(j).launch(j, c).missing)
        for j, c in ((job(), fused), (job(path="/opt/M"), fused), (job(), MINE))
    ]
    assert told == [True, False, False]


def test_gradients_in_bf16_are_so_in_every_run_and_in_the_memory_that_is_predicted() -> None:
    """An FP8 recipe of Megatron-LM was predicted to need 94 of 80 GiB, 15 more than it does."""
    line = "pretrain_gpt.py --num-layers 8 --seq-length 128 --bf16 --grad-reduce-in-bf16"
    given = worker_config(job(line), MINE, [])["arguments"]
    assert given["--grad-reduce-in-bf16"] is True
    big = load_job("fixtures/jobs/llama-3.1-nemotron-nano-8b.toml")
    halved = msgspec.structs.replace(big, launch=msgspec.structs.replace(big.launch, current=line))
    columns = {"tp": 1, "pp": 1, "cp": 1, "dp": 8, "mbs": 1, "distopt": True}
    needed, less = (estimate_gib(attributes_of(one), Configuration(columns)) for one in (big, halved))
    assert 2**30 * (needed - less) == pytest.approx(2 * parameters(big.model), rel=0.05)
    single = msgspec.structs.replace(halved, model=msgspec.structs.replace(halved.model, dtype="fp32"))
    assert "grad_bytes" not in attributes_of(single), "Megatron-core's buffers are as its parameters then"


def test_what_the_line_leaves_to_megatron_lm_is_so_in_the_end() -> None:
    """Its dropout of 0.1 was exported as 0, and longer rotary positions cut to the length that was measured."""
    line = "pretrain_gpt.py --num-layers 8 --seq-length 128 --max-position-embeddings 2048"
    exported = target_of(job(line)).launch(job(line), MINE).arguments
    assert (exported["--attention-dropout"], exported["--hidden-dropout"]) == (0.1, 0.1)
    assert exported["--max-position-embeddings"] == 2048
    searching, final = (worker_config(job(line), MINE, [], final=end)["arguments"] for end in (False, True))
    assert (searching["--hidden-dropout"], final["--hidden-dropout"]) == (0.0, 0.1)
    none = f"{line} --attention-dropout 0 --hidden-dropout 0.0"
    assert target_of(job(none)).launch(job(none), MINE).arguments["--hidden-dropout"] == 0.0


def test_a_run_with_other_settings_is_not_held_against_the_search() -> None:
    assert settings(job(), False) == settings(job(""), True) == {}
    other = settings(job(), True)
    run = Measurement(
        configuration=MINE, name="x", context="", status="ok", losses=[6.0, 6.0, 6.0], grad_norms=[1.0] * 3
    )
    final = msgspec.structs.replace(run, losses=[6.4, 5.0, 4.0], environment=other)
    assert SETTINGS in final.environment
    assert Losses("fp32").compare(run, msgspec.structs.replace(final, environment={})) != ""
    assert Losses("fp32").compare(run, final) == ""
    assert Losses("fp32").compare(final, msgspec.structs.replace(final, losses=[6.5, 5.0, 4.0])) == ""
    assert "not finite" in Losses("fp32").flaw(msgspec.structs.replace(final, losses=[6.4, float("nan"), 4.0]))


def test_their_script_measures_without_touching_checkpoints_and_logs() -> None:
    one = job(path="/opt/Megatron-LM")
    searching, final = (worker_config(one, MINE, [], final=end)["arguments"] for end in (False, True))
    for flags in (searching, final):
        assert not {"--save", "--tensorboard-dir", "--lr-warmup-iters", "--min-lr"} & flags.keys()
        assert flags["--train-iters"] > one.launch.warmup + one.launch.iterations, "warm-up may take longer"
        assert flags["--attention-backend"] == "flash"
    assert (searching["--lr"], searching["--mock-data"], searching["--vocab-size"]) == (1e-5, True, one.model.vocab - 1)
    assert (final["--lr"], final["--tokenizer-model"], final["--vocab-size"]) == (3e-4, "/m", one.model.vocab)
    assert "--mock-data" not in final


def test_where_no_megatron_lm_lies(tmp_path: Path) -> None:
    with pytest.raises(AutoscoutError, match=r"is not a readable checkout of Megatron-LM \(.*package_info.py: No such"):
        checkout(tmp_path)
    core = tmp_path / "megatron" / "core"
    core.mkdir(parents=True)
    (core / "package_info.py").write_text("MAJOR = 0\nMINOR = 16\nPATCH = 1\n")
    with pytest.raises(AutoscoutError, match=r"name the folder of its pretrain_gpt.py, or remove launch.path"):
        checkout(tmp_path)
    (tmp_path / "pretrain_gpt.py").write_text("1")
    found = checkout(tmp_path)
    assert found["megatron-core"] == "0.16.1"
    (tmp_path / "pretrain_gpt.py").write_text("2")
    assert checkout(tmp_path)["megatron-lm"] != found["megatron-lm"], "what another script measured does not compare"


def with_fused_layers() -> Job:
    found = load_job("fixtures/jobs/llama-3.2-3b.toml")
    return msgspec.structs.replace(found, launch=msgspec.structs.replace(found.launch, transformer_engine=True))


def test_without_apex_the_accumulation_is_not_fused_neither_here_nor_in_the_export() -> None:
    """Megatron-core's own linear layers refuse it then, in every experiment (seen on an H100)."""
    one = with_fused_layers()
    off = "--no-gradient-accumulation-fusion"
    target = target_of(one)
    launch = target.launch(one, Configuration({"mbs": 1, "tp": 2, "dp": 2}))
    lacks = {"gradient-accumulation-fusion": "no"}
    assert off not in launch.arguments
    assert target.as_measured(launch, lacks).arguments == {**launch.arguments, off: True}
    assert (
        target.as_measured(launch, {"gradient-accumulation-fusion": "yes"}) == target.as_measured(launch, {}) == launch
    )
    assert arguments.as_installed(launch.arguments, lacks)[off] is True


def test_no_loader_makes_masks_that_causal_attention_does_not_read() -> None:
    one = with_fused_layers()
    flag = "--no-create-attention-mask-in-dataloader"
    mine = Configuration({"mbs": 1})
    assert arguments.flags(one, mine)[flag] is True
    resets = msgspec.structs.replace(one.launch, current="torchrun pretrain_gpt.py --reset-attention-mask")
    assert flag not in arguments.flags(msgspec.structs.replace(one, launch=resets), mine)


def test_their_megatron_lm_is_started_anew_each_time() -> None:
    assert launcher(job("")) == "warm"
    other = job("")
    other = msgspec.structs.replace(other, launch=msgspec.structs.replace(other.launch, python="/opt/venv/bin/python"))
    assert launcher(other) == "warm"  # forked from a process of that interpreter
    assert launcher(job("", path="/opt/Megatron-LM")) == "torchrun"
    warm = job("", path="/opt/Megatron-LM")
    warm = msgspec.structs.replace(warm, launch=msgspec.structs.replace(warm.launch, launcher="warm"))
    with pytest.raises(AutoscoutError, match="would load a different Megatron-core"):
        launcher(warm)
    assert isinstance(MegatronProfiler.__new__(MegatronProfiler), Confirming)


@pytest.mark.engine
@pytest.mark.skipif("MEGATRON_LM" not in os.environ, reason="MEGATRON_LM names no checkout of Megatron-LM core_v0.16.1")
def test_layouts_agree_in_their_megatron_lm(tmp_path: Path) -> None:
    from autoscout.targets.jobs import profiler_of

    one = job("", path=os.environ["MEGATRON_LM"])
    small = msgspec.structs.replace(one.model, layers=2, hidden=64, heads=4, vocab=512)
    one = msgspec.structs.replace(one, model=small, launch=msgspec.structs.replace(one.launch, timeout_s=600))
    assert "megatron-lm" in describe(one)
    alone, two = (profiler_of(one).run(Configuration({"mbs": 4, "tp": tp}), "x", tmp_path / str(tp)) for tp in (1, 2))
    assert (alone.status, two.status) == ("ok", "ok"), alone.evidence + two.evidence
    assert Losses("fp32").compare(alone, two) == ""
