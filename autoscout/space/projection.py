"""The valid points (values of active dense knobs) of a structure (values of active sparse knobs), the mask of possible
values per dense knob, and the point nearest to given values. AutoScout paper, §3.2: points X(s), mask M(s)."""

from collections.abc import Mapping

from autoscout.space.codes import INACTIVE, Coding, Point, Structure
from autoscout.space.compiled.diagram import Diagram
from autoscout.space.nearness import Nearness, step
from autoscout.space.network import key
from kb.records import Value


class Projection:
    """Looks up points in the decision diagram of all valid configurations, in which sparse knobs come first, and
    structures with the same points lead to the same state. An invalid structure has no points."""

    def __init__(self, diagram: Diagram, coding: Coding, nearness: Nearness) -> None:
        self._diagram, self._coding, self._nearness = diagram, coding, nearness
        self._masks: dict[int, dict[str, tuple[Value, ...]]] = {}  # cache by state of the diagram

    def mask(self, s: Structure) -> dict[str, tuple[Value, ...]]:
        """Returns the active dense knobs of structure s, with their values in valid configurations (paper: M(s))."""
        state = self._state(s)
        return {} if state is None else self._mask(state)

    def nearest(self, s: Structure, x: Mapping[str, Value]) -> Point:
        """Returns the valid point of structure s nearest to x, in steps of each knob's domain. x may lack knobs."""
        state = self._state(s)
        if state is None:
            return {}
        knobs, place = self._coding.knobs, self._coding.place
        codes = [INACTIVE] * len(knobs)
        for name, values in self._mask(state).items():
            wanted = step(knobs[place[name]], x[name]) if name in x else 0
            steps = self._coding.code[name]
            codes[place[name]] = min((steps[key(v)] for v in values), key=lambda c, w=wanted: abs(c - w))
        first = self._diagram.sparse
        if self._diagram.walk(codes, first, state=state) is None:
            dense = (knob for knob in knobs if knob.kind == "dense" and knob.name in x)
            cost = {place[k.name]: self._nearness.cost(k, x[k.name]) for k in dense}
            codes = self._diagram.nearest(cost, first, state) or codes
        return self._coding.point(codes)

    def _mask(self, state: int) -> dict[str, tuple[Value, ...]]:
        if state not in self._masks:
            taken = self._diagram.domains({}, self._diagram.sparse, state=state) or []
            self._masks[state] = {
                knob.name: values
                for i, knob in enumerate(self._coding.knobs)
                if knob.kind == "dense" and (values := tuple(knob.values[c] for c in taken[i] if c != INACTIVE))
            }
        return self._masks[state]

    def _state(self, s: Structure) -> int | None:
        """Returns the diagram's state after the structure s; None if s is not valid."""
        codes = self._coding.row(s)
        return None if codes is None else self._diagram.walk(codes, 0, self._diagram.sparse)
