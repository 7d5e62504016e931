"""What rows of measured tables are read as: every name and value of a few dozen training and serving rows, each with
something that another column, another trainer or another spelling changes. `UPDATE_FROZEN=1` writes them anew."""

from typing import Any

import numpy as np
import pytest
from frozen_values import Values, drawn, hold, kept
from test_simulate_by_hand import rows_of

from autoscout.simulate.training.software import UNKNOWN
from autoscout.simulate.validation import against, column_names, measured, serving_tables, training_tables
from autoscout.simulate.validation.measured import MeasuredRows

NAN, INF = float("nan"), float("inf")
GPUS = (
    "gh200", "gb300", "gb200", "b300", "b200", "h200", "h100", "h800", "l40s", "a10g", "a40", "v100", "l4",
    "mi300x", "mi325x", "mi350x", "mi355x", "a800",
)  # fmt: skip
NAMES = (
    "llm-foundry FSDP", "InternEvo", "fms-fsdp", "fms-fsdp (PyTorch FSDP + compile + SDPA)", "torchtitan FSDP2",
    "Megatron-Bridge", "litgpt finetune", "HuggingFace Trainer", "NeMo AutoModel",
)  # fmt: skip
TRAINED: list[dict[str, Any]] = [
    *({"framework": name, "layers": 2} for name in NAMES),
    *({"framework": name} for name in ("Megatron-LM", "MegatronCore", "my NeMo 24", "Megatron-Bridge 0.2", "odd")),
    {"round": "v5.1"},
    # what a planner's stages of several degrees leave out: their mean, one at least; heads of 128, one at least
    {"gpus": 8, "pp": 2, "dp": 2, "hidden": 384},
    {"gpus": 12, "pp": 4, "dp": 2, "hidden": 100},
    {"gpus": 2, "pp": 2, "dp": 2},
    {"gpus": 8, "pp": 2, "dp": 2, "tp": 3, "heads": 5, "hidden": 384},
    # numbers that cannot be, and those whose 0 means something
    {"layers": 0, "hidden": -1, "mbs": 1e13, "ffn": 9.9e12, "sp": 0, "zero": 0, "experts": 0, "topk": 0},
    {"gpu": "A100", "gpu_mem_gb": 40}, {"gpu": "A100", "gpu_mem_gb": 41}, {"gpu": "NVIDIA A100", "gpu_mem_gb": 42},
    {"gpu": "A100", "gpu_mem_gb": 41.5}, {"gpu": "H100", "gpu_mem_gb": 40}, {"gpu": "A100", "gpu_mem_gb": 0},
    {"gpu": "A100", "gpu_mem_gb": 1},
    # vTrain's and Megatron-core's own runs
    {"s_per_sample": 1, "hidden": 4096, "ar": "full"}, {"s_per_sample": 1, "hidden": 1024}, {"other": "of vtrain"},
    {"transformer_impl": "te", "vocab": 50257, "tp": 2, "ffn": 4096, "hidden": 1024, "bf16": "True"},
    {"transformer_impl": "te", "vocab": 256, "tp": 2, "ffn": 4000, "hidden": 1024, "bf16": "False"},
    {"mem_max_allocated_bytes": 5, "vocab": 129, "vpp_layers": 2, "layers": 24, "pp": 3},
    {"transformer_impl": "te", "vpp_layers": 2, "layers": 24}, {"transformer_impl": "te", "layers": 24},
    {"transformer_impl": "te", "vpp_layers": 20, "layers": 24, "pp": 2}, {"transformer_impl": "te", "vpp_layers": 2},
    # recomputation and precision, as tables spell them
    *({"ar": ar} for ar in ("Full", "true", "1.0", "uniform", "none", "selective", "selective layer", "[0.5, 1, x]")),
    {"ar": "[x]"}, {"ar": "block", "ar_method": "Block", "ar_layers": 2}, {"ar_method": "odd"},
    *({"dtype": dtype} for dtype in ("BF16-mixed", "FP8", "float8", "fp16", "nvfp4", "fp32", "tf32", "fp8 with bf16")),
    *({"fp8": said, "dtype": "fp16"} for said in ("True", "no", "0", "hybrid")),
    # sharding
    *({"sharding": said, "per_node": 8} for said in ("HYBRID_SHARD", "NO_SHARD", "SHARD_GRAD_OP", "stage-1", "odd")),
    {"sharding": "FULL_SHARD", "distopt": 1}, {"sharding": "hybrid shard"}, {"framework": "DeepSpeed ZeRO-2"},
    {"zero": "stage 3", "sharding": "no_shard"},
    # what the column `other` says
    {"other": "zero1 group=16"}, {"other": "fsdp=1"}, {"other": "fsdp=2"}, {"other": "fsdp=10"},
    {"framework": "llm-foundry FSDP", "other": "SHARD_GRAD_OP"}, {"other": "SHARD_GRAD_OP"},
    {"framework": "fms-fsdp", "ar": "selective", "model": "llama2-13b"},
    {"framework": "fms-fsdp", "ar": "selective", "model": "Llama2-34B"},
    {"source": "fms_fsdp", "ar": "selective", "model": "llama2-70b"},
    {"source": "fms_fsdp", "ar": "selective"}, {"source": "fms_fsdp", "ar": "full"},
    *({"other": f"{file}/lora.yaml", "framework": "litgpt finetune"} for file in ("gemma2-2b", "gemma2b", "falcon-7b")),
    *({"other": f"{file}/qlora.yaml"} for file in ("gemma2-9b", "phi-2", "tiny-llama", "llama-2-7b")),
    {"other": "LoRA Performance"},
    *(
        {"framework": "torchtitan FSDP2", "other": other, "ar": "selective op", "pp": pp, "mbs": mbs}
        for other, pp, mbs in (
            ("FSDP+compile+Float8", 1, 8), ("2D+AsyncTP (compile+Float8(+AsyncTP) for 2D/3D)", 4, 8),
            ("FSDP (compile for 2D)", 4, 32), ("3D (2D)", 2, 1), ("Interleaved 1F1B", 4, 32), ("async TP", 2, 9),
        )
    ),
    {"framework": "torchtitan FSDP2", "ar": "full", "pp": 4},
    # kernels
    *({"attention": said} for said in (
        "flash-attn 1", "Flash Attention2", "fa2", "FA3", "sdpa", "mem efficient", "unfused", "eager", "fused",
        "True", "1.0", "off", "10", "flash_attention2 + RMS kernel", "what",
    )),
    {"te": 1, "attention": "what"}, {"fused_norm": 1, "te": 0}, {"dispatcher": "flex", "framework": "x"},
]  # fmt: skip


def differing(found: dict[str, Any], bare: dict[str, Any]) -> list[float | str | None]:
    """Names and values that an empty row does not have, and the names that only that has."""
    own = [f"{name} {value}" for name, value in sorted(found.items()) if name not in bare or bare[name] != value]
    return [*own, *(f"no {name}" for name in sorted(bare.keys() - found.keys()))]


def test_rows_of_training_runs():
    bare = training_tables.of_row({})
    assert bare == {"gpu": "", "ar": "none", "ar_method": "uniform", "dtype": "bf16", "software": UNKNOWN}
    hold("tables/training", {f"row {i}": differing(training_tables.of_row(row), bare) for i, row in enumerate(TRAINED)})


def test_plain_norms_are_told_by_other_rows():
    """Where one row of a table names a norm kernel, the others that name kernels have plain ones, unless their software
    is known."""
    kernels = [{"attention": "flash2 + RMS"}, {"attention": "flash2"}, {"layers": 1}, {"attention": "sdpa", "te": 1}]
    found = training_tables.columns_of(kernels)
    assert found["fused_norm"].tolist() == pytest.approx([1, 0, NAN, NAN], nan_ok=True)
    assert found["software"].tolist() == [UNKNOWN] * 3 + [""]
    assert "fused_norm" not in training_tables.columns_of(kernels[1:])


def test_a_time_of_the_same_run_is_preferred_and_units_are_known():
    def seconds(*rows: dict[str, Any]) -> list[float]:
        return training_tables.step_seconds(rows).tolist()

    run = {"source": "s", "source_ref": "r", "seq_len": 10, "global_batch": 8}
    time, rate = {**run, "metric": "iteration_time", "value": 3}, {**run, "metric": "tokens_per_s", "value": 40}
    assert seconds(rate) == [2]
    assert seconds(time, rate) == pytest.approx([3, NAN], nan_ok=True)
    samples = {**run, "metric": "samples_per_s", "value": 2}
    assert seconds(time, samples, {**samples, "source_ref": "other"}) == pytest.approx([3, NAN, 4], nan_ok=True)
    assert seconds({**run, "samples_per_s_per_gpu": 2}) == pytest.approx([NAN], nan_ok=True)
    assert seconds({**run, "tokens_per_s": 40, "step_time_ms": 7}) == [0.007]  # times first
    peaks = {"peak_memory_gib": 3, "peak_memory_gb": 3, "peak_memory_mb": 3, "peak_memory_mib": 3, "peak_memory": 3}
    assert [training_tables.peak_gib([{name: v}])[0] for name, v in peaks.items()] == pytest.approx(
        [3, 3e9 / 2**30, 3 / 1024, 3 / 1024, 3]
    )
    assert training_tables.peak_gib([{"peak_memory_bytes": 2**31}, {"metric": "other", "value": 1}]).tolist() == (
        pytest.approx([2, NAN], nan_ok=True)
    )
    assert training_tables._metrics({"metric": "peak_memory", "value": 0}) == []
    assert training_tables._metrics({"metric": " Peak ", "value": "1"}) == [("peak", 1.0, "")]


SERVED: list[dict[str, Any]] = [
    {"model": "llama2-7b", "gpu": "A100", "input_len": 128, "output_len": 2, "tp": 2, "pp": 2, "dp": 2},
    {"layers": 2, "hidden": 64, "heads": 4, "gpu": "h100", "isl": 262144, "osl": 262144, "batch": 16384, "gpus": 3},
    {"layers": 2, "hidden": 64, "gpu": "h100", "isl": 262145, "osl": 1},
    {"layers": 2, "gpu": "h100", "isl": 1, "osl": 1, "shared_prefix": 262145},
    {"layers": 2, "gpu": "h100", "isl": 1, "osl": 1, "batch": 16385},
    {"layers": 2, "gpu": "h100", "isl": 1, "osl": 1, "num_prompts": 16385, "range_ratio": 0.5},
    {"layers": 2, "gpu": "h100", "isl": 1, "osl": 1, "batch": 4, "concurrency": 2, "head_dim": 7, "expert_ffn": 5},
    {"layers": 2, "gpu": "h100", "isl": 1, "osl": 1, "batch": 4, "qps": 2, "ffn": 9, "kv_heads": 3, "heads": 6},
    {"layers": 2, "gpu": "h100", "isl": 1}, {"layers": 2, "gpu": "h100", "osl": 1}, {"layers": 2, "gpu": "x"},
    {"layers": 2, "gpu": "A100", "isl": 1, "osl": 1, "kv_dtype": "fp8_e5m2", "memory_gib": 40},
    *(
        {"layers": 2, "gpu": "h100", "isl": 1, "osl": 1, "framework": framework, "version": version, "batch": batch}
        for framework, version, batch in (
            ("vLLM", "0.8", 0), ("vLLM", "0.7.9", 0), ("vLLM", "v0.10.1", 0), ("vLLM", "1.0", 0), ("SGLang", "0.8", 1),
            ("TensorRT-LLM", "1", 0), ("TensorRT-LLM", "1", 4), ("LMDeploy TurboMind", "", 0), ("llama.cpp", "", 0),
        )
    ),
    *(
        {"layers": 2, "gpu": "h100", "isl": 1, "osl": 1, "other": other, "source": "a benchmark"}
        for other in (
            "KV Cache Block_size=64; kv_cache_dtype=Weight = fp8, KV Cache = int8", "Parallelism Type=TP+EP",
            "speculative model=small", "speculative model=nan", "speculative model= x", "x; y",
        )
    ),
    {"layers": 2, "gpu": "h100", "isl": 1, "osl": 1, "framework": "turbomind", "max_num_batched_tokens": 7},
    *({"layers": 2, "hidden": 8, "heads": 2, "isl": 1, "osl": 1, "gpu": gpu} for gpu in GPUS),
    *({"model": model} for model in ("qwen3-30b-a3b", "mixtral-8x7b", "gpt-oss-120b", "Llama-3.2-1B", "gemma-2-9b")),
]  # fmt: skip


def test_rows_of_serving_runs():
    bare = serving_tables._columns({})
    found = {f"row {i}": differing(serving_tables._columns(row), bare) for i, row in enumerate(SERVED)}
    hold("tables/serving", {"bare": differing(bare, {}), **found})


def test_metrics_of_serving_runs():
    names = [*serving_tables._METRICS, "ttft_p90_us", "e2el_median_ms", "tpot_s", "peak_memory_gib", "itl_p95"]
    hold("tables/metrics", {name: [str(serving_tables._ours(name, "S", 2.0))] for name in names})
    row = {"metric": "ttft", "value": 2, "unit": "s", "other": "50%(s)=0.25; 99%(s)=0.5"}
    assert serving_tables._measured(row) == {"ttft_mean_ms": 2000.0, "itl_p50_ms": 250.0, "itl_p99_ms": 500.0}
    assert serving_tables._measured({"ttft_ms": 5, "tp": 2}) == {"ttft_mean_ms": 5.0}
    # Rows of one run share everything but the metric; those that failed are left out.
    run = {"gpu": "h100", "layers": 2, "isl": 1, "osl": 1}
    table = [{**run, "metric": "ttft", "value": 1}, {**run, "status": "oom"}, {**run, "metric": "tpot", "value": 2}]
    columns, found = serving_tables.columns_of_rows([*table, {**run, "tp": 2, "metric": "tpot", "value": 3}])
    assert (columns["row"].tolist(), columns["tp"].tolist()) == ([0, 3], [1, 2])
    assert {name: values.tolist() for name, values in found.items()} == {
        "tpot_mean_ms": [2, 3],
        "ttft_mean_ms": pytest.approx([1, NAN], nan_ok=True),
    }
    wide = serving_tables.columns_of_rows([{**run, "ttft_ms": 1}] * 2)[0]
    assert wide["row"].tolist() == [0, 1]
    assert serving_tables.columns_of_rows([]) == ({}, {})
    reads = ("isl", "kv_dtype", "max_model_len", "tpot_ms", "model", "x")
    assert [serving_tables.reads(name) for name in reads] == [True] * 4 + [False] * 2


def test_experts_over_more_ranks_than_tp_and_dp_have_attention_over_as_many():
    """DeepSeek-R1 on eight devices with experts over eight and tp 1 was refused: its weights do not fit one device."""
    run = {"gpu": "b200", "model": "deepseek-r1", "isl": 1, "osl": 1, "tp": 1, "ttft_ms": 1}

    def degrees(**more: int) -> tuple[float, float, float]:
        columns, _ = serving_tables.columns_of_rows([{**run, **more}])
        return columns["tp"][0], columns["dp"][0], columns["ep"][0]

    assert degrees(n_gpus=8, dp=1, ep_deg=8) == (8, 1, 1)
    assert degrees(n_gpus=8, dp=2, ep_deg=8) == (4, 2, 1)
    assert degrees(n_gpus=8, dp=8, ep_deg=8) == (1, 8, 1), "attention is on each device by itself"
    assert degrees(ep_deg=8) == (1, 1, 1), "nothing says how many devices there are"
    assert degrees(n_gpus=8, dp=1, ep_deg=1) == (1, 1, 0)


def test_why_a_row_of_a_table_is_skipped():
    """Boundaries: tp × pp × cp devices are enough, a batch of one micro batch on every replica is."""
    small = {"layers": 2, "hidden": 64, "heads": 4, "seq_len": 8, "global_batch": 8, "gpu": "a100", "gpus": 8}
    rows: list[dict[str, Any]] = [
        {**small, "tp": 2, "pp": 2, "cp": 2}, {**small, "tp": 4, "pp": 2, "cp": 2}, {**small, "mbs": 1},
        {**small, "mbs": 2}, {**small, "tp": 2, "mbs": 2}, {**small, "tp": 2, "mbs": 3}, {**small, "dp": 16},
        {**small, "experts": 16}, {**small, "experts": 17}, {**small, "experts": 17, "expert_ffn": 8},
        {**small, "gpus": 0}, {**small, "gpus": 0, "dp": 2}, {**small, "seq_len": 0},
        {**small, "heads": 0, "hidden": 0}, {**small, "layers": 0, "model": "mine"}, {**small, "model": "T5-small"},
        {**small, "gpu": "x"},
        {**small, "gpu": ""}, {**small, "framework": "Megatron-Bridge", "precision": "BF16"},
        {**small, "framework": "Megatron-Bridge"}, {**small, "framework": "litgpt", "other": "x/full.yaml"},
        {**small, "other": "full.yaml"}, {**small, "source": "s", "precision": "fp8"}, {**small, "source": "s"},
        {**small, "source": "t"}, {**small, "source": "s", "precision": "bf16"}, {**small, "global_batch": 0},
    ]  # fmt: skip
    why = measured._why_not(rows, training_tables.columns_of(rows), ("seq_len", "global_batch"))
    hold("tables/why_not", {"why": why.tolist(), "unsaid": [str(v) for v in measured._unsaid_precision(rows)]})


def test_what_is_too_fast_to_be_true():
    """One layer of 1,000 with one head of 10 (4 × 10⁴) and a block of 3 × 1,000 × 2,000: 12.08 MB at two bytes each,
    with 2 experts chosen of 500 half as much; an output of two tokens reads them once, and the keys and values of
    4 × 1,000 tokens (0.16 MB), unless layers have windows or latents."""
    rows = 8
    shape = {"layers": 1.0, "hidden": 1000, "heads": 1, "kv_heads": 1, "head_dim": 10, "ffn": 2000, "gated": 1.0}
    shape |= {"output_len": 2.0, "input_len": 999.0, "batch": 4.0, "tp": 1.0, "pp": 1.0, "dp": 1.0}
    columns = {name: np.full(rows, value) for name, value in shape.items()}
    columns |= {"topk": np.array([0, 0, 2, 0, 0, 0, 0, 0.0]), "expert_ffn": np.full(rows, 500.0)}
    columns |= {"window": np.array([1.0] * 6 + [0, 0]), "kv_lora_rank": np.array([0.0] * 7 + [1])}
    columns |= {"dtype": np.array(["bf16", "INT4", *["bf16"] * 6]), "quantization": np.full(rows, "none")}
    columns |= {"gpu": np.array(["a100"] * 3 + ["nobody"] + ["a100"] * 4), "kv_cache_dtype": np.full(rows, "")}
    columns["tp"][4], columns["output_len"][5] = 2.0, 1.0
    hw = measured.hardware("a100")
    assert hw is not None
    ms = np.array([12.08, 0.53 * 6.04, 6.08, 0.0, 6.04, 0.0, 12.24, 12.08]) / hw.memory_gb_s

    def fast(e2el: np.ndarray) -> list[bool]:
        return [bool(why) for why in measured._too_fast(columns, {"e2el_mean_ms": e2el})]

    assert fast(ms * 0.999) == [True, True, True, False, True, False, True, True]
    assert fast(ms * 1.001) == [False] * rows
    assert not any(measured._too_fast(columns, {}))


def test_runs_are_told_apart():
    """Each run once, by its reference; one that ran out of memory in any of its rows died; recipes of Megatron-Bridge
    count where they state what they recompute."""
    own = {"layers": 2, "hidden": 64, "heads": 4, "seq_len": 8, "gpu": "a100", "gpus": 1}
    rows: list[dict[str, Any]] = [
        {**own, "source_ref": "a"}, {**own, "source_ref": "a", "status": "oom"}, {**own, "source_ref": "a"},
        {**own, "source_ref": "a", "source": "other"}, own, {**own, "status": "failed"},
        {**own, "framework": "Megatron-Bridge", "status": "oom"},
        {**own, "framework": "Megatron-Bridge", "ar": "none", "precision": "bf16", "status": "oom"},
        {**own, "framework": "Megatron-Bridge", "ar": "full", "precision": "bf16", "status": "oom"},
    ]  # fmt: skip
    runs = measured._runs(rows)
    assert runs is not None
    assert runs.values.tolist() == [INF, 1, 1, INF]
    assert measured._runs([own, {**own, "status": "failed"}]) is None
    names = ["layers", "Metric", "status", "source", "transformer_impl", "tpot_ms", "ops", "gpu_name", "step_time_s"]
    assert measured._unknown([column_names.plain(name) for name in names]) == ["ops"]
    columns = {"layers": np.array([2.0, 3]), "hidden": np.array([64.0, 64]), "gpu": np.array(["a100", "x"])}
    groups = measured._groups([{"model": "m"}, {"source": "s"}], columns)
    assert (groups["source"].tolist(), groups["model"].tolist()) == (["table", "s"], ["m", "3 layers of 64"])
    assert groups["gpu"][1] == "x"
    jobs = measured._jobs({"gpu": np.array(["a", "b"])}, {"gpus": np.array([8, 8]), "tp": np.array([1, 2])}, 2)
    assert jobs.tolist() == ["a/8", "b/8"]


def test_scores_at_their_boundaries():
    """A rate is better the larger it is; jobs whose rows differ by 5 % or less say nothing; 9 models in 8 parts."""
    a = np.array(["a", "a"])
    just, over = np.array([1.0, np.exp(0.0499)]), np.array([1.0, np.exp(0.0501)])
    predicted = np.array([2.0, 1.0])
    assert against._regret("step_time_s", a, predicted, just) is against._rank(a, predicted, just) is None
    assert against._regret("step_time_s", a, predicted, over) == pytest.approx(np.exp(0.0501) - 1)
    assert against._rank(a, predicted, over) == -1
    assert against._rank(a, predicted[::-1] * [1, 1 + 1e-10], over[::-1][::-1]) == 1
    assert against._rank(a, np.array([1.0, 1 + 1e-10]), over) == 0
    assert against._regret("requests_per_s", a, predicted, over) == pytest.approx(np.exp(0.0501) - 1)
    assert against._regret("requests_per_s", a, predicted[::-1], over) == pytest.approx(0)

    def folds(models: list[str]) -> tuple[list[int], str]:
        n = len(models)
        rows = MeasuredRows("pretrain", "m", {}, np.ones(n), {"model": np.array(models)}, np.array(["j"] * n))
        fold, said = against._folds(rows)
        return np.bincount(fold).tolist(), said

    assert folds(list("abcdefgh")) == ([1] * 8, "one model")
    assert folds(list("abcdefghi")) == ([2] + [1] * 7, "a part of the 9 models (8 parts)")
    assert folds(["a"] * 996 + list("bcde")) == ([996, 1, 1, 1, 1], "one model")
    assert folds(["a"] * 997 + list("bcde")) == ([998, 1, 1, 1], "a part of the 5 models (4 parts)")
    assert folds(["a"] * 3)[0] == [1, 1, 1]
    values = np.array([1.0, 1.0, 1.0])
    rows = MeasuredRows("pretrain", "m", {}, values, {"model": np.array(list("xyz"))}, np.array(list("abc")))
    said = against.Prediction(value=np.array([np.exp(0.16), np.exp(0.17), -1.0]), error=np.full(3, 0.1))
    found = against.score_as_it_is(rows, said)
    assert (found.rows, found.coverage, found.rank, found.regret, found.failing) == (2, 0.5, None, None, 0)
    assert found.groups == {"model": pytest.approx({"x": np.exp(0.16) - 1, "y": np.exp(0.17) - 1})}


def test_which_run_would_be_tried_first():
    """The fastest by prediction of those that surely fit, else the surest; without columns of time, the surest, too."""
    columns = {"layers": np.array([2.0, 8, 4]), "hidden": 256, "heads": 4, "seq_len": 64, "gpus": 1, "gpu": "a100"}
    rows = MeasuredRows("pretrain", "m", {**columns, "global_batch": 8.0}, np.ones(3), {}, np.array(["j"] * 3))
    everyone = np.arange(3)
    first = against._tried_first
    assert first(rows, np.array([0.0499, 0.0, 0.0]), everyone) == 0
    assert first(rows, np.array([0.05, 0.01, 0.02]), everyone) == 2
    assert first(rows, np.array([0.3, 0.2, 0.1]), everyone) == 2
    assert first(rows._replace(columns=columns), np.array([0.02, 0.01, 0.02]), everyone) == 1


def test_names_of_columns():
    row = {"num_layers": 2, "n_layers": 3, "layers": None, "Hidden Size": 4, "tp": "n/a"}
    assert column_names.renamed(row) == {"layers": 2, "hidden": 4}
    assert column_names.plain("  Step - Time ") == "step_time"
    assert column_names.number(True) == 1
    assert column_names.stated("None") is False


def test_measured_rows_of_many_tables():
    """Drawn rows as a whole: what is scored, its jobs and its groups."""
    choices = {
        "layers": [2, 4], "hidden": [64], "heads": [4], "gpus": [4, 8], "tp": [1, 2], "seq_len": [8],
        "global_batch": [8, 16], "gpu": ["a100", "h100"], "status": ["ok", "oom", "failed"], "step_time_s": [0.5, 0],
        "peak_memory_gib": [3, 0],
    }  # fmt: skip
    rows = rows_of(drawn(choices, 40, 9))
    skipped = measured.Counter[str]()
    found: Values = {}
    for each in measured._training(rows, skipped):
        found[each.metric] = kept(each.values)
        found[f"{each.metric} jobs"] = [str(name) for name in each.job]
    assert skipped == {"its status is a failure": sum(row["status"] == "failed" for row in rows)}
    hold("tables/rows", found)
