"""A catalog for one job: without the knobs that leave nothing to choose.

If all but one of a knob's values need the job's permission (`asks`), the knob is closed until [space] names it, and so
is a knob that the installed version lacks: it is left out of the space, its count and its names. Expressions read such
a knob as what the target does without it. Naming such a knob in [space] gives an error with the reason.
"""

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


def asking(knob: KnobEntry, catalog: Catalog, attributes: Mapping[str, Any]) -> bool:
    """Whether the knob, without the job's permission, can only do what the target does anyway."""
    if not knob.asks:
        return False
    values = Expression(knob.values, catalog.derived)(attributes) if isinstance(knob.values, str) else knob.values
    return {v for v in values if v not in knob.asks} <= {instead(knob)}


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
