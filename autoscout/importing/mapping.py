"""Decides for each column of a foreign table whether it is a knob, a metric, a status, stored text, or dropped."""

import math
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from autoscout.job.headers import ALIASES, header, without_export
from autoscout.job.metrics import DEVICES, SERVING_METRICS, TRAINING_METRICS
from autoscout.job.units import factor, unit_of
from autoscout.job.words import meant, nearest_name
from autoscout.space.graph import Space
from autoscout.space.knob import Knob
from kb.records import AutoscoutError, Value

Kind = Literal["knob", "metric", "status", "evidence", "cost_s", "at", "kept", "number", "left out"]
# Rates of a whole training run from which a step's time follows (converting.py).
RATES = ("tokens_per_s_per_gpu", "samples_per_s", "steps_per_s")
# The unit of a column whose cells have their own, as "5.3 s".
IN_CELLS = "each cell's"
# The column `devices` gives the size of a run, so it is not a result.
_METRICS = tuple(name for name in dict.fromkeys((*TRAINING_METRICS, *SERVING_METRICS, *RATES)) if name != DEVICES)
# metric without its unit → metric
_STEMS = {name.removesuffix(f"_{unit_of(name)}"): name for name in reversed(_METRICS)}
_STATISTICS = {"avg": "mean", "average": "mean", "median": "p50"} | {
    at: at for at in ("mean", "p50", "p90", "p95", "p99")
}
# Other names of metrics, without statistic and unit.
_METRICS_ALSO = {
    **dict.fromkeys(("iteration_time", "iter_time", "time_per_step", "time_per_iteration"), "step_time"),
    **dict.fromkeys(("elapsed_time_per_iteration", "time_per_iter"), "step_time"),
    **dict.fromkeys(("peak_mem", "max_memory", "max_memory_allocated", "peak_gpu_memory"), "peak_memory"),
    **dict.fromkeys(("e2e_latency", "e2e", "request_latency"), "e2el"),
    "time_to_first_token": "ttft",
    "time_per_output_token": "tpot",
    "inter_token_latency": "itl",
    "request_throughput": "requests_per_s",
    **dict.fromkeys(("output_throughput", "output_token_throughput"), "output_tokens_per_s"),
    **dict.fromkeys(("total_throughput", "total_token_throughput"), "total_tokens_per_s"),
    **dict.fromkeys(("throughput_tokens_per_s", "tok_per_s"), "tokens_per_s"),
    **dict.fromkeys(("tok_per_s_per_gpu", "tokens_per_s_per_device"), "tokens_per_s_per_gpu"),
    **dict.fromkeys(("train_steps_per_s", "it_per_s", "iterations_per_s"), "steps_per_s"),
    "train_samples_per_s": "samples_per_s",
    **{
        f"{which}{token}_throughput_{unit}_per_s": f"{which}_tokens_per_s"
        for which in ("output", "total")
        for token in ("", "_token")
        for unit in ("tok", "tokens")
    },
    **{f"request_throughput_{unit}_per_s": "requests_per_s" for unit in ("req", "requests")},
}
_PERCENT = 10  # from this value on, a supposed fraction is probably a percentage
_ROLES = ("status", "evidence", "cost_s", "at")
# Further names of two roles; of several in a table, the first one has the role.
_ALSO: dict[Kind, tuple[str, ...]] = {
    "status": ("state",),
    "evidence": ("error", "error_message", "exception", "failure_reason", "failure"),
}
# Further columns that may be stored, by name: text about hardware and software, and numbers. All other columns are
# dropped, because a list of column names that reveal keys, people or machines could never be complete.
_TEXT = re.compile(
    r"(user_)?((gpu|device|accelerator|hardware|cpu|chip)s?(_?(name|type|model|kind|arch))?"
    r"|framework|engine|backend|precision|quantization|model|model_(name|id|size|family)|params_dtype|dtype|kv_cache_dtype"
    r"|attention_backend|transformer_impl|optimizer|scheduler|parallel|dataset_name|mode|system"
    r"|torch|pytorch|cuda|cudnn|nccl|rocm|driver|python|vllm|sglang|megatron(_core)?|transformer_engine|deepspeed|triton"
    r"|(\w+_)?versions?|(zero_optimization|fp16|bf16|amp|activation_checkpointing|optimizer|scheduler)\..*)",
    re.IGNORECASE,
)
_NUMBER = re.compile(
    r"(user_)?(seed|rank|layers|hidden(_size)?|heads|experts|fp8|bs|nodes|gpus|tokens|steps|samples|value(_\d+)?|loss|mfu"
    r"|rounds?|repeats?|completed|failed|num_\w+|n_\w+|total_\w+|max_\w+|min_\w+|mean_\w+|median_\w+|std_\w+|avg_\w+"
    r"|p\d+_\w+|deepspeed_\w+|train_\w+|gradient_\w+|tokens/s(/\w+)?"
    r"|\w+_(ns|us|ms|s|sec|seconds|min|h|bytes|kib|mib|gib|kb|mb|gb|w|watts|j|joules|kwh|c|mhz|ghz|pct|percent|share"
    r"|ratio|rate|count|tokens|tflops|flops|mfu|throughput|latency|time|size|len|length|layers|heads|gpus|nodes|loss|norm))",
    re.IGNORECASE,
)
# Columns that are never stored.
_PRIVATE = re.compile(
    r"prompt(_text)?s?$|generated|(^|_)(path|dir|file|folder|url|uri|user|username|email|mail|host|hostname|address|ip)s?$"
    r"|key|token$|secret|passw|credential|auth|account|login",
    re.IGNORECASE,
)


class Use(msgspec.Struct, frozen=True):
    kind: Kind
    name: str
    factor: float = 1.0
    why: str = ""


def uses(
    columns: list[str],
    space: Space,
    meaning: Mapping[str, str],
    maps: Iterable[str],
    units: Iterable[str],
    with_units: Iterable[str] = (),
) -> dict[str, Use]:
    """Returns column → use. `maps` and `units` are the user's options: COLUMN=NAME (the name "-" drops the column, "+"
    stores it), and COLUMN=UNIT. `with_units`: the columns whose cells have units.

    Errors: AutoscoutError (exit 2) for a column or name that does not exist, a duplicate column, two columns for the
    same knob or metric, and a missing unit."""
    twice = sorted(c for c, n in Counter(columns).items() if n > 1)
    if twice:
        raise AutoscoutError(f"the column {twice[0]} exists {columns.count(twice[0])} times; rename or remove one", 2)
    wanted, given = _pairs("--map", maps, columns), _pairs("--unit", units, columns)
    given = {column: IN_CELLS for column in with_units if not unit_of(flag_of(column))} | given
    # If several knobs share a flag, a knob without a condition takes precedence.
    knobs = sorted(space.knobs, key=lambda knob: knob.when is not None)
    called = {flag_of(knob.sets): knob for knob in reversed(knobs) if knob.sets} | {
        flag_of(k.name): k for k in space.knobs
    }
    names = {flag_of(c) for c in columns}
    called |= _degrees(names, called)
    named = Counter(metric for name in names if (metric := _metric_named(name)))
    names |= {metric for metric, count in named.items() if count > 1}  # an ambiguous table needs --map
    found = {c: _use(c, names, space, called, meaning, wanted.get(c, ""), given.get(c, "")) for c in columns}
    if not meaning and not any(use.kind == "metric" for use in found.values()):
        for column in (c for c, use in found.items() if use.kind in ("number", "left out") and c not in wanted):
            if (metric := _metric_named(flag_of(column))) and named[metric] == 1:
                _named(column, metric, "", space, explicit=False)  # an error that asks for the unit
    taken: dict[str, str] = {}
    for column, use in found.items():
        if use.kind in ("kept", "number", "left out"):
            continue
        if use.name in taken:
            first = taken[use.name]
            if column in wanted and first not in wanted:
                found[first] = Use("kept", first, why=f"--map takes {use.name} from column {column}")
            elif first in wanted and column not in wanted:
                found[column] = Use("kept", column, why=f"--map takes {use.name} from column {first}")
                continue
            else:
                raise AutoscoutError(
                    f"columns {first} and {column} both map to {use.name}; drop one with --map COLUMN=-", 2
                )
        taken[use.name] = column
    return found


def _degrees(names: set[str], called: Mapping[str, Knob]) -> dict[str, Knob]:
    """Returns name → knob for columns with other names of degrees and batch sizes, such as tensor_parallel, in a table
    without the knob's own name."""
    given = {called[name].name for name in names if name in called}
    alike = {name: ALIASES[name] for name in names if name in ALIASES and name not in called}
    own = {knob.name: knob for knob in called.values() if all(type(value) is int for value in knob.values)}
    times = Counter(alike.values())
    return {name: own[ours] for name, ours in alike.items() if ours in own and ours not in given and times[ours] == 1}


def knob_value(space: Space, name: str, cell: object) -> Value:
    """Converts a table cell to the type of the knob's values. Errors: ValueError with the reason."""
    values = space.knob[name].values
    text = str(cell).strip()
    if isinstance(values[0], bool):
        word = text.lower()
        if word in ("true", "1", "1.0", "yes", "on"):
            return True
        if word in ("false", "0", "0.0", "no", "off"):
            return False
        raise ValueError(f"{name} is '{text}', which is neither true nor false")
    if isinstance(values[0], str):
        return text
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{name} is '{text}', which is not a number") from None
    if number != number or number in (float("inf"), float("-inf")):
        raise ValueError(f"{name} is '{text}', which is not a number")
    numbers = [v for v in values if isinstance(v, int | float)]
    if abs(number) > 2**53 or (number < 0 <= min(numbers)) or (number == 0 < min(numbers)):
        raise ValueError(f"{name} is {text}, which is impossible")
    if number >= _PERCENT and max(numbers) <= 1 and not all(isinstance(v, int) for v in values):
        raise ValueError(
            f"{name} is {text}, but its maximum is {max(numbers):g}; convert the column if it is in percent"
        )
    if all(isinstance(v, int) for v in values):
        if number != int(number):
            raise ValueError(f"{name} is {text}, which is not a whole number")
        return int(number)
    return number


def _use(
    column: str,
    names: set[str],
    space: Space,
    called: Mapping[str, Knob],
    meaning: Mapping[str, str],
    wanted: str,
    unit: str,
) -> Use:
    """Returns the use of a column. `names`: all column names in the table, normalized by `flag_of`."""
    if wanted == "-":
        return Use("left out", column, why="as wished")
    if wanted == "+":
        return Use("kept", column, why="as wished")
    if wanted:
        return _named(column, wanted, unit, space, explicit=True)
    if column in meaning:
        name, _, its_unit = meaning[column].partition("@")
        if name == "-":
            return Use("left out", column, why="it does not describe the configuration")
        if name == "+":
            return Use("number", column)
        return _named(column, name, unit or its_unit, space, explicit=False)
    name = flag_of(column)
    if (plain := without_export(name)) != name:
        known = plain in called or plain in _METRICS or _metric_named(plain)
        name = plain if known and plain not in names else name
    for role, others in _ALSO.items():
        if name in others and name == next((other for other in (role, *others) if other in names), ""):
            return Use(role, role)
    if knob := called.get(name):
        if name == flag_of(knob.name) or knob.unit != "MiB" or name in ALIASES:
            return Use("knob", knob.name)
        if name.endswith("bytes"):  # a name without this suffix may count elements, not bytes
            return Use("knob", knob.name, 2.0**-20, why="bytes → MiB")
    if name in _ROLES:
        return Use(name, name)  # type: ignore[arg-type]
    if name in _METRICS:
        return _named(column, name, unit or unit_of(name), space, explicit=False)
    metric, stated = _in_another_unit(name, names) or _metric_named(name), unit or unit_of(name)
    if metric and metric not in names and (stated or not unit_of(metric)):
        return _named(column, metric, stated, space, explicit=False)
    if _PRIVATE.search(column):
        return Use("left out", column, why="columns with prompts, paths, names of people or keys are not stored")
    if _TEXT.fullmatch(column):
        return Use("kept", column)
    if _NUMBER.fullmatch(column):
        return Use("number", column)
    return Use("left out", column, why="its name is not a known knob, metric or setting; --map COLUMN=+ stores it")


def _named(column: str, name: str, unit: str, space: Space, *, explicit: bool) -> Use:
    if name in space.knob:
        return Use("knob", name)
    if name in ("status", "evidence"):
        return Use(name, name)  # type: ignore[arg-type]
    if name not in _METRICS and name not in _ROLES:
        if explicit:
            known = (*space.knob, *_METRICS, *_ROLES)
            raise AutoscoutError(f"--map {column}={name}: '{name}'{nearest_name(name, known)}", 2)
        return Use("number", column)
    ours = "s" if name == "at" else unit_of(name)
    if not ours:
        return Use("metric", name)
    if unit == IN_CELLS:
        return Use("metric", name, math.nan, why=f"{IN_CELLS} unit → {ours}")
    theirs = unit or unit_of(column) or unit_of(flag_of(column))
    if not theirs and column != name and name != "at":  # a time may be a date in text, which has no unit
        example = shlex.quote(f"{column}={ours}")
        raise AutoscoutError(f"column {column} has no unit; give it, for example --unit {example}", 2)
    times = factor(column, theirs or ours, ours)
    kind = name if name in _ROLES else "metric"
    return Use(kind, name, times, why=f"{theirs} → {ours}" if times != 1 else "")  # type: ignore[arg-type]


def _in_another_unit(name: str, names: set[str]) -> str:
    """Returns the metric that a column gives in a different unit, such as step_time_s for the column "step_time_ms"; ""
    if there is none, or if the table also has a column with the metric's own name."""
    what = name.rpartition("_")[0]
    alike = (m for m in _METRICS if unit_of(m) and m.rpartition("_")[0] == what and m not in names)
    return next(alike, "") if unit_of(name) else ""


def _metric_named(name: str) -> str:
    """Returns the metric that a column gives under another name or with its words in another order, such as
    ttft_p99_ms for the column "p99_ttft_ms"; "" if there is none."""
    if name in _METRICS:
        return ""
    words = name.split("_")
    unit = words.pop() if unit_of(name) else ""
    at = [_STATISTICS[word] for word in words if word in _STATISTICS]
    bare = "_".join(word for word in words if word not in _STATISTICS)
    bare = _METRICS_ALSO.get(bare, bare)
    if len(at) > 1 or (at and at[0] not in ("mean", "p50") and f"{bare}_{at[0]}" not in _STEMS):
        return ""
    metric = _STEMS.get(f"{bare}_{at[0]}" if at else bare, "") or (_STEMS.get(bare, "") if unit or not at else "")
    return metric if unit_of(metric) or not unit else ""


def flag_of(name: str) -> str:
    """Normalizes the name of a column or flag: lower case, no leading dashes, underscores instead of dashes, spaces and
    brackets."""
    return header(name.strip().lstrip("-"))


def _pairs(option: str, given: Iterable[str], columns: list[str]) -> dict[str, str]:
    found = {}
    for text in given:
        column, equals, value = text.partition("=")
        if not equals or not value:
            raise AutoscoutError(f"{option} {text}: write COLUMN=…", 2)
        if column not in columns:
            raise AutoscoutError(f"{option} {text}: the table has no column '{column}'{meant(column, columns)}", 2)
        found[column] = value
    return found
