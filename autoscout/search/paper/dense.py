"""The dense optimizer (paper §3.2): one coordinate at a time, with momentum, on the mask M(s).

It moves on the grid of each knob's valid values. While moving the active coordinate in its direction improves
the cost, the step doubles (momentum); a step without improvement reverses that coordinate's
direction, resets its step and passes to the next coordinate.
"""

from collections.abc import Callable

from autoscout.space.graph import Point, Space, Structure


class DenseOptimizer:
    def __init__(self, space: Space) -> None:
        self.space = space
        self.names = [knob.name for knob in space.dense]
        self.active = 0
        self.direction = dict.fromkeys(self.names, 1)
        self.step = dict.fromkeys(self.names, 1)

    def propose(self, s: Structure, x: Point, tried: Callable[[Point], bool]) -> Point | None:
        """x projected onto X(s) and moved along one coordinate to an untried point; None if no move leads to one."""
        mask = self.space.mask(s)
        base = self.space.project(s, x)
        for turn in range(len(self.names)):
            name = self.names[(self.active + turn) % len(self.names)]
            if len(mask.get(name, ())) < 2:
                continue
            for direction, step in self._moves(name):
                values = mask[name]
                i = values.index(base[name]) + direction * step
                moved = self.space.project(s, {**base, name: values[min(max(i, 0), len(values) - 1)]})
                if moved != base and not tried(moved):
                    self.active = self.names.index(name)
                    self.direction[name], self.step[name] = direction, step
                    return moved
        return None

    def coordinates(self) -> dict[str, list[int]]:
        """Knob → [direction, step], the active one first."""
        turns = [self.names[(self.active + i) % len(self.names)] for i in range(len(self.names))]
        return {name: [self.direction[name], self.step[name]] for name in turns}

    def update(self, improved: bool) -> None:
        """Takes in whether the last proposal improved the cost."""
        name = self.names[self.active]
        if improved:
            self.step[name] *= 2
        else:
            self.direction[name] *= -1
            self.step[name] = 1
            self.active = (self.active + 1) % len(self.names)

    def _moves(self, name: str) -> list[tuple[int, int]]:
        direction, step = self.direction[name], self.step[name]
        return [(direction, step), (direction, 1), (-direction, 1)]
