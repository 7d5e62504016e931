"""Failure classes by log text: out of memory, a broken machine, or a hung collective.

Collected from PyTorch, NCCL, Transformer Engine, Triton and their issue trackers. A fault of the machine
(`infrastructure`) comes with a remedy and is not a fact about any configuration.
"""

import re
from collections.abc import Iterable, Sequence

import msgspec

from kb.records import Status


class Symptom(msgspec.Struct, frozen=True):
    """`about`: a short description for people; `mend`: the remedy."""

    status: Status
    sign: str
    about: str
    mend: str = ""


_PACKAGES = "reinstall it for this version of torch and this GPU, in the interpreter of launch.python"
OUT_OF_MEMORY = Symptom(
    "oom",
    r"out of memory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED"
    r"|CUBLAS_STATUS_NOT_INITIALIZED(?![\s\S]*(?:device-side assert|illegal memory))"
    r"|Failed to CUDA (?:host )?[mc]alloc|can't allocate memory|Cannot allocate memory|std::bad_alloc"
    r"|(?:cuda|hip)Error(?:OutOfMemory|MemoryAllocation)|CUDA_ERROR_OUT_OF_MEMORY|RESOURCE_EXHAUSTED"
    r"|not enough memory: you tried|running low on memory|OOMKilled|invoked oom-killer|Out of memory: Kill",
    "out of memory",
)
# Faults of the machine; the order resolves ties: device errors precede their consequences.
MACHINE = (
    Symptom(
        "infrastructure",
        r"Free memory on device \S+ [^.]*? on startup is less than desired",
        "another process holds the GPU's memory",
        "end what else runs on the GPUs (nvidia-smi lists it), or wait for it",
    ),
    Symptom(
        "infrastructure",
        r"\bS?Xid\b|ECC error|GPU is lost|fallen off the bus|device handle for GPU|CUDA error: hardware"
        r"|cudaErrorECC|CUDA_ERROR_(?:ECC|HARDWARE|NVLINK)\w*|(?i:nvlink error|hardware error)|row remap",
        "a GPU is broken (ECC or Xid error, or lost)",
        "reset or replace the GPU; `dmesg | grep Xid` and `nvidia-smi -q` name it",
    ),
    Symptom(
        "infrastructure",
        r"shared memory (?:segment|object|limit)|(?:insufficient|out of) shared memory|posix_fallocate failed"
        r"|failed to extend /dev/shm|[Bb]us error|SIGBUS|No space left on device|Disk quota exceeded"
        r"|Read-only file system|Stale file handle|Input/output error|Transport endpoint is not connected"
        r"|PytorchStream(?:Reader|Writer) failed",
        "no room in /dev/shm or on a disk",
        "make room there; a container gets more by `--shm-size=16g`",
    ),
    Symptom(
        "infrastructure",
        r"Too many open files|can't start new thread|pthread_create failed|Resource temporarily unavailable",
        "a limit of this user is reached (open files or processes)",
        "raise it (`ulimit -n`, `ulimit -u`), or the container's `--pids-limit`",
    ),
    Symptom(
        "infrastructure",
        r"system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY|Failed to bind NVLink SHARP"
        r"|NVLS[^\n]*Multicast[^\n]*fail|nvidia-imex",
        "the GPUs' NVSwitch fabric is not up",
        "start the fabric manager of the driver's own version (`systemctl start nvidia-fabricmanager`)",
    ),
    Symptom(
        "infrastructure",
        r"driver version is insufficient|forward compatibility was attempted|[Uu]nsupported display driver"
        r"|driver on your system is too old|(?:Driver/library|driver/library|kernel module) version mismatch"
        r"|CUDA_ERROR_(?:COMPAT|UNSUPPORTED_PTX)\w*|API mismatch|named symbol not found"
        r"|not supported in the installed CUDA driver|OS call failed",
        "the driver does not fit this build of torch, or its own libraries",
        "update the NVIDIA driver (and restart the machine after an update), or install a torch for an older CUDA",
    ),
    Symptom(
        "infrastructure",
        r"invalid device ordinal|(?i:not enough (?:slots|gpus|devices) )"
        r"|(?i:number of (?:required |available )?gpus\b[^\n]{0,60}\bavailable|number of available gpus)",
        "there are fewer GPUs than ranks",
        "check CUDA_VISIBLE_DEVICES, that no GPU was lost (`nvidia-smi`), and that the scheduler gave this job as many",
    ),
    Symptom(
        "infrastructure",
        r"(?i:\bno (?:cuda |nvidia )?(?:gpus?|cuda devices?)(?: devices?)? (?:were |was |are |is )?"
        r"(?:found|available|detected|visible))|CUDA driver initialization failed|no CUDA-capable device"
        r"|Found no NVIDIA driver|CUDA (?:error: )?unknown error|Cuda failure 999"
        r"|(?:Cuda failure|CUDA error:) '?initialization error"
        r"|Error\b[^\n]*libcuda\.so|(?:Failed to|Can't) initialize NVML|NVML: Failed|nvml\w+\(\) failed"
        r"|(?i:nvidia-smi has failed)|Failed to infer device type"
        r"|CUDA_ERROR_(?:NO_DEVICE|NOT_INITIALIZED|DEVICE_UNAVAILABLE|STUB)\w*|Failed to initialize CUDA"
        r"|not compiled with CUDA|doesn't have NCCL built in",
        "torch finds no GPU",
        "check the driver (`nvidia-smi`), the container's flags (`--gpus all`) and CUDA_VISIBLE_DEVICES, and that "
        "torch is no build for CPUs",
    ),
    Symptom(
        "infrastructure",
        r"Error response from daemon|nvidia-container-cli|OCI runtime|container start failed|pyxis: (?:error|couldn't)",
        "the container does not start",
        "start the image by hand; its runtime says more (`nvidia-container-cli info`)",
    ),
    Symptom(
        "infrastructure",
        r"busy or unavailable",
        "a GPU is busy or closed to us",
        "end what else runs on it, and set its compute mode to default (`nvidia-smi -c 0`)",
    ),
    Symptom(
        "infrastructure",
        r"(?i:address already in use)|EADDRINUSE",
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
        r"name 'TE\w+' is not defined|transformer_engine\S*: undefined symbol|module 'transformer_engine' has no"
        r"|transformer_engine(?:.*\n){0,3}.*StopIteration",
        "Transformer Engine is missing or was built for another torch",
        _PACKAGES,
    ),
    Symptom(
        "infrastructure",
        r"undefined symbol|(?m:^lib\S+|Error\b[^\n]*): cannot open shared object file"
        r"|SUBLIBRARY_LOADING_FAILED|Could not (?:find|load) [^\n]*(?:library|binary|extension)\b"
        r"|Unable to load any of|[`'](?:GLIBC|GLIBCXX|CXXABI)_[\d.]+' not found|mismatches the version that was used"
        r"|(?:compiled|built) (?:using|with|against) (?:NumPy|a different|different|PyTorch|torch|CUDA)"
        r"|numpy\.dtype size changed|binary incompatibility|invalid ELF header",
        "a library is missing or was built for another torch",
        _PACKAGES,
    ),
    Symptom(
        "infrastructure",
        r"Ninja is required|cannot find -l\w+|CUDA_HOME environment variable is not set|nvcc: not found"
        r"|Failed to find C compiler|No such file or directory: '\S*(?:nvcc|ninja|gcc)'|Error building extension"
        r"|fatal error: [\w/.]+\.h(?:pp)?: No such file|ninja: build stopped",
        "extensions cannot be built here (ninja, a compiler or CUDA's libraries are missing)",
        "install them in the interpreter's environment (`pip install ninja`; gcc; libcuda on the linker's path)",
    ),
    Symptom(
        "infrastructure",
        r"device kernel image is invalid|invalid device function|no kernel image is available"
        r"|PTX was compiled with an unsupported"
        r"|is not compatible with the current PyTorch installation|Unsupported gpu architecture",
        "a package has no kernels for this GPU",
        _PACKAGES,
    ),
    Symptom(
        "infrastructure",
        r"peer access is not supported|CUDA IPC handle|cudaIpc\w+ failed|peer mapping resources exhausted",
        "the GPUs cannot reach each other's memory",
        "check `nvidia-smi topo -m` and the container's isolation (`--ipc=host`); NCCL_P2P_DISABLE=1 goes without",
    ),
    Symptom(
        "infrastructure",
        r"NCCL WARN NET/|NCCL WARN socket\w*: (?:.*failed|.*error)|ibv_\w+ failed|ncclSystemError"
        r"|unhandled system error|internal error - please report|Proxy Call to rank \d+ failed"
        r"|No route to host|Network is unreachable|client socket has (?:timed out|failed)|workers joined"
        r"|Rendezvous(?:Timeout|Connection|Closed)Error|Name or service not known|name resolution|getaddrinfo"
        r"|NODE_FAIL|DUE TO NODE FAILURE|exceeded error retry count|socketStartConnect|in store based barrier"
        r"|No socket interface found|no interface found|Unable to find interface|NCCL WARN NET/\w+ [^\n]*(?:fail|error)"
        r"|WARN [^\n]*(?i:bootstrap|connect|socket|interface)[^\n]*(?i:failed|no socket|timed out|refused|unreachable)"
        r"|UCX +ERROR|mlx5[^\n]*completion with error|lost communication with a remote daemon"
        r"|error occurred in MPI_Init|(?:PMI\w*|ORTE|PRTE)[ _]ERROR|(?:orte|opal|prte)_init failed"
        r"|Could not resolve hostname|Host key verification failed|Permission denied \(publickey",
        "the network between the ranks fails",
        "check links, names and routes (`ibstat`, `ip link`), or name the interface in NCCL_SOCKET_IFNAME; "
        "NCCL_DEBUG=WARN says more",
    ),
)
SCHEDULER = (
    Symptom("oom", r"low on resource: memory|MemoryPressure", "Kubernetes evicted it for memory"),
    Symptom("killed", r"\bReason: +(?:Evicted(?![\s\S]{0,80}memory)|Preempt\w+)", "Kubernetes took the node away"),
    Symptom(
        "oom",
        r"(?:slurmstepd: error: [^\n]*?)?oom[-_]kill event|\bOut Of Memory\b|OOM Killed",
        "Slurm ended it for memory",
    ),
    Symptom(
        "killed",
        r"CANCELLED AT \S+ (?:DUE TO (?:TIME LIMIT|PREEMPTION)|\*\*\*)|DUE TO TIME LIMIT|DUE TO PREEMPTION",
        "Slurm ended the allocation",
    ),
    Symptom(
        "infrastructure",
        r"(?:srun|slurmstepd|salloc|sbatch|slurm_load\w*): (?:error|fatal): (?!.*(?:Exited with exit code|Terminated"
        r"|Killed|Aborted|Segmentation|Job step aborted|CANCELLED))",
        "Slurm could not run it",
        "ask Slurm why (`scontrol show job`, `sinfo -R`), and start in an allocation that runs `srun hostname`",
    ),
)
SYMPTOMS = (OUT_OF_MEMORY, *SCHEDULER, *MACHINE)
IMPORTS = Symptom(
    "infrastructure",
    "",
    "packages of the interpreter are missing, or do not go together",
    "install those that the message names in the interpreter of launch.python, of versions that fit",
)
SEAM = Symptom(
    "infrastructure",
    "",
    "this release of the engine does not take a call of AutoScout's worker",
    "name an interpreter with a release that `autoscout targets` calls proven in launch.python",
)
STARTING = Symptom(
    "infrastructure",
    "",
    "the ranks do not come together",
    "check the driver and the network between them; NCCL_DEBUG=WARN and TORCH_DISTRIBUTED_DEBUG=DETAIL say more",
)
FILES = Symptom(
    "infrastructure",
    "",
    "a file, a permission or a service is missing",
    "see that what the message names exists, can be read by this user, and can be reached from this node",
)
SHARED_MEMORY = next(s for s in MACHINE if "/dev/shm" in s.sign)
BROKEN_GPU = next(s for s in MACHINE if "Xid" in s.sign)
BY_OTHERS = next(s for s in MACHINE if s.about.startswith("another process"))
_SIGNS = [re.compile(symptom.sign) for symptom in SYMPTOMS]
_HUNG = re.compile(r"Watchdog caught collective operation timeout[^\n]*?OpType=(\w+)")
_WAITED = re.compile(
    r"Heartbeat monitor timed out|watchdog got stuck|NCCL operations have failed or timed out|Timeout at NCCL work"
    r"|[mM]onitoredBarrier[^\n]*timed? ?out"
)
_WARNS = re.compile(r"\bWARNING\b")
_SIZE = r"([\d.]+) ([KMG]i)B"
_FULL = re.compile(
    rf"Tried to allocate {_SIZE}.*?total capacity of {_SIZE} of which {_SIZE} is free"
    rf".*?this process has {_SIZE} memory in use",
    re.DOTALL,
)
_STARTED = re.compile(r"Free memory on device \(([\d.]+)/([\d.]+) GiB\)")
_GIB = {"Ki": 2.0**-20, "Mi": 2.0**-10, "Gi": 1.0}
_SPARE_GIB = 1.5  # for CUDA context, NCCL and allocator fragmentation


class Found(msgspec.Struct, frozen=True):
    symptom: Symptom
    line: str  # the line that matched


def find(text: str, among: Sequence[Symptom] = SYMPTOMS) -> Found | None:
    """The earliest symptom in the whole text; of those that start at the same place, the first in SYMPTOMS. What a
    logger's warning says is none: its program went on."""
    first: tuple[int, Symptom, re.Match[str]] | None = None
    for symptom, sign in zip(SYMPTOMS, _SIGNS, strict=True):
        matches = sign.finditer(text) if symptom in among else ()
        match = next((m for m in matches if not _WARNS.search(_line(text, m))), None)
        if match and (first is None or match.start() < first[0]):
            first = match.start(), symptom, match
    return Found(first[1], _line(text, first[2])) if first else None


def _line(text: str, match: re.Match[str]) -> str:
    begin, end = text.rfind("\n", 0, match.start()) + 1, text.find("\n", match.end())
    return text[begin : end if end >= 0 else None].strip()


def hung(text: str) -> str:
    """The collective that a watchdog aborted, such as ALLREDUCE; "" if there is none."""
    match = _HUNG.search(text)
    if match:
        return match[1]
    return "a collective" if _WAITED.search(text) else ""


def taken_by_others(text: str, memory: dict[str, float]) -> float:
    """GiB of the device held by another process, if there was enough memory without it; else 0. From PyTorch's message
    (memory in use, and by this process: right in containers, too, where pids differ from the host's), or from `memory`:
    free_gib before the rank's first allocation, total_gib, and peak reserved_gib.
    """
    if started := _STARTED.search(text):  # vLLM expects an empty device
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
    whose = "AutoScout" if symptom is SEAM else "the machine"
    return f"{whose}, not the configuration: {symptom.about} ({cause}); {symptom.mend}"


def named(evidence: str) -> Symptom | None:
    """The infrastructure symptom that an experiment's evidence reports."""
    return next(
        (
            s
            for s in (*SYMPTOMS, SEAM, IMPORTS, STARTING, FILES)
            if s.status == "infrastructure" and s.about in evidence
        ),
        None,
    )


def stop(evidences: Iterable[tuple[str, str]]) -> str:
    """Why a session should stop: two different configurations failed by the same fault of the machine; "" to go on.
    `evidences`: (configuration id, evidence) of failures since the last experiment that ran."""
    met: dict[str, set[str]] = {}
    for configuration, evidence in evidences:
        symptom = named(evidence)
        about = symptom.about if symptom else "the machine failed"
        met.setdefault(about, set()).add(configuration)
        if len(met[about]) > 1:
            mend = f": {symptom.mend}" if symptom else ""
            return f"{about}; two configurations failed alike, so nothing more is tried{mend}. It last said: {evidence}"
    return ""
