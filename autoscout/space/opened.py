"""A catalog for one job: without the knobs that leave nothing to choose.

If all but one of a knob's values need the job's permission (`asks`), the knob is closed until [space] names it, and so
is a knob that the installed version lacks: it is left out of the space, its count and its names. Expressions read such
a knob as what the target does without it. Naming such a knob in [space] gives an error with the reason,
except for fixing it to what the target does without it.
"""

import itertools
from collections.abc import Mapping
from typing import Any

import msgspec

from autoscout.space.knob import Catalog, KnobEntry
from autoscout.space.language.expression import Expression
from kb.records import AutoscoutError, SpaceLimits, Value


def opened(catalog: Catalog, attributes: Mapping[str, Any], limits: SpaceLimits) -> Catalog:
    """Without the knobs that the job would have to allow. Errors: AutoscoutError (exit 2) if [space] names one that is
    not available."""
    named = [*limits.fix, *limits.limit, *limits.allow]
    for name in named:
        if name in catalog.closed:
            raise AutoscoutError(f"[space] names '{name}': {catalog.closed[name]}", 2)
    asked = {k.name: unless_allowed(k) for k in catalog.knob if k.name not in named and asking(k, catalog, attributes)}
    return without(catalog, asked)


def still_open(limits: SpaceLimits, catalog: Catalog) -> SpaceLimits:
    """The limits without knobs that the catalog lacks and that are fixed to what the target does without them: a job
    file outlives the release that had the knob."""
    done = {n for n, v in limits.fix.items() if n in catalog.closed and catalog.derived.get(n) == repr(v)}
    return msgspec.structs.replace(limits, fix={n: v for n, v in limits.fix.items() if n not in done})


def asking(knob: KnobEntry, catalog: Catalog, attributes: Mapping[str, Any]) -> bool:
    """Whether the knob, without the job's permission, can only do what the target does anyway."""
    if not knob.asks:
        return False
    return {v for v in values_of(knob, catalog, attributes) if v not in knob.asks} <= {instead(knob)}


def can_act(knob: KnobEntry, catalog: Catalog, attributes: Mapping[str, Any]) -> bool:
    """Whether its condition holds for some values of the knobs that it reads."""
    if not knob.when:
        return True
    when = Expression(knob.when, catalog.derived)
    knobs = {k.name: k for k in catalog.knob}
    if not {*when.names} <= {*knobs, *attributes}:  # devices of a mixed cluster
        return True
    read = [
        [*values_of(knobs[n], catalog, attributes), instead(knobs[n])] if n in knobs else [attributes[n]]
        for n in when.names
    ]
    return any(when(dict(zip(when.names, values, strict=True))) for values in itertools.product(*read))


def values_of(knob: KnobEntry, catalog: Catalog, attributes: Mapping[str, Any]) -> list[Any]:
    """The values that it has in a job of these attributes."""
    if isinstance(knob.values, str):
        return list(Expression(knob.values, catalog.derived)(attributes))
    return list(knob.values)


def unless_allowed(knob: KnobEntry) -> str:
    why = knob.asks_for or "it changes numerical results or needs a package"
    return f"{knob.name} is off unless [space] has allow = ['{knob.name}']: {why}"


def without(catalog: Catalog, gone: Mapping[str, str]) -> Catalog:
    """The catalog without some knobs (`gone`: name → why, in a sentence)."""
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
    """What the target does without the knob; None if unknown."""
    return knob.default if knob.off is None else knob.off
