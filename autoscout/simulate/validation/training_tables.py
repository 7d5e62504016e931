"""Interprets tables of measured training runs: columns for the analytic models, and measured values.

Public tables are read as published. Any other table works if its columns have the names used in public tables, or the
names of knobs and attributes. Defaults of values that only few tables omit are in this file; all other defaults are in
inputs.DEFAULTS."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from autoscout.job.device_names import KEPT, device_meant, memory_gib_of
from autoscout.job.presets import sizes_of
from autoscout.simulate.training.software import UNKNOWN
from autoscout.simulate.training.trained_by import Trainer
from autoscout.simulate.validation.column_names import (
    MAY_BE_0,
    NAMES,
    counts,
    number,
    numbers,
    renamed,
    stated,
    status_of,
)

Row = Mapping[str, Any]

# Columns that are read in addition to those of column_names.py.
ALSO_READ = ("suite", "case", "sharding", "gpu_mem_gb", "transformer_impl", "vpp_layers", "bf16", "fp8")
_SIZES = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "gated", "vocab", "tied")
_OF_EXPERTS = ("experts", "topk", "expert_ffn", "expert_bias")
_MOST = 1e13  # larger numbers must be mistakes
_SHARES = re.compile(r"\[[^\]]*\]")  # a list of recomputed shares, one per stage


def columns_of(rows: Sequence[Row]) -> dict[str, np.ndarray]:
    """The rows as (n,) columns; NaN or "" where a row has no value."""
    stated = [of_row(row) for row in rows]
    if any("fused_norm" in _attention(kernels) for kernels in map(_kernels_of, rows)):
        stated = [_of_plain_norms(row, x) for row, x in zip(rows, stated, strict=True)]
    columns: dict[str, np.ndarray] = {}
    for name in numbers():
        if any(name in row for row in stated):
            columns[name] = np.array([row.get(name, np.nan) for row in stated], dtype=float)
    for name in NAMES:
        if any(name in row for row in stated):
            columns[name] = np.array([row.get(name, "") for row in stated], dtype=str)
    return columns


def of_row(row: Row) -> dict[str, Any]:
    """One row with our column names. Stated values override those implied by the model's name or the framework."""
    own = renamed(row)
    other = str(own.get("other", ""))
    trainer = _trainer(own)
    software = _software(own, trainer)
    x: dict[str, Any] = {**shape_of(_model_name(own)), **software}
    told = {k: number(v) for k, v in own.items() if k in numbers()}
    x |= {
        k: v for k, v in told.items() if v is not None and (0 < v < _MOST or (v == 0 and k in (*MAY_BE_0, *counts())))
    }
    x |= {k: str(own[k]) for k in ("gpu", "ar_method", "dispatcher", "cp_comm", "framework") if k in own}
    x |= _attention(str(own.get("attention", "")))
    if "te" not in told and not software:
        x |= {"software": trainer.mixture or UNKNOWN, "release": trainer.release}
    x["gpu"] = _gpu(str(x.get("gpu", "")), own)
    ar = software["ar"] if _is_of_a_layer(own) else own.get("ar", x.get("ar", "none"))
    x |= _recomputation(str(ar).strip().lower(), x)
    x["ar_method"] = x["ar_method"].lower() if x.get("ar_method", "").lower() in ("uniform", "block") else "uniform"
    x["dtype"] = _precision(str(own.get("dtype", x.get("dtype", "bf16"))), own)
    x |= _sharding(own, x)
    x |= {k: v for k, v in trainer.where(x).items() if k not in told}
    x |= _noted(trainer, own, other, x)
    if "tp" not in x and {"gpus", "pp", "dp"} <= x.keys():  # tp may differ between stages; this is its mean
        x["tp"] = max(x["gpus"] / (x["pp"] * x["dp"]), 1.0)
    if "heads" not in x and "hidden" in x:
        x["heads"] = max(x["hidden"] // 128, 1.0)  # the usual head size
    return {k: v for k, v in x.items() if not (isinstance(v, float) and np.isnan(v))}


def by_stage(row: Row) -> bool:
    """Whether a planner (Aceso) chose operators to recompute for each stage, which our models do not cover."""
    return bool(_SHARES.search(str(renamed(row).get("ar", ""))))


def _kernels_of(row: Row) -> str:
    return str(renamed(row).get("attention", ""))


def _of_plain_norms(row: Row, x: dict[str, Any]) -> dict[str, Any]:
    """Assumes unfused norms for rows of unknown software that name only an attention kernel. (The caller checks that
    other rows of the table also name a norm kernel.)"""
    untold = x.get("software") == UNKNOWN and "fused_norm" not in x
    return x | {"fused_norm": 0.0} if untold and _attention(_kernels_of(row)) else x


def _noted(trainer: Trainer, own: Row, other: str, x: Row) -> dict[str, Any]:
    """Columns derived from the text in column `other`, and from the trainer's conventions on recomputation."""
    found: dict[str, Any] = {}
    if match := re.search(r"zero1 group=(\d+)", other):
        found["zero_group"] = float(match[1])
    if "SHARD_GRAD_OP" in other:
        found["zero"] = 2.0
    if "lora.yaml" in other or "LoRA Performance" in other:
        found |= _adapters(other)
    if re.search(r"\bfsdp=([2-9]|\d\d)", other):
        found["zero"] = 3.0
    if plain := trainer.columns("uncompiled"):
        found |= _compiled(other, x, plain)
    if trainer.columns("pipeline") and x.get("pp", 1) > 1 and "mbs" in x:
        found["vpp"] = 2.0 if "Interleaved" in other.partition("(")[0] else 1.0
        found["mbs"] = max(x["mbs"] // (x["pp"] * found["vpp"]), 1.0)
    share = trainer.selective_share(str(own.get("model", "")))
    if x.get("ar") == "selective" and share is not None:
        found |= {"ar": "full", "recomputed": share}
    if x.get("ar") == "none":
        found |= trainer.columns("unless_recomputed")
    return found


def _adapters(other: str) -> dict[str, float]:
    """Columns on adapters and norms, as in config_hub/finetune of Lightning-AI/litgpt (untied output layer)."""
    file = other.split("/")[0]
    return {
        "lora": 2.0 if "qlora" in other else 1.0,
        "adapters": float(file.startswith(("gemma", "phi", "tiny-llama"))),
        "norms": 4.0 if file.startswith("gemma2") else 1.0 if file in ("falcon-7b", "phi-2") else 2.0,
        "tied": 0.0,
    }


def _compiled(other: str, x: Row, plain: dict[str, Any]) -> dict[str, Any]:
    """Settings from descriptions such as "FSDP+compile+Float8", or "2D+AsyncTP (compile+Float8(+AsyncTP) for 2D/3D)",
    where the text in parentheses applies to rows of that kind. `plain`: columns of rows that are not compiled."""
    run, _, always = other.partition("(")
    if re.match(r"[23]D", run) and re.search(r"\b[23]D", always):
        run += " compile Float8"
    found: dict[str, Any] = {"dtype": "fp8"} if "float8" in run.lower() else {}
    if "compile" not in run.lower():
        found |= plain
    if "asynctp" in run.lower().replace(" ", ""):
        found["tp_comm_overlap"] = 1.0
    return found


def step_seconds(rows: Sequence[Row]) -> np.ndarray:
    """(n,) measured seconds per step; NaN for rows with other metrics, and for rows with the rate of a run whose step
    time is in another row."""
    timed = {_reference(r) for r in rows if str(r.get("metric", "")).startswith("iteration_time")}
    return np.array([_seconds(row, timed) for row in rows], dtype=float)


def peak_gib(rows: Sequence[Row]) -> np.ndarray:
    """(n,) measured peak memory of the fullest rank in GiB; inf if the run was out of memory; NaN if not measured."""
    return np.array([_gib(row) for row in rows], dtype=float)


_TIME = re.compile(
    r"(?:iteration_time|step_time|iter_time|time_per_(?:step|iteration))(?:_median|_derived)?(?:_(m?s))?"
)
_RATE = re.compile(r"(tokens|samples)_(?:per_s(?:ec(?:ond)?)?|s)(_per_gpu|_per_device)?")
_PEAK = re.compile(
    r"(?:peak_mem(?:ory)?(?:_per_gpu|_allocated(?:_any_rank)?)?|(?:mem_)?max_(?:mem(?:ory)?_)?allocated)"
    r"(?:_(gib|gb|mib|mb|bytes))?"
)
# GiB per unit. MB means MiB, as in Mist's logs and torch.cuda's reports; GB means 10⁹ bytes, as in litgpt's.
_GIB = {"gib": 1.0, "gb": 1e9 / 2**30, "mb": 1 / 1024, "mib": 1 / 1024, "bytes": 1 / 2**30, "": 1.0}


def measures(name: str) -> bool:
    """Whether a wide table's column with this name is a metric that can be predicted."""
    return any(pattern.fullmatch(name) for pattern in (_TIME, _RATE, _PEAK))


def _seconds(row: Row, timed: Collection[Any]) -> float:
    if status_of(row) != "ok":
        return np.nan
    again = _reference(row) in timed  # the run's time is in another row
    for name, value, unit in _metrics(row):
        if match := _TIME.fullmatch(name):
            return value * (1e-3 if (match[1] or unit) == "ms" else 1.0)
        if (match := _RATE.fullmatch(name)) and match[1] == "tokens" and not again:
            x = of_row(row)
            devices = x.get("gpus", np.nan) if match[2] else 1.0
            return x.get("global_batch", np.nan) * x.get("seq_len", np.nan) / (value * devices)
        if (match := _RATE.fullmatch(name)) and name == "samples_per_s" and not again:
            return of_row(row).get("global_batch", np.nan) / value
    return np.nan


def _gib(row: Row) -> float:
    status = status_of(row)
    if status != "ok":
        return np.inf if status == "oom" else np.nan
    for name, value, unit in _metrics(row):
        if match := _PEAK.fullmatch(name):
            return value * _GIB.get(match[1] or unit.lower(), 1.0)
    return np.nan


def _metrics(row: Row) -> list[tuple[str, float, str]]:
    """(name, value, unit) of each metric of a row, times first."""
    if stated(row.get("metric")):
        found = [(str(row["metric"]).strip().lower(), number(row.get("value")), str(row.get("unit") or ""))]
    else:
        found = [(k, number(v), "") for k, v in row.items() if measures(k)]
    told = [(name, value, unit) for name, value, unit in found if value is not None and value > 0]
    return sorted(told, key=lambda metric: not _TIME.fullmatch(metric[0]))


def _gpu(name: str, own: Row) -> str:
    """The device's name; if the row states less memory than that device has, the name of the variant with less
    memory."""
    gib, known = number(own.get("gpu_mem_gb")) or 0.0, memory_gib_of(name)
    less = known is not None and 0 < gib < KEPT * known
    return device_meant(name, gib) or name if less else name


def _is_of_a_layer(own: Row) -> bool:
    """Whether the row is a measurement of vTrain, whose table has the column `s_per_sample`."""
    return "s_per_sample" in own


def _trainer(own: Row) -> Trainer:
    """The trainer record of a row, by the framework's name. Rows of MLPerf Training are identified by their benchmark
    round."""
    framework = " ".join(str(own.get(name) or "") for name in ("framework", "version")).strip()
    submitted = re.fullmatch(r"v\d+\.\d+", str(own.get("round", "")))
    return Trainer(framework, submitted[0] if submitted else "")


def _model_name(own: Row) -> str:
    """The model's name; for litgpt from the name of the config file, which is more precise than the name in the
    table."""
    file = str(own.get("other", "")).split("/")[0]
    return {"gemma2-2b": "gemma-2-2b", "gemma2b": "gemma-2-2b", "gemma2-9b": "gemma-2-9b"}.get(
        file, str(own.get("model", ""))
    )


def shape_of(name: str) -> dict[str, float]:
    """The sizes of a public model as columns; {} if it is unknown."""
    if not (sizes := sizes_of(name)):
        return {}
    return {k: float(v) for k, v in ({"gated": True, "tied": False} | sizes).items() if k in (*_SIZES, *_OF_EXPERTS)}


def _software(own: dict[str, Any], trainer: Trainer) -> dict[str, Any]:
    if _is_of_a_layer(own):
        heads = max(16.0, (number(own.get("hidden")) or 0.0) / 128)
        return {**Trainer("Megatron-LM of 2021").columns("of_a_layer"), "heads": heads}
    if "transformer_impl" in own or "mem_max_allocated_bytes" in own:  # Megatron-core's regression runs
        plain = {"te": 1, "attention": "flash", "dropout": 1, "learned_positions": 1}
        ffn, hidden = number(own.get("ffn")), number(own.get("hidden"))
        if vocab := number(own.get("vocab")):  # padded to a multiple of 128 per rank
            unit = 128 * (number(own.get("tp")) or 1.0)
            own["vocab"] = unit * np.ceil(vocab / unit)
        return {**plain, "gated": 0 if ffn is None or ffn == 4 * (hidden or 0) else 1, **_chunks(own)}
    found = {} if trainer.mixture else trainer.columns()
    if "qwen3" in _model_name(own).lower() and "mxfp8" in str(own.get("dtype", "")).lower():
        found |= trainer.columns("with_mxfp8_qwen3")
    return found


# Names of attention kernels in tables → columns; the first match counts. "fused" alone means Megatron's fused softmax.
_KERNELS = (
    (r"\bmasked", {"attention": "masked"}),
    (r"flash[a-z_]*1", {"attention": "flash1"}),
    (r"flash[a-z_]*2|\bfa2", {"attention": "flash2"}),
    (r"flash|\bfa3|sdpa|cudnn|xformers|mem.*eff", {"attention": "flash"}),
    (r"unfused|math|eager|torch|local|naive", {"attention": "unfused"}),
    (r"fused", {"attention": "unfused", "fused_activation": 1.0}),
    # values of a switch for flash attention
    (r"^(true|yes|on|1(\.0)?)$", {"attention": "flash"}),
    (r"^(false|no|off|0(\.0)?)$", {"attention": "unfused"}),
)


def _attention(stated: str) -> dict[str, Any]:
    """Columns from the name of an attention kernel, perhaps with a norm kernel ("flash_attention2 + RMS kernel")."""
    text = re.sub(r"[\s\-]+", "_", stated.strip().lower())
    found: dict[str, Any] = next((dict(columns) for pattern, columns in _KERNELS if re.search(pattern, text)), {})
    if re.search(r"rms|norm", text):
        found["fused_norm"] = 1.0
    return found


# Trainers' names of sharding strategies → ZeRO stage; the first match counts.
_SHARDED = (
    (r"no_shard", 0.0),
    (r"shard_grad_op|(?:zero|stage)_?2", 2.0),
    (r"(?:zero|stage)_?1", 1.0),
    (r"full_shard|hybrid_shard|(?:zero|stage)_?3|fsdp", 3.0),
)


def _sharding(own: Row, x: Row) -> dict[str, float]:
    """The ZeRO stage of rows without such a column, from the name of the strategy or of the trainer."""
    if "zero" in x or "distopt" in x:
        return {}
    for name in ("zero", "sharding", "framework"):
        text = re.sub(r"[\s\-]+", "_", str(own.get(name, "")).lower())
        if (stage := next((stage for pattern, stage in _SHARDED if re.search(pattern, text)), None)) is not None:
            in_a_node = "hybrid_shard" in text and "per_node" in x
            return {"zero": stage, **({"zero_group": x["per_node"]} if in_a_node else {})}
    return {}


def _chunks(own: Row) -> dict[str, float]:
    """Chunks per pipeline stage, from the layers per chunk in Megatron's tables."""
    each, layers = number(own.get("vpp_layers")), number(own.get("layers"))
    if not each or not layers:
        return {}
    return {"vpp": max(layers / ((number(own.get("pp")) or 1.0) * each), 1.0)}


def _recomputation(ar: str, x: Mapping[str, Any]) -> dict[str, Any]:
    if ar.startswith("selective"):
        # "selective layer" in PyTorch trainers means that every second layer is recomputed as a whole
        return {"ar": "full", "recomputed": 0.5} if "layer" in ar else {"ar": "selective"}
    return {"ar": "full" if ar in ("full", "true", "yes", "on", "1", "1.0", "uniform", "block") else "none"}


def _precision(name: str, own: Row) -> str:
    plain = name.lower()
    if str(own.get("fp8", "False")).lower() not in ("false", "0", "no"):
        return "fp8"
    if "transformer_impl" in own:
        return "bf16" if str(own.get("bf16", "True")) == "True" else "fp16"
    for known in ("fp4", "bf16", "fp16", "fp32"):
        if known in plain:
            return known
    return "fp8" if "fp8" in plain or "float8" in plain else "bf16"


def _reference(row: Row) -> tuple[str, str]:
    return str(row.get("source", "")), str(row.get("source_ref", ""))
