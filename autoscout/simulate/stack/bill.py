"""What a cluster costs and draws: devices, links, switches and network cards (parts.toml)."""

import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from autoscout.job.words import nearest_name
from autoscout.simulate.hardware.fabric import TOPOLOGIES
from autoscout.simulate.stack.dimensions import GB, Array, Dimension
from kb.records import AutoscoutError


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Peak in TFLOP/s (dense, bf16), memory in GB/s and GiB; `reached`: share of the peak in large products."""

    tflops: float
    gb_s: float
    gib: float
    reached: float
    watts: float
    usd: float


class Network(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Per GB/s of one NPU into a dimension, by tier; `reach`: the most NPUs that each tier but the last joins."""

    reach: list[int]
    link_usd: list[float]
    switch_usd: list[float]
    nic_usd: list[float]
    watts: list[float]


class Parts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    device: dict[str, Device]
    network: Network


@functools.cache
def parts() -> Parts:
    return msgspec.convert(tomllib.loads((Path(__file__).parent / "parts.toml").read_text(encoding="utf-8")), Parts)


def device(name: str) -> Device:
    """Errors: AutoscoutError (exit 2) for a device without a price."""
    known = parts().device
    if name not in known:
        raise AutoscoutError(f"device '{name}'{nearest_name(name, known)}", 2)
    return known[name]


def of_devices(names: Any, n: int, known: Mapping[str, Device] | None = None) -> dict[str, Array]:
    """Each field of the devices of n designs: (n,), or (1,) where they are all the same."""
    words = np.atleast_1d(names)
    if (words == words[0]).all():
        one = _of(str(words[0]), known)
        return {f: np.full(1, getattr(one, f)) for f in Device.__struct_fields__}
    kinds, which = np.unique(np.broadcast_to(words, n), return_inverse=True)
    found = [_of(str(kind), known) for kind in kinds]
    return {f: np.array([getattr(d, f) for d in found])[which] for f in Device.__struct_fields__}


def _of(name: str, known: Mapping[str, Device] | None) -> Device:
    return known[name] if known else device(name)


def network_bill(fabric: list[Dimension], npus: Array) -> tuple[Array, Array, Array]:
    """(dollars, watts, GB/s of one NPU into all dimensions), (n,) each."""
    prices = parts().network
    dear, power = _by_tier()
    usd, watts, gb_s = np.zeros(1), np.zeros(1), np.zeros(1)
    for d in fabric:
        tier: Array = sum((d.after > reach for reach in prices.reach), np.zeros(1, dtype=np.int64))
        into = np.where(d.size > 1, d.bandwidth / GB, 0.0)
        switched = d.topology == TOPOLOGIES.index("switch")
        usd = usd + into * dear.take(2 * tier + switched)
        watts = watts + into * power.take(tier)
        gb_s = gb_s + into
    return usd * npus, watts * npus, gb_s


@functools.cache
def _by_tier() -> tuple[Array, Array]:
    """Dollars of each tier, without a switch and with one, and watts of each tier."""
    prices = parts().network
    joined = np.array(prices.link_usd) + np.array(prices.nic_usd)
    return np.stack([joined, joined + np.array(prices.switch_usd)], axis=1).ravel(), np.array(prices.watts)
