"""Small functions of the simulators on inputs worked out by hand: traces composed, priced and judged, names of devices
and columns, tables of measured rows, scores, the guard, the pipeline's idle time."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from frozen_values import Values, drawn, hold, kept

from autoscout.simulate.ensemble import medians
from autoscout.simulate.hardware.collectives import Topology
from autoscout.simulate.hardware.device import all_hardware, at, hardware, kinds
from autoscout.simulate.hardware.roofline import _alignment, batched_gemm, flash, flash_backward, gemm, memory_bound
from autoscout.simulate.member import Prediction
from autoscout.simulate.shadow.composed import Depth, chunk_layers, composed, first_with_experts
from autoscout.simulate.shadow.pricing import priced
from autoscout.simulate.shadow.traced import GIB, KINDS, Rank, Shadow, Step, Timed
from autoscout.simulate.shadow.verdict import judged, stages, traced_micro_batches
from autoscout.simulate.training.step import idle
from autoscout.simulate.trust import TrustGuard
from autoscout.simulate.validation import against, column_names, measured, serving_tables, training_tables
from autoscout.simulate.validation.measured import MeasuredRows
from autoscout.simulate.validation.training_tables import shape_of
from kb.records import Configuration, Measurement

NAN, INF = float("nan"), float("inf")


def rank(number: int = 0, scale: int = 1, **more: Any) -> Rank:
    kernels = [
        [6 * scale, "matmul", "forward", [64, 128, 32]],
        [4, "matmul 8-bit", "backward", [128, 128, 64]],
        [2, "matmul", "forward", [3, 64, 32, 16]],
        [2, "attention", "forward", [2, 128, 4, 64], [2, 64], 2],
        [2, "attention backward", "backward", [256, 2, 4, 64], [2, 256], 1],
        [3, "norm", "forward", [64, 256]],
        [3, "norm backward", "backward", [64, 256]],
        [2, "rotary backward", "backward", [64, 64]],
        [2, "copy", "forward", 4096],
        [1, "nothing", "forward"],
        [1, "adam", "step", [5000 * scale]],
        [1, "zero", "step", 3000],
    ]
    collectives = [
        [4, "allreduce", "tp", 2, 65536, "forward"],
        [2, "allgather", "tp", 2, 65536, "backward"],
        [2, "alltoall", "ep", 2, 4096, "forward"],
        [2, "reduce_scatter", "dp+cp", 4, 90000, "backward"],
        [2, "allgather", "cp", 2, 5000, "forward"],
        [2, "send", "pp", 2, 8192, "forward"],
        [2, "recv", "pp", 2, 8192, "forward"],
        [9, "allreduce", "tp", 1, 8192, "forward"],
        [9, "allreduce", "dp+cp", 4, 8, "step"],
        [1, "allreduce", "expert dp", 4, 7000, "backward"],
    ]
    usual: dict[str, Any] = {
        "verdict": "starts", "micro_batches": 8, "micro_batches_traced": 2, "kernels": kernels, "replicas": 4,
        "collectives": collectives, "parameters": 1000 * scale, "operators": 30, "built": 70, "torch": "2",
        "steps": [Step(forward_backward=10 * GIBI, optimizer=GIBI, left=5)], "peak": 10 * GIBI, "reserved": 11 * GIBI,
    }  # fmt: skip
    return Rank(rank=number, **{**usual, **more})


GIBI = int(GIB)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_prices_of_traces(dtype: str):
    hw = hardware("a100")
    assert hw is not None
    found: Values = {}
    for name, ranks, knobs, timed in [
        ("alone", [rank()], {"tp": 2, "dp": 4, "overlap_grad": True}, ()),
        ("two", [rank(7), rank(0, 2)], {"pp": 2, "tp": 2, "cp": 2, "dp": 2}, ()),
        ("five", [rank(7), rank(0, 3), rank(2, 2)], {"pp": 5, "vpp": 2, "tp": 4, "overlap_grad": True}, ()),
        (
            "timed",
            [rank()],
            {"tp": 2},
            [Timed(rank=0, verdict="starts", micro_batch_s=1.0, once_s=0.5, optimizer_s=0.25)],
        ),
        ("tilted", [rank(), rank(0, 9, imbalance=1.5)], {"overlap_grad": True, "pp": 2}, ()),
        ("bare", [rank(micro_batches_traced=0, collectives=[])], {}, ()),
    ]:
        said = priced(ranks, knobs, hw, dtype, timed)
        assert said is not None
        assert said.step_s == pytest.approx(sum(said.parts.values()) + said.bubble_s)
        found[name] = kept([said.step_s, said.bubble_s, *said.parts.values()])
    assert priced([], {}, hw, dtype) is None
    assert priced([rank(), rank(1, verdict="refused")], {}, hw, dtype) is None
    hold(f"shadow/prices_{dtype}", found)


def test_ranks_composed_of_small_ones():
    """All that is linear in layers and stages comes out as if it had been traced."""

    def small(layers: int, many: int) -> tuple[Depth, Rank]:
        size = 1000 * layers + 100 * layers * many
        held = {kind: size + i for i, kind in enumerate(KINDS)}
        steps = [Step(forward_backward=9 * size, optimizer=8 * size, left=7 * size)]
        return Depth(layers, many), rank(
            layers,
            layers,
            steps=steps,
            peak=10 * size,
            reserved=11 * size,
            left=held,
            at_peak=held,
            micro_batches_traced=2,
        )

    made = composed([small(a, b) for a in (2, 3) for b in (2, 4)], Depth(8.0, 8), 16, True)
    size = 1000 * 8 + 100 * 8 * 8
    fewer = round((size + 2) * (4 / 16 - 1))  # what four times as many replicas take over of the optimizer's state
    assert made.left["optimizer"] == size + 2 + fewer
    assert made.at_peak["optimizer"] == size + 2 + fewer
    assert made.left["weights"] == size
    assert made.steps == [Step(forward_backward=9 * size + fewer, optimizer=8 * size + fewer, left=7 * size + fewer)]
    assert made.peak == 9 * size + fewer
    assert made.reserved == round(made.peak * 1.1)
    assert (made.parameters, made.operators, made.built) == (8000, 30, 70)
    assert (made.rank, made.cpu_s, made.micro_batches_traced, made.replicas) == (2, 0.0, 1, 16)
    counts = {str(k[1:3]): k[0] for k in made.kernels if k[2] != "step"}
    assert made.kernels[0][1:] == ["matmul", "forward", [64, 128, 32]]
    assert made.kernels[0][0] == pytest.approx(6 * 8 / 2)
    assert counts["['attention', 'forward']"] == pytest.approx(1)
    steps = {k[1]: k for k in made.kernels if k[2] == "step"}
    assert steps["adam"][0] == steps["zero"][0] == 1
    assert steps["adam"][3] == [pytest.approx(5000 * 8 * 4 / 16)]
    assert steps["zero"][3] == pytest.approx(3000 * 4 / 16)
    sent = {(c[1], c[2]): c for c in made.collectives}
    assert sent["reduce_scatter", "dp+cp"][3:] == [16, pytest.approx(2 * 90000), "backward"]
    assert sent["reduce_scatter", "dp+cp"][0] == 1
    assert sent["allgather", "tp"][0] == pytest.approx(1)
    whole = composed([small(a, 2) for a in (2, 3)], Depth(8.0, 2), 16, False)
    assert whole.left["optimizer"] == 1000 * 8 + 100 * 8 * 2 + 2


def test_layers_of_a_chunk():
    assert chunk_layers(24, {"pp": 4, "vpp": 2}) == (3, 3, 3)
    assert chunk_layers(22, {"pp": 4, "first_layers": 4}) == (4, 6, 6)
    assert chunk_layers(22, {"pp": 4, "vpp": 2, "first_layers": 5, "last_layers": 1}) == (2.5, 4, 0.5)
    assert chunk_layers(22, {"pp": 4, "stage_split": "embedding+loss"}) == (5, 6, 5)
    assert chunk_layers(23, {"pp": 4, "stage_split": "loss"}) == (6, 6, 5)
    assert chunk_layers(23, {"pp": 4, "stage_split": "spread:1"}) is None
    assert chunk_layers(7, {"pp": 1, "last_layers": 7}) == (0, 0, 7)


def test_the_first_stage_whose_layers_all_have_experts():
    """With chunks it is the first chunk of each stage that may have none."""
    knobs = {"pp": 8}
    assert [first_with_experts(16, dense, knobs) for dense in range(7)] == [1, 1, 1, 2, 2, 3, 3]
    assert [first_with_experts(32, dense, {**knobs, "vpp": 2}) for dense in (2, 3, 15, 16, 19)] == [1, 2, 8, 1, 2]
    assert first_with_experts(32, 3, {**knobs, "vpp": 4, "stage_split": "spread"}) == 3
    assert first_with_experts(32, 3, {"pp": 1}) == 1


def test_ranks_that_are_traced():
    assert stages(16, 4) == [15, 0, 4]
    assert stages(16, 3) == [15, 0, 5]
    assert stages(16, 2) == [15, 0]
    assert stages(1, 1) == [0]
    assert stages(16, 8, 3) == [15, 0, 2, 6]
    assert stages(16, 8, 7) == [15, 0, 2]
    assert [traced_micro_batches(4, v) for v in (1, 2)] == [5, 8]


def shadow() -> Shadow:
    return Shadow(job="j", name="n", configuration={}, verdict="starts", sentence="", world=2, ranks=[])


def test_verdicts_of_traces():
    """10 GiB of 12 − 1: log(11 / 11) is in the middle, as the allocator holds 11."""
    low = rank(1, steps=[Step(forward_backward=3 * GIBI, optimizer=4 * GIBI, left=1)])
    said = judged(shadow(), [low, rank(0)], 0.03, 1.0, 12.0, 1.2)
    assert [r.rank for r in said.ranks] == [0, 1]
    assert (said.allocated, said.reserved, said.imbalanced, said.beside) == (10.0, 11.0, None, 1.0)
    assert said.low == pytest.approx(10 * math.exp(-1.6449 * 0.03))
    assert said.high == pytest.approx(10 * math.exp(1.6449 * 0.03))
    assert said.oom_probability == pytest.approx(0.5)
    assert said.sentence == "starts; rank 0 has the highest peak, 10.00 GiB of 12 GiB (P(out of memory) 50%)"
    roomy = judged(shadow(), [rank(0)], 0.001, 1.0, 12.5, 1.2)
    # A spread of 1 % at least: 11 of 11.5 GiB are log(11.5 / 11) / 0.01 standard deviations away.
    assert roomy.oom_probability == pytest.approx(0.5 * math.erfc(math.log(11.5 / 11) / 0.01 / math.sqrt(2)))
    full = judged(shadow(), [rank(0)], 0.03, 1.0, 11.0, 1.2)
    assert full.sentence.startswith(
        "starts; rank 0 has the highest peak, 10.00 GiB, which does not fit into 11 GiB (P(out"
    )
    nowhere = judged(shadow(), [rank(0)], 0.03, 1.0, None, 1.2)
    assert nowhere.oom_probability is None
    assert nowhere.sentence == "starts; rank 0 has the highest peak, 10.00 GiB"
    tilted = rank(0, imbalance=1.5, steps=[Step(forward_backward=15 * GIBI, optimizer=0, left=1)])
    uneven = judged(shadow(), [rank(0), tilted], 0.03, 1.0, 12.0, 1.5)
    # 10 GiB for every whole of imbalance: 12 at 1.2, 18 at 1.8, the least balanced that was seen.
    assert uneven.imbalanced == pytest.approx(12)
    assert uneven.high == pytest.approx(18 * math.exp(1.6449 * 0.003))
    spread = math.hypot(0.03, 10 * 0.15 / 12)
    assert uneven.oom_probability == pytest.approx(0.5 * math.erfc(-math.log(12 / 11) / spread / math.sqrt(2)))
    refused = rank(3, verdict="refused", type="ValueError", message="bad", where="f.py:3", phase="build")
    assert judged(shadow(), [rank(0), refused], 0.03, 1.0, 12.0, 1.2).sentence == (
        "rank 3 does not start: ValueError: bad (f.py:3, phase build)"
    )
    assert [r.rank for r in judged(shadow(), [rank(0), refused], 0.03, 1.0, 12.0, 1.2).ranks] == [3, 0]
    late = judged(shadow(), [rank(2, verdict="timeout")], 0.03, 1.0, 12.0, 1.2).sentence
    assert late == "rank 2 was not traced within the time limit; raise the limit with --timeout"
    blind = rank(2, verdict="untraceable", message="no kernel\nmore", where="g.py:1")
    assert judged(shadow(), [blind], 0.03, 1.0, 12.0, 1.2).sentence == (
        "rank 2 cannot be traced without a GPU: no kernel (g.py:1); measure it with `autoscout profile`"
    )


def test_collectives_and_rooflines():
    found: Values = {}
    group, stride = np.array([1, 2, 4, 8, 8, 16, 16, 64]), np.array([1, 1, 2, 1, 4, 1, 8, 2])
    for name in ("a100", "cpu", "b200"):
        hw = hardware(name)
        assert hw is not None
        links = Topology(hw, np.array(float(hw.per_node)), np.array(25.0))
        for way in (links.all_reduce, links.all_gather, links.reduce_scatter, links.all_to_all):
            found[f"{name} {way.__name__}"] = kept(way(np.array(1e7), group, stride))
        found[f"{name} copies"] = kept(links.all_to_all(np.array(1e7), group, stride, 2e6, 4.0))
        found[f"{name} send"] = kept(links.send(np.array(1e7), np.array([1, 7, 8, 9, 64])))
        found[f"{name} late"] = kept(links.late(group))
        m, n, k = np.array([1.0, 100, 128, 129, 5000]), 1000.0, np.array([64.0, 1024, 1022, 1023, 4096])
        for dtype in ("bf16", "fp32"):
            found[f"{name} {dtype} gemm"] = kept(gemm(hw, m, np.array(n), k, dtype, 1e6))
            found[f"{name} {dtype} batched"] = kept(batched_gemm(hw, np.array(7.0), m, np.array(n), k, dtype))
        one = flash(hw, np.array(2.0), np.array(8.0), m, m, np.array([64.0, 100, 128, 20, 96]), "bf16")
        found |= {f"{name} flash": kept(one), f"{name} back": kept(flash_backward(hw, one))}
        found[f"{name} bytes"] = kept(memory_bound(hw, m * 1e6, 0.5, 3.0))
    sizes = np.array([8.0, 12, 10, 9])
    assert (
        _alignment(sizes, np.array(16.0)).tolist()
        == _alignment(np.array(16.0), sizes).tolist()
        == [1, 0.85, 2 / 3, 1 / 3]
    )
    assert at([1.0, 2.0, 4.0], [2, 4, 8], np.array([0, 2, 4, 5.656854, 8, 16])) == pytest.approx([1, 1, 2, 3, 4, 4])
    hold("training/links", found)


def test_names_of_devices():
    for said, ours in {
        "NVIDIA A100-SXM4-80GB": "a100", "NVIDIA A100-SXM4-40GB": "a100-40g",
        "A100 PCIe 80GB": "a100-pcie", "A100 PCIe 40GB": "a100-pcie-40g",
        "NVIDIA H100 80GB HBM3": "h100", "H100 PCIe": "h100-pcie", "H100 NVL": "h100-nvl",
        "Tesla V100-SXM2-32GB": "v100", "NVIDIA A800-SXM4-80GB": "a800",
    }.items():  # fmt: skip
        assert hardware(said) is all_hardware()[ours], said
    for said in ("H100 NVL 80GB", "V100 8GB", "A800 40GB", "A100 H100", "", "RTX 4090 D"):
        assert hardware(said) is None, said
    assert kinds(["tp", "a100", "h100", "x"]) == ["a100", "h100"]
    hw = all_hardware()["a100"]
    assert hw.peak("bf16") == hw.peak("fp8") == hw.peak("fp4") == hw.peak("odd") == 1e12 * hw.peak_tflops["bf16"]
    new = all_hardware()["b200"]
    assert new.peak("fp4") == 1e12 * new.peak_tflops["fp4"] > new.peak("fp8") > new.peak("bf16")


def test_names_and_values_of_columns():
    row = {"Micro-Batch Size": 4, "mbs": 2, "n gpus": "8", "tp": None, "pp": "nan", "Kernel": "flash"}
    assert column_names.renamed(row) == {"mbs": 2, "gpus": "8", "attention": "flash"}
    assert [column_names.stated(v) for v in ("", " NaN ", "none", "n/a", "x", 0, None, NAN)] == [False] * 4 + [
        True,
        True,
    ] + [False] * 2
    assert [column_names.number(v) for v in ("yes", "No", "true", "3.5", "x", None, "inf", -2)] == [
        1,
        0,
        1,
        3.5,
        None,
        None,
        None,
        -2,
    ]
    statuses = ("ok", "Success", "0", None, "CUDA out of memory", "oom", "killed", "1")  # 0 and 1: exit codes
    assert [column_names.status_of({"status": s}) for s in statuses] == ["ok"] * 4 + ["oom"] * 2 + ["failed"] * 2
    assert shape_of("meta-llama/Meta-Llama3-8B (fp8)")["layers"] == 32
    assert shape_of("gemma-2b")["head_dim"] == 256
    assert "head_dim" not in shape_of("llama2-7b")
    assert shape_of("nobody's") == {}


def test_idle_pipelines():
    """Narayanan et al.: p stages of t seconds wait (p − 1) t, divided by the chunks of a stage."""
    assert idle(np.array(2.0), np.array(8.0), np.array(1)) == 6
    assert idle(np.array(2.0), np.array(8.0), np.array(3)) == 2


def test_the_guard_in_words():
    guard = TrustGuard(0.1, 3)
    assert (guard.mape, guard.trusted) == (0.0, True)
    assert guard.check(90.0, 100.0, {"sp": True, "tp": 1}) == pytest.approx(0.1)
    assert guard.why == "the simulators err by 10% over the last check, within the tolerated ε = 10%"
    guard.check(100.0, 100.0, {"sp": False, "tp": 1})
    assert guard.why == "the simulators err by 5% over the last 2 checks, within the tolerated ε = 10%"
    assert guard.regions() == []  # one check each; of tp nothing is elsewhere
    guard.check(130.0, 100.0, {"sp": True, "tp": 1})
    guard.check(130.0, 100.0, {"sp": True, "tp": 2})
    (region,) = [r for r in guard.regions() if r.knob == "sp"]
    assert (region.value, region.checks, region.elsewhere) == (True, 3, 0.0)
    assert region.mape == pytest.approx(0.7 / 3)
    assert guard.why.endswith("; where sp is on, they err by 23%, elsewhere by 0%")
    assert not guard.verdict({"tp": 1}).simulate


def test_scores_of_predictions():
    job = np.array(["a"] * 3 + ["b"] * 2 + ["c"])
    values = np.array([1.0, 2.0, 4.0, 1.0, 1.04, 5.0])
    said = Prediction(value=np.array([1.1, 1.0, 5.0, NAN, INF, 0.0]), error=np.full(6, 0.2))
    columns: dict[str, Any] = {"layers": 1}
    rows = MeasuredRows("pretrain", "step_time_s", columns, values, {"gpu": np.array(["x", "y"] * 3)}, job)
    found = against.score_as_it_is(rows, said)
    assert (found.rows, found.failing) == (3, 2)
    assert found.mape == pytest.approx((0.1 + 0.5 + 0.25) / 3)
    assert found.coverage == pytest.approx(2 / 3)  # exp(1.64 × 0.2) is 1.39
    assert found.rank == pytest.approx(1 / 3)  # of three pairs one is the wrong way round
    assert found.regret == pytest.approx(1.0)  # the second row would be taken, the first is twice as fast
    assert found.groups["gpu"] == pytest.approx({"x": (0.1 + 0.25) / 2, "y": 0.5})
    assert against._regret("tokens_per_s", job[:3], np.array([1.0, 2, 3]), np.array([4.0, 2, 1])) == pytest.approx(3.0)
    assert against._rank(np.array(["a", "a"]), np.array([2.0, 2.0]), np.array([1.0, 2.0])) == 0.0
    assert against._rank(np.array(["a", "a"]), np.array([2.0, 3.0]), np.array([1.0, 1.05])) is None
    fold, words = against._folds(rows._replace(groups={"model": np.array(["m"] * 6)}))
    assert (fold.tolist(), words) == ([0, 1, 2, 3, 4, 0], "a fifth of the rows (all rows are of one model)")
    fold, words = against._folds(rows._replace(groups={"model": np.array(["m", "n"] * 3)}))
    assert (fold.tolist(), words) == ([0, 1] * 3, "one model")
    many = [f"m{i}" for i in range(9)]
    assert against._folds(rows._replace(groups={"model": np.array(many)}))[1] == "a part of the 9 models (8 parts)"


def test_one_row_a_configuration():
    def one(tp: int, value: float, status: Any = "ok") -> Measurement:
        return Measurement(
            configuration=Configuration(knobs={"tp": tp}), name="n", context="c", status=status, metrics={"x": value}
        )

    configurations, values = medians([one(1, 3), one(2, 9), one(1, 5), one(1, 4), one(3, 0), one(4, 7, "oom")], "x")
    assert [c.knobs["tp"] for c in configurations] == [1, 2]
    assert values == [4, 9]
    assert medians([one(1, 3)], "y") == ([], [])


TRAINED: dict[str, list[Any]] = {
    "layers": [24, None], "hidden": [1024], "heads": [16], "gpus": [4, 8, None], "tp": [1, 4, 8], "pp": [1, 2],
    "seq_len": [1024, None], "global_batch": [2, 64], "mbs": [1, 4], "gpu": ["a100", "a100", "x100", ""],
    "experts": [0, 8, 16, 17], "model": [None, "mine", "bert-large"], "framework": ["", "Megatron-Bridge", "litgpt"],
    "precision": ["bf16", "", "fp8"], "other": ["", "full.yaml"], "source": ["s", "t"],
    "status": ["ok", "ok", "oom", "failed"], "iteration_time_s": [1.5, 0, None], "peak_memory_gib": [10, None],
}  # fmt: skip


def rows_of(columns: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*(c.tolist() for c in columns.values()), strict=True)]


def test_tables_of_training_runs():
    columns = drawn(TRAINED, 200, 3)
    rows = rows_of(columns)
    skipped: Counter[str] = Counter()
    sets = measured._training(rows, skipped)
    runs = measured._runs(rows)
    assert runs is not None
    found: Values = {f"skipped {why}": [n] for why, n in skipped.items()}
    for each in (*sets, runs):
        found |= {f"{each.metric} {len(found)}": kept(each.values), f"jobs {len(found)}": [len(set(each.job.tolist()))]}
    hold("tables/measured_training", found)


def test_tables_of_serving_runs():
    choices = {
        "model": ["llama2-7b", "meta-llama/Llama-2-7b-hf", "x"], "gpu": ["A100-80GB", "H100", ""], "isl": [128, 0],
        "osl": [64, 2], "tp": [1, 2, 0], "batch_size": [0, 4], "qps": [0, 2.5, 17000],
        "e2el_mean_ms": [0.5, 900.0, 5000.0], "itl_p99_us": [3.0],
        "framework": ["vLLM", "llama.cpp", "TensorRT-LLM"], "version": ["0.8.1", "0.7", "v0.10", "1.0", ""],
        "kv_dtype": ["", "fp8"], "latency_median_s": [NAN, 2.0], "total_throughput": [0, 99.0],
    }  # fmt: skip
    columns = drawn(choices, 80, 4)
    rows = rows_of(columns)
    skipped: Counter[str] = Counter()
    found: Values = {}
    for each in measured._serving(rows, skipped):
        found[each.metric] = kept(each.values)
        for name in ("batch", "rate", "memory_gib", "gpus"):
            found[f"{each.metric} {name}"] = [int(np.count_nonzero(each.columns[name]))]
    found |= {f"skipped {why}": [n] for why, n in skipped.items()}
    hold("tables/measured_serving", found)
    ours = serving_tables._ours
    assert ours("ttft_p99_s", "", 2.0) == ("ttft_p99_ms", 2000.0)
    assert ours("itl_median", "us", 500.0) == ("itl_p50_ms", 0.5)
    assert ours("tpot", "", 7.0) == ("tpot_mean_ms", 7.0)
    assert ours("total_tokens_per_s", "", 7.0) == ("total_tokens_per_s", 7.0)
    assert ours("tpot", "ms", 0.0) is ours("nothing", "", 1.0) is None
    assert [serving_tables._number(v) for v in (-1, 0, "3", 1e9, 1e10, "x")] == [0, 0, 3, 0, 0, 0]
    assert [serving_tables.device_name(t) for t in ("A100-SXM-40GB", "gh200", "Xeon CPU", "what")] == [
        "a100-40g",
        "gh200",
        "cpu",
        "",
    ]
    assert [serving_tables.device_name("a100", gib) for gib in (0, 40, 41, 41.5, 80)] == [
        "a100",
        "a100-40g",
        "a100-40g",
        "a100-40g",
        "a100",
    ]


def test_seconds_and_bytes_of_a_row():
    def seconds(**row: Any) -> float:
        return float(training_tables.step_seconds([{"seq_len": 10, "global_batch": 8, "n_gpus": 4, **row}])[0])

    assert seconds(metric="iteration_time_ms", value=5) == 0.005
    assert seconds(metric="iteration_time", value=5, unit="ms") == 0.005
    assert seconds(metric="iteration_time", value=5, unit="s") == seconds(step_time_s=5) == 5
    assert seconds(tokens_per_s=20) == 4
    assert seconds(tokens_per_s_per_gpu=20) == 1
    assert seconds(samples_per_s=2) == 4
    assert math.isnan(seconds(step_time_s=-5))
    assert math.isnan(seconds(step_time_s=5, status="oom"))
    gib = training_tables.peak_gib
    assert gib([{"peak_memory_gib": 3}, {"max_allocated_mib": 2048}, {"status": "oom"}]).tolist() == [3, 2, INF]
    assert gib([{"peak_mem_gb": 2**30}, {"metric": "peak_memory", "value": 2**30, "unit": "bytes"}]).tolist() == [
        1e9,
        1,
    ]
    assert gib([{"status": "failed", "peak_memory_gib": 3}, {}]) == pytest.approx([NAN, NAN], nan_ok=True)
