"""The dense optimizer (paper §3.2): moves one coordinate (dense knob) at a time, with momentum, over its valid values.

As long as moving the active coordinate in its direction improves the cost, the step doubles (momentum). A step without
improvement reverses the coordinate's direction, resets its step to 1 and makes the next coordinate active."""

from collections.abc import Callable, Iterator

from autoscout.space.graph import Point, Space, Structure


class Coordinates:
    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.active = 0  # index of the active coordinate
        self.onward = False  # whether the last step improved the cost
        self.direction = dict.fromkeys(names, 1)
        self.step = dict.fromkeys(names, 1)

    def moves(self) -> Iterator[tuple[str, int, int]]:
        """Yields (knob, direction, step) in the order to try them: the active coordinate first; for each coordinate its
        current step, a step of 1, and a step of 1 in the other direction."""
        for name in self._turns():
            direction, step = self.direction[name], self.step[name]
            yield from ((name, direction, step), (name, direction, 1), (name, -direction, 1))

    def took(self, name: str, direction: int, step: int) -> None:
        """Records the move whose result the next `update` gets."""
        self.active = self.names.index(name)
        self.direction[name], self.step[name] = direction, step

    def update(self, improved: bool) -> None:
        name = self.names[self.active]
        self.onward = improved
        if improved:
            self.step[name] *= 2
        else:
            self.direction[name] *= -1
            self.step[name] = 1
            self.active = (self.active + 1) % len(self.names)

    def state(self) -> dict[str, list[int]]:
        """Knob → [direction, step], the active coordinate first."""
        return {name: [self.direction[name], self.step[name]] for name in self._turns()}

    def _turns(self) -> list[str]:
        return self.names[self.active :] + self.names[: self.active]


def next_point(
    coordinates: Coordinates, space: Space, s: Structure, x: Point, tried: Callable[[Point], bool]
) -> Point | None:
    """The dense point x, first changed to values that are valid in structure s, and then moved along one coordinate to
    an untried point; None if no move leads to an untried point."""
    mask = space.mask(s)
    base = space.project(s, x)
    for name, direction, step in coordinates.moves():
        values = mask.get(name, ())
        if len(values) < 2:
            continue
        at = min(max(values.index(base[name]) + direction * step, 0), len(values) - 1)
        moved = space.project(s, {**base, name: values[at]})
        if moved != base and not tried(moved):
            coordinates.took(name, direction, step)
            return moved
    return None
