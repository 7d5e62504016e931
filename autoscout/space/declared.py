"""Builds a job's catalog from the target's catalog (for the installed version) and the user's own files.

A user's file has the format of shipped catalogs. With `extends = "vllm"` it adds knobs and rules to a target, or
replaces existing knobs and rules (with `replace = true`). With `target = "anything"` it is the whole catalog of a
"command" job."""

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from autoscout.job.words import meant, nearest_name
from autoscout.space.attributes import attributes_of, device_knobs
from autoscout.space.knob import Catalog, KnobEntry, RuleEntry, checked, expressions, read_catalog
from autoscout.space.language.expression import Expression
from kb.records import AutoscoutError, Job, OwnKnob, Value

Entry = TypeVar("Entry", KnobEntry, RuleEntry)


def own_knobs(job: Job) -> dict[str, tuple[str, Value | None]]:
    """Returns the knobs that the user adds, by name: (the setting that the knob changes, its default)."""
    knobs = (knob for _, _, own in _additions(job) for knob in own.knob)
    return {knob.name: (knob.sets, knob.default) for knob in knobs if not knob.replace}


def extended(job: Job, catalog: Catalog, refuses: Callable[[KnobEntry], str]) -> Catalog:
    """Returns a target's catalog with the user's additions. `refuses`: returns why the target cannot set a user's knob,
    "" if it can. Errors: AutoscoutError (exit 2) naming the file and the key."""
    derived, knobs = device_knobs(job)
    names = {*attributes_of(job), *derived, *(knob.name for knob in knobs)}
    for path, where, own in _additions(job):
        for knob in own.knob:
            if not knob.replace and (why := refuses(knob)):
                raise AutoscoutError(f"{where}: knob '{knob.name}': {why}", 2)
        catalog = _merged(catalog, path, own, names)
    if not catalog.knob and not (job.launch.command or job.launch.current):
        where = ", ".join(job.space.catalog) or "the job"
        raise AutoscoutError(f"{where}: no knob is declared; add [[space.knob]] with a name and values", 2)
    return catalog


def _additions(job: Job) -> Iterator[tuple[Path, str, Catalog]]:
    """Yields (path, where the knobs are declared, catalog) for each of the user's files, then for the job file."""
    for path in map(Path, job.space.catalog):
        yield path, str(path), _own(path, job)
    if job.space.knob or job.space.rule or job.space.derived:
        yield Path("space"), "space.knob", _in_job(job)


def _in_job(job: Job) -> Catalog:
    """Returns the knobs and rules in the job file as a catalog."""
    rules = [
        RuleEntry(
            id=rule.id or f"own-{i}",
            holds=rule.holds,
            reason=rule.reason or f"{rule.holds} does not hold",
            source="the job",
            checked="ours",
        )
        for i, rule in enumerate(job.space.rule, start=1)
    ]
    knobs = [entry for knob in job.space.knob for entry in _entries(job, knob)]
    return checked(Path("space"), Catalog(target=job.target, derived=job.space.derived, knob=knobs, rule=rules))


def kinds_of(job: Job, knob: OwnKnob) -> dict[str, str]:
    """Returns kind of device → name of the knob's variant for this kind; {} if the knob has one value for all kinds."""
    kinds = list(dict.fromkeys(node.device for node in job.cluster.nodes))
    return {k: f"{knob.name}_{k.replace('-', '_')}" for k in kinds} if knob.by_kind and len(kinds) > 1 else {}


def _entries(job: Job, knob: OwnKnob) -> list[KnobEntry]:
    """Returns the catalog entries of a knob in the job file: a single entry, or one per kind of device. Errors:
    AutoscoutError (exit 2) for values that cannot be set per kind."""
    kinds, entry = kinds_of(job, knob), _entry(knob)
    if not kinds:
        return [entry]
    on_off = isinstance(knob.values, list) and any(isinstance(value, bool) for value in knob.values)
    if job.target != "command" or not job.cluster.hosts or on_off or knob.sets.startswith(("json:", "yaml:", "toml:")):
        raise AutoscoutError(
            f"space.knob: knob '{knob.name}': by_kind needs target = 'command', cluster.hosts (a host file, 'slurm' "
            "or 'ray'), and numbers or names that the command gets by a placeholder, a flag or a variable",
            2,
        )
    return [
        msgspec.structs.replace(
            entry,
            name=name,
            when=" and ".join(filter(None, [f"{kind.replace('-', '_')} > 0", knob.when and f"({knob.when})"])),
            meaning=f"{entry.meaning}, on {kind}",
        )
        for kind, name in kinds.items()
    ]


def _entry(knob: OwnKnob) -> KnobEntry:
    """Converts a knob to a catalog entry: numbers become dense knobs, switches and names sparse ones."""
    names = isinstance(knob.values, list) and any(isinstance(v, bool | str) for v in knob.values)
    return KnobEntry(
        name=knob.name,
        kind=knob.kind or ("sparse" if names else "dense"),
        layer=knob.layer,
        values=knob.values,
        meaning=knob.meaning or knob.sets or knob.name,
        sets=knob.sets or f"{{{knob.name}}}",
        unit=knob.unit,
        default=knob.default,
        off=knob.off,
        when=knob.when,
        implied=knob.implied,
        replace=knob.replace,
        priced=False,
    )


def _own(path: Path, job: Job) -> Catalog:
    own = read_catalog(path)
    if bool(own.extends) == bool(own.target):
        raise AutoscoutError(
            f'{path}: set either extends = "{job.target}", to add knobs to that target, or target = "NAME", to declare '
            "a new target",
            2,
        )
    if own.extends and own.extends != job.target:
        raise AutoscoutError(
            f"{path}: extends = '{own.extends}', but the job's target is '{job.target}'; correct one of the two", 2
        )
    if own.target and job.target != "command":
        raise AutoscoutError(f'{path}: the file declares its own target, so the job needs target = "command"', 2)
    return own


def _merged(catalog: Catalog, path: Path, own: Catalog, names: Collection[str]) -> Catalog:
    knobs = {k.name: k for k in catalog.knob}
    rules = {r.id: r for r in catalog.rule}
    read = {name for text in catalog.simulated.values() for name in Expression(text, catalog.derived).names}
    for knob in own.knob:
        if knob.name in names or knob.name in catalog.derived:
            taken = "the job already uses this name; choose a different one"
            raise AutoscoutError(f"{path}: knob '{knob.name}': {taken}", 2)
        # the user's entry sets the same argument as the catalog's, so simulators can still model the knob
        if (old := knobs.get(knob.name)) is not None and old.sets == knob.sets:
            knob = msgspec.structs.replace(knob, priced=old.priced)
        elif knob.name in read:  # it takes the place of a flag of the line that the simulators' inputs depend on
            knob = msgspec.structs.replace(knob, priced=True)
        _new_or_replacing(path, "knob", knob.name, knob, knobs)
    for rule in own.rule:
        _new_or_replacing(path, "rule", rule.id, rule, rules)
    for name in own.derived:
        if name in catalog.derived or name in names:
            raise AutoscoutError(f"{path}: derived.{name}: the name is already used; choose a different name", 2)
    merged = Catalog(
        target=catalog.target,
        version=catalog.version,
        derived={**catalog.derived, **own.derived},
        simulated={**catalog.simulated, **own.simulated},
        knob=list(knobs.values()),
        rule=list(rules.values()),
    )
    known = {*names, *knobs}
    for where, text in expressions(own):
        for name in Expression(text, merged.derived).names:
            if name not in known:
                raise AutoscoutError(f"{path}: {where}: '{name}'{nearest_name(name, known)}", 2)
    return merged


def _new_or_replacing(path: Path, kind: str, name: str, entry: Entry, known: dict[str, Entry]) -> None:
    if name in known and not entry.replace:
        raise AutoscoutError(f"{path}: {kind} '{name}' exists already; set replace = true to override it", 2)
    if name not in known and entry.replace:
        none = f"has replace = true, but there is no {kind} of this name to replace"
        raise AutoscoutError(f"{path}: {kind} '{name}' {none}{meant(name, known)}", 2)
    known[name] = entry
