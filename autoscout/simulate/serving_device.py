"""A device as the serving model sees it: serving_devices.toml, or what `autoscout calibrate` measured on this machine."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from autoscout.simulate.serving_operators import Decode, Elementwise, Experts, Gemm, Prefill
from autoscout.words import nearest_name
from kb.records import AutoscoutError

CALIBRATED = "serving"  # the table of a calibrated device's file that has this module's constants


class AllReduce(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Microseconds at message sizes `bytes`, for 2, 4 and 8 devices."""

    bytes: list[float]
    gpus_2_us: list[float]
    gpus_4_us: list[float] = []
    gpus_8_us: list[float] = []


class Host(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The engine's own work: per step, and per sequence that runs in it."""

    step_ms: float
    sequence_ms: float


class ServingDevice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`tflops` (dense bf16), `gb_s`, `memory_gib`: the data sheet's."""

    name: str
    sms: int
    tflops: float
    gb_s: float
    memory_gib: float
    nvlink: bool
    gemm: Gemm
    elementwise: Elementwise
    decode: Decode
    prefill: Prefill
    experts: Experts
    all_reduce: AllReduce
    host: Host
    like: str = ""
    memory_share: float = 0.0


@cache
def device(name: str) -> ServingDevice:
    """Errors: AutoscoutError (exit 2) for a device that no file describes, naming the nearest."""
    table = _known()
    if name not in table:
        raise AutoscoutError(
            f"the serving model has no constants for the device '{name}'{nearest_name(name, table)}", 2
        )
    return msgspec.convert({"name": name, **_completed(table, name)}, ServingDevice)


def known_devices() -> list[str]:
    return sorted(_known())


def _known() -> dict[str, Any]:
    from autoscout.calibrate import calibrated

    shipped = tomllib.loads((Path(__file__).parent / "serving_devices.toml").read_text())
    own = {name: found[CALIBRATED] for name, found in calibrated().items() if CALIBRATED in found}
    return {**shipped, **own}


def _completed(table: dict[str, Any], name: str) -> dict[str, Any]:
    """Groups that the device lacks come from the one it is like, scaled by the peaks of both."""
    own = table[name]
    if "like" not in own:
        return own
    other = _completed(table, own["like"])
    compute, memory = own["tflops"] / other["tflops"], own["gb_s"] / other["gb_s"]
    if share := own.get("memory_share"):
        memory = share * own["gb_s"] / other["gemm"]["gb_s"]
    scaled = {
        group: {k: v * {"tflops": compute, "gb_s": memory}.get(k, 1.0) for k, v in constants.items()}
        if group not in ("all_reduce", "host")
        else constants
        for group, constants in other.items()
        if isinstance(constants, dict)
    }
    return {**scaled, **own}
