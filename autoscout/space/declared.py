"""The catalog of a job: what we ship for its target, what the installed version has of it, and a person's own files.

A person's file is TOML in the form of our catalogs. With `extends = "vllm"` it adds knobs and rules to a target (or
declares some anew, with `replace = true`); with `target = "anything"` it is the whole catalog of a job whose target is
"command".
"""

from collections.abc import Collection
from pathlib import Path
from typing import TypeVar

from autoscout.job.words import nearest_name
from autoscout.space.attributes import attributes_of, device_knobs
from autoscout.space.knob import Catalog, KnobEntry, RuleEntry, expressions, load_catalog, read_catalog
from autoscout.space.language.expression import Expression
from autoscout.targets.vllm import installed
from kb.records import AutoscoutError, Job

Entry = TypeVar("Entry", KnobEntry, RuleEntry)


_SETS = {  # what a person's knob for a target may set: where the target's profiler puts it
    "megatron": ("TransformerConfig.", "DistributedDataParallelConfig.", "OptimizerConfig."),
}


def catalog_of(job: Job) -> Catalog:
    """Errors: AutoscoutError (exit 2) naming the file and the key."""
    return installed.adapted(_declared(job), installed.version_of(job))


def notes(job: Job) -> list[str]:
    """What a person should know about how the job's catalog and the installed version differ."""
    return installed.notes(_declared(job), job) if job.target == "vllm" else []


def own_knobs(job: Job) -> dict[str, str]:
    """The new knobs of the person's files, by name: the field that each one sets."""
    knobs = [knob for file in job.space.catalog for knob in _own(Path(file), job).knob]
    return {knob.name: knob.sets for knob in knobs if not knob.replace}


def _declared(job: Job) -> Catalog:
    catalog = Catalog(target="command") if job.target == "command" else load_catalog(job.target)
    derived, knobs = device_knobs(job)
    names = {*attributes_of(job), *derived, *(knob.name for knob in knobs)}
    for file in job.space.catalog:
        path = Path(file)
        catalog = _extended(catalog, path, _own(path, job), names)
    if not catalog.knob:
        raise AutoscoutError(f"{', '.join(job.space.catalog)}: declares no knob", 2)
    return catalog


def _own(path: Path, job: Job) -> Catalog:
    own = read_catalog(path)
    if bool(own.extends) == bool(own.target):
        raise AutoscoutError(f'{path}: write extends = "{job.target}" to add to a target, or target for a new one', 2)
    if own.extends and own.extends != job.target:
        raise AutoscoutError(f"{path}: extends = '{own.extends}', but the job's target is '{job.target}'", 2)
    if own.target and job.target != "command":
        raise AutoscoutError(f'{path}: declares a target of its own; such a job says target = "command"', 2)
    for knob in own.knob:
        if not knob.replace and not knob.sets.startswith(_SETS.get(job.target, ("",))):
            raise AutoscoutError(
                f"{path}: knob '{knob.name}': sets = '{knob.sets}', but {job.target} is told of a person's knobs "
                f"through {', '.join(prefix + '…' for prefix in _SETS[job.target])} only",
                2,
            )
    return own


def _extended(catalog: Catalog, path: Path, own: Catalog, names: Collection[str]) -> Catalog:
    knobs = {k.name: k for k in catalog.knob}
    rules = {r.id: r for r in catalog.rule}
    for knob in own.knob:
        if knob.name in names or knob.name in catalog.derived:
            raise AutoscoutError(f"{path}: knob '{knob.name}': the job itself already says what that is", 2)
        _new_or_replacing(path, "knob", knob.name, knob, knobs)
    for rule in own.rule:
        _new_or_replacing(path, "rule", rule.id, rule, rules)
    for name in own.derived:
        if name in catalog.derived or name in names:
            raise AutoscoutError(f"{path}: derived.{name}: that name is taken", 2)
    merged = Catalog(
        target=catalog.target,
        version=catalog.version,
        derived={**catalog.derived, **own.derived},
        knob=list(knobs.values()),
        rule=list(rules.values()),
    )
    known = {*names, *knobs}
    for where, text in expressions(own):
        for name in Expression(text, merged.derived).names:
            if name not in known:
                raise AutoscoutError(f"{path}: {where} speaks of '{name}'{nearest_name(name, known)}", 2)
    return merged


def _new_or_replacing(path: Path, kind: str, name: str, entry: Entry, known: dict[str, Entry]) -> None:
    if name in known and not entry.replace:
        raise AutoscoutError(f"{path}: {kind} '{name}' exists already; write replace = true to declare it anew", 2)
    if name not in known and entry.replace:
        raise AutoscoutError(f"{path}: {kind} '{name}' replaces nothing: the name{nearest_name(name, known)}", 2)
    known[name] = entry
