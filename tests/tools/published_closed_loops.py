"""Compares the serving simulator with 787 published measurements of closed loops of equal requests.

    git clone https://github.com/wbing520/ai-performance-engineering pages/nim; cd pages/nim
    git show 0e25b2e:code/ch10_inference/inference_gpu_cluster_sizing/dataset/nim.csv > ../nim.csv
    PYTHONPATH=. .venv/bin/python -m tests.tools.published_closed_loops pages/nim.csv [--held-out] [--rows]

NIM of 2024 (TensorRT-LLM behind Triton), Llama-3 8B and 70B on A100 and H100, 1 to 250 users. Its engines process up to
32,768 tokens of whole prompts per step, and its front end takes 4 ms: both chosen on the four deployments that were not
held out."""

import csv
from pathlib import Path
from typing import Any

import numpy as np

from autoscout.simulate.validation.serving_tables import columns_of_rows
from kb.records import Traffic
from tests.tools.published_serving import METRICS, asked, compare, of_serving

Row = dict[str, Any]

# chosen before any residual was seen
IN_SIGHT = ("8b a100 x1 fp16", "8b a100 x2 fp16", "70b a100 x4 fp16", "8b h100 x1 fp8")
_STEP, _FRONT_END_MS, _REQUEST_MS = 32768, 4.0, 0.3
_SECONDS, _ROUNDS = 100, 3  # seconds of a measurement, by its number of requests; minimum of requests per user


def rows_of(path: Path) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as file:
        return [_row(said) for said in csv.DictReader(file)]


def _row(said: dict[str, str]) -> Row:
    size = "8b" if "8b" in said["task_inputs-model"] else "70b"
    chip = said["task_inputs-GPU"][:4].lower()
    count, precision = int(said["task_inputs-n_gpus"]), said["task_inputs-precision"]
    users, outputs = (int(said[f"input_config-{name}"]) for name in ("concurrency", "output_tokens_mean"))
    first, whole = (float(said[f"{name}-avg"]) / 1e6 for name in ("time_to_first_token", "request_latency"))
    eight = precision == "fp8"
    return {
        "name": f"{size} {chip} x{count} {precision}",
        "model": f"llama-3-{size}",
        "gpu": "A100-80GB" if chip == "a100" else "H100",
        "tp": count,
        "quantization": "fp8" if eight else "none",
        "kv_dtype": "fp8" if eight else "auto",
        "dtype": "bf16",
        "framework": "TensorRT-LLM",
        "version": "0.10",
        "max_num_batched_tokens": _STEP,
        "input_len": int(said["input_config-synthetic_input_tokens_mean"]),
        "output_len": outputs,
        "concurrency": users,
        "requests": max(_ROUNDS * users, round(_SECONDS * float(said["request_throughput-avg"]))),
        "ttft_mean_ms": first,
        "tpot_mean_ms": (whole - first) / (outputs - 1),
        "output_tokens_per_s": float(said["output_token_throughput-avg"]),
    }


def predicted(row: Row) -> dict[str, tuple[float, float]]:
    """Our metric → (prediction, its log standard deviation)."""
    columns, _ = columns_of_rows([{**row, "requests": 1}])
    columns |= {"front_end_ms": np.array([_FRONT_END_MS]), "request_ms": np.array([_REQUEST_MS])}
    traffic = Traffic(**{name: row[name] for name in ("concurrency", "input_len", "output_len", "requests")})
    return of_serving({**columns, "traffic": traffic}, METRICS)


def crowd(users: int) -> str:
    return next(
        name for most, name in ((1, "1"), (10, "2 to 10"), (50, "25, 50"), (250, "100 to 250")) if users <= most
    )


def main() -> None:
    options = asked("How far the serving simulator is from measured closed loops.", held_out=True)
    rows = [row for row in rows_of(options.pages) if (row["name"] in IN_SIGHT) != options.held_out]
    compare(rows, predicted, _names, _label if options.rows else None)


def _names(row: Row) -> tuple[str, str]:
    return f"{crowd(row['concurrency'])} users", row["name"]


def _label(row: Row) -> str:
    return f"{row['name']} {row['input_len']}/{row['output_len']} c{row['concurrency']}"


if __name__ == "__main__":
    main()
