"""Prints a description of the target as one JSON line: versions of installed packages, and the devices.

probe.py cpu|cuda (does not import torch on CPUs)"""

import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import sys

_PACKAGES = ("torch", "megatron-core", "transformer-engine")


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
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # the same order as in the ranks, so that GPU indices agree
    import torch

    count = torch.cuda.device_count()
    names = [torch.cuda.get_device_name(number) for number in range(count)]
    known = [torch.cuda.get_device_properties(number) for number in range(count)]
    found = {
        "device": " + ".join(sorted(set(names))),
        "devices": str(count),
        "gpus": ", ".join(names),
        "gpu_memory_gib": ", ".join(f"{gpu.total_memory / 2**30:.1f}" for gpu in known),
        "capability": " + ".join(sorted({f"{gpu.major}.{gpu.minor}" for gpu in known})),
        "cuda": str(torch.version.cuda),
    }
    if count:
        found["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return found


def broken(module: str) -> str:
    """Returns why an installed module cannot be imported (Megatron-core would treat it as missing); "" if it can."""
    try:
        importlib.import_module(module)
    except Exception as error:  # any exception of the module's libraries
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    found = versions()
    if "torch" in found:
        found |= cpu() if sys.argv[1] == "cpu" else cuda()
    if sys.argv[1] == "cuda" and "transformer-engine" in found:
        found["broken"] = broken("transformer_engine.pytorch")
        # Megatron-core's own linear layers need this Apex kernel for gradient accumulation fusion.
        fuses = importlib.util.find_spec("fused_weight_gradient_mlp_cuda")
        found["gradient-accumulation-fusion"] = "yes" if fuses else "no"
    print(json.dumps(found))
