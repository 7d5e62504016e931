"""Converts user input KNOB=VALUE to a configuration. If the configuration is invalid, explains why and finds the
nearest valid one."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from autoscout.job.words import listed, nearest_name
from autoscout.space.codes import name_of
from autoscout.space.graph import Space
from autoscout.space.knob import Knob, Rule
from autoscout.space.network import distance
from autoscout.space.opened import unless_allowed
from autoscout.space.reasons import Violation, by_itself
from kb.records import AutoscoutError, Configuration, Value

_USUAL = {  # names in papers and other tools → knobs; the first of these knobs that the space has is used
    "zero zero_stage zero_optimization": "zero stage distopt fsdp",
    "gradient_checkpointing activation_checkpointing recomputation": "checkpointing ckpt recompute ar",
    "gradient_accumulation gradient_accumulation_steps grad_accum batch batch_size microbatch": "mbs max_num_seqs",
    "max_batch max_batch_size": "max_num_seqs mbs",
    "tp_size": "tp",
    "pp_size": "pp",
    "dp_size": "dp",
}
_SWITCH = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a user's input. `configuration`: the requested configuration, completed; None if no valid
    configuration has the `given` values. `name`: the configuration's short name; the input if there is none."""

    given: dict[str, Value]
    configuration: Configuration | None
    name: str
    violations: list[Violation]
    inactive: list[str]  # a sentence with the reason for each given knob that is inactive
    nearest: Configuration | None  # set if the requested configuration is not valid
    nearest_name: str


def parse(space: Space, assignments: Sequence[str]) -> dict[str, Value]:
    """Parses ["tp=2", "sp=true"] to {"tp": 2, "sp": True}. If the only element is the name of a configuration, returns
    the configuration's values.

    Errors: AutoscoutError that suggests the nearest knob, or gives the reason why the space lacks the knob."""
    if len(assignments) == 1 and "=" not in assignments[0] and (whole := named(space, assignments[0])) is not None:
        return dict(whole.knobs)
    given: dict[str, Value] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals:
            what = "neither KNOB=VALUE, for example tp=2, nor the name of a configuration of this job"
            raise AutoscoutError(f"'{text}' is {what}", 2)
        if name in space.closed:
            raise AutoscoutError(space.closed[name], 2)
        if name not in space.knob:
            raise AutoscoutError(f"'{name}'{_meant(name, space)}", 2)
        if name in given:
            raise AutoscoutError(f"{name} is given twice; give it once", 2)
        given[name] = _value(space.knob[name], value)
    return given


def _meant(name: str, space: Space) -> str:
    """Returns the end of a message about an unknown knob, with a suggestion: the knob usually called `name`, else the
    knob that sets an engine argument of this name, else the knob with the most similar name."""
    parts = [part for part in re.split(r"[^a-z0-9]+", name.lower()) if part]
    usual = next((knobs for names, knobs in _USUAL.items() if "_".join(parts) in names.split()), "")
    if ours := next((knob for knob in usual.split() if knob in space.knob), ""):
        return f" is unknown; did you mean '{ours}'?"
    found = []
    for knob in space.knobs:
        for argument in knob.sets.split(", "):
            words = re.split(r"[^a-z0-9]+", argument.strip("-{}").lower())
            if parts and " " not in argument and ("".join(parts) in "".join(words) or set(parts) <= set(words)):
                found.append((len(words), len(knob.name), knob.name, argument))
    if found:
        _, _, knob_name, argument = min(found)
        return f" is unknown; did you mean '{knob_name}', which sets {argument}?"
    return nearest_name(name, space.knob)


def explain(space: Space, given: Mapping[str, Value], default: Configuration) -> Explanation:
    """Completes the given values to the valid configuration nearest to `default` (and the catalog's defaults). If no
    valid configuration has the given values, returns the reasons and the nearest valid configuration."""
    default = _with_catalogs(space, default)
    if all(_possible(space.knob[n], v) for n, v in given.items()) and (
        found := space.nearest({**default.knobs, **given}, firm=given)
    ):
        inactive = [n for n in given if n not in found.knobs]
        return Explanation(
            given=dict(given),
            configuration=found,
            name=space.name(found),
            violations=[],
            inactive=[space.knob[n].why_inactive for n in inactive],
            nearest=None,
            nearest_name="",
        )
    attempt = _filled(space, _in_domain(space, given), default)
    nearest = space.nearest({**default.knobs, **attempt.knobs}, given=given)
    return Explanation(
        given=dict(given),
        configuration=None,
        name=" ".join(f"{n}={str(v).lower() if isinstance(v, bool) else v}" for n, v in given.items()),
        violations=[*_out_of_domain(space, given), *_ruled_out(space, given, default)],
        inactive=[space.knob[n].why_inactive for n in given if n not in attempt.knobs],
        nearest=nearest,
        nearest_name=space.name(nearest) if nearest else "",
    )


def parsed_values(space: Space, assignments: Sequence[str]) -> dict[str, Value]:
    """Like `parse`, but a value outside the knob's domain is also an error: AutoscoutError (exit 2)."""
    given = parse(space, assignments)
    if outside := _out_of_domain(space, given):
        raise AutoscoutError("; ".join(violation.sentence for violation in outside), 2)
    return given


def completed(space: Space, given: Mapping[str, Value], default: Configuration) -> Configuration:
    """Returns the valid configuration with the given values; further knobs are completed from `default`. Errors:
    AutoscoutError (exit 2)."""
    explanation = explain(space, given, default)
    if explanation.configuration is None:
        reasons = "; ".join(v.sentence for v in explanation.violations)
        nearest = f"the nearest valid one is {explanation.nearest_name}"
        raise AutoscoutError(f"this is not a valid configuration: {reasons}; {nearest}", 2)
    return explanation.configuration


def _out_of_domain(space: Space, given: Mapping[str, Value]) -> list[Violation]:
    found: list[Violation] = []
    for n, v in given.items():
        if not _possible(space.knob[n], v):
            never = by_itself(n, space.knob, space.rules, space.environment({n: v}), space.derived)
            found += never or [Violation("domain", _not_among(space.knob[n], v), "")]
    return found


def _not_among(knob: Knob, value: Value) -> str:
    if value in knob.asks:
        return unless_allowed(knob, f"{knob.name} {value}")
    return f"{knob.name} {value} is not among {listed(knob.values)}"


def _ruled_out(space: Space, given: Mapping[str, Value], default: Configuration) -> list[Violation]:
    """Returns the rules that the given values break (values outside the domain are reported elsewhere). Omits rules
    that could be satisfied by changing unspecified knobs, unless this is true of all broken rules."""
    known = {n: v for n, v in given.items() if _possible(space.knob[n], v)}
    if len(known) < len(given) and space.nearest({**default.knobs, **known}, firm=known):
        return []
    attempt = _filled(space, known, default)
    found, env = space.violations(attempt), space.environment(attempt.knobs)
    ours = [k for k in space.knobs if k.name in attempt.knobs.keys() - known.keys() and k.implied is None]
    broken = {v.rule for v in found}
    rules = [rule for rule in space.rules if rule.id in broken]
    avoidable = {rule.id for rule in rules if any(_repairs(k, rule, env) for k in ours)}
    return [v for v in found if v.rule not in avoidable] or found


def _repairs(knob: Knob, rule: Rule, env: Mapping[str, Any]) -> bool:
    if knob.name not in rule.holds.names:
        return False
    try:
        return any(rule.holds({**env, knob.name: value}) for value in knob.values)
    except AutoscoutError:
        return False


def _in_domain(space: Space, given: Mapping[str, Value]) -> dict[str, Value]:
    """Returns the given values, with values outside the domain replaced by the nearest ones inside, so that rules can
    be evaluated."""
    return {
        n: v if _possible(space.knob[n], v) else min(space.knob[n].values, key=lambda known, w=v: distance(w, known))
        for n, v in given.items()
    }


def _possible(knob: Knob, value: Value) -> bool:
    return any(type(value) is type(known) and value == known for known in knob.values)


def _with_catalogs(space: Space, default: Configuration) -> Configuration:
    own = {knob.name: knob.default for knob in space.dense if knob.default in knob.values}
    return Configuration({**own, **default.knobs})


def _filled(space: Space, given: Mapping[str, Value], default: Configuration) -> Configuration:
    """Completes the given values: each further knob has its implied value, else the value in `default`, else (for a
    dense knob) the nearest valid value. A broken rule is then due to a given value."""
    knobs: dict[str, Value] = {}
    for knob in space.sparse:
        env = space.environment(knobs)
        active = knob.when is None or bool(knob.when(env))
        if knob.name in given:
            if active or given[knob.name] != knob.off:
                knobs[knob.name] = given[knob.name]
        elif active and knob.implied is not None:
            implied = knob.implied(env)
            knobs[knob.name] = min(knob.values, key=lambda v, w=implied: distance(w, v))
        elif active:
            knobs[knob.name] = default.knobs.get(knob.name, knob.values[0])
    names = {knob.name for knob in space.dense}
    for knob in space.dense:
        env = space.environment(knobs)
        wanted = given.get(knob.name, default.knobs.get(knob.name, knob.values[0]))
        if knob.name in given:
            knobs[knob.name] = wanted
        elif knob.when is None or knob.when(env):
            rules = [r.holds for r in space.rules if names & set(r.holds.names) == {knob.name}]
            valid = [v for v in knob.values if all(holds({**env, knob.name: v}) for holds in rules)] or knob.values
            knobs[knob.name] = min(valid, key=lambda v, w=wanted: distance(w, v))
    return Configuration(knobs)


def _value(knob: Knob, text: str) -> Value:
    """Converts a text to the type of the knob's values. A text that cannot be converted is returned unchanged; the
    caller rejects it."""
    sample = knob.values[0]
    if isinstance(sample, bool):
        return _SWITCH.get(text.lower(), text)
    if isinstance(sample, int | float):
        try:
            return type(sample)(text)
        except ValueError:
            return text
    return text


def named(space: Space, name: str) -> Configuration | None:
    """Returns the valid configuration with this name; None if there is none. Knobs missing in the name have their `off`
    values."""
    plain = {knob.name: knob.off for knob in space.knobs if knob.off is not None and knob.off in knob.values}
    for reading in _readings(name, space.knobs):
        found = space.nearest({**plain, **reading}, given={**plain, **reading}, firm=reading)
        if found is not None and space.name(found) == name:
            return found
    return None


def _readings(name: str, knobs: Sequence[Knob]) -> Iterator[dict[str, Value]]:
    """Yields all ways to parse a configuration name, since knobs' names and values may contain "_" and digits."""
    if not name:
        yield {}
        return
    for i, knob in enumerate(knobs):
        for value in knob.values:
            part = name_of(knob.name, value)
            if name == part or name.startswith(f"{part}_"):
                for rest in _readings(name[len(part) + 1 :], knobs[i + 1 :]):
                    yield {knob.name: value, **rest}
