"""Distances between a knob's values. Distances are integers, so that the nearest configuration is the same on every
machine.

For a sparse knob, the distance is |log₂| of the ratio of numbers, and 1 for any other difference (including
inactivity), in units of 1/64. For a dense knob, it is the number of steps in its domain. Sums are compared
lexicographically: knobs that the user gave, then other sparse knobs, then other dense ones."""

from collections.abc import Collection, Mapping

import numpy as np

from autoscout.space.compiled.diagram import FORBIDDEN
from autoscout.space.knob import Knob
from autoscout.space.network import distance, key
from kb.records import Configuration, Value

# _PARTS: units of distance per factor of 2. _STRUCTURE, _GIVEN: bits by which distances of sparse and of given knobs
# are shifted left, so that comparing sums compares them lexicographically.
_PARTS, _STRUCTURE, _GIVEN = 64, 20, 36


class Nearness:
    """Computes and caches costs for `Diagram.nearest`: per knob, an array by code + 1 (0: the knob is inactive)."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], np.ndarray] = {}

    def cost(self, knob: Knob, wanted: Value, given: bool = False) -> np.ndarray:
        """Returns the costs (distances from `wanted`) of a knob's inactivity and of each of its values. `given`:
        whether the user gave `wanted`; the costs then outweigh those of all knobs that the user did not give."""
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
        """Returns knob index → costs. `firm`: values that knobs must have; `given`: knobs that the user gave."""
        found: dict[int, np.ndarray] = {}
        for i, knob in enumerate(knobs):
            if knob.name in wanted:
                found[i] = self.cost(knob, wanted[knob.name], knob.name in given)
            if knob.name in firm:
                found[i] = np.maximum(found.get(i, 0), self.only(knob, firm[knob.name]))
        return found

    def only(self, knob: Knob, value: Value) -> np.ndarray:
        """Returns costs that allow only this value (also inactivity, if this is the `off` value)."""
        place = (knob.name, key(value), "only")
        if place not in self._known:
            agrees = [value == knob.off, *(key(v) == key(value) for v in knob.values)]
            self._known[place] = np.where(agrees, 0, FORBIDDEN)
        return self._known[place]


def step(knob: Knob, value: Value) -> int:
    """Returns the index of a value in the knob's domain, or of the nearest value if the domain lacks it."""
    wanted = key(value)
    for i, known in enumerate(knob.values):
        if key(known) == wanted:
            return i
    return min(range(len(knob.values)), key=lambda i: distance(value, knob.values[i]))


def differing(one: Configuration, other: Configuration) -> int:
    """Returns the number of knobs whose values differ."""
    return sum(one.knobs.get(knob) != other.knobs.get(knob) for knob in {**one.knobs, **other.knobs})
