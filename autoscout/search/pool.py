"""What a search chooses from, as rows of codes: all valid configurations, or a sample where they are too many."""

import numpy as np

from autoscout.space.codes import INACTIVE
from autoscout.space.graph import Space
from kb.records import Configuration

_SAMPLE = 20_000  # rows where the space cannot be enumerated
_NEAR = 2_000  # neighbours of one row, at most


class Pool:
    """`codes` (n, knobs) int16. Rows keep their numbers; only a sampled pool grows."""

    def __init__(self, space: Space, rng: np.random.Generator) -> None:
        self.space = space
        self.complete = bool(getattr(space, "enumerable", True))
        self._index: dict[bytes, int] | None = None
        if self.complete:
            self.codes = space.feasible.codes
        else:
            self.codes = np.zeros((0, len(space.knobs)), dtype=np.int16)
            self._index = {}
            self.add([space.sample(rng) for _ in range(_SAMPLE)])
        column = {knob.name: i for i, knob in enumerate(space.knobs)}
        self.sparse = np.array([column[k.name] for k in space.sparse], dtype=int)
        self.dense = np.array([column[k.name] for k in space.dense], dtype=int)

    def __len__(self) -> int:
        return len(self.codes)

    def add(self, configurations: list[Configuration]) -> None:
        """Rows that a sampled pool lacks."""
        assert self._index is not None
        fresh = []
        for c in configurations:
            codes = self.encode(c)
            if self._index.setdefault(codes.tobytes(), len(self.codes) + len(fresh)) == len(self.codes) + len(fresh):
                fresh.append(codes)
        if fresh:
            self.codes = np.concatenate([self.codes, np.stack(fresh)])

    def encode(self, configuration: Configuration) -> np.ndarray:
        """(knobs,) codes; the value nearest to one that the domain lacks."""
        return np.array([code_of(k, configuration.knobs.get(k.name)) for k in self.space.knobs], dtype=np.int16)

    def row(self, configuration: Configuration) -> int | None:
        """None if it is not in the pool."""
        if self._index is None:
            return self.space.feasible.index(configuration)
        return self._index.get(self.encode(configuration).tobytes())

    def configuration(self, row: int) -> Configuration:
        return Configuration(
            {
                knob.name: knob.values[code]
                for knob, code in zip(self.space.knobs, self.codes[row], strict=True)
                if code != INACTIVE
            }
        )

    def near(self, row: int) -> np.ndarray:
        """Rows that differ from one in one knob or two, the nearest first."""
        differing = (self.codes != self.codes[row]).sum(axis=1)
        return np.concatenate([np.flatnonzero(differing == 1), np.flatnonzero(differing == 2)])[:_NEAR]


def code_of(knob, value) -> int:
    """A value's place in the domain; that of the nearest number for one that the domain lacks, −1 for no value."""
    if value is None:
        return INACTIVE
    for i, known in enumerate(knob.values):
        if known == value and isinstance(known, bool) == isinstance(value, bool):
            return i
    numbers = [(abs(v - value), i) for i, v in enumerate(knob.values) if _number(v) and _number(value)]
    return min(numbers)[1] if numbers else INACTIVE


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
