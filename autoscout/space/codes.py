"""How configurations are written: as rows of codes, and as short names.

A *code* is the index of a knob's value in its domain, −1 (`INACTIVE`) where the knob does not act.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from autoscout.space.knob import Knob
from autoscout.space.network import key
from kb.records import Configuration, Value

INACTIVE = -1

Structure = dict[str, Value]  # active sparse knobs
Point = dict[str, Value]  # dense knobs


class Coding:
    """Rows have one code per knob, in the order of the knobs. `place`: a knob's index in that order, by name; `code`: a
    value's code, by the knob's name and the value's `key`."""

    def __init__(self, knobs: list[Knob]) -> None:
        self.knobs = knobs
        self.place = {knob.name: i for i, knob in enumerate(knobs)}
        self.code = {knob.name: {key(v): i for i, v in enumerate(knob.values)} for knob in knobs}

    def row(self, assigned: Mapping[str, Value]) -> list[int] | None:
        """Codes of the assigned values; None for an unknown knob or value."""
        codes = [INACTIVE] * len(self.knobs)
        for name, value in assigned.items():
            code = self.code.get(name, {}).get(key(value))
            if code is None:
                return None
            codes[self.place[name]] = code
        return codes

    def configuration(self, codes: Sequence[int]) -> Configuration:
        """The configuration of a row of codes, with active knobs only."""
        return Configuration({k.name: k.values[c] for k, c in zip(self.knobs, codes, strict=True) if c != INACTIVE})

    def columns(self, codes: np.ndarray) -> dict[str, np.ndarray]:
        """Each knob's values, (n,), for rows of codes (n, knobs). Where a knob is inactive: its `off` value; without
        one, NaN for numbers and "" for names."""
        return {knob.name: _lookup(knob)[codes[:, i]] for i, knob in enumerate(self.knobs)}

    def point(self, codes: Sequence[int]) -> Point:
        return {
            k.name: k.values[c] for k, c in zip(self.knobs, codes, strict=True) if k.kind == "dense" and c != INACTIVE
        }


def short_name(configuration: Configuration, off: Mapping[str, Value | None]) -> str:
    """The values in which a configuration differs from `off`, for example tp2_pp2_sp_mbs1."""
    return "_".join(name_of(name, value) for name, value in configuration.knobs.items() if value != off.get(name))


def name_of(knob: str, value: Value) -> str:
    """A knob's part of a configuration's name: tp2, sp, no-sp, zero1x2, ar-full."""
    if isinstance(value, bool):
        return knob if value else f"no-{knob}"
    if isinstance(value, str):
        return f"{knob}-{value}"
    return f"{knob}x{value}" if knob[-1].isdigit() else f"{knob}{value}"


def _lookup(knob: Knob) -> np.ndarray:
    """The values by code; code −1 indexes the last entry."""
    absent = knob.off
    if absent is None:
        absent = "" if isinstance(knob.values[0], str) else float("nan")
    return np.array([*knob.values, absent])
