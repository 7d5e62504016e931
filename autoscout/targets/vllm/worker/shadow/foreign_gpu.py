"""Makes vLLM's platform object behave as on a machine with GPUs, so that its defaults and overrides are those for GPUs.
vLLM's modules are first imported as on this CPU, since on a GPU they would look for kernels. Then the platform object,
to which all of them refer, is changed to an instance of vLLM's CUDA platform class."""

import importlib.util
import sys
import types
from typing import Any

_KERNELS = ("vllm._C_stable_libtorch", "vllm._C")  # the second one exists up to vLLM 0.20


def without_kernels() -> None:
    """Replaces the extensions that vLLM's CUDA platform imports and that CPU builds lack."""
    for name in _KERNELS:
        if name not in sys.modules and importlib.util.find_spec(name) is None:
            sys.modules[name] = types.ModuleType(name)


def become(name: str, capability: float, memory: int, count: int) -> None:
    """Changes the platform to this kind of GPU. `memory`: bytes per device. `count`: number of visible devices."""
    without_kernels()
    import vllm.config.vllm
    from vllm.platforms import current_platform
    from vllm.platforms.cuda import CudaPlatformBase
    from vllm.platforms.interface import DeviceCapability

    class ForeignGpu(CudaPlatformBase):
        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:
            return DeviceCapability(int(capability), round(capability % 1 * 10))

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return name

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return memory

        @classmethod
        def is_fully_connected(cls, device_ids: list[int]) -> bool:
            return True

        @classmethod
        def device_count(cls) -> int:
            return count

    current_platform.__class__ = ForeignGpu
    # makes vLLM choose its model runner for GPUs, which queues steps differently from the one for CPUs
    vllm.config.vllm.HAS_TRITON = True
