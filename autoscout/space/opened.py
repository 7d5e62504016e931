"""Removes knobs without a choice from a job's catalog.

A knob is closed if the target's installed version lacks it, or if all but one of its values need the job's permission
(`asks`) and [space] does not name the knob. A closed knob is not part of the space, nor of the names of configurations.
In expressions, it has the value that corresponds to the target's behaviour without the knob. If [space] names a knob
that the installed version lacks, this is an error, unless [space] fixes the knob to this value."""

import itertools
from collections.abc import Mapping
from typing import Any

import msgspec

from autoscout.space.knob import Catalog, Knob, KnobEntry
from autoscout.space.language.expression import Expression
from kb.records import AutoscoutError, SpaceLimits, Value


def opened(catalog: Catalog, attributes: Mapping[str, Any], limits: SpaceLimits) -> Catalog:
    """Returns the catalog without the knobs that need the job's permission. Errors: AutoscoutError (exit 2) if [space]
    names a knob that is not available."""
    named = [*limits.fix, *limits.limit, *limits.allow]
    for name in named:
        if name in catalog.closed:
            raise AutoscoutError(f"[space] names '{name}': {catalog.closed[name]}", 2)
    asked = [k for k in catalog.knob if k.name not in named and asking(k, catalog, attributes)]
    return without(catalog, {k.name: unless_allowed(k, k.name) for k in asked})


def still_open(limits: SpaceLimits, catalog: Catalog) -> SpaceLimits:
    """Returns the limits without entries that fix a closed knob to the value that expressions use for it anyway, so
    that a job file remains valid after an upgrade."""
    done = {n for n, v in limits.fix.items() if n in catalog.closed and catalog.derived.get(n) == repr(v)}
    return msgspec.structs.replace(limits, fix={n: v for n, v in limits.fix.items() if n not in done})


def asking(knob: KnobEntry, catalog: Catalog, attributes: Mapping[str, Any]) -> bool:
    """Whether all values of the knob need the job's permission, except for the value that corresponds to the target's
    behaviour without the knob."""
    if not knob.asks:
        return False
    return {v for v in values_of(knob, catalog, attributes) if v not in knob.asks} <= {instead(knob)}


def can_act(knob: KnobEntry, catalog: Catalog, attributes: Mapping[str, Any]) -> bool:
    """Whether some values of other knobs make the knob's condition true."""
    if not knob.when:
        return True
    when = Expression(knob.when, catalog.derived)
    knobs = {k.name: k for k in catalog.knob}
    # an unknown name is a device knob of a mixed cluster; these knobs are added later
    if not {*when.names} <= {*knobs, *attributes}:
        return True
    read = [
        [*values_of(knobs[n], catalog, attributes), instead(knobs[n])] if n in knobs else [attributes[n]]
        for n in when.names
    ]
    return any(when(dict(zip(when.names, values, strict=True))) for values in itertools.product(*read))


def values_of(knob: KnobEntry, catalog: Catalog, attributes: Mapping[str, Any]) -> list[Any]:
    """Returns the knob's values in a job with these attributes."""
    if isinstance(knob.values, str):
        return list(Expression(knob.values, catalog.derived)(attributes))
    return list(knob.values)


def unless_allowed(knob: KnobEntry | Knob, what: str) -> str:
    """Returns why the job must allow `what`: a knob, or one of its values."""
    why = knob.asks_for or "it changes numerical results or needs a package"
    return f"{what} is not allowed by default, because {why}; to allow it, set [space] allow = ['{knob.name}']"


def without(catalog: Catalog, gone: Mapping[str, str]) -> Catalog:
    """Returns the catalog without some knobs. `gone`: name → reason, as a sentence."""
    if not gone:
        return catalog
    constants = {k.name: repr(instead(k)) for k in catalog.knob if k.name in gone}
    return msgspec.structs.replace(
        catalog,
        derived={**catalog.derived, **constants},
        knob=[k for k in catalog.knob if k.name not in gone],
        closed={**catalog.closed, **gone},
    )


def instead(knob: KnobEntry) -> Value | None:
    """Returns the value that corresponds to the target's behaviour without the knob; None if unknown."""
    return knob.default if knob.off is None else knob.off
