"""What the devices of this machine do: NVML where there is one, the kernel's counters of CPU and memory otherwise."""

import contextlib
from pathlib import Path

import msgspec


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    busy: float  # share, 0 to 1
    memory_gib: float
    memory_total_gib: float
    power_w: float | None = None
    temperature_c: float | None = None


def read(before: tuple[int, int]) -> tuple[dict[str, Reading], tuple[int, int]]:
    """Every device's reading by name, and the CPU counters to give to the next call."""
    gpus = _gpus()
    counters = _cpu_counters()
    if gpus:
        return gpus, counters
    total, idle = counters[0] - before[0], counters[1] - before[1]
    memory = {k: int(v.split()[0]) for k, _, v in (line.partition(":") for line in _lines("/proc/meminfo")) if v}
    all_gib = memory.get("MemTotal", 0) / 2**20
    free_gib = memory.get("MemAvailable", 0) / 2**20
    busy = 1 - idle / total if total > 0 else 0.0
    return {"cpu": Reading(busy=busy, memory_gib=all_gib - free_gib, memory_total_gib=all_gib)}, counters


def _cpu_counters() -> tuple[int, int]:
    """(all, idle) jiffies since boot."""
    first = next(iter(_lines("/proc/stat")), "cpu 0 0 0 0 0")
    values = [int(v) for v in first.split()[1:]]
    return sum(values), values[3] + (values[4] if len(values) > 4 else 0)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _gpus() -> dict[str, Reading]:
    try:
        import pynvml  # type: ignore[import-not-found] - only where somebody installed it
    except ImportError:
        return {}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return {}
    readings = {}
    for i in range(pynvml.nvmlDeviceGetCount()):
        with contextlib.suppress(pynvml.NVMLError):
            handle = pynvml.nvmlDeviceGetHandleByIndex(i)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            power = temperature = None
            with contextlib.suppress(pynvml.NVMLError):
                power = pynvml.nvmlDeviceGetPowerUsage(handle) / 1000
            with contextlib.suppress(pynvml.NVMLError):
                temperature = pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
            readings[f"gpu {i}"] = Reading(
                busy=pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
                memory_gib=float(memory.used) / 2**30,
                memory_total_gib=float(memory.total) / 2**30,
                power_w=power,
                temperature_c=temperature,
            )
    return readings
