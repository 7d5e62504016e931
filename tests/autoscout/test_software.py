"""Software that nobody named: a mixture of profiles, which rows of the job settle."""

import numpy as np
import pytest

from autoscout.simulate.joules import COMPUTING, WAITING, TrainingEnergy
from autoscout.simulate.training.memory import Memory
from autoscout.simulate.training.software import members, mixed, probabilities, settled, variants
from autoscout.simulate.training.step import Training
from autoscout.simulate.validation.training_tables import columns_of, of_row

LAYOUTS = {
    "layers": 40, "hidden": 5120, "heads": 40, "ffn": 13824, "gated": 1, "bias": 0, "vocab": 128000, "seq_len": 2048,
    "global_batch": 512, "gpus": 64, "gpu": "a100", "zero": 1, "mbs": np.array([1, 2, 4, 8, 1, 2, 4, 8]),
    "tp": np.array([2, 2, 2, 2, 4, 4, 4, 4]),
}  # fmt: skip
UNKNOWN = {**LAYOUTS, "software": "unknown"}


def of_profile(name: str) -> dict:
    found = {}
    for when, filled in reversed(next(member for member in members() if member.name == name).filled):
        found |= {} if when else filled
    return {**LAYOUTS, **found}


def test_priors_are_probabilities_and_known_rows_are_left_alone():
    of_any_row = [member.share for member in members() if member.stem in ("unnamed-trainer", "megatron-2021")]
    assert sum(of_any_row) == pytest.approx(1)
    known = Training().predict(LAYOUTS)
    some = Training().predict({**LAYOUTS, "software": np.array(["", "unknown"] * 4)})
    assert some.value[::2] == pytest.approx(known.value[::2])
    assert some.error[::2] == pytest.approx(known.error[::2])
    assert (some.error[1::2] > known.error[1::2]).all()


def test_a_mixture_lies_between_its_profiles_and_doubts_more():
    each = [Memory().predict({**variant.columns, "software": ""}).value for variant in variants(UNKNOWN)]
    said = Memory().predict(UNKNOWN)
    assert (np.min(each, axis=0) < said.value).all()
    assert (said.value < np.max(each, axis=0)).all()
    assert (said.error > Memory().predict(LAYOUTS).error).all()


def test_trainers_that_shard_weights_mostly_run_pytorchs_layers():
    def fused(zero: int) -> float:
        some = variants({**UNKNOWN, "zero": zero})
        weights = probabilities([variant.log_share for variant in some], 8)
        return float(sum(w for w, variant in zip(weights[:, 0], some, strict=True) if variant.columns.get("te") == 1))

    assert fused(3) < 0.2 < 0.3 < fused(1)


def test_what_a_row_says_holds_in_every_profile():
    said = variants({**UNKNOWN, "attention": "unfused", "grad_bytes": 2.0})
    assert {str(np.unique(variant.columns["attention"])[0]) for variant in said} == {"unfused"}
    assert {float(np.unique(variant.columns["grad_bytes"])[0]) for variant in said} == {2.0}


@pytest.mark.parametrize(
    "truth", ["plain PyTorch, gradients in 32 bits, loss of whole rows", "unfused attention of 2021-22"]
)
def test_three_rows_tell_what_runs(truth: str):
    real = Memory().predict(of_profile(truth)).value
    before = np.abs(np.log(Memory().predict(UNKNOWN).value / real)).max()
    told = Memory()
    few = np.full(8, np.nan)
    few[[0, 5, 6]] = real[[0, 5, 6]]
    told.fit(UNKNOWN, few)
    assert np.abs(np.log(told.predict(UNKNOWN).value / real)).max() < before / 2


def test_the_loss_of_whole_rows_is_the_same_on_one_rank_as_on_several():
    """In 16 bits, in fp32, log-softmax, its gradient and that of the logits: 18 bytes, and the head's two inputs."""
    whole = {**of_profile("plain PyTorch, gradients in 32 bits, loss of whole rows"), "pp": 1}
    for tp in (1, 2):
        logits = Memory().predict({**whole, "tp": tp, "mbs": 2}).parts["logits"]
        assert logits == pytest.approx(2 * 2048 * (18 * 128000 + 2 * 2 * 5120) / 2**30)


def test_a_run_that_died_raises_the_probability_of_those_that_need_more():
    memory, after = Memory(), Memory()
    died = np.full(8, np.nan)
    died[2] = np.inf
    after.fit(UNKNOWN, died)
    assert (after.oom_probability(UNKNOWN)[2:4] > memory.oom_probability(UNKNOWN)[2:4]).all()


def test_rows_that_tell_the_software_leave_the_doubt_that_no_profile_is_quite_it():
    rows = np.array([0, 3, 4])
    given = {name: value[rows] if np.ndim(value) else value for name, value in UNKNOWN.items()}
    named, unnamed = Training(), Training()
    seconds = named.predict(LAYOUTS).value[rows]
    named.fit({**given, "software": ""}, seconds)
    unnamed.fit(given, seconds)
    assert (unnamed.predict(UNKNOWN).error[[1, 6]] > 1.5 * named.predict(LAYOUTS).error[[1, 6]]).all()  # others


def test_weights_of_profiles_are_of_one_row_each():
    value, between, weights = mixed([np.array([1.0, 2.0]), np.array([4.0, 2.0])], [np.log([0.5]), np.log([0.5])])
    assert value == pytest.approx([2.0, 2.0])
    assert between == pytest.approx([np.log(2), 0.0])
    assert weights.sum(axis=0) == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize(
    ("kernel", "attention", "norm"),
    [
        ("flash_attentionv1.0.8", "flash1", None),
        ("flash_attention2 + RMS kernel", "flash2", 1.0),
        ("FlashAttention-2", "flash2", None),
        ("torch", "unfused", None),
        ("sdpa", "flash", None),
        ("masked", "masked", None),
    ],
)
def test_columns_of_tables_that_name_kernels_are_read(kernel: str, attention: str, norm: float | None):
    row = {"gpu": "A100", "n_gpus": 8, "layers": 2, "hidden": 1024, "heads": 8, "seq_len": 2048, "kernel": kernel}
    columns = columns_of([row])
    assert columns["attention"][0] == attention
    assert columns.get("fused_norm", [None])[0] == norm
    assert columns["software"][0] == "unknown"


def test_rows_beside_those_that_name_a_norms_kernel_have_none():
    row = {"gpu": "A100", "n_gpus": 8, "layers": 2, "hidden": 1024, "heads": 8, "seq_len": 2048}
    kernels = ["flash_attention2 + RMS kernel", "flash_attention2", "torch", ""]
    told = columns_of([{**row, "kernel": kernel} for kernel in kernels])["fused_norm"]
    assert told[:3].tolist() == [1.0, 0.0, 0.0]
    assert np.isnan(told[3])
    assert "fused_norm" not in columns_of([{**row, "kernel": kernel} for kernel in kernels[1:]])


def test_norms_of_plain_operators_are_those_of_a_plain_trainer():
    said = {**UNKNOWN, "fused_norm": 0.0}
    plain = [variant for variant in variants(said) if "plain" in variant.name]
    each = [Memory().predict({**variant.columns, "software": ""}).value for variant in plain]
    told = Memory().predict(said).value
    assert (told > Memory().predict(UNKNOWN).value).all()
    assert (told > 0.98 * np.min(each, axis=0)).all()
    assert sum(np.exp(variant.log_share[0]) for variant in plain) > 0.95 * sum(
        np.exp(variant.log_share[0]) for variant in variants(said)
    )


# Hagemann et al. 2023 (arXiv 2311.05610), 13B on 64 A100: seconds without and with a kernel for the norms.
@pytest.mark.parametrize(
    ("mbs", "tp", "pp", "without", "fused"), [(2, 2, 1, 33.90, 29.70), (1, 1, 2, 33.70, 31.06), (1, 2, 2, 39.64, 34.84)]
)
def test_a_kernel_for_norms_gains_what_was_measured(mbs: int, tp: int, pp: int, without: float, fused: float):
    row = {**UNKNOWN, "global_batch": 2048, "mbs": mbs, "tp": tp, "pp": pp, "attention": "flash2"}
    told = Training().predict({**row, "fused_norm": np.array([0.0, 1.0])}).value
    assert told[0] / told[1] == pytest.approx(without / fused, abs=0.04)


def test_joules_are_watts_times_seconds_over_tokens():
    alone = {**LAYOUTS, "mbs": 1, "tp": 2}
    seconds = float(Training().predict(alone).value[0])
    joules = float(TrainingEnergy().predict(alone).value[0])
    most = 400 * 64 * seconds / (512 * 2048)
    assert WAITING * most < joules < COMPUTING * most
    assert "power draw" in TrainingEnergy().applies({**alone, "gpu": "cpu"})


# A row of MLPerf Training v5.1, Llama-2 70B with adapters on 512 GB300: 0.184 s.
SUBMITTED = {
    "layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672, "gated": 1, "bias": 0, "vocab": 32000,
    "seq_len": 8192, "global_batch": 64, "n_gpus": 512, "tp": 1, "pp": 1, "cp": 8, "dp": 64, "micro_batch": 1,
    "precision": "fp4", "lora": 1, "gpu": "GB300", "use_distributed_optimizer": 1,
}  # fmt: skip


@pytest.mark.parametrize("named", [{}, {"framework": "NVIDIA NeMo Framework"}, {"round": "v5.1"}])
def test_a_row_is_what_its_columns_say_whoever_measured_it(named: dict):
    """0.2 s of products, which a host that issues them one by one would stretch to 1 s."""
    said = Training().predict(columns_of([{**SUBMITTED, **named}]))
    assert said.value[0] == pytest.approx(0.184, rel=0.35)


def test_a_record_is_a_member_where_its_runs_look_like_the_row():
    def of(**columns) -> set[str]:
        return {each.name.partition(":")[0] for each in variants({**UNKNOWN, **columns}) if each.log_share[0] > -3}

    assert "mlperf-training" not in of()
    assert "mlperf-training" in of(dtype="fp8", gpu="b200", zero=0)
    assert "llm-foundry" in of(zero=3)
    assert "megatron-2021" in of(gated=0, zero=0)


def test_what_nobody_states_and_decides_most_is_named():
    found = Training().widest(UNKNOWN)
    assert found is not None
    assert found.column in ("te", "fused_norm", "fused_activation", "attention")
    narrow = Training().widest({**UNKNOWN, found.column: "flash2" if found.column == "attention" else 1.0})
    assert narrow is not None
    assert narrow.between < found.between
    assert max(found.values.values()) > min(found.values.values()) > 0
    assert Training().widest(LAYOUTS) is None


def test_what_is_priced_by_some_columns_keeps_the_verdict_of_all():
    columns = {**UNKNOWN, "gpu": "b200", "dtype": "fp8", "zero": 0, "lora": np.array([0, 1] * 4)}
    whole = variants(settled(columns))
    part = variants({name: value for name, value in settled(columns).items() if name not in ("lora", "gpu")})
    for one, other in zip(whole, part, strict=True):
        np.testing.assert_array_equal(one.log_share, other.log_share)


def test_samples_that_are_padded_take_the_slow_kernel_of_attention_until_rows_tell():
    """Llama-3-8B with 8,192 tokens on an H100, Hugging Face's Trainer: 4.7 s measured, 2.4 predicted without masks."""
    row = {
        "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "gated": 1, "vocab": 128256,
        "seq_len": 8192, "global_batch": np.array([2.0]), "mbs": 2, "gpus": 1, "gpu": "h100", "ar": "full",
        "dtype": "bf16", "software": "huggingface",
    }  # fmt: skip
    model = Training()
    before = model.predict(row)
    flash, masked = (float(Training().predict({**row, "attention": kind}).value[0]) for kind in ("flash", "masked"))
    assert flash < before.value[0] < masked == pytest.approx(4.7, rel=0.05)
    assert abs(np.log(4.7 / before.value[0])) < 1.645 * before.error[0]
    model.fit(row, np.array([4.7]))
    assert model.predict(row).value[0] == pytest.approx(4.7, rel=0.05)
    alone = row | {"mbs": 1}  # one sample is as long as itself
    flash = float(Training().predict({**alone, "attention": "flash"}).value[0])
    assert Training().predict(alone).value[0] == pytest.approx(flash, rel=0.1)


def test_a_release_that_is_named_leaves_open_what_it_leaves_open():
    """Hugging Face's trainer may or may not pad its samples, in every release; unfused attention is of none."""
    row = {
        "layers": 32, "hidden": 4096, "heads": 32, "seq_len": 4096, "global_batch": 8, "n_gpus": 8, "gpu": "h100",
        "zero_stage": 3, "precision": "bf16",
    }  # fmt: skip
    named = [{"framework": "Transformers 4.57"}, {"framework": "Transformers", "version": "4.57.1"}]
    rows = [row | one for one in ({"framework": "Transformers"}, *named, {"framework": "Transformers 5.1"})]
    each = [Training().predict(columns_of([one])) for one in rows]
    assert all(one.value[0] == pytest.approx(each[0].value[0], rel=0.02) for one in each)
    assert all(one.error[0] == pytest.approx(each[0].error[0], rel=0.02) for one in each)
    alone = {"n_gpus": 1, "global_batch": 1, "seq_len": 512, "zero_stage": 0}
    peaks = [float(Memory().predict(columns_of([one | alone])).value[0]) for one in rows]
    assert peaks[3] < peaks[0] < peaks[1] == peaks[2]  # Adam in one kernel since 5


def test_recipes_of_racks_replay_routers_in_graphs():
    row = {"framework": "Megatron-Bridge", "model": "Qwen3_30B_a3B", "precision": "bf16"}
    assert [of_row({**row, "gpu": gpu}).get("graphs") for gpu in ("GB200", "B200", "H100")] == [1, None, None]
    dense = {**row, "model": "LLAMA3_70B", "gpu": "GB200"}
    assert "graphs" not in of_row(dense)


def test_rows_of_one_number_format_say_less_of_another():
    """Products in 8 bits have kernels of their own: what 16 bits are off by is not known of them."""
    row = {**LAYOUTS, "gpu": "h100", "dtype": np.array(["bf16"] * 8)}
    model, eight = Training(), {**row, "dtype": np.array(["fp8"] * 8)}
    before, measured = Training().predict(eight), Training().predict(row)
    model.fit(row, 1.1 * measured.value)
    same, other = model.predict(row), model.predict(eight)
    assert np.all(same.error < other.error)
    assert np.all(other.error < before.error)
    assert np.all(same.value > 1.08 * measured.value)
    assert np.all((other.value > 1.02 * before.value) & (other.value < 1.1 * before.value))
