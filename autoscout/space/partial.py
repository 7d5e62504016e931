"""Determines which values knobs can have in the valid configurations that agree with a partial assignment.

In a partial assignment, None means that the knob is inactive. Errors: AutoscoutError (exit 2) for an unknown knob."""

from collections.abc import Mapping

import numpy as np

from autoscout.job.words import nearest_name
from autoscout.space.codes import INACTIVE, Coding
from autoscout.space.compiled.diagram import Diagram
from autoscout.space.network import key
from kb.records import AutoscoutError, Value

_NO_CODE = -2  # code of a value outside the domain, which matches no edge


def domain(diagram: Diagram, coding: Coding, name: str, partial: Mapping[str, Value | None]) -> tuple[Value, ...]:
    """Returns a knob's values in the order of its domain; empty if no valid configuration agrees with `partial`, or if
    the knob is inactive in all that do."""
    taken = _taken(diagram, coding, partial)
    place = _place(coding, name)
    codes = [] if taken is None else taken[place].tolist()
    return tuple(coding.knobs[place].values[c] for c in codes if c != INACTIVE)


def active(diagram: Diagram, coding: Coding, partial: Mapping[str, Value | None]) -> dict[str, bool | None]:
    """Returns whether each knob is active in all (True), no (False) or some (None) completions of `partial`."""
    taken = _taken(diagram, coding, partial)
    if taken is None:
        return dict.fromkeys(coding.place, False)
    acts = {}
    for knob, codes in zip(coding.knobs, taken, strict=True):
        acts[knob.name] = (None if len(codes) > 1 else False) if codes[0] == INACTIVE else True
    return acts


def _taken(diagram: Diagram, coding: Coding, partial: Mapping[str, Value | None]) -> list[np.ndarray] | None:
    """Returns the codes that occur for each knob; None if no valid configuration agrees."""
    allowed = {}
    for name, value in partial.items():
        place = _place(coding, name)
        code = INACTIVE if value is None else coding.code[name].get(key(value), _NO_CODE)
        allowed[place] = np.arange(INACTIVE, len(coding.knobs[place].values)) == code
    return diagram.domains(allowed)


def _place(coding: Coding, name: str) -> int:
    if name not in coding.place:
        raise AutoscoutError(f"'{name}'{nearest_name(name, coding.place)}", 2)
    return coding.place[name]
