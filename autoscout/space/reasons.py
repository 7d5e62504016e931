"""Explains in sentences why a configuration is invalid or why a space is empty, by naming the responsible rules."""

import contextlib
import itertools
from collections.abc import Mapping
from typing import Any

import msgspec

from autoscout.job.words import listed, nearest_name
from autoscout.space.compiled import build
from autoscout.space.compiled.constraints import Columns, Constraint
from autoscout.space.knob import Knob, Rule
from autoscout.space.language.expression import Expression
from autoscout.space.network import key
from kb.records import AutoscoutError, Value

_MOST_TRIED = 10_000  # maximum number of value combinations that are searched for an example of a violation


class Violation(msgspec.Struct, frozen=True):
    rule: str
    sentence: str
    source: str


def violations(
    assigned: Mapping[str, Value],
    knobs: list[Knob],
    rules: list[Rule],
    env: Mapping[str, Any],
    derived: Mapping[str, Expression],
    measured: bool,
) -> list[Violation]:
    """Returns the problems of an assignment. `env`: the values that expressions use. `measured`: whether the space is
    a table of measured rows, in which any knob may be missing."""
    names = [knob.name for knob in knobs]
    unknown = [Violation("unknown", f"'{n}'{nearest_name(n, names)}", "") for n in assigned if n not in names]
    wrong = {k.name: v for k in knobs if (v := _of_knob(k, assigned.get(k.name), env, measured)) is not None}
    found = list(wrong.values())
    if unknown or any(v.rule == "missing" for v in found):
        return unknown + found
    in_words: set[str] = set()  # knobs whose implied value is better explained by a rule
    for rule in rules:
        shown = _Shown(env, derived)
        try:
            if not rule.holds(env):
                found.append(Violation(rule.id, rule.sentence(shown), rule.source))
                in_words |= set(rule.holds.names)
        # undefined rules occur only for invalid assignments (the build evaluated all rules for valid ones)
        except AutoscoutError as error:
            found.append(Violation(rule.id, str(error), rule.source))
    return [v for v in found if v.rule != "implied" or not any(wrong[n] is v for n in wrong.keys() & in_words)]


def by_itself(
    name: str, knobs: Mapping[str, Knob], rules: list[Rule], env: Mapping[str, Any], derived: Mapping[str, Expression]
) -> list[Violation]:
    """Returns the rules that a knob's value in `env` breaks regardless of all other knobs."""
    found: list[Violation] = []
    for rule in rules:
        if knobs.keys() & set(rule.holds.names) == {name}:
            with contextlib.suppress(AutoscoutError):  # the rule is undefined for this value
                if not rule.holds(env):
                    found.append(Violation(rule.id, rule.sentence(_Shown(env, derived)), rule.source))
    return found


def absent(measured: bool, count: int) -> Violation:
    """Returns why a configuration is invalid although it breaks no rule: either only the rows of a table are valid
    (`measured`), or the space is a sample of about `count` valid configurations."""
    if measured:
        return Violation("table", "no row of the table has this combination", "")
    sentence = f"only a sample of the roughly {count:,} valid configurations is searched, and this one is not in it"
    return Violation("sample", sentence, "")


def _of_knob(knob: Knob, value: Value | None, env: Mapping[str, Any], measured: bool) -> Violation | None:
    """Returns the problem of a single knob's value, apart from rules; None if there is none."""
    try:
        active = knob.when is None or bool(knob.when(env))
        implied = knob.implied(env) if knob.implied is not None and active else None
    except AutoscoutError as error:
        return Violation("undefined", str(error), "")
    if value is None:
        return Violation("missing", f"{knob.name} has no value", "") if active and not measured else None
    if not active:
        return Violation("inactive", knob.why_inactive, "")
    if not any(key(value) == key(v) for v in knob.values):
        return Violation("domain", f"{knob.name} {value} is not among {listed(knob.values)}", "")
    if knob.implied is not None and value != implied:
        return Violation("implied", f"{knob.name} {value} must be {knob.implied.text}, which is {implied}", "")
    return None


def why_nothing_is_feasible(
    knobs: list[Knob], constraints: list[Constraint], columns: Columns, derived: Mapping[str, Expression]
) -> str:
    """Returns a sentence with a minimal set of conflicting rules: if any one of these rules were removed, some
    configuration would be valid. Conditions of knobs are named only if they leave no valid configuration even without
    the rules."""
    plain = [c for c in constraints if c.knob is not None and c.knob.when is None and c.knob.implied is None]
    conditions = [c for c in constraints if c.knob is not None and c not in plain]
    rules = [c for c in constraints if c.rule is not None]
    if _feasible(knobs, plain + conditions, columns):
        guilty = _conflict(knobs, plain + conditions, rules, columns)
    else:  # an implied value often repeats a rule, and the rule's sentence is clearer
        free = plain + [c for c in conditions if c.knob is not None and c.knob.implied is None]
        in_words = _feasible(knobs, free, columns) and not _feasible(knobs, free + rules, columns)
        guilty = _conflict(knobs, free, rules, columns) if in_words else _conflict(knobs, plain, conditions, columns)
    sentences = [_with_values(c, knobs, columns) for c in guilty]
    if len(guilty) == 1 and sentences[0] == guilty[0].text:
        sentences = [_with_last_values(guilty[0], knobs, columns, derived) or sentences[0]]
    because = "; ".join(sentences)
    return f"no configuration of this job is valid ({because}); relax [space] or change the cluster"


def _with_last_values(
    constraint: Constraint, knobs: list[Knob], columns: Columns, derived: Mapping[str, Expression]
) -> str:
    """Returns the sentence of a rule that no combination of its knobs' values satisfies. The last possible combination
    is filled in as an example; "" if none is found."""
    if constraint.rule is None:
        return ""
    own = [k for k in knobs if k.name in constraint.names]
    off = {k.name: k.off for k in knobs}
    together = itertools.product(*(reversed(k.values) for k in own))
    for values in itertools.islice(together, _MOST_TRIED):
        last = {k.name: value for k, value in zip(own, values, strict=True)}
        env = {**columns.attributes, **off, **last}
        try:
            if constraint.rule.holds(env) or any(_not_implied(k, last[k.name], env) for k in own):
                continue
            sentence = constraint.rule.sentence(_Shown(env, derived))
        except (AutoscoutError, KeyError, ValueError, TypeError):
            return ""
        given = " ".join(f"{name}={value}" for name, value in last.items() if not isinstance(value, bool))
        return f"{sentence} ({constraint.rule.id}{', with ' * bool(given)}{given})"
    return ""


def _not_implied(knob: Knob, value: Value, env: Mapping[str, Any]) -> bool:
    active = knob.when is None or bool(knob.when(env))
    return knob.implied is not None and active and knob.implied(env) != value


def _with_values(constraint: Constraint, knobs: list[Knob], columns: Columns) -> str:
    """Returns the rule's sentence, filled in with the values of knobs that have only one value; if there are no such
    knobs, the rule's expression."""
    only = {k.name: k.values[0] for k in knobs if k.name in constraint.names and len(k.values) == 1}
    if constraint.rule is None or not only:
        return constraint.text
    others = dict.fromkeys(constraint.names, "(any)")
    try:
        sentence = constraint.rule.reason.format_map({**columns.attributes, **others, **only})
    except (KeyError, ValueError):  # the sentence has a derived name that also depends on knobs with several values
        return constraint.text
    return f"{sentence} ({constraint.rule.id})"


def _conflict(
    knobs: list[Knob], background: list[Constraint], constraints: list[Constraint], columns: Columns
) -> list[Constraint]:
    """Returns a minimal conflicting subset of the constraints, given a feasible background. Searches by halving, since
    most constraints are not part of the conflict (QuickXplain: Junker, AAAI 2004)."""

    def explain(background: list[Constraint], added: bool, open_: list[Constraint]) -> list[Constraint]:
        if added and not _feasible(knobs, background, columns):
            return []
        if len(open_) == 1:
            return open_
        first, second = open_[: len(open_) // 2], open_[len(open_) // 2 :]
        needed = explain([*background, *first], True, second)
        return [*explain([*background, *needed], bool(needed), first), *needed]

    alone = next((c for c in constraints if not _feasible(knobs, [*background, c], columns)), None)
    return [alone] if alone is not None else explain(background, False, constraints)


def _feasible(knobs: list[Knob], constraints: list[Constraint], columns: Columns) -> bool:
    """Whether the constraints can be satisfied. If this cannot be decided (too many states, or undefined expressions),
    returns True, so that these constraints are not reported as the reason."""
    touched = {name for c in constraints for name in c.names}
    involved = [knob for knob in knobs if knob.name in touched]
    try:
        return build.from_constraints(involved, constraints, columns) is not None
    except (build.TooWide, AutoscoutError):
        return True


class _Shown(dict):
    """Fills in the names of a rule's sentence. An inactive knob without an `off` value is shown as a dash."""

    def __init__(self, env: Mapping[str, Any], derived: Mapping[str, Expression]) -> None:
        super().__init__(env)
        self._derived = derived

    def __getitem__(self, key: str) -> Any:
        value = self._derived[key](self) if key in self._derived else super().__getitem__(key)
        return "–" if value is None else value
