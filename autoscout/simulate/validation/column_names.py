"""Renames the columns of tables of training runs to the names that the models use."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from autoscout.job.device_names import kinds
from autoscout.job.headers import ALIASES, header, without_export
from autoscout.job.outcome_words import outcome
from autoscout.simulate.training.inputs import READ

# Columns in which 0 is a value. In all other columns, tables use 0 for "not used".
MAY_BE_0 = (
    "gated", "bias", "tied", "learned_positions", "sp", "recomputed", "distopt", "zero", "overlap_grad", "experts",
    "overlap_param", "tp_comm_overlap", "tp_comm_dgrad", "overlap_p2p", "overlap_experts", "te", "dropout",
    "deterministic", "fused_norm", "fused_activation", "fused_gate", "norm_copy", "foreach", "grads_apart", "graphs",
    "op_fuser", "transposes", "fp8_attention", "split_loss", "lora", "adapters", "packing",
    "adapter_dropout", "expert_bias",
)  # fmt: skip
NAMES = (
    "gpu", "dtype", "ar", "ar_method", "ar_modules", "attention", "dispatcher", "cp_comm", "framework", "software",
)  # fmt: skip


# Columns of the models that are not read from tables, because tables describe them by other columns or not at all.
_NO_NUMBERS = ("fp8", "dtype_bytes", "memory_gib", "cuda", "fsdp", "moments")


@cache
def numbers() -> list[str]:
    """Names of numeric columns, including the number of devices of each kind."""
    read = [name for name in READ if name not in (*NAMES, *_NO_NUMBERS)]
    return [*read, "release", *counts()]


@cache
def counts() -> list[str]:
    return [kind.replace("-", "_") for kind in kinds()]


def plain(name: str) -> str:
    return header(name)


def plain_all(columns: Sequence[str]) -> list[str]:
    """Names of a table's columns; a tracker's prefix (params.tp) is dropped where no other column has the name."""
    names = [plain(column) for column in columns]
    times = Counter([*names, *(short for name in names if (short := without_export(name)) != name)])
    return [short if times[short := without_export(name)] == 1 else name for name in names]


def renamed(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with our column names, without empty values. If two columns have the same meaning, the one with our name
    is used."""
    own = {plain(str(k)): v for k, v in row.items() if stated(v)}
    return {ALIASES[k]: v for k, v in reversed(own.items()) if k in ALIASES} | {
        k: v for k, v in own.items() if k not in ALIASES
    }


def status_of(row: Mapping[str, Any]) -> str:
    """The outcome of the row's run: "ok", "oom" or "failed"."""
    known = outcome(str(row.get("status") if stated(row.get("status")) else "ok"))
    return known if known in ("ok", "oom") else "failed"


def stated(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() not in ("", "nan", "none", "null", "n/a")
    return value is not None and value == value  # not NaN


def number(value: Any) -> float | None:
    if isinstance(value, str) and value.strip().lower() in ("true", "false", "yes", "no"):
        return float(value.strip().lower() in ("true", "yes"))
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if abs(found) < float("inf") else None
