"""A device as the serving model sees it: serving_devices.toml, or what `autoscout calibrate` measured here."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from autoscout.job.words import nearest_name
from autoscout.simulate.hardware.device import Hardware, all_hardware, hardware, own_folder
from autoscout.simulate.serving.operators import Decode, Elementwise, Experts, Gemm, Prefill
from kb.records import AutoscoutError

SERVING = "serving"  # folder, beside the calibrated hardware files, of this module's constants


class AllReduce(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Microseconds at message sizes `bytes`, for 2, 4 and 8 devices."""

    bytes: list[float]
    gpus_2_us: list[float]
    gpus_4_us: list[float] = []
    gpus_8_us: list[float] = []


class Ring(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """NCCL's all-reduce over so many ranks: the hardware file's."""

    ranks: list[int]
    latency_us: list[float]
    bus_gb_s: list[float]


class Host(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The engine's own work: per step, and per sequence that runs in it. `launch_us`: of one kernel without a graph."""

    step_ms: float
    sequence_ms: float
    launch_us: float


class ServingDevice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`memory_gib`: what the driver reports. `borrowed`: groups that are another device's, scaled."""

    name: str
    sms: int
    memory_gib: float
    gemm: Gemm
    elementwise: Elementwise
    decode: Decode
    prefill: Prefill
    experts: Experts
    all_reduce: AllReduce
    host: Host
    ring: Ring
    borrowed: list[str] = []


@cache
def device(name: str) -> ServingDevice:
    """Errors: AutoscoutError (exit 2) for a device without constants, naming the nearest."""
    found = _find(name)
    if found is None:
        raise AutoscoutError(f"the serving model has no constants for '{name}'{nearest_name(name, _constants())}", 2)
    stem, hw = found
    own = {"name": stem, "sms": hw.multiprocessors, "memory_gib": hw.memory_gib}
    links = hw.island.all_reduce
    ring = {"ranks": hw.island.ranks, "latency_us": links.latency_us, "bus_gb_s": links.bus_gb_s}
    return msgspec.convert({**_completed(stem), **own, "ring": ring}, ServingDevice)


def has_constants(name: str) -> bool:
    return _find(name) is not None


@cache
def _find(name: str) -> tuple[str, Hardware] | None:
    hw = hardware(name)
    stem = next((stem for stem, other in all_hardware().items() if other is hw), "")
    return (stem, hw) if hw and stem in _constants() else None


@cache
def _constants() -> dict[str, Any]:
    """By hardware file; constants measured on this machine replace shipped ones."""
    shipped = tomllib.loads((Path(__file__).parent / "serving_devices.toml").read_text(encoding="utf-8"))
    files = sorted((own_folder() / SERVING).glob("*.toml"))
    own = {path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in files}
    return {**shipped, **own}


def _completed(stem: str) -> dict[str, Any]:
    """Groups that the device lacks are borrowed from the one it is `like`, scaled by the ratio of their peaks, or to
    the `tflops` that products are known to reach; all-reduces from the one whose `links` it has."""
    own = dict(_constants()[stem])
    like, share, reached = own.pop("like", ""), own.pop("memory_share", 0.0), own.pop("tflops", 0.0)
    if links := own.pop("links", ""):
        own["all_reduce"] = _completed(links)["all_reduce"]
    if not like:
        return own
    other, hw, other_hw = _completed(like), all_hardware()[stem], all_hardware()[like]
    compute, memory = hw.peak("bf16") / other_hw.peak("bf16"), hw.memory_gb_s / other_hw.memory_gb_s
    if reached:
        compute = reached / other["gemm"]["tflops"]
    if share:
        memory = share * hw.memory_gb_s / other["gemm"]["gb_s"]
    scale = {"tflops": compute, "gb_s": memory}
    lent = {
        group: constants if group == "all_reduce" else {k: v * scale.get(k, 1.0) for k, v in constants.items()}
        for group, constants in other.items()
        if group not in own and isinstance(constants, dict)
    }
    return {**lent, **own, "borrowed": sorted(lent)}
