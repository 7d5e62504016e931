"""What couples knobs, as tests on columns of codes: the rules, and for every knob when it acts and what is implied.

A *code* is an index into a knob's values, −1 (`INACTIVE`) where it does not act.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from autoscout.space.columns import column, equal, truth
from autoscout.space.knob import Knob, Rule
from kb.records import AutoscoutError, Value

INACTIVE = -1


class Constraint(msgspec.Struct, frozen=True, kw_only=True):
    """Either `rule`, or the conditions of `knob`. `names`: the knobs that it couples."""

    names: tuple[str, ...]
    rule: Rule | None = None
    knob: Knob | None = None

    @property
    def text(self) -> str:
        if self.rule is not None:
            return f"{self.rule.id}: {self.rule.holds.text}"
        assert self.knob is not None
        implied = f"{self.knob.name} = {self.knob.implied.text}" if self.knob.implied else ""
        return implied + (
            f"{' ' if implied else self.knob.name + ' acts '}when {self.knob.when.text}" if self.knob.when else ""
        )


def constraints(knobs: list[Knob], rules: list[Rule]) -> list[Constraint]:
    names = {knob.name for knob in knobs}
    found = []
    for knob in knobs:
        read = {n for e in (knob.when, knob.implied) if e is not None for n in e.names} & names
        found.append(Constraint(names=(*sorted(read), knob.name), knob=knob))
    for rule in rules:
        found.append(Constraint(names=tuple(n for n in rule.holds.names if n in names), rule=rule))
    return found


class Columns:
    """Turns codes into the values that expressions see."""

    def __init__(self, knobs: list[Knob], attributes: Mapping[str, Any]) -> None:
        self._attributes = attributes
        self._knobs = {knob.name: knob for knob in knobs}
        self._values = {knob.name: column([*knob.values, knob.off]) for knob in knobs}  # code −1 reads the last

    def test(self, constraint: Constraint, codes: Mapping[str, np.ndarray], n: int) -> tuple[np.ndarray, np.ndarray]:
        """(holds, undefined), (n,) each, for columns of codes of the constraint's knobs."""
        env = dict(self._attributes)
        env.update({name: self._values[name][codes[name]] for name in constraint.names})
        if constraint.rule is not None:
            value, undefined = constraint.rule.holds.on(env, n)
            return np.broadcast_to(truth(value), n), undefined
        knob = constraint.knob
        assert knob is not None
        mine = codes[knob.name]
        active, undefined = np.True_, np.zeros(n, dtype=bool)
        if knob.when is not None:
            value, undefined = knob.when.on(env, n)
            active = truth(value)
        holds = (mine >= 0) == active
        if knob.implied is not None:
            acting = np.flatnonzero(holds & (mine >= 0))
            here = {n: v[acting] if isinstance(v, np.ndarray) else v for n, v in env.items()}
            value, wrong = knob.implied.on(here, len(acting))
            holds[acting] = equal(here[knob.name], value)
            undefined[acting] |= wrong
        return holds, undefined

    def values(self, constraint: Constraint, codes: Mapping[str, int]) -> dict[str, Value | None]:
        """What the names of a constraint's expressions stand for, for a message."""
        knob, rule = constraint.knob, constraint.rule
        expressions = [rule.holds] if rule else [e for e in (knob.when, knob.implied) if e] if knob else []
        shown: dict[str, Any] = {n: self._attributes[n] for e in expressions for n in e.names if n in self._attributes}
        for name in constraint.names:
            code = codes.get(name, INACTIVE)
            shown[name] = self._knobs[name].off if code == INACTIVE else self._knobs[name].values[code]
        return shown


def undefined_error(constraint: Constraint, values: Mapping[str, Any]) -> AutoscoutError:
    """An expression that has no value on an assignment that everything else allows."""
    shown = ", ".join(f"{name} = {'(inactive)' if v is None else repr(v)}" for name, v in values.items())
    return AutoscoutError(
        f"{constraint.text}: cannot be evaluated at {shown} (a division by zero, or arithmetic on an inactive knob); "
        "guard it, for example 'tp == 1 or x % (tp - 1) == 0'",
        2,
    )
