"""Adapts the catalog to the installed megatron-core: removes knobs that this release does not have yet or no longer
accepts."""

import contextlib
import functools
import importlib.metadata
import re
import subprocess
from pathlib import Path

import msgspec

from autoscout.space.attributes import attributes_of
from autoscout.space.knob import Catalog, KnobEntry, RuleEntry, of_release, reached, release_numbers
from autoscout.space.opened import asking, can_act, without
from autoscout.targets.target import shipped
from kb.records import Job

_PACKAGE = "megatron-core"
_LIMIT_S = 60.0


def adapted(catalog: Catalog, job: Job) -> Catalog:
    version = version_of(job) or catalog.version.rpartition(" ")[2]
    catalog = of_release(catalog, version)
    rules = [*catalog.rule, *_without_values(catalog, version)]
    knobs = [by_default(knob, version) for knob in catalog.knob]
    return without(msgspec.structs.replace(catalog, knob=knobs, rule=rules), _lacking(catalog, version))


def notes(catalog: Catalog, job: Job) -> list[str]:
    """Returns notes on the removed knobs that would otherwise be tuned."""
    version = version_of(job)
    if not version:
        return []
    attributes = attributes_of(job)
    closed = {k.name for k in catalog.knob if asking(k, catalog, attributes) or not can_act(k, catalog, attributes)}
    named = {*job.space.fix, *job.space.limit, *job.space.allow}
    lacking = [why for name, why in _lacking(catalog, version).items() if name in named or name not in closed]
    wanted = {f"L-{name}": name for name in named}
    return [*lacking, *(r.reason for r in _without_values(catalog, version) if wanted.get(r.id.partition("=")[0]))]


def version_of(job: Job) -> str:
    """Returns the version of megatron-core that trains; "" if unknown. (Callers then assume the catalog's version.)"""
    if job.launch.path:
        with contextlib.suppress(OSError):
            return of_checkout(Path(job.launch.path))
        return ""
    return _asked((*job.launch.command_prefix, job.launch.python)) if job.launch.python else _own(job)


def renamed(job: Job) -> dict[str, str]:
    """Returns old → new name of the flags that were renamed between the catalog's version and the installed release."""
    known = shipped(job.target).renamed
    version = version_of(job) if known else ""
    return {old: flag.now for old, flag in known.items() if version and reached(version, flag.since)}


def of_checkout(path: Path) -> str:
    """Returns the version of a Megatron-LM checkout. Errors: OSError if it cannot be read."""
    text = (path / "megatron" / "core" / "package_info.py").read_text()
    return ".".join(re.findall(r"^(?:MAJOR|MINOR|PATCH) = (\d+)", text, re.MULTILINE))


def _own(job: Job) -> str:
    if job.launch.command_prefix:  # the prefix may start a container with a different interpreter
        return ""
    try:
        return importlib.metadata.version(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return ""


def by_default(knob: KnobEntry, version: str) -> KnobEntry:
    """Returns the knob with the default value of this version."""
    moved = [since for since in knob.defaults if reached(version, since)]
    return msgspec.structs.replace(knob, default=knob.defaults[max(moved, key=release_numbers)]) if moved else knob


def _lacking(catalog: Catalog, version: str) -> dict[str, str]:
    """Returns knob → why this version does not have it."""
    early = {
        k.name: f"{k.name} is left out: {_PACKAGE} {version} has no {k.sets.split(',')[0]}, which came with {k.since}"
        for k in catalog.knob
        if k.since and not reached(version, k.since)
    }
    late = {
        k.name: f"{k.name} is left out: Megatron-LM's own script refuses it since {k.until} ({_PACKAGE} is {version})"
        for k in catalog.knob
        if k.until and reached(version, k.until)
    }
    return early | late


def _without_values(catalog: Catalog, version: str) -> list[RuleEntry]:
    """Returns rules that exclude values added in newer versions."""
    return [
        RuleEntry(
            id=f"L-{knob.name}={value}",
            holds=f"{knob.name} != {value!r}",
            reason=f"{_PACKAGE} {version} has no {knob.name} = {value}, which came with {since}",
            source=f"the fields of {_PACKAGE} by release tag",
            checked=_PACKAGE,
        )
        for knob in catalog.knob
        for value, since in knob.newer.items()
        if not reached(version, since)
    ]


@functools.cache
def _asked(python: tuple[str, ...]) -> str:
    script = f"import importlib.metadata as m; print(m.version({_PACKAGE!r}))"
    try:
        done = subprocess.run(
            [*python, "-c", script], stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S, text=True
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    answer = done.stdout.strip().rsplit("\n", 1)[-1]
    return answer if done.returncode == 0 and re.fullmatch(r"\d+\.\d+\S*", answer) else ""
