"""The speed of a device and its links: the device record (job/device_records.py), with the groups of constants that
tests/tools/fit_hardware.py fits to measured kernels and collectives."""

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
    """An output tile of a matrix product. `efficiency`: share of the peak FLOP/s if all multiprocessors are busy."""

    rows: int
    columns: int
    efficiency: float


class Gemm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Matrix products. `overhead_us`: launch time; `bandwidth`: reachable share of the memory bandwidth; `extra_k`:
    prologue and epilogue of a kernel, as additional steps along the inner dimension k."""

    overhead_us: float
    bandwidth: float
    extra_k: float
    tiles: list[Tile]


class Attention(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fused attention. `efficiency`: share of the peak FLOP/s for long sequences; `half_length`: sequence length in
    tokens at which half of this efficiency is reached."""

    overhead_us: float
    efficiency: float
    half_length: float
    backward: float  # the backward kernel's efficiency, relative to the forward kernel's
    flash1: float  # speed of FlashAttention 1 and 2, relative to the kernel that was timed
    flash2: float
    deterministic: float = 1.0  # relative speed of the fastest kernel with a deterministic backward pass


class Elementwise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Memory-bound kernels. `overhead_us`: launch time; `bandwidth`, `norm_bandwidth`: share of the memory bandwidth
    that plain kernels and normalisations reach."""

    overhead_us: float
    bandwidth: float
    norm_bandwidth: float


class Curve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Latency and bus bandwidth of one collective, by group size (2, 4, 8 … ranks): seconds = latency + bytes per rank
    / bus bandwidth."""

    latency_us: list[float]
    bus_gb_s: list[float]


class Island(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The links inside a node (NVLink, PCIe or memory). `ranks`: the group sizes at which the curves were fitted.
    `peers`: whether devices can access each other's memory (peer to peer). `ring_gb_s`: bus bandwidth of a ring, which
    is a lower bound on the bandwidths of a curve, or replaces them if `peers` is false."""

    kind: str
    ranks: list[int]
    all_reduce: Curve
    all_gather: Curve
    reduce_scatter: Curve
    all_to_all: Curve
    send: Curve  # point to point, so the curve has a single entry
    inside_us: list[float]  # (ranks,) extra latency between a layer's kernels, see Topology.late
    peers: bool = True
    ring_gb_s: float = 0.0

    def bus_gb_s(self, curve: Curve, group: np.ndarray) -> np.ndarray:
        recorded = at(curve.bus_gb_s, self.ranks, group)
        return np.maximum(recorded, self.ring_gb_s) if self.peers else np.full_like(recorded, self.ring_gb_s)


class Network(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The links between nodes, shared by all devices of a node. `efficiency`: reachable share of `node_gb_s`."""

    latency_us: float
    node_gb_s: float
    efficiency: float


class Clocks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Factors on the speed of matrix products. `sustained`: speed in long sequences of products under the power limit,
    relative to products timed alone. `in_steps`: additional factor in training steps, where other kernels and waits
    leave more power. `in_steps_16`: additional factor for 16-bit products, which run closer to their peak."""

    sustained: float
    in_steps: float = 1.0
    in_steps_16: float = 1.0
    sixteen: float = 1.0  # factor that applies to 16-bit products; `Hardware.training` sets it to `in_steps_16`

    def speed(self, dtype: str) -> float:
        return self.sustained * (self.sixteen if dtype in ("bf16", "fp16") else 1.0)


class HostWork(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """CPU time to launch work. `forward_us`, `backward_us`: per operator of a layer; `collective_us`: per collective;
    `step_ms`: once per step."""

    forward_us: float
    backward_us: float
    collective_us: float
    step_ms: float


class Hardware(DeviceRecord, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A device record with the constants of kernels and links that price training steps and shadow runs (dry runs of
    the framework's own code)."""

    clocks: Clocks
    gemm: Gemm
    attention: Attention
    elementwise: Elementwise
    island: Island
    network: Network
    host: HostWork

    def training(self) -> "Hardware":
        """A copy of this device with the clocks that apply in training steps."""
        known = self.clocks
        if known.in_steps == known.in_steps_16 == 1:
            return self
        return replace(self, clocks=Clocks(known.sustained * known.in_steps, sixteen=known.in_steps_16))

    def peak(self, dtype: str) -> float:
        """Peak FLOP/s of the matrix units. A format that they do not support runs as the next wider one."""
        wider = {"fp4": "fp8", "fp8": "bf16"}
        while dtype not in self.peak_tflops and dtype in wider:
            dtype = wider[dtype]
        return 1e12 * self.peak_tflops.get(dtype, self.peak_tflops["bf16"])


def usable_gib(stated: Any, reported: float) -> np.ndarray:
    """Usable GiB of a device: the size that the job states, or the `reported` size (by the driver) if the job states
    none (NaN or 0) or the nominal size, which is slightly too large."""
    stated = np.asarray(stated, dtype=float)
    return np.where((stated > 0) & ~sold_by(stated, reported), stated, reported)


def shipped(stem: str) -> Hardware:
    """The record shipped with AutoScout, even if `autoscout calibrate` has replaced it on this machine."""
    return _of(stem, shipped_contents()[stem])


@cache
def all_hardware() -> dict[str, Hardware]:
    """All device records, by name. Errors: AutoscoutError (exit 2) that names the file and its problem."""
    if not records():
        raise AutoscoutError(f"no hardware files in {folder()}; reinstall AutoScout", 1)
    return {stem: _of(stem, content) for stem, content in contents().items()}


def hardware(name: str) -> Hardware | None:
    """The device with this name, as spelled in a job file, a table or by a driver; None if there is no record."""
    stem = stem_of(name)
    return all_hardware()[stem] if stem else None


def kinds(names: list[str]) -> list[str]:
    """The column names that are kinds of device. (On a mixed cluster, a knob named after a kind of device sets the
    number of devices of that kind.)"""
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
    """A curve's value for any group size: interpolated in log₂ between the measured sizes, constant beyond them."""
    return np.interp(np.log2(np.maximum(group, 1)), np.log2(ranks), values)
