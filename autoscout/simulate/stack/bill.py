"""What a cluster costs and draws: devices, links, switches and network cards (parts.toml)."""

import functools
import tomllib
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
    """Per GB/s of one NPU into a dimension, by tier: `reach` is the most NPUs of each but the last."""

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
    return msgspec.convert(tomllib.loads((Path(__file__).parent / "parts.toml").read_text()), Parts)


def device(name: str) -> Device:
    """Errors: AutoscoutError (exit 2) for a device without a price."""
    known = parts().device
    if name not in known:
        raise AutoscoutError(f"device '{name}'{nearest_name(name, known)}", 2)
    return known[name]


def of_devices(names: Any, n: int) -> dict[str, Array]:
    """Each field of the devices of n designs: (n,), or (1,) where they are all the same."""
    words = np.atleast_1d(names)
    if (words == words[0]).all():
        one = device(str(words[0]))
        return {f: np.full(1, getattr(one, f)) for f in Device.__struct_fields__}
    kinds, which = np.unique(np.broadcast_to(words, n), return_inverse=True)
    found = [device(str(kind)) for kind in kinds]
    return {f: np.array([getattr(d, f) for d in found])[which] for f in Device.__struct_fields__}


def network_bill(fabric: list[Dimension], npus: Array) -> tuple[Array, Array, Array]:
    """(dollars, watts, GB/s of one NPU into all dimensions), (n,) each."""
    prices = parts().network
    usd, watts, gb_s = np.zeros(1), np.zeros(1), np.zeros(1)
    reach = np.ones(1, dtype=np.int64)  # NPUs that the dimension and those below it join
    for d in fabric:
        reach = reach * d.size
        tier = np.searchsorted(prices.reach, reach)
        into = np.where(d.size > 1, d.bandwidth / GB, 0.0)
        switched = d.topology == TOPOLOGIES.index("switch")
        link, switch, nic, power = (
            np.array(a)[tier] for a in (prices.link_usd, prices.switch_usd, prices.nic_usd, prices.watts)
        )
        usd = usd + into * (link + nic + np.where(switched, switch, 0.0))
        watts = watts + into * power
        gb_s = gb_s + into
    return usd * npus, watts * npus, gb_s
