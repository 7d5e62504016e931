"""Compares the serving simulator with dstack's benchmarks: Llama-3.1-405B in FP8 on H100 and MI300X, single settings of
a server, and gpt-oss-120b with separate prefill servers.

    git clone https://github.com/dstackai/benchmarks pages/dstack    # at 06c957a; Apache-2.0, not in this repository
    PYTHONPATH=. .venv/bin/python -m tests.tools.published_serving_dstack pages/dstack [--rows]

    batches     `benchmark_throughput.py`, all requests at once: vLLM 0.6.3 and 0.6.4; MI300X without graphs
    open loads  a thousand requests of ShareGPT at 16, 32 and 1,000 (all at once) per second; lengths from the logs
    settings    the same on H100 with num_scheduler_steps, chunked prefill and limits of a batch (charts/qps_output.csv)
    two pools   SGLang 0.5.2 on eight H200: 3, 2 or 1 servers of two devices for prefill, the others for decoding
"""

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from autoscout.simulate.validation.serving_tables import columns_of_rows
from kb.records import Traffic
from tests.tools.published_serving import AT_ONCE, METRICS, asked, compare, of_serving

Row = dict[str, Any]
_LLAMA: Row = {
    "model": "llama-3.1-405b",
    "quantization": "fp8",
    "dtype": "fp16",
    "max_model_len": 91680,
    "framework": "vLLM",
}
_H100 = _LLAMA | {"gpu": "h100", "version": "0.6.3", "tp": 8, "quantization": "fbgemm_fp8"}
_MI300X = _LLAMA | {"gpu": "mi300x", "version": "0.6.4"}
_META = _MI300X | {
    "version": "0.6.3",
    "tp": 8,
    "quantization": "fbgemm_fp8",
    "chunked_prefill": 0,
    "scheduler_steps": 15,
    "max_num_seqs": 1024,
}
# Folders of comparison/h100sxm5_vs_mi300x/raw_data. AMD's checkpoints ("KV") have an FP8 cache.
_SERVERS: dict[str, Row] = {
    "8xH100SXM5": _H100,
    "8Mi300x-throughput-quark": _MI300X | {"tp": 8, "kv_dtype": "fp8", "eager": 1},
    "4Mi300x-throughput-quark": _MI300X | {"tp": 4, "kv_dtype": "fp8", "eager": 1},
    "8xMi300x-serving-quark": _MI300X | {"tp": 8, "kv_dtype": "fp8"},
    "4Mi300x-serving-quark": _MI300X | {"tp": 4, "kv_dtype": "fp8"},
    "8Mi300x-2fp8-serving-quark": _MI300X | {"tp": 4, "dp": 2, "kv_dtype": "fp8"},
    "8xMi300x-serving-meta": _META,
}
_POOLS: Row = {"model": "gpt-oss-120b", "quantization": "mxfp4", "dtype": "fp16", "gpu": "h200", "framework": "SGLang"}
_PER_SERVER = 2  # devices
_FIRST = 128  # users of the first run; later runs repeat its prompts, which are in the servers' caches


def rows_of(folder: Path) -> Iterator[Row]:
    """The runs as rows, with `group`, `traffic` or `batch`, and measurements by our metrics' names."""
    raw = folder / "comparison/h100sxm5_vs_mi300x/raw_data"
    for name, server in _SERVERS.items():
        for path in sorted(raw.glob(f"{name}*/*.json")):
            told = json.loads(path.read_text(encoding="utf-8"))
            kind = f"{server['gpu']} x{server['tp'] * server.get('dp', 1)}"
            if "tokens_per_second" in told:
                input_len, output_len = (int(n) for n in re.findall(r"(?:in|ip|out|op)(\d+)", path.name))
                batch = {"batch": told["num_requests"], "input_len": input_len, "output_len": output_len}
                speed = told["tokens_per_second"] * output_len / (input_len + output_len)
                yield {**server, **batch, "group": f"batches {kind}", "output_tokens_per_s": speed}
            elif "request_rate" in told:
                yield {**server, "group": f"open loads {kind}", "traffic": _open(told), **_measured(told)}
    logs = sorted(raw.glob("8xH100SXM5-serving/*16.0qps*.json"))
    lengths = json.loads(logs[0].read_text(encoding="utf-8")) if logs else {}
    with (folder / "nvidia/8xh100/charts/qps_output.csv").open(encoding="utf-8") as file:
        for told in csv.DictReader(file):
            yield {**_H100, **_settings(told), "traffic": _open({**lengths, **told}), **_measured(told)}
    for path in sorted((folder / "comparison/pd_ratio/raw_data").glob("*.json")):
        told = json.loads(path.read_text(encoding="utf-8"))
        found = re.match(r"(\d)p(\d)d_conc(\d+)_in(\d+)_out(\d+)_", path.name)
        readers, writers, users, prompt, longest = map(int, found.groups()) if found else (0, 0, 0, 0, 0)
        if users < _FIRST:
            continue
        pools = {"tp": _PER_SERVER, "dp": writers, "prefill": _PER_SERVER * readers, "prefill_tp": _PER_SERVER}
        answers = told["total_output_tokens"] / told["completed"]
        traffic = Traffic(
            concurrency=users,
            requests=told["num_prompts"],
            input_len=prompt,
            output_len=_exponential(answers, longest),
        )
        yield {
            **_POOLS,
            "version": "0.5.2",
            "group": f"two pools {readers}:{writers}",
            **pools,
            "traffic": traffic,
            **_measured(told),
        }


def _settings(told: dict[str, str]) -> Row:
    return {
        "group": "settings h100 x8",
        "scheduler_steps": int(told["num-scheduler-step"]),
        "chunked_prefill": int(told["enable-chunked-prefill"] == "TRUE"),
        "max_num_batched_tokens": int(told["max-num-batched-tokens"]),
        "max_num_seqs": int(told["max-num-seqs"]),
    }


def _open(told: dict[str, Any]) -> Traffic:
    rate = float(told["request_rate"])
    return Traffic(rate=AT_ONCE if rate >= 1000 else rate, requests=int(told["num_prompts"]), **_lengths(told))


def _lengths(told: dict[str, Any]) -> dict[str, Any]:
    return {
        "input_len": [max(n, 1) for n in told["input_lens"]],
        "output_len": [max(n, 1) for n in told["output_lens"]],
    }


def _exponential(mean: float, longest: int) -> list[int]:
    """Exponential lengths of answers, of which only the mean is known."""
    found = -np.log1p(-np.linspace(0.005, 0.995, 41)) * mean
    for _ in range(20):
        found = np.minimum(found * mean / found.mean(), longest)
    return [max(round(length), 1) for length in found.tolist()]


def _measured(told: dict[str, Any]) -> dict[str, float]:
    found = {f"{name}_mean_ms": float(told[f"mean_{name}_ms"]) for name in ("ttft", "tpot")}
    return {**found, "output_tokens_per_s": float(told["output_throughput"])}


def predicted(row: Row) -> dict[str, tuple[float, float]]:
    """Our metric → (prediction, its log standard deviation), for the measured metrics."""
    columns: dict[str, Any] = columns_of_rows([{"input_len": 1, "output_len": 1, **row, "requests": 1}])[0]
    columns |= {name: np.array([float(row[name])]) for name in ("prefill", "prefill_tp") if name in row}
    if "traffic" in row:
        columns["traffic"] = row["traffic"]
    return of_serving(columns, [metric for metric in METRICS if metric in row])


def main() -> None:
    options = asked("How far the serving simulator is from dstack's benchmarks.")
    compare(rows_of(options.pages), predicted, _names, _label if options.rows else None)


def _names(row: Row) -> tuple[str, str]:
    return row["group"], row["group"].split()[0]


def _label(row: Row) -> str:
    of = {name: row[name] for name in ("batch", "input_len", "scheduler_steps", "chunked_prefill") if name in row}
    load = row["traffic"].rate or row["traffic"].concurrency if "traffic" in row else ""
    return f"{row['group']} {of} {load}"


if __name__ == "__main__":
    main()
