"""Joules that GPUs have taken, by the counter of NVIDIA's driver (NVML, which comes with it; Volta and newer).

Runs under any interpreter: no package is needed.
"""

import ctypes
import functools
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"


def joules(gpus: list[str]) -> float | None:
    """Since the driver was loaded, of all of these together: indices in the order of the PCI bus, or UUIDs. None where
    the driver does not tell it of every one."""
    library = _library()
    if library is None or not gpus:
        return None
    total = 0
    for gpu in gpus:
        handle, taken = ctypes.c_void_p(), ctypes.c_ulonglong()
        if gpu.isdigit():
            failed = library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(gpu)), ctypes.byref(handle))
        else:
            failed = library.nvmlDeviceGetHandleByUUID(gpu.encode(), ctypes.byref(handle))
        if failed or library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(taken)):
            return None
        total += taken.value
    return total / 1000


@functools.cache
def _library() -> Any:
    """NVML, ready; None where there is no driver."""
    try:
        library = ctypes.CDLL(_LIBRARY)
        return None if library.nvmlInit_v2() else library
    except (OSError, AttributeError):
        return None
