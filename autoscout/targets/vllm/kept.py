"""Settings in the user's serve line besides knobs: kept in every experiment and in exports."""

import json
import re
import shlex
from collections.abc import Sequence
from typing import Any

import msgspec

from autoscout.running.interpreter import own_variables
from autoscout.space.attributes import attributes_of
from autoscout.space.knob import Catalog
from autoscout.space.opened import asking
from autoscout.targets import current_launch
from autoscout.targets.jobs import catalog_of
from autoscout.targets.vllm.installed import version_of
from kb import door
from kb.records import AutoscoutError, Job, Value, content_hash

MODULE = "vllm.entrypoints.openai.api_server"  # run as `python -m …`
IMAGE = re.compile(r"(^|/)vllm-openai(:|@|$)")  # its entry point is the server
_ALIASES = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-O": "--compilation-config",
    "-cc": "--compilation-config",
}
# Decided by the job or by an experiment: model, dtype, and where the server listens.
_OURS = {"model", "tokenizer", "dtype", "seed", "disable_log_stats", "max_model_len"}
_WHERE = {"host", "port", "uds", "headless"}
_NAMES = {"served_model_name"}  # names used by clients, but not by an experiment's


def begins(words: Sequence[str]) -> int | None:
    """Index of the server's own words, after `vllm serve`, its older module or its image; None if there is no
    server."""
    for i, word in enumerate(words):
        if word.rpartition("/")[2] == "vllm" and list(words[i + 1 : i + 2]) == ["serve"]:
            return i + 2
        if word == MODULE or IMAGE.search(word):
            return i + 1
    return None


def said_in(line: str) -> dict[str, list[str]]:
    """The server's flags by their long names, without those of a container or launcher before it.

    Errors: AutoscoutError (exit 2)."""
    try:
        words = shlex.split(line.replace("\\\n", " "))
    except ValueError as error:
        raise AutoscoutError(f"launch.current: {error}", 2) from error
    said: dict[str, list[str]] = {}
    for flag, words_of in current_launch.said_of(shlex.join(words[begins(words) or 0 :])).items():
        name = _ALIASES.get(flag, flag.replace("_", "-"))
        one = len(words_of) == 1
        said |= {n: [value] for n, value in spread(name, words_of[0]).items()} if one else {name: words_of}
    return said


def spread(flag: str, text: str) -> dict[str, str]:
    """A flag with a JSON value as one flag per field, an equivalent spelling. Errors: AutoscoutError."""
    if not text.startswith("{"):
        return {flag: text}
    try:
        fields = door.parsed_json(text)
    except ValueError as error:
        raise AutoscoutError(f"launch.current: {flag} {text} is no JSON: {error}", 2) from error
    return {f"{flag}.{name}": value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}


def kept(job: Job) -> dict[str, Any]:
    """Engine arguments in the line that no knob of the space sets, by vLLM's names."""
    installed = version_of(job) if job.launch.current else None
    return {n: v for n, v in _beside(job).items() if installed and n in installed.arguments and n not in _NAMES}


def longest(job: Job) -> int:
    """Tokens of the longest request that an engine is built for: that of the traffic, or more if the user's line asks
    for it."""
    said = "".join(said_in(job.launch.current).get("--max-model-len", [])) if job.launch.current else ""
    return max(attributes_of(job)["model_len"], int(said) if said.isdigit() else 0)


def as_long_as_said(catalog: Catalog, job: Job) -> Catalog:
    """The catalog with the line's longest request, if it is longer than the traffic's."""
    if (length := longest(job)) <= attributes_of(job)["model_len"]:
        return catalog
    return msgspec.structs.replace(catalog, derived={**catalog.derived, "max_model_len": str(length)})


def of_the_server(job: Job) -> dict[str, Value | list[str]]:
    """Flags for the server alone (keys, names, templates), for exports."""
    engine = kept(job)
    found = {name: value for name, value in _beside(job).items() if name not in engine}
    return {f"--{name.replace('_', '-')}": _as_said(value) for name, value in found.items()}


def identity_of(job: Job) -> dict[str, str]:
    """Environment entries that separate measurements with different settings of the user's own."""
    own = kept(job)
    if (length := longest(job)) > attributes_of(job)["model_len"]:
        own |= {"max_model_len": length}
    return {**({"flags": content_hash(own)} if own else {}), **own_variables(job)}


def _beside(job: Job) -> dict[str, Any]:
    catalog = catalog_of(job)
    attributes = attributes_of(job)
    named = {*job.space.fix, *job.space.limit, *job.space.allow}
    chosen = {k.sets.split(".")[0] for k in catalog.knob if k.name in named or not asking(k, catalog, attributes)}
    found: dict[str, Any] = {}
    for flag, words in said_in(job.launch.current).items():
        name, _, inner = flag.lstrip("-").replace("-", "_").partition(".")
        off = name.startswith("no_") and not words
        name = name.removeprefix("no_") if off else name
        if name in chosen or name in _OURS or name in _WHERE or not flag.startswith("--"):
            continue
        value: Any = [_value(word) for word in words] if len(words) > 1 else _value(words[0]) if words else not off
        if inner:
            found.setdefault(name, {})[inner] = value
        else:
            found[name] = value
    return found


def _value(word: str) -> Any:
    try:
        return json.loads(word)
    except ValueError:
        return word


def _as_said(value: Any) -> Value | list[str]:
    if isinstance(value, list):
        return [str(each) for each in value]
    return json.dumps(value) if isinstance(value, dict) else value
