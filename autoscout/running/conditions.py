"""Measuring conditions: how much other processes used this machine while an experiment ran.

CPU, from the kernel's counters: `cpu_share` (share of all CPU time in use), `foreign_cpu_share` (share used by
processes that are not ours), `steal_share` (given to other machines by the hypervisor), `cpu_pressure` (share of time
in which some process waited for a CPU; our own ranks may wait for each other). GPUs, from nvidia-smi during the run:
the lowest `clock_mhz` and the mean `power_w` of all busy GPUs, the highest `temperature_c`, `throttled` (1 if heat or
power slowed a GPU); `per_rank` has the same values for each rank's device.
"""

import contextlib
import math
import os
import shutil
import threading
import time
from pathlib import Path

import msgspec

from autoscout.running import processes
from autoscout.running.cluster import gpus
from autoscout.running.cluster.devices import device_kind
from kb import dates
from kb.records import Job, Measurement
from kb.sharing import hosts

# Share of all CPU time above which the use by other processes is reported. At 15 %, eight ranks on eight CPUs lack more
# than one CPU.
BUSY = 0.15
_LOOK_S = 0.3
_EVERY_S = 2.0
_FIELDS = "index,name,clocks.sm,temperature.gpu,power.draw,clocks_throttle_reasons.active,memory.used"
# NVML's throttle reasons that a configuration does not cause by itself: hardware slowdown, thermal slowdown (software,
# hardware), power brake. Idle (1), application clocks (2) and the power cap (4) are normal operation.
_IDLE = 0x01
SLOWED = 0x08 | 0x20 | 0x40 | 0x80


class Counters(msgspec.Struct, frozen=True):
    """Counters since boot, in CPU-seconds of all CPUs: total; busy; given to other virtual machines (steal); used by
    our processes. `waited`: seconds in which some process waited for a CPU."""

    total: float = 0.0
    busy: float = 0.0
    steal: float = 0.0
    ours: float = 0.0
    waited: float = 0.0


class Sample(msgspec.Struct, frozen=True):
    """A GPU at one time; `reasons`: NVML's throttle reasons, as a bit mask; `memory_gib`: used by all processes."""

    index: int
    name: str
    clock_mhz: float
    temperature_c: float
    power_w: float
    reasons: int
    memory_gib: float = math.nan


class MachineWatch:
    """Records the machine's conditions from construction until `ended` is called."""

    def __init__(self) -> None:
        self._began, self._before = time.monotonic(), counters()
        self.samples: list[Sample] = []
        self._over = threading.Event()
        self._sampler: threading.Thread | None = None
        if shutil.which("nvidia-smi"):
            self._sampler = threading.Thread(target=self._sample, daemon=True)
            self._sampler.start()

    def ended(self) -> dict[str, float]:
        """The conditions by name; those that this machine does not report are absent."""
        self._over.set()
        now, elapsed = counters(), max(time.monotonic() - self._began, 1e-9)
        found: dict[str, float] = {}
        total = now.total - self._before.total
        if total > 0:
            found["cpu_share"] = min(max((now.busy - self._before.busy) / total, 0.0), 1.0)
            found["foreign_cpu_share"] = foreign_share(self._before, now)
            found["steal_share"] = max(now.steal - self._before.steal, 0.0) / total
        if now.waited:
            found["cpu_pressure"] = min(max(now.waited - self._before.waited, 0.0) / elapsed, 1.0)
        if self._sampler is not None:
            self._sampler.join(timeout=_EVERY_S + 5)
            found |= of_gpus(self.samples)
        return found

    def _sample(self) -> None:
        # The first sample is taken before the run allocates memory.
        while table := gpus.asked(f"--query-gpu={_FIELDS}", limit_s=5.0):
            self.samples += parsed(table)
            if self._over.wait(_EVERY_S):
                return


def busy_now(job: Job) -> str:
    """A sentence on the share of this machine's CPU time that other processes use; "" if the share is small, or if the
    job does not run on CPUs here."""
    if job.launch.launcher == "replay" or job.cluster.hosts or device_kind(job) != "cpu":
        return ""
    before = counters()
    time.sleep(_LOOK_S)
    share = foreign_share(before, counters())
    busy = f"other processes take {share:.0%} of this machine's CPU time now"
    return f"{busy}; times will be longer and less certain" if share >= BUSY else ""


def foreign_share(before: Counters, now: Counters) -> float:
    """Share of all CPU time between two readings that was used by processes other than ours."""
    total, foreign = now.total - before.total, (now.busy - before.busy) - (now.ours - before.ours)
    return min(max(foreign / total, 0.0), 1.0) if total > 0 else 0.0


def parsed(table: str) -> list[Sample]:
    rows = []
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        with contextlib.suppress(ValueError):
            index, name, clock, temperature, power, reasons, *used = cells
            gib = float(used[0]) / 1024 if used and used[0].replace(".", "").isdecimal() else math.nan
            row = Sample(int(index), name, float(clock), float(temperature), float(power), int(reasons, 16), gib)
            rows.append(row)
    return rows


def of_gpus(samples: list[Sample]) -> dict[str, float]:
    if not samples:
        return {}
    # Excludes idle samples, from start-up and shutdown, which are not part of the measurement.
    working = [s for s in samples if not s.reasons & _IDLE] or samples
    return {
        "clock_mhz": min(s.clock_mhz for s in working),
        "temperature_c": max(s.temperature_c for s in samples),
        "power_w": sum(s.power_w for s in working) / len(working),
        "throttled": float(any(s.reasons & SLOWED for s in samples)),
    }


def with_peak(measurement: Measurement, samples: list[Sample], devices: int) -> Measurement:
    """Adds peak_memory_gib to a training run that does not report it: the largest increase on the fullest of its
    `devices` GPUs, if this machine has no other GPUs. Sampling suffices, because a caching allocator does not return
    memory to the driver."""
    first: dict[int, float] = {}  # GPU → GiB in use before the run, by other processes
    for sample in samples:
        first.setdefault(sample.index, sample.memory_gib)
    peak = max((s.memory_gib - first[s.index] for s in samples), default=0.0)
    if measurement.status != "ok" or "peak_memory_gib" in measurement.metrics or len(first) != devices or not peak > 0:
        return measurement
    return msgspec.structs.replace(measurement, metrics={**measurement.metrics, "peak_memory_gib": peak})


def on_ranks(measurement: Measurement, samples: list[Sample]) -> Measurement:
    """The measurement with the conditions of each rank's device added. A run that does not report the devices of its
    ranks (a server, a user's own command) gets one value per GPU instead. Nothing is added for ranks on other
    machines."""
    by_index = {i: [s for s in samples if s.index == i] for i in sorted({s.index for s in samples})}
    devices = measurement.rank_devices or [f"{hosts.host()}:{found[0].name}:{i}" for i, found in by_index.items()]
    here = [device.split(":")[0] == hosts.host() for device in devices]
    indices = [int(device.rsplit(":", 1)[1]) for device in devices]
    if not by_index or not all(here) or not set(indices) <= set(by_index):
        return measurement
    each = [of_gpus(by_index[i]) for i in indices]
    seen = {name: [one[name] for one in each] for name in each[0]}
    return msgspec.structs.replace(measurement, rank_devices=devices, per_rank={**measurement.per_rank, **seen})


def counters() -> Counters:
    """The kernel's counters; zeros if it does not report them."""
    tick = os.sysconf("SC_CLK_TCK")
    try:
        first = Path("/proc/stat").read_text().splitlines()[0]
        user, nice, system, idle, iowait, irq, softirq, steal = (int(v) / tick for v in first.split()[1:9])
    except (OSError, ValueError, IndexError):
        return Counters()
    busy = user + nice + system + irq + softirq
    return Counters(
        total=busy + idle + iowait + steal,
        busy=busy,
        steal=steal,
        ours=processes.cpu_seconds(os.getpid()),
        waited=_waited(),
    )


def period() -> str:
    """The current measuring period: this boot of this machine, in slots of four hours."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot[:8]}-{int(dates.now() // 14_400)}"
    return ""


def _waited() -> float:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/pressure/cpu").read_text().split("total=")[1].split()[0]) / 1e6
    return 0.0
