"""The dense optimizer's steps (paper §3.2): one coordinate at a time, with momentum, on the grid of its valid values.

While moving the active coordinate in its direction improves the cost, the step doubles (momentum). A step without
improvement reverses that coordinate's direction, resets its step and passes to another coordinate.
"""

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
        """Yields (knob, direction, step) in the order to try them: the active coordinate first, and for each coordinate
        its own step, a shorter one, and the other direction."""
        for name in self._turns():
            direction, step = self.direction[name], self.step[name]
            yield from ((name, direction, step), (name, direction, 1), (name, -direction, 1))

    def took(self, name: str, direction: int, step: int) -> None:
        """Records the move that the next `update` judges."""
        self.active = self.names.index(name)
        self.direction[name], self.step[name] = direction, step

    def update(self, improved: bool) -> None:
        """Learns whether the last step improved the cost."""
        name = self.names[self.active]
        self.onward = improved
        if improved:
            self.step[name] *= 2
        else:
            self.direction[name] *= -1
            self.step[name] = 1
            self.active = (self.active + 1) % len(self.names)

    def state(self) -> dict[str, list[int]]:
        """Knob → [direction, step], the active one first."""
        return {name: [self.direction[name], self.step[name]] for name in self._turns()}

    def _turns(self) -> list[str]:
        return self.names[self.active :] + self.names[: self.active]


def next_point(
    coordinates: Coordinates, space: Space, s: Structure, x: Point, tried: Callable[[Point], bool]
) -> Point | None:
    """x projected onto X(s) by the mask M(s) and moved along one coordinate to an untried point; None if no move leads
    to one."""
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
