"""Every valid configuration of a space as a row of numbers: what searches and simulators compute on."""

from typing import TYPE_CHECKING

import numpy as np

from autoscout.space.knob import Knob
from kb.records import Configuration

if TYPE_CHECKING:
    from autoscout.space.graph import Space

INACTIVE = -1


class Feasible:
    """`codes`: (n, knobs) int16, one row a valid configuration, columns in the order of `space.knobs`; a code is an
    index into the knob's `values`, −1 where it is inactive."""

    def __init__(self, space: "Space") -> None:
        self.space = space
        self._place = {knob.name: {_key(v): i for i, v in enumerate(knob.values)} for knob in space.knobs}
        self.codes = np.array([self._row(c) for c in space.configurations()], dtype=np.int16)
        self._index = {row.tobytes(): i for i, row in enumerate(self.codes)}

    def __len__(self) -> int:
        return len(self.codes)

    def configuration(self, i: int) -> Configuration:
        return Configuration(
            {k.name: k.values[c] for k, c in zip(self.space.knobs, self.codes[i], strict=True) if c != INACTIVE}
        )

    def index(self, configuration: Configuration) -> int | None:
        """The row of a configuration; None if it is not valid."""
        if not all(_key(v) in self._place.get(n, {}) for n, v in configuration.knobs.items()):
            return None
        return self._index.get(np.array(self._row(configuration), dtype=np.int16).tobytes())

    def columns(self, codes: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Each knob's values, (n,), for rows of codes (default: all). Where it is inactive: its `off` value; without
        one NaN for numbers, "" for names."""
        codes = self.codes if codes is None else codes
        return {knob.name: _lookup(knob)[codes[:, i]] for i, knob in enumerate(self.space.knobs)}

    def _row(self, configuration: Configuration) -> list[int]:
        knobs = configuration.knobs
        return [self._place[k.name][_key(knobs[k.name])] if k.name in knobs else INACTIVE for k in self.space.knobs]


def _lookup(knob: Knob) -> np.ndarray:
    """The values by code; the last entry answers code −1."""
    absent = knob.off
    if absent is None:
        absent = "" if isinstance(knob.values[0], str) else float("nan")
    return np.array([*knob.values, absent])


def _key(value: object) -> tuple[bool, object]:
    return isinstance(value, bool), value
