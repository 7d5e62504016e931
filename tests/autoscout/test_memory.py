"""The analytic memory model: what must hold for any job, and how far it is from measured peaks where they are."""

import csv
import gzip
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtr

from autoscout.simulate.encode import of_job
from autoscout.simulate.hardware.capacity import capacity
from autoscout.simulate.training.memory import ERROR, Memory, chance_beyond, estimate_gib
from autoscout.simulate.training.rank_memory import PARTS
from autoscout.simulate.validation.training_tables import columns_of, peak_gib
from autoscout.space.attributes import memory_gib
from autoscout.targets.jobs import JobSpace, load_job
from kb.records import Cluster, Node
from kb.similar import features

DATA = Path(__file__).parents[3] / "shared" / "data"
GPT = {"layers": 32, "hidden": 4096, "heads": 32, "seq_len": 2048, "global_batch": 64, "gpus": 8, "gpu": "a100"}
PARAMETERS = 32 * 12 * 4096**2 + 2 * 51200 * 4096
powers = st.sampled_from([1, 2, 4, 8])


def parts(**columns: object) -> dict[str, float]:
    return {name: float(v[0]) for name, v in Memory().predict({**GPT, **columns}).parts.items()}


def gib(**columns: object) -> float:
    return sum(parts(**columns).values())


@given(tp=powers, pp=powers, mbs=powers, sp=st.booleans(), ar=st.sampled_from(["none", "selective", "full"]))
def test_parts_are_not_negative_and_sum_to_the_value(tp: int, pp: int, mbs: int, sp: bool, ar: str):
    p = Memory().predict({**GPT, "gpus": 64, "tp": tp, "pp": pp, "mbs": mbs, "sp": sp, "ar": ar})
    assert set(p.parts) == set(PARTS)
    assert all((part >= 0).all() for part in p.parts.values())
    assert sum(p.parts.values()) == pytest.approx(p.value)


def test_a_parameter_takes_eighteen_bytes_and_the_distributed_optimizer_shards_twelve_of_them():
    plain, sharded = parts(), parts(distopt=1)
    states = ("weights", "gradients", "optimizer")
    assert sum(plain[s] for s in states) == pytest.approx(18 * PARAMETERS / 2**30, rel=0.01)
    assert sum(sharded[s] for s in states) == pytest.approx((6 + 12 / 8) * PARAMETERS / 2**30, rel=0.01)
    fsdp = parts(zero=3)
    assert sum(fsdp[s] for s in states) == pytest.approx(16 / 8 * PARAMETERS / 2**30, rel=0.01)


def test_a_fused_loss_keeps_less_of_the_logits():
    plain, fused = (parts(vocab=128256, mbs=4, ce_fusion=told)["logits"] for told in (False, True))
    logits = 4 * 2048 * 128256 / 2**30
    assert plain - fused == pytest.approx(2 * logits)
    assert plain == parts(vocab=128256, mbs=4)["logits"]


def test_what_saves_memory_saves_it():
    assert gib(ar="full") < gib(ar="selective", te=0) < gib(te=0)
    assert gib(tp=2, sp=1) < gib(tp=2) < gib()
    assert gib(pp=2) < gib()
    assert gib(cp=2) < gib()
    assert gib(mbs=1) < gib(mbs=2)
    assert parts(ar="full", ar_layers=4)["activations"] != parts(ar="full", ar_layers=1)["activations"]


def test_the_first_stage_holds_as_many_micro_batches_as_there_are_stages():
    one, four = parts(pp=4, global_batch=2, dp=2), parts(pp=4, global_batch=8, dp=2)
    assert four["activations"] == pytest.approx(4 * one["activations"])
    assert parts(pp=4, global_batch=64, dp=2)["activations"] == pytest.approx(four["activations"])


def test_heads_whose_width_no_fused_kernel_takes_keep_their_scores():
    """Transformer Engine falls back to its unfused attention where a head's width is no multiple of 8."""
    even, odd = ({**GPT, "hidden": 16 * width, "heads": 16} for width in (104, 100))
    plain = {**odd, "attention": "unfused"}
    assert Memory().predict(odd).value == pytest.approx(Memory().predict(plain).value)
    assert Memory().predict(odd).parts["activations"] > 2 * Memory().predict(even).parts["activations"]
    named = {**odd, "attention": "flash"}  # what a row says holds
    assert Memory().predict(named).value < Memory().predict(even).value


def test_eight_bits_keep_less_of_what_products_read():
    saved = parts(dtype="bf16")["activations"] - parts(dtype="fp8")["activations"]
    # two norms' outputs and the second product's input, a byte less each; the attention's output, a byte more
    assert saved * 2**30 == pytest.approx(32 * 2048 * (2 * 4096 + 4 * 4096 - 4096))


def test_gradients_of_scores_come_on_top_of_unfused_attention():
    one, two = (parts(te=0, attention="unfused", pp=2, dp=4, layers=layers)["activations"] for layers in (16, 32))
    fixed = 2 * one - two  # what does not grow with the layers
    assert fixed * 2**30 == pytest.approx(4 * 2048**2 * 32)


def test_the_update_copies_the_gradients_that_a_rank_owns():
    """To fp32, where they are 16 bits wide: all without a distributed optimizer, else a rank's own part."""
    small = {"dtype": "fp16", "grad_bytes": 2, "ar": "full", "dp": 8, "mbs": 1}
    whole, shared = (parts(**small, distopt=shared)["gradients"] for shared in (False, True))
    assert whole > 1.2 * parts(**small | {"grad_bytes": 4}, distopt=False)["gradients"] / 2
    assert shared < 0.75 * whole


def test_adapters_beside_every_product_keep_their_inputs():
    lora = {"lora": 1, "te": 0, "gated": 1, "ffn": 11008}
    few, all_of_them = parts(**lora)["activations"], parts(**lora, adapters=1)["activations"]
    assert (all_of_them - few) * 2**30 == pytest.approx(32 * 2048 * 3 * (4096 + 2 * 4096 + 11008))


def test_fewer_experts_on_a_rank_need_less():
    moe = {"experts": 64, "topk": 8, "expert_ffn": 1024}
    assert parts(**moe, ep=8)["weights"] < parts(**moe, ep=1)["weights"] / 4


def test_the_chance_beyond_is_students_t_also_far_out():
    far = np.array([-1e9, -300.0, -3.0, -0.5, 0.0, 0.5, 3.0, 300.0])
    np.testing.assert_allclose(chance_beyond(far), stdtr(4, far), rtol=1e-12)
    np.testing.assert_array_equal(chance_beyond(np.array([-np.inf, np.inf, np.nan])), [0, 1, np.nan])


def test_the_probability_of_running_out_rises_with_the_micro_batch():
    memory = Memory()
    probability = memory.oom_probability(
        {**GPT, "gpu": "a100-40g", "tp": 2, "distopt": 1, "mbs": np.array([1, 2, 4, 8, 16])}
    )
    assert (np.diff(probability) >= 0).all()
    assert probability[0] < 0.5 < probability[-1]
    assert (memory.fits({**GPT, "gpu": "a100-40g", "tp": 2, "mbs": 16}) == [False]).all()


def test_on_a_mixed_cluster_only_the_devices_that_are_used_count():
    model = {k: v for k, v in GPT.items() if k not in ("gpu", "gpus")} | {"memory_gib": 48.0, "distopt": 1, "mbs": 2}
    large, both = ({"a100": 8, "a40": 0, "gpus": 8, "pp": 2}, {"a100": 8, "a40": 4, "gpus": 12, "pp": 3})
    odds = [Memory("a100").oom_probability({**model, **used})[0] for used in (large, both)]
    assert odds[0] < 0.5
    alone = Memory().oom_probability({**model, "gpu": "a40", "gpus": 12, "pp": 3})[0]
    assert odds[1] <= alone  # the first stages, which hold most micro batches, lie on the larger devices


def test_a_measured_peak_corrects_the_level_and_a_death_raises_it():
    columns = {**GPT, "distopt": 1, "mbs": np.array([1, 2, 4])}
    memory = Memory()
    before = memory.predict(columns).value
    memory.fit(columns, 1.1 * before)
    assert memory.predict(columns).value == pytest.approx(1.1 * before, rel=0.03)
    fitting = {**GPT, "gpu": "a100-40g", "tp": 2, "distopt": 1, "mbs": np.array([1])}
    careless = Memory()
    odds = careless.oom_probability(fitting)
    careless.fit(fitting, np.array([np.inf]))
    assert careless.oom_probability(fitting) > odds


def test_a_run_that_died_moves_what_fits():
    columns = {**GPT, "gpu": "a100-40g", "tp": 2, "distopt": 1, "mbs": np.array([1, 2, 3, 4, 8])}
    memory = Memory()
    before = memory.fits(columns)
    last = int(np.flatnonzero(before)[-1])
    assert before[0]
    assert not before[-1]
    died = {**columns, "mbs": columns["mbs"][[last]]}
    memory.fit(died, np.array([np.inf]))
    after = memory.fits(columns)
    room = Memory()._pressure(columns)  # log(needed / available) without the run
    assert not (after & (room > room[last])).any()  # whatever needs more does not fit either
    assert memory.oom_probability(died) == pytest.approx(0.5) or memory.margin == pytest.approx(2 * ERROR)
    assert memory.predict(columns).value == pytest.approx(np.exp(memory.margin) * Memory().predict(columns).value)
    expected = Memory()
    expected.fit({**columns, "mbs": np.array([8])}, np.array([np.inf]))  # what was to be expected teaches nothing
    assert expected.margin == 0.0


def test_without_the_batch_or_the_device_it_still_says_a_size():
    columns = {k: v for k, v in GPT.items() if k not in ("global_batch", "gpu")}
    assert Memory().applies(columns) == ""
    assert np.isfinite(Memory().predict(columns).value).all()
    assert "hidden" in Memory().applies({"layers": 2})


@pytest.mark.parametrize("name", ["llama-3.2-3b", "llama-3.1-nemotron-nano-8b", "tiny-gpt-cpu"])
def test_one_configuration_is_the_model_on_the_spaces_attributes(name: str):
    job = load_job(Path(f"fixtures/jobs/{name}.toml"))
    space = JobSpace.of_job(job)
    default = space.reference
    columns = {k: v for k, v in space.attributes.items() if k != "degrees"} | default.knobs
    assert estimate_gib(space.attributes, default) == pytest.approx(Memory.of_job(job).predict(columns).value[0])
    assert Memory.of_job(job).fits(columns).all()


# ---- measured


def measured(path: str) -> list[dict[str, str]]:
    file = DATA / path
    if not file.exists():
        pytest.skip(f"{file} is not here")
    with gzip.open(file, "rt") if path.endswith("gz") else file.open() as f:
        return list(csv.DictReader(f))


def mape(rows: list[dict[str, str]]) -> float:
    rows = [r for r, y in zip(rows, peak_gib(rows), strict=True) if np.isfinite(y)]
    assert len(rows) > 10
    return float(np.abs(Memory().predict(columns_of(rows)).value / peak_gib(rows) - 1).mean())


def test_peaks_of_megatrons_own_regression_runs():
    rows = measured("validation/megatron_ci_golden_large_models.csv")
    assert mape([r for r in rows if r["n_gpus"] and r["case"].startswith("gpt3_7b")]) <= 0.05


def test_peaks_of_adapters():
    """Its four constants are of these rows; leaving one model out errs by 2.3 %."""
    rows = measured("validation/train_end_to_end.csv.gz")
    lora = [r for r in rows if r["source"] == "litgpt_config_hub" and "full.yaml" not in r["other"]]
    assert mape(lora) <= 0.05


@pytest.mark.parametrize(
    ("node", "gib"),
    [
        (Node("a40", 8), 44.4),  # sold by 48
        (Node("a40", 8, memory_gib=48.0), 44.4),
        (Node("a40", 8, memory_gib=40.0), 40.0),
        (Node("h100", 8, memory_gib=94.0), 94.0),  # another variant
        (Node("a100-pcie", 8, memory_gib=80.0), 79.15),
        (Node("cpu", 8, memory_gib=4.2), 4.2),
        (Node("nobodys", 8, memory_gib=7.0), 7.0),
    ],
)
def test_a_device_has_what_its_driver_reports(node: Node, gib: float) -> None:
    assert capacity(node) == pytest.approx(gib)


def test_what_fills_an_a40_by_its_data_sheet_runs_out_of_memory() -> None:
    """46 GiB of 48, of which a driver leaves 44.4."""
    columns = {**GPT, "gpu": "a40", "gpus": 8, "distopt": 1, "seq_len": np.arange(1024, 8192, 64), "memory_gib": 48.0}
    near = np.argmin(np.abs(Memory().predict(columns).value - 44.0))
    assert Memory().oom_probability(columns)[near] > 0.5


def test_on_a_mixed_cluster_a_kind_has_the_memory_that_the_job_says() -> None:
    """What fills 44 GiB was said to fit devices of 40 of a name that usually has 80."""
    job = load_job(Path("fixtures/jobs/llama-3.2-3b.toml"))
    layout = {"h100": 8, "pp": 1, "tp": 1, "cp": 1, "dp": 16, "mbs": 2, "distopt": True}

    def chance(other: Node) -> float:
        cluster = Cluster(nodes=[Node("h100", 8), other])
        columns = of_job(msgspec.structs.replace(job, cluster=cluster)) | layout | {other.device.replace("-", "_"): 8}
        return float(Memory().oom_probability(columns)[0])

    assert chance(Node("a100", 8)) < 0.01
    assert chance(Node("a100", 8, memory_gib=39.4)) == chance(Node("a100-40g", 8)) > 0.9


def test_jobs_that_say_what_a_device_is_sold_by_are_alike_to_those_that_say_nothing() -> None:
    """`memory per device` set them apart, and their measurements counted less."""
    job = load_job(Path("fixtures/jobs/llama-3.2-3b.toml"))
    plain, said = (
        msgspec.structs.replace(job, cluster=Cluster(nodes=[Node("a40", 8, memory_gib=gib)])) for gib in (0.0, 48.0)
    )
    assert features(plain, memory_gib) == features(said, memory_gib)
