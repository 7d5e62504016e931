"""The analytic training model: what must hold for any job, and how far it is from measured tables where they are."""

import csv
import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscout.simulate.combinations import distinct
from autoscout.simulate.hardware.device import all_hardware, hardware, kinds
from autoscout.simulate.hardware.roofline import gemm
from autoscout.simulate.training.fleet import fleets
from autoscout.simulate.training.inputs import complete
from autoscout.simulate.training.memory import Memory
from autoscout.simulate.training.step import PARTS, Training, idle
from autoscout.simulate.validation.training_tables import by_stage, columns_of, of_row, step_seconds
from autoscout.targets.jobs import JobSpace, load_job
from kb.records import AutoscoutError

DATA = Path(__file__).parents[3] / "shared" / "data"
GPT = {"layers": 32, "hidden": 4096, "heads": 32, "seq_len": 2048, "global_batch": 64, "gpus": 8, "gpu": "a100"}

powers = st.sampled_from([1, 2, 4, 8])


def seconds(**columns: object) -> np.ndarray:
    return Training().predict({**GPT, **columns}).value


def measured(path: str) -> list[dict[str, str]]:
    file = DATA / path
    if not file.exists():
        pytest.skip(f"{file} is not here")
    with gzip.open(file, "rt") as f:
        return list(csv.DictReader(f))


# ---- devices


def test_every_hardware_file_is_complete_and_found_by_all_its_names():
    assert {"a100-40g", "a100", "a100-pcie", "a40", "h100", "h200", "l40s", "a10g", "v100", "cpu"} <= set(
        all_hardware()
    )
    for stem, hw in all_hardware().items():
        assert all(hardware(name) == hw for name in [stem, hw.name, *hw.names])
        assert all(tile.efficiency <= 1 for tile in hw.gemm.tiles)
        assert len(hw.island.ranks) == len(hw.island.all_reduce.bus_gb_s) == len(hw.island.inside_us)


def test_devices_without_measurements_say_so():
    """Blackwell: shares of its peaks as on H100, faster links, and a wider error."""
    job = {"layers": 32, "hidden": 4096, "heads": 32, "seq_len": 4096, "global_batch": 64, "gpus": 8}
    known, assumed = (Training(name).predict(job) for name in ("h100", "b200"))
    assert 0.3 * known.value < assumed.value < 0.6 * known.value
    assert assumed.error > known.error
    files = [all_hardware()[name] for name in ("b200", "gb200", "b300", "gb300")]
    assert not any(hw.calibrated for hw in files)
    assert all(hw.gemm == files[0].gemm for hw in files)
    assert [hardware(f"NVIDIA {name}") for name in ("B200", "GB200", "B300", "GB300")] == files
    assert hardware("NVIDIA L4") == all_hardware()["l4"] != hardware("NVIDIA L40S")


def test_a_device_on_which_few_runs_were_compared_claims_a_larger_error():
    job = {"layers": 16, "hidden": 2048, "heads": 16, "seq_len": 2048, "global_batch": 64, "gpus": 8}
    sure, doubted = (Training(name).predict(job) for name in ("a10g", "l4"))
    assert doubted.error == pytest.approx(np.hypot(sure.error, all_hardware()["l4"].doubt))


def test_tensor_parallelism_over_pcie_is_less_certain():
    job = {"layers": 16, "hidden": 2048, "heads": 16, "seq_len": 2048, "global_batch": 64, "gpus": 8}
    alone, split = (Training("a10g").predict({**job, "tp": tp}) for tp in (1, 4))
    assert split.error == pytest.approx(np.hypot(alone.error, 0.15))
    assert Training("a100").predict({**job, "tp": 4}).error == Training("a100").predict({**job, "tp": 1}).error


def test_products_timed_in_a_loop_under_a_low_limit_of_power_are_faster_in_training_steps():
    l4, a10g = all_hardware()["l4"], all_hardware()["a10g"]
    size = np.full(1, 4096.0)
    alone, inside = (float(gemm(hw, size, size, size, "bf16")[0]) for hw in (l4, l4.training()))
    assert inside == pytest.approx(alone / l4.clocks.in_steps, rel=0.01)
    assert a10g.training() is a10g
    job = {"layers": 16, "hidden": 2048, "heads": 16, "seq_len": 2048, "global_batch": 64, "gpus": 8}
    fleet = next(fleets({**job, "gpu": "l4"}, 1, ""))
    assert fleet.kinds == [l4.training()]
    assert l4.training().training() == l4.training()


def test_many_parts_of_zero_1_are_less_certain():
    job = {"layers": 32, "hidden": 4096, "heads": 32, "seq_len": 2048, "global_batch": 1024, "gpu": "a100", "gpus": 256}
    own, few, fsdp = ({**job, **how} for how in ({"zero": 1}, {"zero": 1, "zero_group": 8}, {"zero": 3}))
    assert Training().predict(own).error > 2 * Training().predict(few).error
    assert Training().predict(few).error == Training().predict(fsdp).error


def test_devices_of_jobs_and_tables_are_the_same_ones():
    assert hardware("a100") == hardware("A100-SXM-80GB")
    assert hardware("a100-40g") == hardware("A100-SXM4-40GB") != hardware("a100")
    assert hardware("abacus") is None
    assert kinds(["tp", "a100", "mbs", "a40"]) == ["a100", "a40"]


# ---- one prediction


@given(tp=powers, pp=powers, mbs=powers, sp=st.booleans(), ar=st.sampled_from(["none", "selective", "full"]))
def test_parts_are_not_negative_and_sum_to_the_value(tp: int, pp: int, mbs: int, sp: bool, ar: str):
    p = Training().predict({**GPT, "gpus": 64, "tp": tp, "pp": pp, "mbs": mbs, "sp": sp, "ar": ar, "distopt": 1})
    assert set(p.parts) == set(PARTS)
    assert all((part >= 0).all() for part in p.parts.values())
    assert sum(p.parts.values()) == pytest.approx(p.value)
    assert p.value > 0
    assert (p.error > 0).all()


def test_columns_are_scalars_or_arrays_and_rows_do_not_touch_each_other():
    tp = np.array([1, 2, 4, 8])
    many = seconds(tp=tp, mbs=2)
    one_by_one = [seconds(tp=t, mbs=2)[0] for t in tp]
    assert many == pytest.approx(one_by_one)
    assert seconds(tp=tp[::-1], mbs=2) == pytest.approx(many[::-1])


def test_rows_of_several_precisions_and_devices_go_into_one_call():
    gpus = np.array(["a100", "a40", "h100", "a100"])
    dtypes = np.array(["bf16", "bf16", "bf16", "fp32"])
    together = seconds(gpu=gpus, dtype=dtypes)
    assert together == pytest.approx([seconds(gpu=g, dtype=d)[0] for g, d in zip(gpus, dtypes, strict=True)])
    assert together[2] < together[0] < together[1]
    assert together[3] > together[0]


def test_more_work_takes_longer_and_more_devices_shorten_it():
    assert seconds(layers=64) > 1.9 * seconds()
    assert seconds(global_batch=128) > 1.9 * seconds() - seconds(global_batch=8)
    assert seconds(gpus=16) < seconds()
    assert seconds(ar="full") > 1.2 * seconds()


def test_recomputation_costs_what_it_repeats():
    full = seconds(ar="full", pp=2)
    half = seconds(ar="full", ar_method="block", ar_layers=8, pp=2)
    assert seconds(pp=2) < half < full
    assert seconds(ar="selective", te=0) > seconds(te=0)
    assert seconds(ar="selective", attention="flash") == pytest.approx(seconds(attention="flash"))  # it does so anyway


def test_the_bubble_is_the_papers_formula_and_interleaving_divides_it():
    assert idle(np.array(2.0), np.array(8.0), np.array(1.0)) == pytest.approx((4 - 1) * 2.0)
    assert idle(np.array(2.0), np.array(8.0), np.array(3.0)) == pytest.approx((4 - 1) * 2.0 / 3)
    bubble = [Training().predict({**GPT, "pp": 4, "vpp": v}).parts["bubble"][0] for v in (1, 2)]
    assert bubble[1] == pytest.approx(bubble[0] / 2, rel=0.02)  # and a little more to send


def test_a_pipeline_that_drains_after_every_batch_of_its_stages_idles_each_time():
    layout = {**GPT, "pp": 4, "global_batch": 32, "gpus": 4}
    once, often, rarely = (
        Training().predict({**layout, **more}).parts for more in ({}, {"drained": 1}, {"drained": 8})
    )
    assert often["bubble"] == pytest.approx(8 * once["bubble"])
    assert rarely["bubble"] == once["bubble"]
    assert often["compute"] == once["compute"]


def test_overlap_hides_gradients_but_takes_multiprocessors():
    shown, hidden = (Training().predict({**GPT, "distopt": 1, "overlap_grad": o}).parts["dp"][0] for o in (0, 1))
    assert 0 < hidden < shown


def test_small_buckets_pay_their_latency_again_and_again():
    costs = [seconds(overlap_grad=1, ddp_bucket=size)[0] for size in (0.25, 1, 16, 64)]
    assert costs == sorted(costs, reverse=True)


def test_a_small_model_waits_for_the_host():
    small = {"layers": 12, "hidden": 256, "heads": 4, "seq_len": 256, "global_batch": 8}
    p = Training().predict({**GPT, **small, "mbs": 1})
    assert p.parts["host"] > p.parts["compute"]


def test_an_odd_vocabulary_is_slower_than_a_larger_padded_one():
    assert seconds(vocab=50257) > seconds(vocab=50304)


def test_a_fused_loss_passes_over_the_logits_less_often():
    """It was as fast as another, so that nothing was expected of the knob."""
    plain, fused, untold = (seconds(vocab=128256, ce_fusion=told) for told in (0, 1, np.nan))
    assert 1.005 < plain / fused < 1.1
    assert fused < untold < plain


def test_a_mixture_of_experts_sends_tokens_to_experts():
    moe = {"experts": 64, "topk": 8, "expert_ffn": 1024, "te": 1}
    alone, spread = (Training().predict({**GPT, **moe, "ep": ep}) for ep in (1, 8))
    assert alone.parts["ep"] == 0
    assert spread.parts["ep"] > 0


def test_replicas_between_nodes_cost_more_than_inside_one():
    inside, across = (Training().predict({**GPT, "per_node": n, "node_gb_s": 10}).parts["dp"][0] for n in (8, 1))
    assert across > 2 * inside


# ---- mixed clusters


def test_a_mixed_cluster_is_as_fast_as_its_slowest_stage():
    space = JobSpace.of_job(load_job(Path("fixtures/jobs/llama-3.2-3b.toml")))
    common = {k: v for k, v in space.attributes.items() if k != "degrees"} | {"pp": 3, "tp": 4, "mbs": 1}
    both, fast, slow = (
        Training().predict({**common, "a100": a, "a40": b, "gpus": a + b, "pp": (a + b) // 4})
        for a, b in ((8, 4), (8, 0), (0, 4))
    )
    assert fast.value < slow.value
    assert both.value < slow.value
    assert both.parts["compute"] == pytest.approx(slow.parts["compute"] / 3, rel=0.3)  # and the head


def test_the_whole_space_of_a_mixed_cluster_is_predicted_at_once():
    space = JobSpace.of_job(load_job(Path("fixtures/jobs/llama-3.2-3b.toml")))
    columns = {**{k: v for k, v in space.attributes.items() if k != "degrees"}, **space.feasible.columns()}
    model = Training.of_job(load_job(Path("fixtures/jobs/llama-3.2-3b.toml")))
    assert model.applies(columns) == ""
    p = model.predict(columns)
    assert len(p.value) == len(space.feasible)
    assert np.isfinite(p.value).all()


def test_ranks_that_share_cores_take_turns():
    tiny = {"layers": 8, "hidden": 128, "heads": 8, "seq_len": 128, "global_batch": 16, "vocab": 2048, "te": 0}
    four, two = (Training("cpu").predict({**tiny, "gpus": n, "dtype_bytes": 4, "mbs": 2}) for n in (4, 2))
    assert four.value == pytest.approx(two.value, rel=0.3)  # two cores: more ranks do not help


# ---- what it says about itself


def test_why_it_does_not_apply_is_said_in_words():
    assert Training().applies({**GPT, "gpu": "abacus"}) == "no constants for device abacus"
    assert "global_batch" in Training("a100").applies({"layers": 1, "hidden": 64, "heads": 1, "seq_len": 64})
    assert Training().applies({k: v for k, v in GPT.items() if k != "gpu"}) == "no constants for device (none named)"
    assert Training().applies(GPT) == ""


def test_unknown_names_in_a_column_are_one_sentence():
    with pytest.raises(AutoscoutError, match="column ar: 'sometimes' is none of"):
        seconds(ar="sometimes")
    with pytest.raises(AutoscoutError, match="needs the columns heads"):
        complete({"layers": 1, "hidden": 1, "seq_len": 1})


def test_it_trusts_itself_less_where_nothing_was_measured():
    error = {g: Training().predict({**GPT, "gpu": g}).error[0] for g in ("a100", "h200", "cpu")}
    assert error["a100"] < error["h200"] < error["cpu"]
    assert Training().predict({**GPT, "experts": 8, "expert_ffn": 4096}).error > error["a100"]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.lists(st.booleans(), min_size=40, max_size=40))
def test_rows_are_gathered_by_what_differs(tp: list[int], sp: list[bool]):
    x = complete({**GPT, "tp": 2.0 ** np.array(tp), "sp": np.array(sp[: len(tp)])})
    first, of = distinct(vars(x), ("tp", "sp", "hidden"), x.n)
    pairs = list(zip(tp, sp, strict=False))
    assert len(first) == len(set(pairs))
    assert [pairs[i] for i in first[of]] == pairs


def test_a_knob_for_products_in_8_bits_is_the_precision():
    usual = {**GPT, "gpu": "h100", "dtype_bytes": 2}
    recipes = np.array(["none", "tensorwise", "blockwise", "none"])
    for member in (Training(), Memory()):
        bf16, fp8 = (float(member.predict({**usual, "dtype": dtype}).value[0]) for dtype in ("bf16", "fp8"))
        assert fp8 < bf16
        assert member.predict({**usual, "fp8": recipes}).value == pytest.approx([bf16, fp8, fp8, bf16])


# ---- corrected by measured rows


def test_measured_rows_of_a_job_correct_its_level():
    model, columns = Training(), {**GPT, "tp": np.array([1, 2, 4, 8, 1, 2, 4]), "mbs": np.array([1, 1, 1, 1, 2, 2, 2])}
    before = model.predict(columns)
    truth = 1.15 * before.value
    rows = {**columns, "tp": columns["tp"][:5], "mbs": columns["mbs"][:5]}
    model.fit(rows, truth[:5])
    after = model.predict(columns)
    assert np.abs(after.value / truth - 1).max() < 0.05
    assert (after.error <= before.error).all()
    assert sum(after.parts.values()) == pytest.approx(after.value)


def test_one_odd_measurement_does_not_move_all_others():
    tp = np.array([1, 2, 4, 8, 1, 2, 4, 8])
    columns = {**GPT, "tp": tp, "mbs": np.array([1, 1, 1, 1, 4, 4, 4, 4])}
    model = Training()
    truth = model.predict(columns).value
    told = truth.copy()
    told[0] *= 3
    model.fit(columns, told)
    assert np.abs(model.predict(columns).value[1:] / truth[1:] - 1).max() < 0.08


def test_failed_rows_teach_it_nothing():
    model = Training()
    before = model.predict(GPT).value
    model.fit({**GPT, "tp": np.array([1, 2])}, np.array([np.nan, np.inf]))
    assert model.predict(GPT).value == pytest.approx(before)


# ---- tables


def test_a_row_of_a_table_becomes_columns():
    row = {"gpu": "A100-SXM-80GB", "n_gpus": "8", "micro_batch": "4", "model": "mpt-7b", "seq_len": "2048",
           "global_batch": "256", "zero_stage": "3", "precision": "amp_bf16", "ar": "full", "tp": "",
           "framework": "llm-foundry FSDP", "metric": "iteration_time", "value": "9.5", "status": "ok"}  # fmt: skip
    x = of_row(row)
    assert (x["layers"], x["hidden"], x["mbs"], x["zero"], x["ar"], x["dtype"]) == (32, 4096, 4, 3, "full", "bf16")
    assert x["attention"] == "flash1"
    assert step_seconds([row]) == pytest.approx([9.5])
    tokens = {**row, "metric": "tokens_per_s_per_gpu", "value": "1000"}
    assert step_seconds([tokens]) == pytest.approx([256 * 2048 / 8000])
    assert np.isnan(step_seconds([{**row, "status": "failed"}])).all()
    assert columns_of([row, {"layers": 2.0}])["mbs"][1] != columns_of([row])["mbs"][0]


def test_the_issues_numbers_on_the_measured_tables():
    vtrain = measured("landscapes/vtrain_a100_single_node.csv.gz")
    error = np.abs(Training().predict(columns_of(vtrain)).value / step_seconds(vtrain) - 1)
    assert error.mean() <= 0.10
    rows = [r for r in measured("validation/train_end_to_end.csv.gz") if r["gpu"].startswith("A100")]
    rows = [r for r, y in zip(rows, step_seconds(rows), strict=True) if np.isfinite(y) and not by_stage(r)]
    error = np.abs(Training().predict(columns_of(rows)).value / step_seconds(rows) - 1)
    assert len(rows) > 190
    assert error.mean() <= 0.12


def test_trays_of_a_rack_are_one_island():
    """Schedulers call a tray of 4 a node; an NVL72 rack's links span 18 of them."""
    job = {"layers": 32, "hidden": 4096, "heads": 32, "seq_len": 8192, "global_batch": 64, "gpus": 64, "cp": 8}
    rack, tray, own = ({**job, "gpu": "gb200", **more} for more in ({}, {"per_node": 4}, {"per_node": 2}))
    assert Training().predict(tray).value == pytest.approx(Training().predict(rack).value)
    assert Training().predict(own).value > Training().predict(rack).value


def test_four_bits_are_faster_where_the_device_has_them():
    job = {"layers": 32, "hidden": 8192, "heads": 64, "seq_len": 4096, "global_batch": 8, "gpus": 8}
    seconds = {
        (gpu, dtype): float(Training().predict({**job, "gpu": gpu, "dtype": dtype}).value[0])
        for gpu in ("b200", "h100")
        for dtype in ("bf16", "fp8", "fp4")
    }
    assert seconds["b200", "fp4"] < seconds["b200", "fp8"] < seconds["b200", "bf16"]
    assert seconds["h100", "fp4"] > seconds["h100", "fp8"]  # nothing gained, and dearer casts


def test_a_width_that_is_not_four_times_the_hidden_size_is_a_gated_one():
    shape = {"layers": 2, "hidden": 1024, "heads": 8, "seq_len": 1024}
    assert [float(complete({**shape, "ffn": ffn}).gated[0]) for ffn in (4096, 2816, np.nan)] == [0, 1, 0]
    assert float(complete({**shape, "ffn": 2816, "gated": 0}).gated[0]) == 0


def test_heads_of_odd_sizes_are_slower():
    shape = {"layers": 24, "hidden": 2400, "seq_len": 2048, "global_batch": 64, "gpus": 8, "gpu": "a100", "te": 0}
    odd, even = (float(Training().predict({**shape, "heads": heads}).value[0]) for heads in (24, 25))  # of 100, of 96
    assert odd > even
