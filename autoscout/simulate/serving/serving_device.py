"""A device in the serving model: the `[serving]` groups of its record, which tests/tools/fit_serving.py fits to
measured kernels, and `autoscout calibrate` to those of this machine."""

from functools import cache

import msgspec

from autoscout.job.device_likeness import GROUPS
from autoscout.job.device_names import stem_of
from autoscout.job.device_records import contents, where
from autoscout.job.words import nearest_name
from autoscout.simulate.hardware.device import Hardware, Island, all_hardware
from autoscout.simulate.serving.operators import Decode, Experts, Prefill, ServingElementwise, ServingGemm
from kb.records import AutoscoutError


class AllReduce(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Microseconds at message sizes `bytes`, for 2, 4 and 8 devices."""

    bytes: list[float]
    gpus_2_us: list[float]
    gpus_4_us: list[float] = []
    gpus_8_us: list[float] = []


class ServingHost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The engine's own work: per step, and per running sequence. `launch_us`: per kernel without a graph."""

    step_ms: float
    sequence_ms: float
    launch_us: float


class Kernels(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The speed of engines' kernels on a kind of device, beyond what its peaks imply. Speeds are relative to 16-bit
    kernels; the records give the source of each figure.

    `sinks`: attention over prompts in models with attention sinks. `eight_bits`, `four_bits`: products whose inputs
    have so many bits. `mxfp4_experts`: experts in MXFP4; `mxfp4_routing_us`: time to sort their tokens, beyond that of
    an ordinary mixture; `block_experts_us`: extra time of a layer whose experts are in blocks of FP8. `fused_experts`:
    every engine has fused expert kernels on this device, which in FP8 are `fp8_experts` times as fast as vLLM's Triton
    kernel. `norms_quantize`: norms and activations quantize to 8 bits, which saves launches. `reads_key_us`: time of a
    multiprocessor for a query head's next key if one block of threads reads all keys. `eight_bit_keys`: share of the
    bandwidth at which decoding reads 8-bit keys. `small_steps`: vLLM uses the defaults of devices with less memory.
    `exchange_times`: time of an all-reduce relative to its table and ring.
    """

    sinks: float
    eight_bits: float
    four_bits: float
    mxfp4_experts: float
    mxfp4_routing_us: float
    block_experts_us: float
    fused_experts: bool
    fp8_experts: float
    norms_quantize: bool
    reads_key_us: float
    small_steps: bool
    eight_bit_keys: float
    exchange_times: float


class ServingDevice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`memory_gib`: as the driver reports. `formats`: formats that it multiplies, which have a peak. `lasting`: by
    format, the speed of long sequences of products under its power limit, relative to `gemm.tflops`. `borrowed`: groups
    scaled from another device, the `lender`; `same`: this device has the lender's kernels and host, too."""

    name: str
    sms: int
    memory_gib: float
    formats: list[str]
    lasting: dict[str, float]
    cpu: bool
    gemm: ServingGemm
    elementwise: ServingElementwise
    decode: Decode
    prefill: Prefill
    experts: Experts
    all_reduce: AllReduce
    host: ServingHost
    kernels: Kernels
    island: Island
    borrowed: list[str] = []
    lender: str = ""
    same: bool = False


@cache
def device(name: str) -> ServingDevice:
    """Errors: AutoscoutError (exit 2) for a device without constants; it suggests the nearest name."""
    if not has_constants(name):
        known = [one for one in contents() if has_constants(one)]
        raise AutoscoutError(f"the serving model has no constants for '{name}'{nearest_name(name, known)}", 2)
    stem = stem_of(name)
    hw = all_hardware()[stem]
    own = {
        "name": stem,
        "sms": hw.multiprocessors,
        "memory_gib": hw.memory_gib,
        "formats": list(hw.peak_tflops),
        "lasting": _lasting(hw, contents()[stem]["serving"]["gemm"]["tflops"]),
        "cpu": hw.cores > 0,
        "island": hw.island,
    }
    try:
        return msgspec.convert({**contents()[stem]["serving"], **own}, ServingDevice)
    except msgspec.ValidationError as e:
        raise AutoscoutError(f"{where(stem)}: serving: {e}", 2) from None


def _lasting(hw: Hardware, tflops: float) -> dict[str, float]:
    """By format. The device rests between kernels that are timed one by one; in a prompt they follow each other without
    a pause, as in a training step."""
    best, clocks = max(tile.efficiency for tile in hw.gemm.tiles), hw.training().clocks
    return {dtype: best * clocks.speed(dtype) * peak / tflops for dtype, peak in hw.peak_tflops.items()}


def has_constants(name: str) -> bool:
    stem = stem_of(name)
    return bool(stem) and all(group in contents()[stem]["serving"] for group in GROUPS)
