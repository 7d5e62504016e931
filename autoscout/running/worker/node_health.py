"""Prints a node's health as one line of JSON, before anything is measured there. Needs only the standard library.

`gpus`: index, name, used and total GiB, uncorrected ECC errors, current and maximum clock, throttle reasons, power
limit and application clock with their defaults; `lost`: the driver's lines about GPUs that it can no longer reach;
`xid`: the kernel's last Xid lines; `links`: output of `nvidia-smi topo -m`.
"""

import json
import os
import re
import shutil
import subprocess

_FIELDS = (
    "index,name,memory.used,memory.total,ecc.errors.uncorrected.volatile.total,clocks.sm,clocks.max.sm,"
    "clocks_throttle_reasons.active,power.limit,power.default_limit,clocks.applications.graphics,"
    "clocks.default_applications.graphics"
)
_NAMES = (
    *("index", "name", "used_gib", "total_gib", "ecc", "clock_mhz", "most_mhz", "throttled"),
    *("watts", "default_watts", "application_mhz", "default_mhz"),
)
_NO_FIELD = re.compile(r'Field "([\w.]+)" is not a valid field')
_LOST = re.compile(r"GPU is lost|Unable to determine the device handle|Unknown Error|GPU requires reset")


def main() -> None:
    found = {
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "memory_free_gib": _memory(),
        "shm_free_gib": shutil.disk_usage("/dev/shm").free / 2**30 if os.path.isdir("/dev/shm") else 0.0,
        **_gpus(_queried(_FIELDS)),
        "xid": [line for line in _printed(["dmesg"]).splitlines() if "NVRM: Xid" in line][-3:],
        "links": _printed(["nvidia-smi", "topo", "-m"])[:4000],
    }
    print(json.dumps(found))


def _queried(asked: str) -> str:
    """nvidia-smi's CSV for the fields that the driver has. A single unknown field would make the query fail, and newer
    drivers lack application clocks."""
    table = _printed(["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader,nounits"])
    unknown, fields = _NO_FIELD.search(table), asked.split(",")
    if unknown is None or unknown[1] not in fields:
        return table
    at = fields.index(unknown[1])
    del fields[at]
    rows = [line.split(",") for line in _queried(",".join(fields)).splitlines()]
    return "\n".join(",".join([*row[:at], "[N/A]", *row[at:]] if len(row) == len(fields) else row) for row in rows)


def _gpus(table: str) -> dict:
    gpus = []
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 12 and cells[0].isdigit():
            used, total, ecc, clock, most = (_number(cell) for cell in cells[2:7])
            gib = [None if mib is None else mib / 1024 for mib in (used, total)]
            gpus.append([int(cells[0]), cells[1], *gib, ecc, clock, most, cells[7], *map(_number, cells[8:])])
    return {
        "gpus": [dict(zip(_NAMES, gpu, strict=True)) for gpu in gpus],
        "lost": [line.strip() for line in table.splitlines() if _LOST.search(line)],
    }


def _number(cell: str) -> "float | None":
    try:
        return float(cell)
    except ValueError:
        return None


def _memory() -> float:
    with open("/proc/meminfo") as file:
        return next((int(line.split()[1]) / 2**20 for line in file if line.startswith("MemAvailable")), 0.0)


def _printed(argv: "list[str]") -> str:
    try:
        return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


if __name__ == "__main__":
    main()
