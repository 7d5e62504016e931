"""What a function of some columns says of many rows: asked once for each combination of these columns, for all software
profiles at the same time."""

from collections.abc import Callable, Collection
from typing import NamedTuple

import numpy as np

from autoscout.simulate.combinations import Combinations
from autoscout.simulate.training.fleet import Fleet, fleets
from autoscout.simulate.training.inputs import Inputs, by_precision, coded, complete
from autoscout.simulate.training.software import Variant, stacked, variants

Array = np.ndarray
_BLOCK = 1 << 15  # rows at a time: temporaries stay in the cache
MEMORY_ONLY = frozenset({"split_loss"})  # columns of software profiles that affect memory only


class Priced(NamedTuple):
    """`software`: the profiles of the m combinations; `values`: (…, profiles, m) each; `of`: (n,) which combination a
    row has."""

    software: list[Variant]
    values: dict[str, Array]
    of: Array

    def at(self, name: str, rows: slice) -> Array:
        """(…, profiles, rows)"""
        return np.take(self.values[name], self.of[rows], axis=-1)


def priced(
    every: Combinations,
    unread: Collection[str],
    device: str,
    shapes: dict[str, tuple[int, ...]],
    price: Callable[[Inputs, Fleet], dict[str, Array]],
) -> Priced:
    """`price` reads all columns but `unread`, and says (*shape, rows) under each name of `shapes`; NaN on unknown
    devices."""
    some, of = every.of(unread)
    some = coded(some)
    m = int(of.max()) + 1
    software = variants(some, MEMORY_ONLY)
    columns = stacked(software, m) if len(software) > 1 else some
    found = {name: np.full((*shape, len(software) * m), np.nan) for name, shape in shapes.items()}
    for rows, alike in by_precision(columns):
        x = complete(alike)
        for fleet in fleets(alike, x.n, device):
            for start in range(0, len(fleet.rows), _BLOCK):
                block = fleet.rows[start : start + _BLOCK]
                for name, values in price(x.take(block), fleet.of(block)).items():
                    found[name][..., rows[block]] = values
    return Priced(software, {name: v.reshape(*v.shape[:-1], len(software), m) for name, v in found.items()}, of)
