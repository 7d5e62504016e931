"""The configurations, as rows of codes, that a search chooses from: all valid ones or, if there are too many to list, a
sample to which the search adds."""

import numpy as np

from autoscout.search.candidates import spread
from autoscout.search.hyper import DefaultHyper
from autoscout.space.codes import INACTIVE
from autoscout.space.graph import Space
from kb.records import Configuration

_SAMPLE = 3_000  # initial rows of each kind of sample, if the space is too large to enumerate
_NEAR = 2_000  # limit on neighbours of a row


class CandidatePool:
    """The rows from which a search chooses. `codes`: (n, knobs) int16 indices of each knob's value, −1 for inactive
    knobs. Rows keep their index; a pool that is not `complete` may grow."""

    def __init__(self, space: Space, rng: np.random.Generator, listed: int = DefaultHyper().listed) -> None:
        """`listed`: number of configurations above which a space is sampled instead of enumerated."""
        self.space = space
        self.complete = space.enumerable and space.count <= listed
        self._rows: dict[bytes, int] = {}
        if self.complete:
            self.codes = space.feasible.codes
        else:
            self.codes = np.zeros((0, len(space.knobs)), dtype=np.int16)
            self.add(spread(space, _SAMPLE, rng))
        column = {knob.name: i for i, knob in enumerate(space.knobs)}
        self.sparse = np.array([column[k.name] for k in space.sparse], dtype=int)
        self.dense = np.array([column[k.name] for k in space.dense], dtype=int)

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def every(self) -> int:
        """Number of valid configurations, including those not in the pool."""
        return len(self.codes) if self.complete else self.space.count

    def levels(self) -> np.ndarray:
        """Rows of codes, not necessarily valid, that contain every level that a knob has in any valid configuration."""
        if self.complete:
            return self.codes
        levels = self.space.levels()
        most = max(len(each) for each in levels)
        return np.stack([np.resize(each, most) for each in levels], axis=1)

    def add(self, codes: np.ndarray) -> np.ndarray:
        """(n,) row indices of valid codes (n, knobs). A pool that is not `complete` adds missing rows."""
        codes = np.ascontiguousarray(codes, dtype=np.int16)
        rows, fresh = np.empty(len(codes), dtype=int), []
        for i, row in enumerate(codes):
            end = len(self.codes) + len(fresh)
            rows[i] = self._rows.setdefault(row.tobytes(), end)
            if rows[i] == end:
                fresh.append(i)
        if fresh:
            self.codes = np.concatenate([self.codes, codes[fresh]])
        return rows

    def encode(self, configuration: Configuration) -> np.ndarray:
        """(knobs,) codes of a configuration. A number outside of a knob's domain becomes the nearest one."""
        return np.array([code_of(k, configuration.knobs.get(k.name)) for k in self.space.knobs], dtype=np.int16)

    def row(self, configuration: Configuration) -> int | None:
        """The index of the configuration's row; None if it is not in the pool."""
        if self.complete:
            return self.space.feasible.index(configuration)
        return self._rows.get(self.encode(configuration).tobytes())

    def taken_in(self, configuration: Configuration) -> int | None:
        """Like `row`, but an incomplete pool adds the configuration if it is valid."""
        row = self.row(configuration)
        if row is None and not self.complete and self.space.is_valid(configuration):
            row = int(self.add(self.encode(configuration)[None])[0])
        return row

    def configuration(self, row: int) -> Configuration:
        return Configuration(
            {
                knob.name: knob.values[code]
                for knob, code in zip(self.space.knobs, self.codes[row], strict=True)
                if code != INACTIVE
            }
        )

    def near(self, row: int) -> np.ndarray:
        """Rows that differ from `row` in one or two knobs, nearest first."""
        differing = (self.codes != self.codes[row]).sum(axis=1)
        return np.concatenate([np.flatnonzero(differing == 1), np.flatnonzero(differing == 2)])[:_NEAR]


def code_of(knob, value) -> int:
    """The index of a value in the knob's domain, or of the nearest number; −1 for no value and for an unknown name."""
    if value is None:
        return INACTIVE
    for i, known in enumerate(knob.values):
        if known == value and isinstance(known, bool) == isinstance(value, bool):
            return i
    numbers = [(abs(v - value), i) for i, v in enumerate(knob.values) if _number(v) and _number(value)]
    return min(numbers)[1] if numbers else INACTIVE


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
