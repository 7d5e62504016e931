"""Determines the devices that each row uses (kinds, numbers, power limit), and how layers are distributed over them."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from autoscout.simulate.hardware.device import Hardware, hardware, kinds
from autoscout.simulate.hardware.power_limit import limited
from autoscout.simulate.member import Columns
from autoscout.simulate.training.inputs import READ, Inputs

Array = np.ndarray


class Fleet(NamedTuple):
    """The `rows` that run on the same kinds of device. Each of `counts`, `told` and `gib` is a list of (n,) arrays, one
    per kind, in rank order. `counts`: number of devices; `told`: stated layers per pipeline stage (0: an equal share of
    the remaining layers); `gib`: stated memory of a device (0: not stated)."""

    rows: Array
    kinds: list[Hardware]
    counts: list[Array]
    told: list[Array]
    gib: list[Array]

    def of(self, rows: Array) -> "Fleet":
        counts, told, gib = ([each[rows] for each in of] for of in (self.counts, self.told, self.gib))
        return Fleet(rows, self.kinds, counts, told, gib)


def devices(columns: Columns, device: str) -> list[str]:
    """The kinds of device that occur in the rows; [`device`] if the columns name none."""
    if "gpu" in columns:
        return sorted(set(np.atleast_1d(np.asarray(columns["gpu"], dtype=str)).tolist()))
    return kinds(list(columns)) or [device]


def read(columns: Columns) -> list[str]:
    """Names of all columns that predictions may depend on, including those of each kind of device."""
    counts = kinds(list(columns))
    return [*READ, *counts, *(f"{name}_{of}" for name in counts for of in ("layers", "gib"))]


def fleets(columns: Columns, n: int, device: str) -> Iterator[Fleet]:
    """Groups the rows by their kinds of device and their power limit (`power_cap`, percent of the default limit)."""
    for fleet in _by_kinds(columns, n, device):
        if "power_cap" not in columns:
            yield fleet
            continue
        limits = _of_rows(columns, "power_cap", n)[fleet.rows]
        for limit in np.unique(limits):
            here = [limited(hw, limit / 100 if limit else 1.0) for hw in fleet.kinds]
            yield fleet._replace(rows=fleet.rows[limits == limit], kinds=here)


def _by_kinds(columns: Columns, n: int, device: str) -> Iterator[Fleet]:
    names = devices(columns, device)
    if "gpu" in columns or len(names) == 1:
        named = np.broadcast_to(np.asarray(columns.get("gpu", names[0]), dtype=str), n)
        gib = _of_rows(columns, "memory_gib", n) if len(names) == 1 else np.zeros(n)
        for name in names:
            hw = hardware(name)
            if hw is not None:
                yield Fleet(np.flatnonzero(named == name), [hw.training()], [np.zeros(n)], [np.zeros(n)], [gib])
        return
    counts = {name: _of_rows(columns, name, n) for name in names}
    used = sum(((counts[name] > 0).astype(int) << i for i, name in enumerate(names)), np.zeros(n, dtype=int))
    for which in np.unique(used):
        here = [name for i, name in enumerate(names) if which >> i & 1]
        found = [hw.training() for hw in map(hardware, here) if hw is not None]
        if here and len(found) == len(here):
            told, gib = ([_of_rows(columns, f"{name}_{of}", n) for name in here] for of in ("layers", "gib"))
            yield Fleet(np.flatnonzero(used == which), found, [counts[name] for name in here], told, gib)


def depths(x: Inputs, fleet: Fleet) -> list[Array]:
    """(n,) layers of the deepest pipeline stage, for each kind of device."""
    even = np.ceil(x.layers / x.pp)
    if not np.any(fleet.told):
        return [even] * len(fleet.kinds)
    stages = [count * x.pp / x.gpus for count in fleet.counts]
    given = sum((s * t for s, t in zip(stages, fleet.told, strict=True)), np.zeros(1))
    sharing = sum((s * (t == 0) for s, t in zip(stages, fleet.told, strict=True)), np.zeros(1))
    rest = np.ceil((x.layers - given) / np.maximum(sharing, 1))
    some = np.any(np.array(fleet.told) > 0, axis=0)
    return [np.where(some, np.where(t > 0, t, rest), even) for t in fleet.told]


def _of_rows(columns: Columns, name: str, n: int) -> Array:
    """(n,) values of a numeric column; 0 where it is absent or empty."""
    return np.nan_to_num(np.broadcast_to(np.asarray(columns.get(name, 0.0), dtype=float), n))
