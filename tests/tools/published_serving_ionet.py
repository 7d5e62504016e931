"""Compares the serving simulator with io.net's open loads on vLLM 0.8.5, on one to eight RTX 4090.

    git clone https://github.com/IOG-Foundation/llm-inference-benchmarks pages/ionet    # at 4990a80; Apache-2.0
    PYTHONPATH=. .venv/bin/python -m tests.tools.published_serving_ionet pages/ionet [--rows]

Held out before any prediction was made. `vllm serve MODEL --dtype float16 --tensor-parallel-size N`, then the same 200
requests of ShareGPT at 32, 16, 8, 4 and 1 per second. In later runs, all blocks of the prompts except the last are in
the cache. The results have mean lengths. Their runs on H100 with PCIe are excluded, because the model has no constants
for it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from autoscout.simulate.validation.serving_tables import columns_of_rows
from kb.records import Traffic
from tests.tools.published_serving import METRICS, asked, compare, lengths, of_serving

Row = dict[str, Any]
_FIRST, _BLOCK = 32.0, 16  # requests per second of a server's first run; tokens per block of its cache
_MODELS: dict[str, Row] = {
    "DeepSeek-R1-Distill-Llama-8B": {"model": "llama-3-8b"},
    "Meta-Llama-3-8B-Instruct": {"model": "llama-3-8b"},
    "DeepSeek-R1-Distill-Qwen-7B": {"model": "qwen2-7b"},
    "DeepSeek-R1-Distill-Qwen-14B": {
        "model": "qwen3-14b",
        "shape": {"layers": 48, "hidden": 5120, "heads": 40, "kv_heads": 8, "head_dim": 128, "ffn": 13824},
    },
    "DeepSeek-R1-Distill-Qwen-1.5B": {
        "model": "qwen2-7b",
        "shape": {"layers": 28, "hidden": 1536, "heads": 12, "kv_heads": 2, "head_dim": 128, "ffn": 8960},
    },
}


def rows_of(folder: Path) -> Iterator[Row]:
    """The rows of each server's first sweep."""
    seen = set[Any]()
    for path in sorted((folder / "results").glob("*RTX-4090.json")):
        for said in map(json.loads, filter(None, path.read_text(encoding="utf-8").splitlines())):
            name, count, rate = said["model_id"].split("/")[-1], said["gpu_count"], said["request_rate"]
            if name not in _MODELS or (name, count, rate) in seen:
                continue
            seen.add((name, count, rate))
            prompt, answer = (said[f"total_{kind}_tokens"] / said["completed"] for kind in ("input", "output"))
            yield {
                **_MODELS[name],
                "page": f"{name} x{count}",
                "gpu": "RTX 4090",
                "framework": "vLLM",
                "version": "0.8.5",
                "dtype": "fp16",
                "quantization": "none",
                "tp": count,
                "traffic": _load(prompt, answer, rate, said["completed"]),
                **{f"{kind}_mean_ms": said[f"mean_{kind}_ms"] for kind in ("ttft", "tpot")},
                "output_tokens_per_s": said["output_throughput"],
            }


def _load(prompt: float, answer: float, rate: float, requests: int) -> Traffic:
    asked = {"rate": rate, "requests": requests, "output_len": lengths(answer, alike=False)}
    if rate == _FIRST:
        return Traffic(input_len=lengths(prompt, alike=False), **asked)
    return Traffic(input_len=round(prompt), shared_prefix=round(prompt) // _BLOCK * _BLOCK, **asked)


def predicted(row: Row) -> dict[str, tuple[float, float]]:
    """Our metric → (prediction, its log standard deviation)."""
    columns, _ = columns_of_rows([{**row, "input_len": 1, "output_len": 1, "requests": 1}])
    columns |= {name: np.array([float(value)]) for name, value in row.get("shape", {}).items()}
    return of_serving({**columns, "traffic": row["traffic"]}, METRICS)


def main() -> None:
    options = asked("How far the serving simulator is from io.net's runs.")
    compare(rows_of(options.pages), predicted, _names, _label if options.rows else None)


def _names(row: Row) -> tuple[str, ...]:
    return "all", f"{row['traffic'].rate:2.0f} a second", f"{row['tp']} cards"


def _label(row: Row) -> str:
    return f"{row['page']} {row['traffic'].rate}"


if __name__ == "__main__":
    main()
