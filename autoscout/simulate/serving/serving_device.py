"""A device as the serving model sees it: the `[serving]` groups of its record, which tests/tools/fit_serving.py fits to
measured kernels and `autoscout calibrate` to those of this machine."""

from functools import cache

import msgspec

from autoscout.job.device_likeness import GROUPS
from autoscout.job.device_names import stem_of
from autoscout.job.device_records import contents, where
from autoscout.job.words import nearest_name
from autoscout.simulate.hardware.device import Island, all_hardware
from autoscout.simulate.serving.operators import Decode, Experts, Prefill, ServingElementwise, ServingGemm
from kb.records import AutoscoutError


class AllReduce(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Microseconds at message sizes `bytes`, for 2, 4 and 8 devices."""

    bytes: list[float]
    gpus_2_us: list[float]
    gpus_4_us: list[float] = []
    gpus_8_us: list[float] = []


class ServingHost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The engine's own work: per step, and per sequence that runs in it. `launch_us`: of one kernel without a graph."""

    step_ms: float
    sequence_ms: float
    launch_us: float


class Kernels(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What engines' kernels do on a kind of device, where that is not a matter of its peaks. Speeds are relative to
    kernels in 16 bits; the records say where each figure is from.

    `sinks`: of prompts' attention in models with attention sinks. `eight_bits`, `four_bits`: of products whose inputs
    the device multiplies in so many bits. `mxfp4_experts`: of experts in MXFP4, and `mxfp4_routing_us` of what sorts
    their tokens beyond a usual mixture's; `block_experts_us`: what a layer takes longer whose experts are in blocks of
    FP8. `fused_experts`: every engine has fused kernels for experts here, in FP8 `fp8_experts` times as fast as vLLM's
    Triton one. `norms_quantize`: norms and activations bring inputs to 8 bits, so that no launches are added.
    `reads_key_us`: of a multiprocessor for a query head's next key, where one block of threads reads all.
    `eight_bit_keys`: of the bandwidth at which attention of tokens that are generated reads keys of 8 bits.
    `small_steps`: vLLM's defaults are those of devices with less memory. `exchange_times`: how much longer an
    all-reduce takes than its table and ring say."""

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
    """`memory_gib`: what the driver reports. `formats`: that it multiplies, those with a peak. `borrowed`: groups that
    are another device's, the `lender`'s, scaled; `same`: and that device's kernels and host are this one's."""

    name: str
    sms: int
    memory_gib: float
    formats: list[str]
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
    """Errors: AutoscoutError (exit 2) for a device without constants, naming the nearest."""
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
        "cpu": hw.cores > 0,
        "island": hw.island,
    }
    try:
        return msgspec.convert({**contents()[stem]["serving"], **own}, ServingDevice)
    except msgspec.ValidationError as e:
        raise AutoscoutError(f"{where(stem)}: serving: {e}", 2) from None


def has_constants(name: str) -> bool:
    stem = stem_of(name)
    return bool(stem) and all(group in contents()[stem]["serving"] for group in GROUPS)
