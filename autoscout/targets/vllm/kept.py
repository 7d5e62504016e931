"""Settings in the user's launch command (`launch.current`) that have no knob. All experiments and exports keep them."""

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from autoscout.line.flags import NUMBER
from autoscout.running.interpreter import own_variables
from autoscout.space.attributes import attributes_of
from autoscout.space.knob import Catalog, KnobEntry, RuleEntry
from autoscout.space.opened import asking, can_act, values_of, without
from autoscout.targets.current_launch import line_of
from autoscout.targets.jobs import catalog_of
from autoscout.targets.model_of_server import FORMATS
from autoscout.targets.target import shipped
from autoscout.targets.vllm.installed import version_of
from autoscout.targets.vllm.line_flags import count_of, flag_of, flags_of, given_flags, setting_of
from kb.records import Job, Value, content_hash

# Arguments that are not kept, because the job or an experiment determines them.
_OURS = {"model", "max_model_len", "headless", "uds", "data_parallel_size_local"}
# AutoScout itself sets these to "ray" if a configuration needs several nodes
RAY = ("distributed_executor_backend", "data_parallel_backend")
# Engine arguments that exports keep, but experiments omit: names that clients use, logging, prompts as text.
_EXPORTED = {"served_model_name", "tokenizer", "seed", "disable_log_stats"}
_RELEASE = re.compile(r"vllm[\w-]*:v?(\d+\.\d+\.\d+)")  # the release in the tag of an image
# values of --dtype that are not kept, because AutoScout sets the dtype of the model
_SAME = {"auto", "bfloat16", "float32", "float"}
# Setting without a knob of its own → the knob whose value it determines.
_DECIDES = {
    "kv_cache_memory_bytes": "gpu_memory_utilization",
    "cudagraph_capture_sizes": "graph_size",
    "kv_transfer_config": "kv_offload",
}
# Setting without a knob → (condition that it imposes on knobs, reason). GIVEN stands for its value in the user's line.
_GO_WITH = {
    "decode_context_parallel_size": (
        "GIVEN == 1 or (tp % GIVEN == 0 and (latent or tp % (GIVEN * kv_heads) == 0))",
        "decode context parallel needs a tp {tp} that holds each of {kv_heads} key/value heads GIVEN times",
    ),
    "data_parallel_address": (
        "tp * pp <= node_gpus",
        "--data-parallel-address joins engines that each run on one node's {node_gpus} devices, and tp {tp} with pp "
        "{pp} takes more",
    ),
    "enable_eplb": ("ep", "--enable-eplb balances whole experts over devices, so it needs ep on at least two devices"),
}


def kept_arguments(job: Job) -> dict[str, Any]:
    """Returns the line's engine arguments that have no knob, by vLLM's names. Without an installed vLLM, the names of
    its arguments are unknown, so only nested settings in which some knob sets a field are returned."""
    installed = version_of(job) if job.launch.current else None
    in_part = {name for k in shipped("vllm").knob for name, dot, _ in [k.sets.partition(".")] if dot}
    known = installed.arguments if installed else in_part
    return {n: v for n, v in _set_by_line(job).items() if n in known and n not in _EXPORTED}


def longest(job: Job) -> int:
    """Returns the maximum number of tokens of a request: that of the traffic, or that of the user's line if larger."""
    return max(attributes_of(job)["model_len"], stated_length(job))


def stated_length(job: Job) -> int:
    """Returns --max-model-len of the user's line in tokens; 0 if it is missing or "auto" (vLLM chooses)."""
    return count_of("".join(given_flags(job).get("--max-model-len", []))) or 0


def dtype_of(job: Job) -> str:
    """Returns the engine's --dtype: float32 for an fp32 model; else the line's, "auto" if the line omits it (vLLM then
    reads the model's folder); bfloat16 for a job without a line."""
    if job.model.dtype == "fp32":
        return "float32"
    words = given_flags(job).get("--dtype", ["auto"]) if job.launch.current else ["bfloat16"]
    return " ".join(words)


def fitted_to_line(catalog: Catalog, job: Job) -> Catalog:
    """Returns the catalog adapted to the user's line: with the line's maximum length if it is longer than the
    traffic's, with the line's numbers added to the values of knobs, and without knobs that settings of the line
    determine."""
    if not job.launch.current:
        return catalog
    given = given_flags(job)
    catalog = _allowed(_with_numbers_given(catalog, job, given), job, given)
    if (length := longest(job)) > attributes_of(job)["model_len"]:
        catalog = msgspec.structs.replace(catalog, derived={**catalog.derived, "max_model_len": str(length)})
    if kept_by_host := "".join(given.get("--cpu-offload-gb", [])):
        weights = f"{catalog.derived['rank_weights_gib']} - {kept_by_host}"
        catalog = msgspec.structs.replace(
            catalog, derived={**catalog.derived, "rank_weights_gib": f"max({weights}, 0)"}
        )
    decided = {}
    known = {knob.name for knob in catalog.knob}
    for flag in given:
        setting = setting_of(flag).partition(".")[0]
        if (knob := _DECIDES.get(setting)) in known and setting not in _set_by_knobs(catalog, job):
            decided[knob] = f"{knob} is decided by {flag} in launch.current"
    catalog, others = _with_words_given(catalog, job, given)
    decided |= others
    rules = [
        _rule(setting, words)
        for flag, words in given.items()
        if (setting := setting_of(flag)) in _GO_WITH and not flag.startswith("--no-")
    ]
    return without(msgspec.structs.replace(catalog, rule=[*catalog.rule, *rules]), decided)


def asked_for(flags: Mapping[str, list[str]]) -> dict[str, Value]:
    """Returns knob values in the line that the job must allow explicitly, such as 8-bit weights."""
    knobs = [knob for knob in shipped("vllm").knob if knob.asks]
    values = {k.name: " ".join(flags[f]) or "True" for k in knobs if (f := flag_of(k.sets)) in flags}
    return {knob.name: value for knob in knobs for value in knob.asks if str(value) == values.get(knob.name)}


def _allowed(catalog: Catalog, job: Job, given: Mapping[str, list[str]]) -> Catalog:
    """Returns the catalog in which number formats that need the job's permission have the line's value, unless [space]
    names the knob: to launch with a format today is to allow it."""
    free = {*FORMATS} - {*job.space.fix, *job.space.limit, *job.space.allow}
    asked = {name: value for name, value in asked_for(given).items() if name in free}

    def offered(knob: KnobEntry) -> KnobEntry:
        value = asked.get(knob.name)
        return knob if value is None else msgspec.structs.replace(knob, values=[value], default=value, asks=[])

    return msgspec.structs.replace(catalog, knob=[offered(knob) for knob in catalog.knob])


def _rule(setting: str, values: list[str]) -> RuleEntry:
    holds, reason = _GO_WITH[setting]
    value = "".join(values) or "1"
    return RuleEntry(
        id=f"launch.current: {flag_of(setting)}",
        holds=holds.replace("GIVEN", value),
        reason=reason.replace("GIVEN", value),
        source="config/model.py:1566, config/parallel.py",
        checked="vllm",
    )


def _with_numbers_given(catalog: Catalog, job: Job, given: Mapping[str, list[str]]) -> Catalog:
    attributes = attributes_of(job)

    def offered(knob: KnobEntry) -> KnobEntry:
        word = "".join(given.get(flag_of(knob.sets), []))
        if not NUMBER.fullmatch(word) or knob.layer == "parallelism":
            return knob
        values = values_of(knob, catalog, attributes)
        own = float(word) / (2**20 if knob.name == "kv_cache_mib" else 1)
        if any(isinstance(v, bool | str) for v in values) or (own % 1 and all(isinstance(v, int) for v in values)):
            return knob
        number = own if own % 1 else int(own)
        return knob if own in values else msgspec.structs.replace(knob, values=sorted([*values, number]))

    return msgspec.structs.replace(catalog, knob=[offered(knob) for knob in catalog.knob])


def _with_words_given(catalog: Catalog, job: Job, given: Mapping[str, list[str]]) -> tuple[Catalog, dict[str, str]]:
    """Returns (catalog, knobs that the line determines). If the line gives a knob a text that is not among the knob's
    values, the line determines the knob, because any of the knob's values would serve a different model. If the job
    fixes this knob, the text is added to the knob's values instead."""
    attributes, decided, knobs = attributes_of(job), dict[str, str](), []
    for knob in catalog.knob:
        word = "".join(given.get(flag_of(knob.sets), []))
        values = values_of(knob, catalog, attributes) if word and not NUMBER.fullmatch(word) else []
        texts = [value for value in values if isinstance(value, str)]
        if texts and word.lower() not in map(str.lower, texts) and not word.startswith(("{", "$")):
            if knob.name in job.space.fix:
                knob = msgspec.structs.replace(knob, values=[*values, word])
            else:
                decided[knob.name] = f"{knob.name} is decided by {flag_of(knob.sets)} {word} in launch.current"
        knobs.append(knob)
    return msgspec.structs.replace(catalog, knob=knobs), decided


def of_the_server(job: Job) -> dict[str, Value | list[str]]:
    """Returns flags that only affect the server (API keys, names, templates), for exports. Flags that the installed
    version lacks are omitted."""
    unset = _set_by_line(job).keys() - kept_arguments(job).keys()
    gone = unknown_flags(job)
    found: dict[str, Value | list[str]] = {}
    # Omits flags of nested fields (which have a dot), because flags_of() has the whole setting.
    of_fields = {flag: words for flag, words in given_flags(job).items() if "." not in flag}
    for flag, words in {**of_fields, **flags_of(line_of(job))}.items():
        if setting_of(flag).partition(".")[0] in unset and flag not in gone:
            found[flag] = True if not words else words[0] if len(words) == 1 else words
    return found


def unknown_flags(job: Job) -> list[str]:
    """Returns the flags of the line that the installed version's server does not have."""
    installed = version_of(job) if job.launch.current else None
    if installed is None or not installed.options:
        return []
    long_ones = [flag for flag in flags_of(line_of(job)) if flag.startswith("--")]
    return [flag for flag in long_ones if flag.partition(".")[0] not in installed.options]


def identity_of(job: Job) -> dict[str, str]:
    """Returns entries for the environment of a measurement that identify the user's own settings, so that measurements
    with different settings are not compared."""
    own = kept_arguments(job)
    if (length := longest(job)) > attributes_of(job)["model_len"]:
        own |= {"max_model_len": length}
    return {**({"flags": content_hash(own)} if own else {}), **own_variables(job)}


def of_another_release(job: Job) -> str:
    """Returns a sentence if the release of the line's image differs from the catalog's; else "". (The engine
    of an image that cannot run here cannot be queried.)"""
    here = shipped("vllm").version
    tags = (_RELEASE.search(word) for word in job.launch.command_prefix)
    tag = next((found[1] for found in tags if found), here)
    if tag == here or version_of(job):
        return ""
    return (
        f"names and defaults of flags are those of vLLM {here}, not of vLLM {tag}, because the image of "
        "launch.command_prefix cannot run here"
    )


def _set_by_line(job: Job) -> dict[str, Any]:
    """Returns the settings of the line that no knob sets, by name."""
    if not job.launch.current:
        return {}
    chosen = _set_by_knobs(catalog_of(job), job)
    found: dict[str, Any] = {}
    for flag, words in given_flags(job).items():
        if not flag.startswith("--"):
            continue
        setting = setting_of(flag)
        name, _, inner = setting.partition(".")
        ours = (
            name in _OURS or (name in RAY and words == ["ray"]) or (name == "dtype" and words[:1] and words[0] in _SAME)
        )
        if ours or {name, setting} & chosen:
            continue
        off = not words and flag.startswith("--no-")
        value: Any = [_value(word) for word in words] if len(words) > 1 else _value(words[0]) if words else not off
        within, last = found, name
        for field in inner.split(".") if inner else ():
            within[last] = within[last] if isinstance(within.get(last), dict) else {}
            within, last = within[last], field
        within[last] = value
    return found


def _set_by_knobs(catalog: Catalog, job: Job) -> set[str]:
    """Returns the settings that a knob of this job determines. Settings whose knob is never active are not included, so
    they keep the line's value."""
    attributes = attributes_of(job)
    named = {*job.space.fix, *job.space.limit, *job.space.allow}
    open_ones = [k for k in catalog.knob if k.name in named or not asking(k, catalog, attributes)]
    return {knob.sets for knob in open_ones if can_act(knob, catalog, attributes)}


def _value(word: str) -> Any:
    try:
        return json.loads(word)
    except ValueError:
        return word
