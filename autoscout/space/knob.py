"""Knobs, rules and the catalogs that declare them: a space is data."""

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Literal

import msgspec

from autoscout.space.rules import Expression
from kb.records import AutoscoutError, Strict, Value


class KnobEntry(Strict, frozen=True, kw_only=True):
    """A `[[knob]]` of a catalog, as written."""

    name: str
    kind: Literal["sparse", "dense"]
    layer: str
    values: str | list[Value]  # a list, or an expression over the job's attributes that yields one
    meaning: str
    sets: str  # the flag or field of the target that it becomes
    unit: str = ""
    off: Value | None = None  # what the target does where the knob is inactive
    when: str = ""  # active only where this holds
    implied: str = ""  # the only value that the knobs before it leave


class RuleEntry(Strict, frozen=True, kw_only=True):
    """A `[[rule]]`: what must hold, why in words ({names} are filled in), and where that is known from."""

    id: str
    holds: str
    reason: str
    source: str
    checked: Literal["megatron-core", "megatron-lm", "nobody", "ours"]


class Catalog(Strict, frozen=True, kw_only=True):
    derived: dict[str, str] = {}
    knob: list[KnobEntry]
    rule: list[RuleEntry]


class Knob(msgspec.Struct, frozen=True, kw_only=True):
    """One tunable parameter with its domain for one job, in the order of the domain's steps."""

    name: str
    kind: Literal["sparse", "dense"]
    layer: str
    values: tuple[Value, ...]
    meaning: str
    sets: str
    unit: str = ""
    off: Value | None = None
    when: Expression | None = None
    implied: Expression | None = None

    @property
    def why_inactive(self) -> str:
        return f"{self.name} cannot act here: it needs {self.when.text if self.when else 'nothing'}"


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    holds: Expression
    reason: str
    source: str
    checked: str

    def sentence(self, env: Mapping[str, Any]) -> str:
        return self.reason.format_map(env)


def load_catalog(target: str) -> Catalog:
    text = files("autoscout.space").joinpath(f"catalogs/{target}.toml").read_text()
    try:
        return msgspec.convert(tomllib.loads(text), Catalog)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise AutoscoutError(f"catalog {target}.toml: {error}", 2) from error


def instantiate(catalog: Catalog, attributes: Mapping[str, Any]) -> tuple[list[Knob], list[Rule]]:
    """The catalog's knobs and rules for one job, whose attributes fill the domains that are expressions."""
    knobs = []
    for entry in catalog.knob:
        if isinstance(entry.values, str):
            values = tuple(Expression(entry.values, catalog.derived)(attributes))
        else:
            values = tuple(entry.values)
        knobs.append(
            Knob(
                name=entry.name,
                kind=entry.kind,
                layer=entry.layer,
                values=values,
                meaning=entry.meaning,
                sets=entry.sets,
                unit=entry.unit,
                off=entry.off,
                when=Expression(entry.when, catalog.derived) if entry.when else None,
                implied=Expression(entry.implied, catalog.derived) if entry.implied else None,
            )
        )
    rules = [
        Rule(
            id=entry.id,
            holds=Expression(entry.holds, catalog.derived),
            reason=entry.reason,
            source=entry.source,
            checked=entry.checked,
        )
        for entry in catalog.rule
    ]
    return knobs, rules
