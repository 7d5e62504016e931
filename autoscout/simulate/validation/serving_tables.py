"""Interprets tables of serving measurements: columns for the simulator, and measured values in our metrics' units.

A table is either long (one row per metric: `metric`, `value`, `unit`) or wide (one row per run, with columns such as
`tpot_ms`, `ttft_s`, `throughput_total_tokens`).

LLM-Inference-Bench submits a fixed batch to vLLM's offline `LLM.generate` and times the whole call (`batch_timed`). Its
latency is the time of the whole batch, its throughput is (input + output tokens) / latency, and its time to first token
is the time of a batch with one output token. Its A100s have 40 GB (Polaris), and its vLLM releases are from 2024."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from autoscout.job.device_names import device_meant, formats_of, is_cpu, stem_of
from autoscout.job.presets import sizes_of
from autoscout.simulate.engine_records import NEWEST
from autoscout.simulate.serving.served_by import family, served, version_of
from autoscout.simulate.serving.speculation import METHODS
from autoscout.simulate.validation.column_names import number, renamed, status_of

Row = Mapping[str, Any]

# A table's name of a metric → our metric. Latencies are in the unit that the row or the column's suffix states.
_METRICS = {
    "e2e_latency": "e2el_mean_ms",
    "e2el": "e2el_mean_ms",
    "latency": "e2el_mean_ms",
    "e2e": "e2el_mean_ms",
    "ttft": "ttft_mean_ms",
    "tpot": "tpot_mean_ms",
    "itl": "itl_mean_ms",
    "throughput_total_tokens": "total_tokens_per_s",
    "total_throughput": "total_tokens_per_s",
    "total_tokens": "total_tokens_per_s",
    "output_throughput": "output_tokens_per_s",
    "output_tokens": "output_tokens_per_s",
    "request_throughput": "requests_per_s",
    "requests": "requests_per_s",
    "gpu_mem": "peak_memory_gib",
    "peak_memory": "peak_memory_gib",
}
_TO_OURS = {"s": 1e3, "ms": 1.0, "us": 1e-3, "ns": 1e-6}  # milliseconds per unit
_QUANTILE = re.compile(r"_(mean|p50|p90|p95|p99|median)$|^(mean|p50|p90|p95|p99|median)_")
_UNIT = re.compile(r"_(ms|us|ns|s|per_s|tok_s|gib|gb)$")

_SHAPE = (
    "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "experts", "topk", "expert_ffn", "shared_ffn",
    "dense_layers", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
)  # fmt: skip
_COUNTS = {  # our column → a table's names for it; the first with a value is used
    "tp": ("tp", "tensor_parallel_size"),
    "pp": ("pp", "pipeline_parallel_size"),
    "dp": ("dp", "data_parallel_size"),
    "input_len": ("input_len", "isl", "input_tokens"),
    "output_len": ("output_len", "osl", "output_tokens"),
    "batch": ("batch", "batch_size", "concurrency_or_batch"),
    "concurrency": ("concurrency", "max_concurrency"),
    "rate": ("rate", "request_rate", "qps"),
    "max_num_seqs": ("max_num_seqs",),
    "max_num_batched_tokens": ("max_num_batched_tokens", "chunked_prefill_size"),
    "block_size": ("block_size",),
    "gpu_memory_utilization": ("gpu_memory_utilization",),
    "requests": ("requests", "num_prompts"),
    "shared_prefix": ("shared_prefix",),
    "spec_tokens": ("spec_tokens", "num_speculative_tokens"),
    "scheduler_steps": ("scheduler_steps", "num_scheduler_steps"),
    "adp_timeout_iters": ("adp_timeout_iters",),
    "adp_wait_iters": ("adp_wait_iters",),
    "prompts_apart": ("prompts_apart",),
    "decodes_between": ("decodes_between",),
    "decodes_between_from": ("decodes_between_from",),
    "long_prefill": ("long_prefill", "long_prefill_token_threshold"),
}
_MAY_BE_0 = {  # like _COUNTS, for columns in which 0 is a value; NaN if the table has no value
    "length_spread": ("length_spread", "range_ratio", "random_range_ratio"),
    "chunked_prefill": ("chunked_prefill", "enable_chunked_prefill"),
    "prefix_caching": ("prefix_caching", "enable_prefix_caching"),
    "async_scheduling": ("async_scheduling",),
    "eager": ("eager", "enforce_eager"),
    "ep": ("enable_expert_parallel",),
    "power_cap": ("power_cap",),
    "accepted": ("accepted", "acceptance_rate"),
    "graph_size": ("max_cudagraph_capture_size",),
    "evicts": ("evicts",),
}
_SPECULATIVE = ("spec", "speculative_method", "spec_method")
LABELS = ("row", "source", "model", "why_not")  # columns without effect on times
_LEAVES_ATTENTION = {"fbgemm_fp8": "fp8"}  # Meta's format, which keeps attention in 16 bits
_MOST_USERS, _LONGEST = 16_384, 262_144  # largest number of users, and of tokens per request, that engines accept
_MOST = 1e9  # larger counts, lengths and times must be mistakes
# Defaults for missing values; gpu_memory_utilization is vLLM's default when most tables were made.
_DEFAULTS = {"tp": 1.0, "pp": 1.0, "dp": 1.0, "block_size": 16.0, "gpu_memory_utilization": 0.9}

# Assumed requests per user of a closed loop, if the table does not state it. Public benchmarks send 3 to 10 (InferenceX
# 10, cloudrift 3 to 4), so few that the simultaneous first requests affect the mean.
REQUESTS_A_USER = 10.0


def columns_of_rows(rows: Iterable[Row]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(columns, measured), with one entry per successful run, in the order of the table. `measured` maps our metric
    names to (n,) values in our units, NaN where a run has none.

    `columns["why_not"]` is "" or the reason why a run cannot be predicted; `columns["row"]` is the index of its first
    row in `rows`."""
    runs: dict[Any, dict[str, Any]] = {}
    measured: list[dict[str, float]] = []
    for i, row in enumerate(map(renamed, rows)):
        if status_of(row) != "ok":
            continue
        key = _run_key(row, i)
        if key not in runs:
            runs[key] = {**_columns(row), "row": i, "_at": len(measured)}
            measured.append({})
        measured[runs[key]["_at"]].update(_measured(row))
    for run in runs.values():
        each = measured[run["_at"]]  # a benchmark without TTFT and TPOT timed the whole batch
        whole = "e2el_mean_ms" in each and not any(name.startswith(("ttft_", "tpot_")) for name in each)
        run["batch_timed"] = bool(run["batch"]) and whole
    table = list(runs.values())
    names = [name for name in (table[0] if table else {}) if name != "_at"]
    columns = {name: np.array([run[name] for run in table]) for name in names}
    metrics = sorted({metric for run in measured for metric in run})
    return columns, {m: np.array([run.get(m, np.nan) for run in measured]) for m in metrics}


def reads(name: str) -> bool:
    inputs = {other for names in (*_COUNTS.values(), *_MAY_BE_0.values(), _SPECULATIVE) for other in names}
    return name in inputs or name in ("kv_dtype", "max_model_len", "quantization", "ep") or measures(name)


def measures(name: str) -> bool:
    """Whether a wide table's column with this name is a metric."""
    return _ours(name, "", 1.0) is not None


def device_name(text: str, memory_gib: float = 0.0) -> str:
    """The name of the device record for a GPU as named in a table or by a driver ("A100-SXM-80GB" → "a100"), or ""."""
    return device_meant(text, memory_gib) or (stem_of("cpu") if "cpu" in text.lower() else "")


def served_model(name: str) -> dict[str, Any] | None:
    """The sizes of a public model; None if unknown, or if its context length is unknown."""
    sizes = sizes_of(name)
    return sizes if "context" in sizes else None


def _run_key(row: Row, i: int) -> Any:
    """A key of the run that a row belongs to: rows of a long table that differ only in the metric are of one run."""
    if "metric" not in row:
        return i
    return tuple(sorted((k, str(v)) for k, v in row.items() if k not in ("metric", "value", "unit")))


def _columns(row: Row) -> dict[str, Any]:
    noted = _noted(row)
    shape = served_model(str(row.get("model") or "")) or {}
    out: dict[str, Any] = {name: _number(row.get(name)) or float(shape.get(name, 0)) for name in _SHAPE}
    out["kv_heads"] = out["kv_heads"] or out["heads"]
    out["head_dim"] = out["head_dim"] or (out["hidden"] / out["heads"] if out["heads"] else 0.0)
    out["expert_ffn"] = out["expert_ffn"] or out["ffn"]
    out["context"] = _number(row.get("max_model_len")) or float(shape.get("context", 0))
    for name in ("window", "windowed_layers", "sinks"):
        out[name] = float(shape.get(name, 0))
    out["gated"] = bool(shape.get("gated", True))
    out["tied"] = bool(shape.get("tied", False))
    for name, names in _COUNTS.items():
        out[name] = next((v for v in map(_number, map(row.get, names)) if v), _DEFAULTS.get(name, 0.0))
    for name, names in _MAY_BE_0.items():
        out[name] = next((v for v in map(number, map(row.get, names)) if v is not None and 0 <= v < _MOST), np.nan)
    if (degree := number(row.get("ep"))) is not None:  # `ep` is a boolean, or a degree (1: off)
        out["ep"] = float(degree > 1 or str(row["ep"]).strip().lower() in ("true", "yes"))
        if degree > out["tp"] * out["dp"] and degree * out["pp"] == _number(row.get("gpus")):
            # Engines spread experts over tp × dp ranks: this table's tp is that of the experts.
            out["tp"] = degree / out["dp"]
    out["quantization"] = str(row.get("quantization") or "none").strip().lower()
    out["plain_attention"] = out["quantization"] in _LEAVES_ATTENTION
    out["quantization"] = _LEAVES_ATTENTION.get(out["quantization"], out["quantization"])
    methods = [str(row[name]).strip().lower() for name in _SPECULATIVE if name in row]
    out["spec"] = next((method for method in methods if method in METHODS), "none")
    if out["accepted"] > 1:  # stated in percent
        out["accepted"] /= 100
    out["block_size"] = _number(noted.get("KV Cache Block_size")) or out["block_size"]
    if out["concurrency"] or out["rate"]:
        out["batch"] = 0.0
    if out["concurrency"] and not out["requests"]:
        out["requests"] = max(min(REQUESTS_A_USER * out["concurrency"], _MOST_USERS), out["concurrency"])
    out["gpus"] = _number(row.get("gpus")) or out["tp"] * out["pp"] * out["dp"]
    out["gpu"] = device_name(str(row.get("gpu") or ""), _number(row.get("memory_gib")))
    out["memory_gib"] = _number(row.get("memory_gib"))
    weights, kv = _precisions(noted.get("kv_cache_dtype", ""))
    out["dtype"] = str(row.get("dtype") or weights)
    out["kv_cache_dtype"] = str(row.get("kv_dtype") or kv or "")  # "": as stated in the weights' file
    out["framework"] = str(row.get("framework") or "")
    known = family(out["framework"])
    version = str(row.get("version") or "")
    # Published batches without a release are assumed to have run the release `undated`; for servers, see
    # serving/unsaid.py.
    undated = known.undated if out["batch"] and version_of(out["framework"], "") is None else ""
    out["version"] = version or undated
    rules = served(known, known.at(version_of(out["framework"], out["version"]) or NEWEST))
    long = _number(row.get("max_model_len"))
    if 0 < rules.schedule.cut_beyond < long and np.isnan(out["chunked_prefill"]):
        out["chunked_prefill"] = 1.0
        out["max_num_batched_tokens"] = out["max_num_batched_tokens"] or float(rules.schedule.cut_step_tokens)
    if rules.room.kept_mib and not _number(row.get("gpu_memory_utilization")):
        out["gpu_memory_utilization"] = 0.0  # 0: the engine's default for the device
    out["model"] = str(row.get("model") or "")
    out["source"] = str(row.get("source") or "")
    out["why_not"] = _why_not(out, noted)
    return out


def _noted(row: Row) -> dict[str, str]:
    """The names and values in column `other`, such as "mem(GB)=76.55; 50%(s)=0.009"."""
    return dict(part.split("=", 1) for part in str(row.get("other") or "").split("; ") if "=" in part)


def _precisions(text: str) -> tuple[str, str]:
    """(weights, KV cache) formats in "Weight = fp16, KV Cache = fp8"."""
    said = re.match(r"Weight = (\w+), KV Cache = (\w+)", text)
    return (said[1], said[2]) if said else ("fp16", "")


def _why_not(run: Mapping[str, Any], noted: Mapping[str, str]) -> str:
    if not run["layers"]:
        return f"the shape of the model {run['model']} is not known"
    if not run["gpu"]:
        return "the kind of GPU is not known"
    if not (run["input_len"] and run["output_len"]):
        return "the lengths of the requests are not stated"
    users = max(run["batch"], run["concurrency"], run["requests"], run["rate"])
    if users > _MOST_USERS or max(run["input_len"], run["output_len"], run["shared_prefix"]) > _LONGEST:
        return "more or longer requests than an engine accepts"
    if why := family(run["framework"]).unpriced:
        return why
    formats = formats_of(run["gpu"])
    if run["kv_cache_dtype"].startswith("fp8") and formats and "fp8" not in formats and not is_cpu(run["gpu"]):
        return "an 8-bit cache on a device without 8-bit formats, whose kernels are not calibrated"
    if "EP" in noted.get("Parallelism Type", ""):
        return "how experts are spread over the devices is not stated"
    if re.match(r"(?!nan)\S", noted.get("speculative model", "nan")):
        return "speculative decoding depends on how many drafted tokens are accepted"
    return ""


def _measured(row: Row) -> dict[str, float]:
    if "metric" in row:
        noted = _noted(row)
        found = [_ours(str(row["metric"]), str(row.get("unit") or ""), _number(row.get("value")))]
        found += [_ours(f"itl_p{at}", "s", _number(noted.get(f"{at}%(s)"))) for at in (50, 99)]
        return dict(pair for pair in found if pair)
    found = [_ours(str(name), "", _number(value)) for name, value in row.items()]
    return dict(pair for pair in found if pair)


def _ours(name: str, unit: str, value: float) -> tuple[str, float] | None:
    """(our metric, value in our unit) for a table's metric; None for other columns and missing values."""
    if not value:
        return None
    unit_in_name = _UNIT.search(name)
    bare = name[: unit_in_name.start()] if unit_in_name else name
    unit = (unit_in_name[1] if unit_in_name else unit) or ""
    at = _QUANTILE.search(bare)
    quantile = (at[1] or at[2]).replace("median", "p50") if at else "mean"
    bare = _QUANTILE.sub("", bare, count=1)
    ours = _METRICS.get(bare)
    if ours is None:
        return None
    if ours.endswith("_ms"):
        return ours.replace("mean", quantile), value * _TO_OURS.get(unit.lower(), 1.0)
    return ours, value


def _number(value: Any) -> float:
    """The value as a number; 0 for missing values, text, and implausible numbers."""
    found = number(value) or 0.0
    return found if 0 < found < _MOST else 0.0
