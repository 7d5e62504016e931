"""Compares the serving model with public runs that were found after its development, and on which nothing was chosen.

    PYTHONPATH=. .venv/bin/python -m tests.tools.published_serving_later pages [--rows]

AccelMark's suite C, Llama-3.1-8B stored in five formats, comes from the clone for published_serving.py; the rest was
copied from these pages:

    NIM        docs.nvidia.com/nim/benchmarking/llm/1.0.0/performance ("Performance", Llama-3.3-70B, version 1.8.0)
    Qwen3      github.com/tenstorrent/tt-inference-server/issues/340 ("Qwen3 Family: GPU Benchmarks")
    AWQ        github.com/QwenLM/Qwen3/issues/1536 (a server without CUDA graphs)
    DeepSeek   github.com/tenstorrent/tt-inference-server/issues/356 ("DeepSeek-R1-0528: GPU Benchmarks", AWQ, vLLM)
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from autoscout.simulate.validation.serving_tables import columns_of_rows, device_name
from kb.records import Traffic
from tests.tools.published_serving import AT_ONCE, METRICS, asked, compare, of_serving
from tests.tools.published_serving_pages import told_runner

Row = dict[str, Any]

FORMATS = {"BF16": "none", "FP8": "fp8", "W8A8": "w8a8", "W8A16": "w8a16", "W4A16": "int4"}
# Requests of a batch, tokens of a prompt and of the longest answer, from suites/suite_C/suite.json and its dataset's
# page. Answer lengths of a batch are assumed uniform around their mean.
_BATCH, _PROMPT, _LONGEST = 100, 280, 512
_SAID = ("input_len", "output_len", "concurrency", "ttft_mean_ms", "tpot_mean_ms", "output_tokens_per_s")
_NIM = (
    (5000, 500, 1, 406.77, 18.58, 51.67),
    (5000, 500, 5, 546.7, 21.83, 218.48),
    (5000, 500, 25, 688.69, 38.75, 623.4),
    (5000, 500, 50, 834.51, 59.73, 814.37),
    (5000, 500, 100, 7996.25, 92.91, 917.26),
    (5000, 500, 150, 34794.22, 92.86, 920.9),
    (5000, 500, 200, 61680.22, 93.06, 920.54),
    (5000, 500, 250, 88605.32, 93.2, 920.12),
)
_SMALL = ((128, 128, 1, 11.4, 4.6), (128, 1024, 1, 14.0, 4.7), (1024, 128, 1, 26.4, 4.8), (2048, 128, 1, 30.9, 5.0))
_14B = (
    (128, 128, 1, 52.5, 24.3),
    (128, 1024, 1, 32.8, 28.2),
    (1024, 128, 1, 284.0, 28.9),
    (2048, 128, 1, 282.8, 27.6),
    (3072, 128, 1, 359.1, 29.1),
    (4096, 128, 1, 217.2, 22.8),
    (8192, 128, 1, 1000.2, 28.3),
)
_DEEPSEEK = (
    (128, 128, 1, 47.3, 16.1),
    (128, 1024, 1, 27.3, 16.1),
    (1024, 128, 1, 105.3, 16.1),
    (2048, 128, 1, 127.3, 16.3),
    (3072, 128, 1, 131.7, 16.4),
    (4096, 128, 1, 120.1, 16.4),
)
_1_7B = {"layers": 28, "hidden": 2048, "heads": 16, "kv_heads": 8, "head_dim": 128, "ffn": 6144, "tied": 1}
_R1 = {
    "layers": 61, "hidden": 7168, "heads": 128, "kv_heads": 128, "ffn": 18432, "vocab": 129280, "experts": 256,
    "topk": 8, "expert_ffn": 2048, "shared_ffn": 2048, "dense_layers": 3, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
}  # fmt: skip
# If a page states no version, vLLM's release of its month is assumed.
_VLLM = {"framework": "vLLM", "version": "0.9.1", "requests": 20, "quantization": "none"}


def typed() -> Iterator[Row]:
    nim = {"model": "llama-3-70b", "gpu": "H100", "tp": 2, "framework": "TensorRT-LLM"}
    nim |= {"quantization": "fp8", "kv_dtype": "fp8"}  # assumed, as 85 requests run concurrently
    awq = {"input_len": 16000, "output_len": 200, "concurrency": 1, "ttft_mean_ms": 3345.37, "tpot_mean_ms": 20.63}
    for page, rows, own in (
        ("NIM", _NIM, {**nim, "version": "0.17", "requests": 1000}),
        ("Qwen3-1.7B", _SMALL, {**_VLLM, "model": "qwen3-14b", "gpu": "A100-80GB", "shape": _1_7B}),
        ("Qwen3-14B", _14B, {**_VLLM, "model": "qwen3-14b", "gpu": "A100-80GB"}),
        (
            "DeepSeek",
            _DEEPSEEK,
            {**_VLLM, "model": "qwen3-14b", "gpu": "H100", "tp": 8, "quantization": "int4", "shape": _R1},
        ),
    ):
        for said in rows:
            yield {**own, "page": page, **dict(zip(_SAID, said, strict=False))}
    yield {**_VLLM, "page": "AWQ", "model": "qwen3-14b", "gpu": "A100-80GB", "quantization": "awq", "eager": 1, **awq}


def answers(mean: float, longest: int) -> list[int]:
    """Lengths uniform around their mean, up to a limit."""
    return np.linspace(max(2 * mean - longest, 1), min(longest, 2 * mean), 41).round().astype(int).tolist()


def of_suite(folder: Path) -> Iterator[Row]:
    """The rows of each format: a batch of 100 requests, and eight users for a quarter of an hour."""
    for path in sorted(folder.glob("*_suite_C_*/*/result.json")):
        said = json.loads(path.read_text(encoding="utf-8"))
        precision, chip, metrics = said["model"]["precision"], said["chip"]["name"], said["metrics"]
        if (
            precision not in FORMATS
            or "RTX" in chip
            or device_name(chip) not in ("a100", "a100-40g", "a800", "h100", "h200")
        ):
            continue
        row = {
            "page": "AccelMark", "model": "llama-3-8b", "gpu": chip, "memory_gib": said["chip"]["memory_gb"],
            "quantization": FORMATS[precision], "framework": said["software"]["framework"],
            "version": said["software"]["framework_version"], "input_len": _PROMPT, **told_runner(said),
        }  # fmt: skip
        if batch := (metrics.get("offline") or {}).get("results_by_concurrency"):
            best = max(batch, key=lambda each: each["throughput_tokens_per_sec"])
            mean = best["throughput_tokens_per_sec"] * best["elapsed_seconds_median"] / _BATCH
            yield {**row, "concurrency": 0, "requests": _BATCH, "output_len": mean, "answers": answers(mean, _LONGEST),
                   "front_end_ms": 1e-3, "request_ms": 1e-3, "streamed": 0,
                   "output_tokens_per_s": best["throughput_tokens_per_sec"]}  # fmt: skip
        if many := metrics.get("sustained"):
            steady = [s for s in many["samples"] if not s["is_warmup"] and s["requests_completed"]]
            mean = sum(s["tokens_out"] for s in steady) / max(sum(s["requests_completed"] for s in steady), 1)
            rate = float(np.median([s["throughput_tokens_per_sec"] for s in steady]))
            yield {**row, "concurrency": many["sustained_concurrency"], "requests": 200, "output_len": mean,
                   "front_end_ms": 5, "request_ms": 1e-3,
                   "output_tokens_per_s": rate}  # fmt: skip


def predicted(row: Row) -> dict[str, tuple[float, float]]:
    """Our metric → (prediction, its log standard deviation), for the metrics on the page."""
    columns, _ = columns_of_rows([{"dtype": "bf16", **row, "requests": 1}])
    own = {
        **row.get("shape", {}),
        **{name: row[name] for name in ("front_end_ms", "request_ms", "streamed") if name in row},
    }
    columns |= {name: np.array([float(value)]) for name, value in own.items()}
    traffic = Traffic(
        rate=0.0 if row["concurrency"] else AT_ONCE,
        concurrency=row["concurrency"],
        input_len=row["input_len"],
        output_len=row.get("answers") or round(row["output_len"]),
        requests=row["requests"],
    )
    return of_serving({**columns, "traffic": traffic}, [metric for metric in METRICS if metric in row])


def kind(row: Row) -> str:
    if row["page"] != "AccelMark":
        return row["page"]
    load = f"{row['concurrency']} users" if row["concurrency"] else "batch"
    return f"AccelMark {row['framework']} {row['quantization']} {load}"


def main() -> None:
    options = asked("Public runs read after the serving model was made.")
    suites = [options.pages / "accelmark/results" / part for part in ("verified", "community")]
    rows = [*typed(), *(row for suite in suites for row in of_suite(suite))]
    compare(rows, predicted, lambda row: [kind(row)], _label if options.rows else None)


def _label(row: Row) -> str:
    load = f"{row['input_len']}/{row['output_len']:.0f} c{row['concurrency']}"
    return f"{kind(row)} {row['gpu']} {row['version']} {load}"


if __name__ == "__main__":
    main()
