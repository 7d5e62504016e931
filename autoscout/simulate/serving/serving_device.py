"""A device in the serving model: the `[serving]` groups of its record. tests/tools/fit_serving.py fits the groups of
shipped records to measured kernels; `autoscout calibrate` fits the groups of this machine."""

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
    """Microseconds of an all-reduce at the message sizes `bytes`, for 2, 4 and 8 devices."""

    bytes: list[float]
    gpus_2_us: list[float]
    gpus_4_us: list[float] = []
    gpus_8_us: list[float] = []


class ServingHost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """CPU time of vLLM: per step, and per sequence in it. `launch_us`: time to launch a kernel without a CUDA graph."""

    step_ms: float
    sequence_ms: float
    launch_us: float


class Kernels(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The speed of engines' kernels on a kind of device, where it does not follow from the device's peaks. Speeds are
    relative to 16-bit kernels; the device records state the source of each figure.

    `sinks`: speed of prefill attention with attention sinks. `eight_bits`, `four_bits`: speed of products with 8-bit
    and 4-bit inputs. `mxfp4_experts`: speed of experts in MXFP4; `mxfp4_routing_us`: additional time per layer to sort
    their tokens, compared to 16-bit experts; `block_experts_us`: additional time of a layer with block-scaled FP8
    experts. `fused_experts`: every engine has fused expert kernels for this device; `fp8_experts`: their speed in FP8
    relative to vLLM's Triton kernel. `norms_quantize`: norms and activations also quantize to 8 bits, which saves
    launches. `reads_key_us`: time per key if one block of threads reads all keys of a query head. `eight_bit_keys`:
    relative bandwidth at which decoding reads 8-bit keys. `small_steps`: vLLM uses its defaults for devices with less
    memory. `exchange_times`: factor on the time of an all-reduce."""

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
    """A device's constants in the serving model. `sms`: number of multiprocessors; `memory_gib`: as its driver reports;
    `formats`: number formats that its matrix units support. `lasting`: by format, the speed of long sequences of
    products under the power limit, relative to `gemm.tflops`. `borrowed`: groups of constants scaled from another
    device (`lender`); `same`: whether the lender has the same kernels and host."""

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
    """The device with this name. Errors: AutoscoutError (exit 2) for one without constants, with the nearest name."""
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
    """Computes `ServingDevice.lasting`. The device pauses between kernels that are timed one by one. In a prompt,
    kernels follow each other without a pause, so the clocks of training steps apply."""
    best, clocks = max(tile.efficiency for tile in hw.gemm.tiles), hw.training().clocks
    return {dtype: best * clocks.speed(dtype) * peak / tflops for dtype, peak in hw.peak_tflops.items()}


def has_constants(name: str) -> bool:
    stem = stem_of(name)
    return bool(stem) and all(group in contents()[stem]["serving"] for group in GROUPS)
