"""What a device and its links can do, as data: fixtures/hardware/*.toml.

The upper part of a file is the data sheet; the part below `[gemm]` is fitted from measurements of kernels and
collectives by tests/tools/fit_hardware.py, which also writes how good the fit is. A new device is a new file.
"""

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from autoscout.job import shipped as shipped_files
from autoscout.job.presets import sold_by
from kb.records import AutoscoutError
from kb.store import default_path


class Tile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An output tile of a matrix-product kernel; `efficiency` is the share of the peak that full waves reach."""

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
    """Kernels bound by memory: launch, share of the bandwidth of plain ones and of normalisations."""

    overhead_us: float
    bandwidth: float
    norm_bandwidth: float


class Curve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One collective over 2, 4, 8 … ranks of a link: seconds = latency + bytes moved per rank / bus bandwidth."""

    latency_us: list[float]
    bus_gb_s: list[float]


class Island(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The links inside a node (NVLink, PCIe or memory). `ranks`: the group sizes that the curves were fitted at."""

    kind: str
    ranks: list[int]
    all_reduce: Curve
    all_gather: Curve
    reduce_scatter: Curve
    all_to_all: Curve
    send: Curve  # one entry: point to point
    inside_us: list[float]  # extra latency between the products of a layer, where ranks arrive late


class Network(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The links between nodes: what all devices of a node share."""

    latency_us: float
    node_gb_s: float
    efficiency: float


class Clocks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`sustained`: speed of products inside a model, under the power limit, relative to products timed one by one.
    `in_steps`: and in training steps relative to that, where other kernels and waits leave them power; `in_steps_16`:
    of those in 16 bits besides, which have come nearer to their peak than others."""

    sustained: float
    in_steps: float = 1.0
    in_steps_16: float = 1.0
    sixteen: float = 1.0  # the last, in what `training` returns

    def speed(self, dtype: str) -> float:
        return self.sustained * (self.sixteen if dtype in ("bf16", "fp16") else 1.0)


class Host(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """CPU time to issue work: per operator of a layer, per collective, and once per step."""

    forward_us: float
    backward_us: float
    collective_us: float
    step_ms: float


class Hardware(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str
    names: list[str]  # what job files and tables call it
    source: str
    memory_gib: float
    memory_gb_s: float
    multiprocessors: int
    per_node: int  # devices in one island of links
    per_tray: int = 0  # hosts of an island that spans several; 0: an island is a host
    peak_tflops: dict[str, float]  # by dtype, dense
    cores: int = 0  # a CPU's, which all ranks of a node share; 0: every rank has a device of its own
    watts: float = 0.0  # a device's limit by its data sheet; 0: not known
    host_gb_s: float = 32.0  # to its host, one way, by its data sheet
    channel_gb_s: float = 0.0  # what one of NCCL's channels moves over the island's links; 0: not known
    context_gib: float  # what the driver, its libraries and the communicators occupy
    calibrated: bool  # its kernels were measured, not only read off a data sheet
    doubt: float = 0.0  # extra error of log(measured / predicted), where runs disagree with its kernels
    clocks: Clocks
    gemm: Gemm
    attention: Attention
    elementwise: Elementwise
    island: Island
    network: Network
    host: Host

    def training(self) -> "Hardware":
        """With the clocks of training steps."""
        known = self.clocks
        if known.in_steps == known.in_steps_16 == 1:
            return self
        return replace(self, clocks=Clocks(known.sustained * known.in_steps, sixteen=known.in_steps_16))

    def peak(self, dtype: str) -> float:
        """FLOP/s of the matrix units. Values of a format that they lack are widened to the next."""
        wider = {"fp4": "fp8", "fp8": "bf16"}
        while dtype not in self.peak_tflops and dtype in wider:
            dtype = wider[dtype]
        return 1e12 * self.peak_tflops.get(dtype, self.peak_tflops["bf16"])


def usable_gib(stated: Any, reported: float) -> np.ndarray:
    """GiB of a device of which a job says `stated` (NaN or 0: nothing) and whose driver reports `reported`."""
    stated = np.asarray(stated, dtype=float)
    return np.where((stated > 0) & ~sold_by(stated, reported), stated, reported)


def folder() -> Path:
    return shipped_files.folder() / "hardware"


def shipped(stem: str) -> Hardware:
    """A file that came with AutoScout, even if this machine was calibrated since."""
    return _read(folder() / f"{stem}.toml")


def own_folder() -> Path:
    """Where `autoscout calibrate` puts what it measured: beside the knowledge base."""
    return default_path().parent / "hardware"


@cache
def all_hardware() -> dict[str, Hardware]:
    """By file name, without its ending; files measured on this machine replace shipped ones."""
    paths = [*sorted(folder().glob("*.toml")), *sorted(own_folder().glob("*.toml"))]
    found = {path.stem: _read(path) for path in paths}
    if not found:
        raise AutoscoutError(f"no hardware files in {folder()}; reinstall AutoScout", 1)
    return found


def hardware(name: str) -> Hardware | None:
    """The device that a job file, a table or a driver calls by this name; None if there are no constants for it."""
    return _by_name().get(_plain(name)) or _by_name().get(_plain(_described(name)))


def kinds(names: list[str]) -> list[str]:
    """Those of `names` that are devices (on a mixed cluster, each device's count is a knob of its name)."""
    return [n for n in names if _plain(n) in _by_name()]


_DEVICE = re.compile(
    r"\b(gb300|gb200|b300|b200|h200|h100|h800|l40s|l4|a10g|a10|a40|v100|a100|a800|mi3[025][05]x|rtx 4090|rtx 5090"
    r"|rtx pro 6000(?= blackwell))\b(?! d\b)"
)
_VARIANT = re.compile(  # other clocks, links or memory
    r"\b\d+ ?w\b|\bnvl\b|\bmig\b|\b\dg\.\d+gb\b|\b16 ?gi?b\b|\b(?<!6000 blackwell )96 ?gi?b\b|\bmax q\b|\blaptop\b"
)


@cache
def _described(name: str) -> str:
    """ "NVIDIA A100-SXM4-80GB" → our name of the device; "" for none of ours, or another variant of it."""
    text = re.sub(r"[_\-/(),]+", " ", name.lower())
    found = set(_DEVICE.findall(text))
    if len(found) != 1 or _VARIANT.search(text):
        return ""
    (device,) = found
    small, pcie = re.search(r"\b40 ?g", text) is not None, "pcie" in text
    if device == "a100":
        return "" if small and pcie else "a100-40-sxm" if small else "a100-80-pcie" if pcie else "a100-80-sxm"
    if device == "a800" and small:
        return ""
    return "" if pcie and device in ("h100", "h200", "h800", "a800", "v100") else device


@cache
def _by_name() -> dict[str, Hardware]:
    return {_plain(n): h for stem, h in all_hardware().items() for n in [stem, h.name, *h.names]}


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def _read(path: Path) -> Hardware:
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Hardware)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as e:
        raise AutoscoutError(f"{path}: {e}", 2) from None


def at(values: list[float], ranks: list[int], group: np.ndarray) -> np.ndarray:
    """A curve's constant for any group size: interpolated in log₂ between the measured sizes, constant beyond them."""
    return np.interp(np.log2(np.maximum(group, 1)), np.log2(ranks), values)
