"""Knobs, rules, and the catalogs (TOML files) that declare them."""

import functools
import keyword
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from autoscout.job.strict import converted, read_toml
from autoscout.space.language.expression import Expression
from kb import door
from kb.records import AutoscoutError, SpaceLimits, Strict, Value


class KnobEntry(Strict, frozen=True, kw_only=True):
    """A `[[knob]]` entry of a catalog."""

    name: str
    kind: Literal["sparse", "dense"]
    layer: str  # layer of the stack: devices, parallelism, schedule, memory, communication, optimizer, kernels …
    values: str | list[Value]  # a list, or an expression over the job's attributes that gives a list
    meaning: str
    sets: str  # the target's flag or field for the knob
    unit: str = ""
    default: Value | None = None  # the target's behaviour if the knob is not set
    off: Value | None = None  # the target's behaviour if the knob is inactive
    when: str = ""  # condition under which the knob is active
    keeps: list[str] = []  # ids of the target's own rules that `when` and `values` already enforce
    implied: str = ""  # expression for the only possible value, given other knobs
    asks: list[Value] = []  # values that are available only if the job's [space] allows them
    asks_for: str = ""  # why these values must be allowed: different numerics, an extra package, or no test
    priced: bool = True  # whether our simulators model the knob's effect on time and memory
    since: str = ""  # the target's first version with the knob; "" if all supported versions have it
    until: str = ""  # the target's first version that rejects the knob
    defaults: dict[str, Value] = {}  # first version with a changed default → this default
    newer: dict[str, str] = {}  # value added later than the knob → first version with this value
    replace: bool = False  # replaces the knob of the same name instead of adding one
    each: int = 0  # number of copies: name_1, name_2 …; {i} in the entry's texts is replaced by the copy's number


class RuleEntry(Strict, frozen=True, kw_only=True):
    """A `[[rule]]` entry: a condition, the reason as a text (with {names} to fill in), and the source of this reason.

    `checked` states what rejects a violation: a name such as "megatron-core" or "vllm" (the target, or its package);
    "nobody" (the run would be wrong, useless, or crash later); or "ours" (only AutoScout rejects it)."""

    id: str
    holds: str
    reason: str
    source: str
    checked: str
    since: str = ""  # the target's first version that rejects a violation; earlier ones run with wrong results
    until: str = ""  # the target's first version to which the rule does not apply
    replace: bool = False
    each: int = 0  # number of copies, as for a knob


Replicated = TypeVar("Replicated", KnobEntry, RuleEntry)


class Renamed(Strict, frozen=True):
    """A flag's new name, and the target's version since which the old name is rejected or gives a warning."""

    now: str
    since: str


class Catalog(Strict, frozen=True, kw_only=True):
    """The declaration of a target's space. `version`: the target's version to which names and defaults refer. A user's
    file either has `extends` (the target to extend) or declares a whole target. `simulated`: inputs of the simulators
    (training/inputs.py) whose names differ from the target's knobs → expressions over these knobs."""

    target: str = ""
    version: str = ""
    extends: str = ""
    derived: dict[str, str] = {}
    simulated: dict[str, str] = {}
    knob: list[KnobEntry] = []
    rule: list[RuleEntry] = []
    renamed: dict[str, Renamed] = {}  # flags that were renamed, by their names in `version`
    # package that the target imports but does not declare as a dependency → first version that imports it
    needs: dict[str, str] = {}
    closed: dict[str, str] = {}  # knobs that this job's space lacks → a sentence with the reason (see opened.py)


def reached(version: str, since: str) -> bool:
    """Whether a version is `since` or newer. A release candidate is treated as the release."""
    return release_numbers(version) >= release_numbers(since)


def of_release(catalog: "Catalog", version: str) -> "Catalog":
    """Returns the catalog without rules that do not apply to this release of the target."""
    rules = [rule for rule in catalog.rule if not (rule.until and reached(version, rule.until))]
    return msgspec.structs.replace(catalog, rule=rules)


def release_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def reads_batches(knob: "Knob") -> bool:
    """Whether the knob only affects how the host loads batches. (Packing is in the same layer, but changes batches.)"""
    return knob.layer == "data" and knob.name == "workers"


class Knob(msgspec.Struct, frozen=True, kw_only=True):
    """A tunable parameter with its domain for one job. Searches step through `values` in their order."""

    name: str
    kind: Literal["sparse", "dense"]
    layer: str
    values: tuple[Value, ...]
    meaning: str
    sets: str
    unit: str = ""
    default: Value | None = None
    off: Value | None = None
    when: Expression | None = None
    implied: Expression | None = None
    asks: tuple[Value, ...] = ()  # values that the job's [space] could allow but does not
    asks_for: str = ""  # why these values are not allowed by default
    priced: bool = True  # whether our simulators model its effect

    @property
    def why_inactive(self) -> str:
        return f"{self.name} has no effect here: it needs {self.when.text if self.when else 'nothing'}"


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    holds: Expression
    reason: str
    source: str
    checked: str

    def sentence(self, env: Mapping[str, Any]) -> str:
        return self.reason.format_map(env)


def read_catalog(path: Path) -> Catalog:
    """Reads a catalog. Errors: AutoscoutError (exit 2) naming the file and the key."""
    try:
        changed = path.stat().st_mtime_ns
    except OSError:
        changed = 0  # _read() below raises an error for a missing file
    return _read(path, changed)


@functools.lru_cache(maxsize=64)
def _read(path: Path, changed: int) -> Catalog:
    """Reads and caches a catalog. `changed`: the modification time, part of the cache key, so that an edited file is
    read again."""
    catalog = converted(path, read_toml(path, "catalog"), Catalog)
    knobs = [one for knob in catalog.knob for one in _each(knob)]
    rules = [one for rule in catalog.rule for one in _each(rule)]
    return checked(path, msgspec.structs.replace(catalog, knob=knobs, rule=rules))


def _each(entry: Replicated) -> list[Replicated]:
    """Expands an entry with `each` to its copies."""
    return [_numbered(entry, str(i)) for i in range(1, entry.each + 1)] if entry.each else [entry]


def _numbered(entry: Replicated, i: str) -> Replicated:
    own = "name" if isinstance(entry, KnobEntry) else "id"
    texts = ("when", "implied", "values", "meaning", "sets", "holds", "reason")
    numbered = {t: v.replace("{i}", i) for t in texts if isinstance(v := getattr(entry, t, None), str)}
    return msgspec.structs.replace(entry, each=0, **{own: f"{getattr(entry, own)}_{i}", **numbered})


def checked(path: Path, catalog: Catalog) -> Catalog:
    """Returns the catalog unchanged. Errors: AutoscoutError (exit 2) for mistakes that the TOML schema cannot
    detect."""
    seen: set[str] = set()
    for knob in catalog.knob:
        for problem in _knob_problems(knob):
            raise AutoscoutError(f"{path}: knob '{knob.name}': {problem}", 2)
    for kind, entries in (("knob", [k.name for k in catalog.knob]), ("rule", [r.id for r in catalog.rule])):
        for name in entries:
            if f"{kind} {name}" in seen:
                raise AutoscoutError(f"{path}: {kind} '{name}' is declared twice", 2)
            seen.add(f"{kind} {name}")
    for where, text in expressions(catalog):
        try:
            Expression(text, catalog.derived)
        except AutoscoutError as error:
            raise AutoscoutError(f"{path}: {where}: {error}", 2) from error
    return catalog


def _knob_problems(knob: KnobEntry) -> list[str]:
    problems = []
    if not knob.name.isidentifier() or keyword.iskeyword(knob.name) or Expression(knob.name).names != (knob.name,):
        problems.append(
            "expressions use this name, so it may have only letters, digits and _, and must not be a Python keyword"
        )
    if isinstance(knob.values, list):
        if not knob.values:
            problems.append("values is empty; give at least one value")
        if len({_kind(v) for v in knob.values}) > 1:
            problems.append("values must be all switches (true, false), all numbers or all names")
        if any(isinstance(v, str) and not door.one_line(v) for v in knob.values):
            problems.append("a value contains a control character")
        if len(set(knob.values)) < len(knob.values):
            problems.append("values contains a value twice; remove one of them")
        for key in ("default", "off"):
            value = getattr(knob, key)
            if value is not None and knob.values and _kind(value) != _kind(knob.values[0]):
                problems.append(f"{key} = {value!r} must have the same type as the knob's values")
        if knob.default is not None and knob.default not in knob.values:
            problems.append(f"default = {knob.default!r} is not among the knob's values")
    if knob.when and knob.off is None and knob.kind == "sparse":
        problems.append(
            "a sparse knob (a knob whose value activates other knobs) with a condition needs `off`, the value that "
            "the target uses while the condition is false"
        )
    return problems


def _kind(value: Value) -> type:
    return float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)


def expressions(catalog: Catalog) -> list[tuple[str, str]]:
    """Returns (location in the file, expression) for every expression of a catalog."""
    found = [(f"derived.{name}", text) for name, text in catalog.derived.items()]
    found += [(f"simulated.{name}", text) for name, text in catalog.simulated.items()]
    for knob in catalog.knob:
        texts = {"values": knob.values, "when": knob.when, "implied": knob.implied}
        found += [(f"knob '{knob.name}': {key}", t) for key, t in texts.items() if t and isinstance(t, str)]
    return found + [(f"rule '{rule.id}': holds", rule.holds) for rule in catalog.rule]


def instantiate(
    catalog: Catalog, attributes: Mapping[str, Any], limits: SpaceLimits | None = None
) -> tuple[list[Knob], list[Rule]]:
    """Returns (knobs, rules) of a job. Domains that are expressions are evaluated with the job's attributes. Values
    that need permission (`asks`) are included if the limits allow or name the knob."""
    limits = limits or SpaceLimits()
    allowed = {*limits.allow, *limits.fix, *limits.limit}
    knobs = []
    for entry in catalog.knob:
        if isinstance(entry.values, str):
            values = tuple(Expression(entry.values, catalog.derived)(attributes))
        else:
            values = tuple(entry.values)
        asks = () if entry.name in allowed else tuple(v for v in values if v in entry.asks)
        values = tuple(v for v in values if v not in asks)
        own: dict[str, Any] = {"values": values, "asks": asks, "when": None, "implied": None}
        own |= {key: Expression(text, catalog.derived) for key in ("when", "implied") if (text := getattr(entry, key))}
        knobs.append(Knob(**own, **{name: getattr(entry, name) for name in Knob.__struct_fields__ if name not in own}))
    alike = ("id", "reason", "source", "checked")
    rules = [
        Rule(holds=Expression(entry.holds, catalog.derived), **{name: getattr(entry, name) for name in alike})
        for entry in catalog.rule
    ]
    return knobs, rules
