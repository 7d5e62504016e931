"""Distances of a knob's values from a wanted one, as integers: the nearest is the same on every machine.

A sparse knob's distance is |log₂| of the ratio for numbers, and 1 for another choice or (in)activity, in 64ths; a dense
knob's is in steps of its domain. Sums compare lexicographically: what a person gave, then the structure, then the
point.
"""

from collections.abc import Collection, Mapping

import numpy as np

from autoscout.space.compiled.diagram import FORBIDDEN
from autoscout.space.knob import Knob
from autoscout.space.network import distance, key
from kb.records import Configuration, Value

_PARTS, _STRUCTURE, _GIVEN = 64, 20, 36  # parts of a doubling; bit shifts that rank one sum above another


class Nearness:
    """Costs by code + 1 for `Diagram.nearest`, each computed once."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], np.ndarray] = {}

    def cost(self, knob: Knob, wanted: Value, given: bool = False) -> np.ndarray:
        """Costs of a knob's values. `given`: a person asked for `wanted`, which counts before everything else."""
        place = (knob.name, key(wanted), given)
        if place not in self._known:
            if knob.kind == "sparse":
                apart = [0.0 if wanted == knob.off else 1.0, *(distance(wanted, v) for v in knob.values)]
                cost = np.rint(_PARTS * np.array(apart)).astype(np.int64)
                self._known[place] = cost << (_GIVEN if given else _STRUCTURE)
            else:
                steps = np.abs(np.arange(len(knob.values)) - step(knob, wanted))
                self._known[place] = np.concatenate([[1], steps]) << (_GIVEN if given else 0)
        return self._known[place]

    def costs(
        self, knobs: list[Knob], wanted: Mapping[str, Value], firm: Mapping[str, Value], given: Collection[str]
    ) -> dict[int, np.ndarray]:
        """By knob index. `firm`: nothing else is allowed; `given`: what a person asked for."""
        found: dict[int, np.ndarray] = {}
        for i, knob in enumerate(knobs):
            if knob.name in wanted:
                found[i] = self.cost(knob, wanted[knob.name], knob.name in given)
            if knob.name in firm:
                found[i] = np.maximum(found.get(i, 0), self.only(knob, firm[knob.name]))
        return found

    def only(self, knob: Knob, value: Value) -> np.ndarray:
        """Allows nothing but a value, or inactivity if that does the same."""
        place = (knob.name, key(value), "only")
        if place not in self._known:
            agrees = [value == knob.off, *(key(v) == key(value) for v in knob.values)]
            self._known[place] = np.where(agrees, 0, FORBIDDEN)
        return self._known[place]


def step(knob: Knob, value: Value) -> int:
    """The index of a value in the domain, or of the nearest one there."""
    wanted = key(value)
    for i, known in enumerate(knob.values):
        if key(known) == wanted:
            return i
    return min(range(len(knob.values)), key=lambda i: distance(value, knob.values[i]))


def differing(one: Configuration, other: Configuration) -> int:
    """Number of knobs whose values differ."""
    return sum(one.knobs.get(knob) != other.knobs.get(knob) for knob in {**one.knobs, **other.knobs})
