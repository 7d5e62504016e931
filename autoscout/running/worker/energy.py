"""Reads from NVIDIA's driver (NVML) the energy that GPUs have used (Volta and newer), and the driver's index of a GPU.
Needs only the standard library, so that it works in any interpreter."""

import ctypes
import functools
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"


def joules(gpus: list[str]) -> float | None:
    """Joules since the driver was loaded, summed over `gpus`: indices in PCI bus order, or UUIDs. None unless the
    driver reports all of them."""
    library = _library()
    if library is None or not gpus:
        return None
    total = 0
    for gpu in gpus:
        handle, taken = _handle(library, gpu), ctypes.c_ulonglong()
        if handle is None or library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(taken)):
            return None
        total += taken.value
    return total / 1000


def index(gpu: str) -> int | None:
    """The driver's index of a GPU, regardless of CUDA_VISIBLE_DEVICES; None if the driver does not report it."""
    library, found = _library(), ctypes.c_uint()
    if library is None or (handle := _handle(library, gpu)) is None:
        return None
    if library.nvmlDeviceGetIndex(handle, ctypes.byref(found)):
        return None
    return found.value


def _handle(library: Any, gpu: str) -> Any:
    handle = ctypes.c_void_p()
    if gpu.isdigit():
        failed = library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(gpu)), ctypes.byref(handle))
    else:
        failed = library.nvmlDeviceGetHandleByUUID(gpu.encode(), ctypes.byref(handle))
    return None if failed else handle


@functools.cache
def _library() -> Any:
    """NVML, initialized; None if there is no driver."""
    try:
        library = ctypes.CDLL(_LIBRARY)
        return None if library.nvmlInit_v2() else library
    except (OSError, AttributeError):
        return None
