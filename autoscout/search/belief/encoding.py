"""Encodes configurations, given as rows of codes (a knob's index of its value; −1: inactive), for a model. Every knob
that varies is an axis; its values and "inactive" are the levels.

There are two encodings: `points`, in which levels have a distance (numbers in log₂ or in ranks, names one-hot), and
`effects`, whose products are correlations between the effects of levels."""

import math
from dataclasses import dataclass

import numpy as np

from autoscout.space.knob import Knob, reads_batches

_NEAR = 0.5  # length scale of the correlation between effects of numeric levels, as a share of the axis


@dataclass(frozen=True)
class EncodedRows:
    """Encoded rows, float32. `points` (n, P): the squared distance of two rows is a sum over axes of at most about 1
    each. `effects` (n, E): the inner product of two rows is the sum over axes of the correlation of their levels'
    effects."""

    points: np.ndarray
    effects: np.ndarray

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, rows: np.ndarray | slice) -> "EncodedRows":
        return EncodedRows(self.points[rows], self.effects[rows])


class Encoding:
    def __init__(self, knobs: list[Knob], codes: np.ndarray) -> None:
        """`codes`: (n, knobs) rows; the knobs with at least two levels in them become axes."""
        self._axes: list[
            tuple[int, np.ndarray, np.ndarray]
        ] = []  # (knob index, table of `points`, table of `effects`); rows of a table: the knob's values, inactive
        self.names: list[str] = []
        for i, knob in enumerate(knobs):
            levels = np.unique(codes[:, i])
            if len(levels) > 1:
                table = _positions(knob, levels)
                effects = _effects(knob, levels, table)
                self._axes.append((i, table.astype(np.float32), effects.astype(np.float32)))
                self.names.append(knob.name)
        self.point_axis = np.concatenate([np.full(t.shape[1], a) for a, (_, t, _) in enumerate(self._axes)] or [[]])
        self.effect_axis = np.concatenate([np.full(e.shape[1], a) for a, (_, _, e) in enumerate(self._axes)] or [[]])
        self.point_axis, self.effect_axis = self.point_axis.astype(int), self.effect_axis.astype(int)
        on_host = np.array([reads_batches(knobs[i]) for i, _, _ in self._axes], dtype=bool)
        self._fills = None if not on_host.any() else (~on_host[self.point_axis], ~on_host[self.effect_axis])

    def __len__(self) -> int:
        return len(self._axes)

    def rows(self, codes: np.ndarray) -> EncodedRows:
        return EncodedRows(
            _gathered(codes, [(i, table) for i, table, _ in self._axes]),
            _gathered(codes, [(i, table) for i, _, table in self._axes]),
        )

    def of_memory(self, rows: EncodedRows) -> EncodedRows:
        """The rows without knobs of the data loader, which do not affect device memory: a configuration that runs out
        of memory does so with any values of these knobs."""
        if self._fills is None:
            return rows
        return EncodedRows(rows.points * self._fills[0], rows.effects * self._fills[1])


def numbered(values: np.ndarray) -> np.ndarray:
    """(n,) a hash of each of the rows (n, k), as a number."""
    return (values * np.random.default_rng(0).standard_normal(values.shape[1])).sum(axis=1)


def _gathered(codes: np.ndarray, tables: list[tuple[int, np.ndarray]]) -> np.ndarray:
    found = np.empty((len(codes), sum(table.shape[1] for _, table in tables)), dtype=np.float32)
    at = 0
    for i, table in tables:
        found[:, at : at + table.shape[1]] = table[codes[:, i]]
        at += table.shape[1]
    return found


def is_number(knob: Knob) -> bool:
    return not any(isinstance(v, bool | str) for v in knob.values)


def scale(knob: Knob) -> np.ndarray:
    """(values,) positions of a numeric knob's values: log₂ if all are positive, else ranks."""
    values = [float(v) for v in knob.values]
    if all(v > 0 for v in values):
        return np.array([math.log2(v) for v in values])
    return np.argsort(np.argsort(values)).astype(float)


def _positions(knob: Knob, levels: np.ndarray) -> np.ndarray:
    """(values + 1, columns) the knob's columns of `points`; the last row is the inactive level."""
    rows = len(knob.values) + 1
    active = levels[levels >= 0]
    if is_number(knob) and len(active) > 2:
        x = scale(knob)
        low, high = x[active].min(), x[active].max()
        table = np.append((x - low) / (high - low), 0.5)[:, None]
        if -1 in levels:
            table = np.concatenate([table, np.zeros((rows, 1))], axis=1)
            table[-1, 1] = 0.75
        return table
    table = np.zeros((rows, len(levels)))
    table[levels, np.arange(len(levels))] = math.sqrt(0.5)
    return table


def _effects(knob: Knob, levels: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """(values + 1, levels) a matrix square root of the correlations between the levels' effects. Names are independent;
    the correlation of numbers decreases exponentially with distance (an Ornstein-Uhlenbeck process, which permits
    abrupt changes)."""
    at = positions[levels]
    gap = np.sqrt(((at[:, None] - at[None]) ** 2).sum(axis=2))
    number = is_number(knob) and positions.shape[1] < len(levels)
    correlation = np.exp(-gap / _NEAR) if number else np.eye(len(levels))
    values, vectors = np.linalg.eigh(correlation)
    table = np.zeros((len(knob.values) + 1, len(levels)))
    table[levels] = vectors * np.sqrt(np.maximum(values, 0))
    return table
