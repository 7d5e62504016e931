"""Reads the model from a launch line of a Hugging Face trainer, and computes the line's inputs to the training and
memory simulators, using `[trained]` and `[simulated]` of the line's preset."""

import contextlib
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from autoscout.job.finetune import without_estimate
from autoscout.job.hf_config import shape_of
from autoscout.job.model_folder import of_name
from autoscout.job.presets import models
from autoscout.job.words import listed
from autoscout.job.yaml_text import documents
from autoscout.line.launch_line import Line
from autoscout.space.language.template import as_text
from autoscout.targets.command.preset import Preset, Trained
from autoscout.targets.command.trainer_settings import file_of
from autoscout.targets.current_launch import command_line
from kb.records import AutoscoutError, Job, Task

Settings = Mapping[str, list[str]]
_OFF = ("false", "0", "no", "none", "null", "")
# Layers of Transformers models that may have adapters. If none is named, those of PEFT's default are.
_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_HALF = ("bfloat16", "bf16", "float16", "fp16", "half")
# Settings of accelerate and Trainer that prevent predictions, as only DDP and FSDP without offloading are modelled.
_ELSEWHERE = (
    *("use_deepspeed", "deepspeed", "deepspeed_config", "use_megatron_lm", "use_parallelism_config"),
    *("fsdp_offload_params", "offload_params"),
)
_PLAIN_KINDS = ("", "NO", "MULTI_GPU", "MULTI_CPU", "FSDP")
# Names of programs whose loss does not use every token.
_OTHER_LOSSES = re.compile(
    r"(^|[^a-z])(ppo|kto|cpo|bco|prm|ipo|rloo|gkd|rm|glue|mlm|ner|qa|asr)([^a-z]|$)"
    r"|dpo|grpo|orpo|simpo|reward|distil|classif|seq2seq|translat|summariz|embed"
)
_PLAIN = ("sft", "pt", "null")  # kinds of training whose loss uses every token
# FSDP's sharding strategy → the equivalent stage of ZeRO.
_SHARDED = {"full_shard": 3, "shard_grad_op": 2, "no_shard": 0}


def settings(line: Line, known: Preset, folder: Path = Path()) -> dict[str, list[str]]:
    """Returns the settings of a line and of its settings file by name (per_device_train_batch_size), and accelerate's
    `distributed_type`. `folder`: the line's working directory.

    Errors: AutoscoutError (exit 2) for a file that cannot be read."""
    found = _of_file(folder / file) if (file := file_of(line, known)) is not None else {}
    for word in line.words:
        name, sign, value = word.partition("=")
        if sign and re.fullmatch(r"[A-Za-z_][\w.]*", name):
            found[name] = [value]
    for flag, values in line.flags.items():
        found[flag.strip("-").replace("-", "_")] = values
    for named in [*found.get("config_file", []), *found.get("accelerate_config", [])][:1]:
        kinds = {"zero": "DEEPSPEED", "fsdp": "FSDP"}  # accelerate configurations that TRL ships
        found["distributed_type"] = [kind for name, kind in kinds.items() if named.startswith(name)]
        with contextlib.suppress(AutoscoutError):
            theirs = _of_file(folder / named)
            wanted = ("distributed_type", "mixed_precision", "fsdp_activation_checkpointing")
            found = {**{name: theirs[name] for name in wanted if name in theirs}, **found}
            found["distributed_type"] = theirs.get("distributed_type", [])
    return found


def model_and_length(line: Line, known: Preset, notes: list[str]) -> dict[str, Any]:
    """Returns {"model": …, "seq_len": …} for the job, without the keys that the line does not give. Adds notes on
    assumed values."""
    trained = known.trained
    if trained is None or _why_not(line, {}, trained):
        return {}
    try:
        given = settings(line, known)
    except AutoscoutError as error:  # for example for a file with custom YAML tags
        notes.append(f"model: nothing is predicted: {error}")
        return {}
    named = _first(given, trained.model)
    if not named or _why_not(line, given, trained):
        return {}
    model = of_name(named, notes, known.task)
    if not model:
        return {}
    model["dtype"] = "bf16" if _half(given, trained) else "fp32"
    if _adapted(given, trained):
        model["lora"] = _lora(given, trained)
        if unknown := without_estimate(model["lora"]["modules"], _experts(model, known.task)):
            notes.append(f"model: nothing is predicted: adapters of experts ({listed(unknown)}) are not supported")
            return {}
    elif trained.adapted and (rank := next((name for name in trained.rank if _is_on(given, name)), "")):
        asked = " or ".join(trained.adapted)
        notes.append(
            f"model: all weights are assumed to be trained, because the launch line has {rank}, but not {asked}"
        )
    if trained.prompt:
        return {"model": model, **_of_answers(given, trained, notes)}
    length = _first(given, trained.length)
    if not length.isdecimal():
        notes.append(
            f"traffic.seq_len: {trained.usual_length} tokens per sample are assumed, because the launch line does "
            "not give the length"
        )
    if trained.weights and not _first(given, trained.weights):
        bits = 8 * _weight_bytes(given, trained, adapted="lora" in model)
        notes.append(
            f"model: weights are assumed to be in {bits} bits, because the launch line gives no --{trained.weights[0]}"
        )
    notes += [why for name, why in trained.differs.items() if name not in given]
    return {"model": model, "seq_len": int(length) if length.isdecimal() else trained.usual_length}


def _of_answers(given: Settings, trained: Trained, notes: list[str]) -> dict[str, int]:
    """Returns estimated mean numbers of tokens of prompts and answers in RL, since the line has only the maximum
    numbers."""
    said = _first(given, trained.prompt), _first(given, trained.length)
    usual = trained.usual_prompt, trained.usual_length
    prompt, answer = (int(s) if s.isdecimal() else u for s, u in zip(said, usual, strict=True))
    mean = {"input_len": max(prompt // 2, 1), "output_len": max(answer // 2, 1)}
    notes.append(
        f"traffic.output_len: {mean['output_len']} tokens are assumed for a mean answer, half of the longest, and "
        f"traffic.input_len: {mean['input_len']} for a prompt; write your own means, or quantiles from the "
        "smallest to the largest"
    )
    return {"seq_len": prompt + answer, **mean}


def _experts(model: Mapping[str, Any], task: Task) -> int:
    shape = shape_of(Path(model["from"]), task) if "from" in model else models()[model["preset"]]
    return int(shape.get("experts", 0))


def simulated(job: Job, preset: Preset) -> dict[str, str]:
    """Returns simulator input → expression; {} if `lacking` gives a reason."""
    if preset.trained is None:
        return {}
    given, half = _given(job, preset), job.model.dtype != "fp32"
    if _lacking(job, given, preset.trained):
        return {}
    bytes_each = _weight_bytes(given, preset.trained, job.model.lora is not None) if half else 4
    eager = _first(given, preset.trained.attention) in ("eager", "disabled")
    columns = {
        "software": "''",
        "te": "0",
        "fused_norm": "0",
        "fused_activation": "0",
        "split_loss": "0",
        "hub": str(bytes_each if half else 0),
        "attention": repr("unfused" if eager else "flash"),
        "grad_bytes": "4" if job.model.lora else str(bytes_each),
        "ar_layers": "1",
        "overlap_grad": "1",
        "ddp_bucket": "25",
    }
    if job.model.lora:
        columns |= {"lora_rank": "lora_rank", "adapter_width": "adapter_width", "adapters": "adapters"}
    columns |= preset.simulated
    if (stage := _stage(given, preset)) is not None:
        columns["zero"] = str(stage)
    if _is_on(given, "fsdp_activation_checkpointing"):
        columns["ar"] = "'full'"
    return columns


def lacking(job: Job, preset: Preset) -> str:
    """Returns why no prediction is possible, as a clause; "" if predictions are possible."""
    return "" if preset.trained is None else _lacking(job, _given(job, preset), preset.trained)


def _lacking(job: Job, given: Settings, trained: Trained) -> str:
    if why := _why_not(command_line(job), given, trained):
        return why
    for setting, name in trained.told.items():
        if _fits(given, setting) and name not in job.space.derived:
            return f"with --{setting.replace('=', ' ')}, the job has to give space.derived.{name}"
    if not job.model.layers:
        return "the job has no [model] (from = its config.json, or layers, hidden, heads, vocab …)"
    if not job.traffic.seq_len:
        return "the job does not give traffic.seq_len, the tokens of a sample"
    apart = job.model.experts and not trained.grouped_experts
    return "experts that run one after the other, as in Transformers, are not modelled" if apart else ""


def not_modelled(job: Job, preset: Preset) -> list[str]:
    """Returns the settings of the line that predictions ignore."""
    if preset.trained is None:
        return []
    given = _given(job, preset)
    return [f"--{name}" for name in preset.trained.unmodelled if _is_on(given, name)]


def _why_not(line: Line, given: Settings, trained: Trained) -> str:
    pairs = [*pairwise(["", *line.words])]
    modules = [word.rpartition(".")[2] for flag, word in pairs if flag == "-m"]
    programs = [word for flag, word in pairs if word.endswith(".py") or flag == "trl"]
    named = [Path(word).name for word in (*programs, *modules)]
    kinds = [
        value for name in ("stage", "rl", "rlhf_type") for value in given.get(name, []) if value.lower() not in _PLAIN
    ]
    other = next((name for name in named if _OTHER_LOSSES.search(name.lower())), "") or next(iter(kinds), "")
    if other and not trained.prompt:
        return f"only fine-tuning on every token is modelled, so {other} cannot be predicted"
    around = next((name for name in _ELSEWHERE if _is_on(given, name)), "")
    if around:
        return f"no simulator models --{around} of the launch line"
    kind = _first(given, ["distributed_type"]).upper()
    if kind not in _PLAIN_KINDS:
        return f"--config_file has distributed_type: {kind}, which no simulator models"
    shards = " ".join(given.get("fsdp", []))
    if _is_on(given, "fsdp") and any(way in shards for way in ("hybrid", "offload")):
        return f"no simulator models --fsdp {shards}"
    for name, priced in trained.only.items() if given else ():
        if (value := _first(given, [name]).strip("\"'")) not in priced:
            return f"no simulator models {name}={value}" if value else f"the line does not give {name}"
    unpriced = next((name for name in trained.unpriced if _fits(given, name) and not _is_one(given, name)), "")
    return f"no simulator models --{unpriced}" if unpriced else ""


def _is_one(given: Settings, name: str) -> bool:
    """Whether a setting has the value 1. (A degree of parallelism of 1 has no effect.)"""
    return (given.get(name) or [""])[0] == "1"


def _stage(given: Settings, preset: Preset) -> int | None:
    """Returns the equivalent ZeRO stage, if the line or its files set the sharding; else None."""
    ways = " ".join(given.get("fsdp", [])).lower()
    for way, stage in _SHARDED.items():
        if way in ways:
            return stage
    by_file = _first(given, ["distributed_type"]).upper() == "FSDP"
    asked = any(_is_on(given, name) for name in ("use_fsdp", "fsdp_config", "fsdp_version"))
    if by_file or asked:
        return 3
    own = any(knob.sets == "--fsdp" for knob in preset.knob)
    return 3 if not own and _is_on(given, "fsdp") else None


def _weight_bytes(given: Settings, trained: Trained, adapted: bool) -> int:
    usual = trained.usual_frozen if adapted and trained.usual_frozen else trained.usual_weights
    halved = any(_fits(given, setting) for setting in (*trained.four_bits, "pure_bf16"))
    return 2 if halved or (_first(given, trained.weights) or usual) in (*_HALF, "auto") else 4


def _adapted(given: Settings, trained: Trained) -> bool:
    switches = [setting for setting in trained.adapted if setting.partition("=")[0] in given]
    if switches or (trained.adapted and not trained.by_rank):
        return any(_fits(given, setting) for setting in switches) if switches else trained.usual_adapted
    return any(_is_on(given, name) for name in trained.rank)


def _lora(given: Settings, trained: Trained) -> dict[str, Any]:
    rank = _first(given, trained.rank)
    targets = [name for word in given.get(trained.modules) or [] for name in re.split(r"[,\s\[\]\"']+", word) if name]
    known = [name for name in targets if name in _LINEAR]
    whole = {"all", "all-linear"} & {*targets} or _is_on(given, trained.all_modules)
    modules = list(_LINEAR) if whole or (not targets and trained.usual_modules == "all") else known
    four = any(_fits(given, setting) for setting in trained.four_bits)
    return {
        "rank": int(rank) if rank.isdecimal() else trained.usual_rank,
        "modules": modules or ["q_proj", "v_proj"],
        **({"bits": 4} if four else {}),
    }


def _fits(given: Settings, setting: str) -> bool:
    """Whether name=value is set, or a switch is on."""
    name, _, value = setting.partition("=")
    return (given.get(name) or [""])[0] == value if value else _is_on(given, name)


def _half(given: Settings, trained: Trained) -> bool:
    named = _first(given, trained.weights)
    if _first(given, ["mixed_precision"]) in _HALF or named in _HALF or _is_on(given, "pure_bf16"):
        return True
    if (named or trained.usual_weights) == "auto":  # "auto" computes in the weights' dtype
        return True
    halves = [name for name in trained.half if name in given]
    return any(_is_on(given, name) for name in halves) if halves else trained.usual_half


def _first(given: Settings, names: list[str]) -> str:
    return next((given[name][0] for name in names if given.get(name)), "")


def _is_on(given: Settings, name: str) -> bool:
    return name in given and (list(given[name]) or ["true"])[0].lower() not in _OFF


def _given(job: Job, preset: Preset) -> dict[str, list[str]]:
    line = command_line(job)
    try:
        return settings(line, preset, Path(job.launch.path or "."))
    except AutoscoutError:  # the file exists only on the machine that runs the line
        return settings(line.of(word for word in line.words if not word.endswith((".yaml", ".yml"))), preset)


def _of_file(file: Path) -> dict[str, list[str]]:
    """Returns scalars and lists of a YAML file by name. Settings in a section keep their names without a prefix; the
    section's name is added with the value "true" to show that the section exists.

    Errors: AutoscoutError (exit 2) for an unreadable file."""
    try:
        pages = documents(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise AutoscoutError(f"{file}: cannot be read ({error})", 2) from error
    return _flat(next((page for page in pages if isinstance(page, dict)), {}))


def _flat(tree: Mapping[Any, Any]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            found = {**_flat(value), **found, str(name): ["true"]}
        else:
            found[str(name)] = [as_text(each) for each in (value if isinstance(value, list) else [value]) if each != {}]
    return found
