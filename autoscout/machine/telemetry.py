"""Reads the load and memory of this machine's GPUs from NVML or nvidia-smi; without GPUs, of its CPU from /proc."""

import contextlib
from pathlib import Path
from typing import Any

import msgspec

from autoscout.running.cluster import gpus

_FIELDS = "index,utilization.gpu,memory.used,memory.total,power.draw,temperature.gpu"


class DeviceReading(msgspec.Struct, frozen=True, kw_only=True):
    busy: float  # share of the time, 0 to 1
    memory_gib: float
    memory_total_gib: float
    power_w: float | None = None
    temperature_c: float | None = None


class Meter:
    """Reads all devices by name; keeps NVML initialized, and the previous CPU counters, between reads."""

    def __init__(self) -> None:
        self._before = (0, 0)
        self._nvml = _nvml()

    def read(self) -> dict[str, DeviceReading]:
        if readings := (self._nvml and _gpus(self._nvml)) or _nvidia_smi():
            return readings
        counters = _cpu_counters()
        total, idle = counters[0] - self._before[0], counters[1] - self._before[1]
        self._before = counters
        memory = {k: int(v.split()[0]) for k, _, v in (line.partition(":") for line in _lines("/proc/meminfo")) if v}
        all_gib = memory.get("MemTotal", 0) / 2**20
        free_gib = memory.get("MemAvailable", 0) / 2**20
        busy = 1 - idle / total if total > 0 else 0.0
        return {"cpu": DeviceReading(busy=busy, memory_gib=all_gib - free_gib, memory_total_gib=all_gib)}


def _cpu_counters() -> tuple[int, int]:
    """(total, idle) CPU time since boot, in clock ticks."""
    first = next(iter(_lines("/proc/stat")), "cpu 0 0 0 0 0")
    values = [int(v) for v in first.split()[1:]]
    return sum(values), values[3] + (values[4] if len(values) > 4 else 0)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _nvml() -> Any:
    """The initialized module pynvml; None if the driver or nvidia-ml-py is missing."""
    try:
        import pynvml  # type: ignore[import-not-found]

        pynvml.nvmlInit()
    except Exception:  # no module or no driver; NVMLError cannot be named here, because the module defines it
        return None
    return pynvml


def _gpus(nvml: Any) -> dict[str, DeviceReading]:
    """Device → reading, without GPUs that the driver cannot reach; empty if the driver does not answer."""
    readings = {}
    with contextlib.suppress(nvml.NVMLError):
        for i in range(nvml.nvmlDeviceGetCount()):
            with contextlib.suppress(nvml.NVMLError):
                readings[f"gpu {i}"] = _gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(i))
    return readings


def _gpu(nvml: Any, handle: Any) -> DeviceReading:
    """The reading of one GPU. Values that the driver does not report (for MIG slices and unified memory) are None or 0,
    as in `parsed`. Errors: NVMLError for a GPU that cannot be reached."""

    def asked(ask: str, *arguments: Any) -> Any:
        try:
            return getattr(nvml, ask)(handle, *arguments)
        except nvml.NVMLError_NotSupported:
            return None

    busy, memory = asked("nvmlDeviceGetUtilizationRates"), asked("nvmlDeviceGetMemoryInfo")
    power = asked("nvmlDeviceGetPowerUsage")
    return DeviceReading(
        busy=busy.gpu / 100 if busy else 0.0,
        memory_gib=float(memory.used) / 2**30 if memory else 0.0,
        memory_total_gib=float(memory.total) / 2**30 if memory else 0.0,
        power_w=None if power is None else power / 1000,
        temperature_c=asked("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
    )


def _nvidia_smi() -> dict[str, DeviceReading]:
    """Device → reading, from nvidia-smi, which needs no Python package."""
    return parsed(gpus.asked(f"--query-gpu={_FIELDS}", limit_s=5.0))


def parsed(table: str) -> dict[str, DeviceReading]:
    """Parses the CSV output of nvidia-smi. An unreported value ("[N/A]") is None, or 0 in numeric fields."""
    readings = {}
    for line in table.splitlines():
        index, *cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 5:
            busy, used, total, power, temperature = (_number(cell) for cell in cells)
            readings[f"gpu {index}"] = DeviceReading(
                busy=(busy or 0.0) / 100,
                memory_gib=(used or 0.0) / 1024,
                memory_total_gib=(total or 0.0) / 1024,
                power_w=power,
                temperature_c=temperature,
            )
    return readings


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None
