"""`init --target megatron`: creates a job from a user's launch line of pretrain_gpt.py, whose flags give model and
batch. The line becomes launch.current."""

import contextlib
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from autoscout.job.model_folder import tokens_of
from autoscout.job.presets import models
from autoscout.job.published_models import published
from autoscout.job.words import listed
from autoscout.line.launch_line import Flags, Line, split
from autoscout.line.line_devices import NO_HOSTS, devices
from autoscout.line.shell_commands import passed_on
from autoscout.targets.current_launch import whole_number
from autoscout.targets.megatron.arguments import SCRIPT
from autoscout.targets.megatron.persons import NULL_TOKENIZER
from autoscout.targets.megatron.training_line import RECIPE, dense_layers, not_had, unmodelled
from autoscout.targets.megatron.training_line import asked as asked_for
from kb.records import AutoscoutError

_SHAPE = {
    "layers": "--num-layers",
    "hidden": "--hidden-size",
    "heads": "--num-attention-heads",
    "head_dim": "--kv-channels",
    "ffn": "--ffn-hidden-size",
    "experts": "--num-experts",
    "expert_ffn": "--moe-ffn-hidden-size",
    "shared_ffn": "--moe-shared-expert-intermediate-size",
}
_LATENT = {
    "q_lora_rank": "--q-lora-rank",
    "kv_lora_rank": "--kv-lora-rank",
    "qk_nope_head_dim": "--qk-head-dim",
    "qk_rope_head_dim": "--qk-pos-emb-head-dim",
    "v_head_dim": "--v-head-dim",
}
_OTHERS = {"kv_heads": "--num-query-groups", "topk": "--moe-router-topk", "vocab": "--vocab-size"}
_OF_EXPERTS = ("experts", "expert_ffn", "shared_ffn")
_USUAL = 1024  # tokens per sample, if the line gives none
_KV_LORA_RANK = 32  # default in training/arguments.py, 0.16.1 to 0.19.0 (Megatron-core's own is 512)
_TOKENIZERS = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000}
_DEGREES = ("--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--context-parallel-size")
_STARTS = ("torchrun", "python", "python3", "srun", "env")
_SETS = re.compile(r"([A-Z_][A-Z0-9_]*)=(.*?);?", re.DOTALL)  # a variable assignment before a command
_NEXT = re.compile(r"[|;&]|\d?>")  # ends a command in a shell


def job_of_line(line: Line) -> dict[str, Any] | None:
    """Returns a job file's content, plus the keys `devices` (of each node, 0 if unknown) and `notes`. None if the
    launch line starts a different script. Errors: AutoscoutError (exit 2) for a line without a model."""
    line = _out_of_shell(line)
    if SCRIPT not in line.names:
        return None
    at = line.names.index(SCRIPT)
    before, own = line.of(line.words[:at]), line.of(line.words[at:])
    flags = own.flags
    if "--deepspeed" in flags:
        raise AutoscoutError(
            "the line trains with DeepSpeed (--deepspeed), to which Megatron-core's knobs do not apply; omit "
            "--target, or write a job file with [model] and target = 'megatron'",
            2,
        )
    if lacking := [flag for flag in list(_SHAPE.values())[:3] if not whole_number(flags, flag)]:
        raise AutoscoutError(
            f"the line does not give {', '.join(lacking)}; write a job file with [model] and target = 'megatron'", 2
        )
    if why := not_had(own):
        raise AutoscoutError(f"the line {why}", 2)
    asked = devices(line)
    notes = list(asked.notes)
    found: dict[str, Any] = {
        "name": Path(SCRIPT).stem,
        "task": "pretrain",
        "target": "megatron",
        "model": model_of(flags, notes),
        "traffic": _traffic(flags, asked.counts, notes),
        "objective": {"minimize": "step_time_s"},
        "launch": {"path": _checkout(own.words[0], notes), "current": str(own), **_set_before(before)},
        "cluster": _cluster(line, asked.counts, notes),
        "devices": asked.counts,
        "notes": notes,
    }
    if "--sft" in flags:
        found["task"] = "finetune"
        notes.append(
            "traffic.lengths: write the lengths of your conversations in tokens, as a file or as quantiles "
            "such as [50, 300, 2000]"
        )
    if allow := asked_for(flags):  # knobs that also affect numerical results
        fixed = {"fix": {"fp8": (flags.get("--fp8-recipe") or [RECIPE])[0]}} if "fp8" in allow else {}
        found["space"] = {"allow": allow, **fixed}
    if flags.get("--transformer-impl") != ["local"]:
        found["launch"]["transformer_engine"] = True
    return found


def model_of_line(line: Line) -> tuple[dict[str, Any], list[str]]:
    """Returns ([model] from the line's flags, notes), as `Target.model_of_line`."""
    flags, notes = _out_of_shell(line).program.flags, list[str]()
    if found := unmodelled(flags):
        raise AutoscoutError(f"no simulator models {listed(found)}", 2)
    # If --vocab-size is given, it must not be 0, which is the vocabulary of an image model.
    needed = [*list(_SHAPE.values())[:3], *(["--vocab-size"] if "--vocab-size" in flags else [])]
    if any(not whole_number(flags, flag) for flag in needed):
        return {}, []
    return model_of(flags, notes), notes


def _out_of_shell(line: Line) -> Line:
    """Returns the launch line with a final `bash -c TEXT` replaced by TEXT's words, up to the end of the script's
    arguments."""
    text = "".join(line.words[-1:])
    if SCRIPT not in text or not any(map(str.isspace, text)):
        return line
    inside = split(text, "the line's shell")
    script = next((i for i, word in enumerate(inside) if Path(word).name == SCRIPT), len(inside))
    end = next((i for i, word in enumerate(inside) if i > script and _NEXT.match(word)), len(inside))
    alone = line.first in ("bash", "sh") and Path(inside[0]).name in _STARTS
    return line.of([*([] if alone else line.words[:-1]), *inside[:end]])


def _set_before(before: Line) -> dict[str, dict[str, str]]:
    """Returns {"environment": …} for [launch]: the variables set before the script, including those in the text of
    `bash -c`. Variables with computed values are omitted."""
    parts: list[str] = []
    for word in before.words:
        with contextlib.suppress(ValueError):  # a text with an unclosed quote is skipped
            parts += shlex.split(word) if 'exec "$@"' in passed_on(word) else [word]
    pairs = [found for part in parts if (found := _SETS.fullmatch(part)) and not re.search("[$`]", part)]
    return {"environment": {found[1]: found[2] for found in pairs}} if pairs else {}


def _cluster(line: Line, counts: list[int], notes: list[str]) -> dict[str, Any]:
    """Returns the entries of [cluster] other than the nodes."""
    if line.first not in _STARTS:
        notes.append(
            f"launch.command_prefix: write the command that starts Python inside '{line.words[0]}', if "
            "experiments have to run there"
        )
    if len(counts) < 2:
        return {}
    if line.first == "srun":
        return {"hosts": "slurm"}
    notes.append(NO_HOSTS)
    return {"hosts": "hostfile"}


def _traffic(given: Flags, counts: list[int], notes: list[str]) -> dict[str, int]:
    ranks = sum(counts) if all(counts) else 0
    split = math.prod(whole_number(given, flag) or 1 for flag in _DEGREES)
    if ranks % split:
        notes.append(
            f"cluster: the launch line's tp × pp × cp is {split}, but the line starts {ranks} ranks; write all "
            "nodes into cluster.nodes"
        )
    length = whole_number(given, "--seq-length")
    if not length:
        length = _USUAL
        notes.append(
            f"traffic.seq_len: {length} tokens are assumed, because the launch line gives no number for --seq-length"
        )
    found = {"seq_len": length}
    batch = whole_number(given, "--global-batch-size")
    if batch is None and not {*_unread(given, ("--global-batch-size", "--micro-batch-size", *_DEGREES))}:
        batch = (whole_number(given, "--micro-batch-size") or 1) * (ranks // split)
    if batch:
        return {**found, "global_batch": batch}
    notes.append("traffic.global_batch: write the samples per step, because the launch line does not give them")
    return found


def _unread(given: Flags, flags: Iterable[str]) -> Iterator[str]:
    """Yields each of `flags` that the line sets to a value that is not a number."""
    yield from (flag for flag in flags if given.get(flag) and whole_number(given, flag) is None)


def _checkout(script: str, notes: list[str]) -> str:
    """Returns the Megatron-LM folder that contains the script; "" if it is not on this machine."""
    folder = Path(script).resolve().parent
    if (folder / "megatron").is_dir():
        return str(folder)
    notes.append(
        "launch.path: write the folder of your Megatron-LM to train with its script; without launch.path, "
        "AutoScout's own loop trains"
    )
    return ""


def model_of(given: Flags, notes: list[str]) -> dict[str, Any]:
    """Returns the fields of [model], without fields that have AutoScout's default value."""
    found: dict[str, Any] = {name: value for name, flag in _SHAPE.items() if (value := whole_number(given, flag))}
    # 1 expert is the default of Megatron-DeepSpeed and means a dense model
    if found.get("experts") == 1 and "--moe-router-topk" not in given:
        found = {name: value for name, value in found.items() if name not in _OF_EXPERTS}
    named = {flag: name for name, flag in (_SHAPE | _LATENT | _OTHERS).items()}
    for flag in _unread(given, named):
        notes.append(f"model.{named[flag]}: write the value of the line's {flag} {' '.join(given[flag])}")
    if "--group-query-attention" in given:  # without --num-query-groups, this flag means one group
        found["kv_heads"] = whole_number(given, "--num-query-groups") or 1
    if "--multi-latent-attention" in given:
        found.pop("head_dim", None)
        latent = {name: value for name, flag in _LATENT.items() if (value := whole_number(given, flag)) is not None}
        found["latent"] = {"kv_lora_rank": _KV_LORA_RANK, **latent}
    elif "--qk-layernorm" in given:
        found["qk_norm"] = True
    rotary = given.get("--position-embedding-type") == ["rope"] or "--use-rotary-position-embeddings" in given
    switches = {
        "gated": "--swiglu" in given,
        "bias": "--disable-bias-linear" not in given,
        "tied": "--untie-embeddings-and-output-weights" not in given,
        "qkv_bias": "--add-qkv-bias" in given,
    }
    found |= {name: on for name, on in switches.items() if on != (name == "bias")}
    if found.get("gated"):  # Megatron-LM's default, as a gated layer has two input matrices
        found.setdefault("ffn", int(4 * found["hidden"] * 2 / 3 / 64) * 64)
    found |= {"norm": "rmsnorm"} if given.get("--normalization") == ["RMSNorm"] else {}
    found |= {"position": "rope"} if rotary else {}
    if found.get("experts"):
        found["topk"] = whole_number(given, "--moe-router-topk") or 2
        found |= {"dense_layers": first} if (first := dense_layers(given)) else {}
    if "--bf16" not in given:
        half = "--fp16" in given
        found |= {} if half else {"dtype": "fp32"}
        notes += ["model.dtype: bf16 is used in place of the line's --fp16"] if half else []
    found["vocab"] = _vocabulary(given, found, notes)
    return found


def _vocabulary(given: Flags, model: Mapping[str, Any], notes: list[str]) -> int:
    """Returns the number of rows of the embedding, padded as in Megatron-LM."""
    tokenizer = (given.get("--tokenizer-type") or ["GPT2BPETokenizer" if "--merge-file" in given else ""])[0]
    tokens = whole_number(given, "--vocab-size") or _TOKENIZERS.get(tokenizer)
    if tokens and tokenizer == NULL_TOKENIZER:
        tokens += 1
    tokens = tokens or _of_tokenizer((given.get("--tokenizer-model") or [""])[0])
    if not tokens:
        same = ("layers", "hidden", "heads", "experts")
        alike = [m for m in models().values() if all(m.get(name, 0) == model.get(name, 0) for name in same)]
        tokens = int(alike[0]["vocab"]) if alike else _TOKENIZERS["GPT2BPETokenizer"]
        notes.append(f"model.vocab: {tokens} tokens are assumed; write the number of rows of your model's embedding")
    unit = (whole_number(given, "--make-vocab-size-divisible-by") or 128) * (whole_number(given, _DEGREES[0]) or 1)
    return unit * math.ceil(tokens / unit)


def _of_tokenizer(named: str) -> int:
    """Returns the vocabulary size of the model with this folder or name; 0 if unknown."""
    known = models().get(published(named).get("preset", ""), {})
    return (tokens_of(named) if named else 0) or int(known.get("vocab", 0))
