"""What the texts of failures tell: memory that ran out, a machine that is broken, or a collective that hung.

Collected from PyTorch, NCCL, Transformer Engine, Triton and their issue trackers. What is the machine's fault
(`infrastructure`) says what mends it, and is no fact about any configuration.
"""

import re
from collections.abc import Iterable

import msgspec

from kb.records import Status


class Symptom(msgspec.Struct, frozen=True):
    """`about`: in a few words, for people; `mend`: what to do about it."""

    status: Status
    sign: str
    about: str
    mend: str = ""


_PACKAGES = "reinstall it for this version of torch and this GPU, in the interpreter of launch.python"
SYMPTOMS = (
    Symptom(
        "oom",
        r"out of memory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|CUBLAS_STATUS_NOT_INITIALIZED"
        r"|Failed to CUDA (?:host )?[mc]alloc|can't allocate memory|Cannot allocate memory|std::bad_alloc",
        "out of memory",
    ),
    Symptom(
        "infrastructure",
        r"Free memory on device \S+ [^.]*? on startup is less than desired",
        "another process holds the GPU's memory",
        "end what else runs on the GPUs (nvidia-smi lists it), or wait for it",
    ),
    Symptom(
        "infrastructure",
        r"\bS?Xid\b|ECC error|fallen off the bus|CUDA error: hardware|cudaErrorECC",
        "a GPU is broken (ECC or Xid error)",
        "reset or replace the GPU; `dmesg | grep Xid` and `nvidia-smi -q` name it",
    ),
    Symptom(
        "infrastructure",
        r"shared memory (?:segment|object)|insufficient shared memory|posix_fallocate failed|No space left on device"
        r"|failed to extend /dev/shm",
        "no room in /dev/shm or on a disk",
        "make room there; a container gets more by `--shm-size=16g`",
    ),
    Symptom(
        "infrastructure",
        r"system not yet initialized",
        "the GPUs' NVSwitch fabric is not up",
        "start the fabric manager of the driver's own version (`systemctl start nvidia-fabricmanager`)",
    ),
    Symptom(
        "infrastructure",
        r"driver version is insufficient|forward compatibility was attempted|unsupported display driver"
        r"|driver on your system is too old",
        "the driver is too old for this build of torch",
        "update the NVIDIA driver, or install a torch for an older CUDA",
    ),
    Symptom(
        "infrastructure",
        r"No CUDA GPUs are available|no GPUs found|CUDA driver initialization failed|no CUDA-capable device"
        r"|Found no NVIDIA driver|CUDA unknown error|Cuda failure 999",
        "torch finds no GPU",
        "check the driver (`nvidia-smi`), the container's flags (`--gpus all`) and CUDA_VISIBLE_DEVICES",
    ),
    Symptom(
        "infrastructure",
        r"busy or unavailable",
        "a GPU is busy or closed to us",
        "end what else runs on it, and set its compute mode to default (`nvidia-smi -c 0`)",
    ),
    Symptom(
        "infrastructure",
        r"Address already in use|EADDRINUSE",
        "a port is in use",
        "end what else listens there",
    ),
    Symptom(
        "infrastructure",
        r"Duplicate GPU detected",
        "two ranks were given the same GPU",
        "check CUDA_VISIBLE_DEVICES, and that the scheduler gave this job as many GPUs as it needs",
    ),
    Symptom(
        "infrastructure",
        r"name 'TE\w+' is not defined|transformer_engine\S*: undefined symbol"
        r"|transformer_engine(?:.*\n){0,3}.*StopIteration",
        "Transformer Engine is missing or was built for another torch",
        _PACKAGES,
    ),
    Symptom("infrastructure", r"undefined symbol", "a library was built for another torch", _PACKAGES),
    Symptom(
        "infrastructure",
        r"Ninja is required|cannot find -l\w+|CUDA_HOME environment variable is not set|nvcc: not found"
        r"|Failed to find C compiler",
        "extensions cannot be built here (ninja, a compiler or CUDA's libraries are missing)",
        "install them in the interpreter's environment (`pip install ninja`; gcc; libcuda on the linker's path)",
    ),
    Symptom(
        "infrastructure",
        r"device kernel image is invalid|no kernel image is available|PTX was compiled with an unsupported",
        "a package has no kernels for this GPU",
        _PACKAGES,
    ),
    Symptom(
        "infrastructure",
        r"NCCL WARN NET/|ibv_\w+ failed|ncclSystemError|unhandled system error|No route to host",
        "the network between the ranks fails",
        "check links and routes (`ibstat`, `ip link`), or name the interface in NCCL_SOCKET_IFNAME; NCCL_DEBUG=WARN "
        "says more",
    ),
)
IMPORTS = Symptom(
    "infrastructure",
    "",
    "the packages of the interpreter do not go together",
    "reinstall those that the message names in the interpreter of launch.python",
)
SHARED_MEMORY = next(s for s in SYMPTOMS if "/dev/shm" in s.sign)
BY_OTHERS = next(s for s in SYMPTOMS if s.about.startswith("another process"))
_ALL = re.compile("|".join(f"(?P<s{i}>{symptom.sign})" for i, symptom in enumerate(SYMPTOMS)))
_HUNG = re.compile(r"Watchdog caught collective operation timeout[^\n]*?OpType=(\w+)")
_SIZE = r"([\d.]+) ([KMG]i)B"
_FULL = re.compile(
    rf"Tried to allocate {_SIZE}.*?total capacity of {_SIZE} of which {_SIZE} is free"
    rf".*?this process has {_SIZE} memory in use",
    re.DOTALL,
)
_STARTED = re.compile(r"Free memory on device \(([\d.]+)/([\d.]+) GiB\)")
_GIB = {"Ki": 2.0**-20, "Mi": 2.0**-10, "Gi": 1.0}
_SPARE_GIB = 1.5  # of the context, NCCL and the allocator's cracks


class Found(msgspec.Struct, frozen=True):
    symptom: Symptom
    line: str  # that says it


def find(text: str) -> Found | None:
    """The first symptom in a text, the whole of which is read."""
    match = _ALL.search(text)
    if match is None:
        return None
    symptom = SYMPTOMS[int(str(match.lastgroup)[1:])]
    begin, end = text.rfind("\n", 0, match.start()) + 1, text.find("\n", match.end())
    return Found(symptom, text[begin : end if end >= 0 else None].strip())


def hung(text: str) -> str:
    """The collective that a watchdog gave up, such as ALLREDUCE; "" if it says nothing of the kind."""
    match = _HUNG.search(text)
    return match[1] if match else ""


def taken_by_others(text: str, memory: dict[str, float]) -> float:
    """GiB of the device that another process held, if there had been enough without it; else 0.

    From PyTorch's own sentence (what is in use and by this process: true in containers too, whose pids are not the
    host's), or from `memory`: free_gib before the rank's first allocation, total_gib, and reserved_gib at its peak.
    """
    if started := _STARTED.search(text):  # vLLM's share of a device that should have been empty
        free, total = float(started[1]), float(started[2])
        return total - free if free < 0.9 * total else 0.0
    if said := _FULL.search(text):
        tried, total, free, own = (float(said[i]) * _GIB[said[i + 1]] for i in (1, 3, 5, 7))
        others = total - free - own
        return others if others > _SPARE_GIB and own + tried + _SPARE_GIB < total else 0.0
    if not {"free_gib", "total_gib", "reserved_gib"} <= memory.keys():
        return 0.0
    free, total, needed = memory["free_gib"], memory["total_gib"], memory["reserved_gib"] + _SPARE_GIB
    return total - free if total - free > _SPARE_GIB and free <= needed < total else 0.0


def sentence(symptom: Symptom, cause: str) -> str:
    return f"the machine, not the configuration: {symptom.about} ({cause}); {symptom.mend}"


def named(evidence: str) -> Symptom | None:
    """The machine's symptom that an experiment's evidence was made from."""
    return next((s for s in (*SYMPTOMS, IMPORTS) if s.status == "infrastructure" and s.about in evidence), None)


def stop(evidences: Iterable[tuple[str, str]]) -> str:
    """Why a session should stop: two different configurations met the same fault of the machine. (configuration's id,
    evidence) of what failed since the last experiment that ran; "" to go on."""
    met: dict[str, set[str]] = {}
    for configuration, evidence in evidences:
        symptom = named(evidence)
        about = symptom.about if symptom else "the machine failed"
        met.setdefault(about, set()).add(configuration)
        if len(met[about]) > 1:
            mend = f": {symptom.mend}" if symptom else ""
            return f"{about}; two configurations failed alike, so nothing more is tried{mend}. It last said: {evidence}"
    return ""
