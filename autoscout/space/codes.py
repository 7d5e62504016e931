"""Two notations of a configuration: a row of integer codes, and a short name.

A *code* is the index of a knob's value in the knob's domain, or −1 (`INACTIVE`) if the knob is inactive."""

from collections.abc import Mapping, Sequence

import numpy as np

from autoscout.space.knob import Knob
from autoscout.space.network import key
from kb.records import Configuration, Value

INACTIVE = -1

Structure = dict[str, Value]  # active sparse knobs → their values
Point = dict[str, Value]  # active dense knobs → their values


class Coding:
    """Converts values to codes and back. A row has one code per knob, in the order of the knobs. `place`: knob name →
    index in this order. `code`: knob name → `key` of the value → code."""

    def __init__(self, knobs: list[Knob]) -> None:
        self.knobs = knobs
        self.place = {knob.name: i for i, knob in enumerate(knobs)}
        self.code = {knob.name: {key(v): i for i, v in enumerate(knob.values)} for knob in knobs}

    def row(self, assigned: Mapping[str, Value]) -> list[int] | None:
        """Returns the codes of the assigned values; None if a knob or a value is unknown."""
        codes = [INACTIVE] * len(self.knobs)
        for name, value in assigned.items():
            code = self.code.get(name, {}).get(key(value))
            if code is None:
                return None
            codes[self.place[name]] = code
        return codes

    def configuration(self, codes: Sequence[int]) -> Configuration:
        """Returns the configuration of a row of codes. Inactive knobs are omitted."""
        return Configuration({k.name: k.values[c] for k, c in zip(self.knobs, codes, strict=True) if c != INACTIVE})

    def columns(self, codes: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the values of each knob, (n,), by the knob's name, for rows of codes (n, knobs). An inactive knob has
        its `off` value; without an `off` value, NaN for numbers and "" for names."""
        return {knob.name: _lookup(knob)[codes[:, i]] for i, knob in enumerate(self.knobs)}

    def point(self, codes: Sequence[int]) -> Point:
        return {
            k.name: k.values[c] for k, c in zip(self.knobs, codes, strict=True) if k.kind == "dense" and c != INACTIVE
        }


def short_name(configuration: Configuration, off: Mapping[str, Value | None]) -> str:
    """Returns a name made of the values in which a configuration differs from `off`, for example tp2_pp2_sp_mbs1."""
    return "_".join(name_of(name, value) for name, value in configuration.knobs.items() if value != off.get(name))


def name_of(knob: str, value: Value) -> str:
    """Returns the part of a configuration's name for one knob, such as tp2, sp, no-sp, zero1x2, ar-full."""
    if isinstance(value, bool):
        return knob if value else f"no-{knob}"
    if isinstance(value, str):
        return f"{knob}-{value}"
    return f"{knob}x{value}" if knob[-1].isdigit() else f"{knob}{value}"


def _lookup(knob: Knob) -> np.ndarray:
    """Returns an array of the values by code; code −1 selects the last entry, the `off` value."""
    absent = knob.off
    if absent is None:
        absent = "" if isinstance(knob.values[0], str) else float("nan")
    return np.array([*knob.values, absent])
