"""Evaluates a function of some columns once per distinct combination of their values, for all software profiles."""

from collections.abc import Callable, Collection
from typing import NamedTuple

import numpy as np

from autoscout.simulate.combinations import Combinations, at
from autoscout.simulate.training.fleet import Fleet, devices, fleets
from autoscout.simulate.training.inputs import Inputs, by_precision, coded, complete
from autoscout.simulate.training.software import Variant, side_by_side, variants

Array = np.ndarray
_BLOCK = 1 << 15  # rows per block, so that temporary arrays stay in the processor's cache
MEMORY_ONLY = frozenset({"split_loss"})  # columns of software profiles that affect memory only


class Priced(NamedTuple):
    """Results by distinct combination of column values. `software`: the software profiles; `values`: (…, profiles, m)
    for m combinations; `of`: (n,) index of each row's combination."""

    software: list[Variant]
    values: dict[str, Array]
    of: Array

    def at(self, name: str, rows: slice) -> Array:
        """The values `name` of some rows: (…, profiles, rows)."""
        return np.take(self.values[name], self.of[rows], axis=-1)


def priced(
    every: Combinations,
    unread: Collection[str],
    device: str,
    shapes: dict[str, tuple[int, ...]],
    price: Callable[[Inputs, Fleet], dict[str, Array]],
) -> Priced:
    """The results of `price` for the combinations in `every`, ignoring the `unread` columns. `price` returns an array
    (*shape, rows) for each name in `shapes`, or (*shape, profiles, rows) where profiles differ. NaN: unknown device."""
    some, of = every.of(unread)
    some = coded(some)
    m = int(of.max()) + 1
    software = variants(some, MEMORY_ONLY, device)
    found = {name: np.full((*shape, len(software), m), np.nan) for name, shape in shapes.items()}
    # On several kinds of device, profiles are evaluated one at a time.
    apart = "gpu" not in some and len(devices(some, device)) > 1
    for which, columns in enumerate([each.columns for each in software] if apart else [side_by_side(software)]):
        under = which if apart else slice(None)
        for start in range(0, m, _BLOCK):
            here = slice(start, start + _BLOCK)
            for rows, alike in by_precision(at(columns, here, m)):
                x = complete(alike)
                for fleet in fleets(alike, x.n, device):
                    for name, values in price(x.take(fleet.rows), fleet.of(fleet.rows)).items():
                        found[name][..., under, start + rows[fleet.rows]] = values
    return Priced(software, found, of)
