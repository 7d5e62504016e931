"""The speed of a device and its links: its record (job/device_records.py) with the sections that
tests/tools/fit_hardware.py fits to measurements of kernels and collectives."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from autoscout.job.device_names import sold_by, stem_of
from autoscout.job.device_records import (
    DeviceRecord,
    by_name,
    contents,
    folder,
    plain,
    records,
    shipped_contents,
    where,
)
from autoscout.job.words import listed
from kb.records import AutoscoutError


class Tile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An output tile of a matrix-product kernel; `efficiency` is the share of the peak for full waves."""

    rows: int
    columns: int
    efficiency: float


class Gemm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Matrix products: launch, share of the memory bandwidth, and inner steps lost to prologue and epilogue."""

    overhead_us: float
    bandwidth: float
    extra_k: float
    tiles: list[Tile]


class Attention(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fused attention: share of the peak for long sequences, and the length at which half of it is lost."""

    overhead_us: float
    efficiency: float
    half_length: float
    backward: float  # the backward kernel's efficiency, relative to the forward kernel's
    flash1: float  # older kernels' speed, relative to the one that was timed
    flash2: float
    deterministic: float = 1.0  # speed of the fastest kernels with a deterministic backward pass


class Elementwise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Kernels bound by memory: launch, and share of the bandwidth for plain ones and for normalisations."""

    overhead_us: float
    bandwidth: float
    norm_bandwidth: float


class Curve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One collective over 2, 4, 8 … ranks of a link: seconds = latency + bytes moved per rank / bus bandwidth."""

    latency_us: list[float]
    bus_gb_s: list[float]


class Island(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The links inside a node (NVLink, PCIe or memory). `ranks`: the group sizes at which the curves were fitted.
    `peers`: devices can reach each other's memory. `ring_gb_s`: the bus bandwidth of groups on machines other than the
    recorded one: a lower bound, or the exact value without `peers`."""

    kind: str
    ranks: list[int]
    all_reduce: Curve
    all_gather: Curve
    reduce_scatter: Curve
    all_to_all: Curve
    send: Curve  # one entry: point to point
    inside_us: list[float]  # extra latency between the products of a layer, where ranks arrive late
    peers: bool = True
    ring_gb_s: float = 0.0

    def bus_gb_s(self, curve: Curve, group: np.ndarray) -> np.ndarray:
        recorded = at(curve.bus_gb_s, self.ranks, group)
        return np.maximum(recorded, self.ring_gb_s) if self.peers else np.full_like(recorded, self.ring_gb_s)


class Network(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The links between nodes: what all devices of a node share."""

    latency_us: float
    node_gb_s: float
    efficiency: float


class Clocks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`sustained`: speed of products inside a model, under the power limit, relative to products timed alone.
    `in_steps`: in training steps relative to that, where other kernels and waits leave more power; `in_steps_16`: an
    additional factor for 16 bits, which run closer to their peak."""

    sustained: float
    in_steps: float = 1.0
    in_steps_16: float = 1.0
    sixteen: float = 1.0  # `in_steps_16`, once `training` has applied it; else 1

    def speed(self, dtype: str) -> float:
        return self.sustained * (self.sixteen if dtype in ("bf16", "fp16") else 1.0)


class HostWork(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """CPU time to issue work: per operator of a layer, per collective, and once per step."""

    forward_us: float
    backward_us: float
    collective_us: float
    step_ms: float


class Hardware(DeviceRecord, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A device record with its kernels and links, as training and the shadows' prices need them."""

    clocks: Clocks
    gemm: Gemm
    attention: Attention
    elementwise: Elementwise
    island: Island
    network: Network
    host: HostWork

    def training(self) -> "Hardware":
        """This device with the clocks that it has in training steps."""
        known = self.clocks
        if known.in_steps == known.in_steps_16 == 1:
            return self
        return replace(self, clocks=Clocks(known.sustained * known.in_steps, sixteen=known.in_steps_16))

    def peak(self, dtype: str) -> float:
        """FLOP/s of the matrix units. Unsupported formats are widened to the next supported one."""
        wider = {"fp4": "fp8", "fp8": "bf16"}
        while dtype not in self.peak_tflops and dtype in wider:
            dtype = wider[dtype]
        return 1e12 * self.peak_tflops.get(dtype, self.peak_tflops["bf16"])


def usable_gib(stated: Any, reported: float) -> np.ndarray:
    """GiB of a device; `stated`: by the job (NaN or 0: nothing), `reported`: by the driver."""
    stated = np.asarray(stated, dtype=float)
    return np.where((stated > 0) & ~sold_by(stated, reported), stated, reported)


def shipped(stem: str) -> Hardware:
    """A record that came with AutoScout, even if this machine was calibrated since."""
    return _of(stem, shipped_contents()[stem])


@cache
def all_hardware() -> dict[str, Hardware]:
    """By the record's name. Errors: AutoscoutError (exit 2) with the file and its problem."""
    if not records():
        raise AutoscoutError(f"no hardware files in {folder()}; reinstall AutoScout", 1)
    return {stem: _of(stem, content) for stem, content in contents().items()}


def hardware(name: str) -> Hardware | None:
    """The device with this name in a job file, a table or a driver; None if there are no constants for it."""
    stem = stem_of(name)
    return all_hardware()[stem] if stem else None


def kinds(names: list[str]) -> list[str]:
    """The `names` that are devices. (On a mixed cluster, the number of devices is a knob with the device's name.)"""
    return [n for n in names if plain(n) in by_name()]


def _of(stem: str, content: Mapping[str, Any]) -> Hardware:
    try:
        found = msgspec.convert({name: value for name, value in content.items() if name != "serving"}, Hardware)
    except msgspec.ValidationError as e:
        raise AutoscoutError(f"{where(stem)}: {e}", 2) from None
    curves = (found.island.all_reduce, found.island.all_gather, found.island.reduce_scatter, found.island.all_to_all)
    lengths = {len(found.island.inside_us), *(len(each) for one in curves for each in (one.latency_us, one.bus_gb_s))}
    if lengths != {len(found.island.ranks)}:
        raise AutoscoutError(
            f"{where(stem)}: island.ranks lists {len(found.island.ranks)} group sizes, but its curves have "
            f"{listed(sorted(lengths))} figures; give each curve one figure per group size",
            2,
        )
    return found


def at(values: list[float], ranks: list[int], group: np.ndarray) -> np.ndarray:
    """A curve's constant for any group size: interpolated in log₂ between the measured sizes, constant beyond them."""
    return np.interp(np.log2(np.maximum(group, 1)), np.log2(ranks), values)
