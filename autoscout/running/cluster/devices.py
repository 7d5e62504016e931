"""Determines on which of the machine's GPUs an experiment runs.

GPUs are identified by name and memory in the order of their indices, which is PCI_BUS_ID order for the probe and the
ranks. A slice of a GPU (MIG) does not count as a whole GPU, and a 40 GB GPU does not count as an 80 GB one.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Sequence

import msgspec

from autoscout.job.device_names import KEPT, is_called, is_cpu, memory_gib_of, stem_of, vendor_of
from autoscout.job.metrics import counts_devices
from autoscout.line.visible_gpus import named
from kb.records import AutoscoutError, Cluster, Configuration, Job, Node

# Kubernetes' resource names for GPUs, from the makers' device plugins. GPUs of an unknown maker count as NVIDIA's.
NVIDIA, AMD = "nvidia.com/gpu", "amd.com/gpu"
SEPARATOR = ", "  # between the names in the environment's `gpus`


def device_kind(job: Job) -> str:
    """ "cpu" or "cuda". Errors: AutoscoutError if the cluster mixes CPUs and GPUs."""
    kinds = {"cpu" if is_cpu(node.device) else "cuda" for node in job.cluster.nodes}
    if len(kinds) != 1:
        raise AutoscoutError("cluster: give either CPU nodes or GPU nodes, not both", 2)
    return kinds.pop()


def resource(job: Job) -> str:
    """Kubernetes' resource name for the job's GPUs."""
    return AMD if vendor_of(job.cluster.nodes[0].device) == "amd" else NVIDIA


def used_nodes(job: Job, configuration: Configuration) -> list[Node]:
    """The nodes that a configuration uses, in rank order, grouped by kind of device: for each kind, the first nodes up
    to the configuration's number of devices. A job whose knobs count devices, not nodes, may use only some devices of
    the last node; that node is returned with the number of used devices and with a proportional price."""
    used: list[Node] = []
    for kind in dict.fromkeys(node.device for node in job.cluster.nodes):
        left = float(configuration.knobs.get(kind.replace("-", "_"), math.inf))
        for node in job.cluster.nodes:
            if node.device == kind and (node.count <= left or (left > 0 and counts_devices(job))):
                count = int(min(node.count, left))
                share = node.price_per_hour * count / node.count
                used.append(msgspec.structs.replace(node, count=count, price_per_hour=share))
                left -= count
    return used


def gpus_of(environment: dict[str, str]) -> list[str]:
    """Names of the machine's GPUs; [] if the target runs on CPUs."""
    return [name for name in environment.get("gpus", "").split(SEPARATOR) if name]


def memory_of(environment: dict[str, str]) -> list[float]:
    """Memory of each of the machine's GPUs in GiB; [] if the driver does not report it."""
    return [float(gib) for gib in environment.get("gpu_memory_gib", "").split(SEPARATOR) if gib]


def in_words(environment: dict[str, str]) -> str:
    """An environment as text. A value that several GPUs share appears once."""
    values = dict(environment)
    for name in ("gpus", "gpu_memory_gib"):
        alike = Counter(values.get(name, "").split(SEPARATOR))
        values[name] = SEPARATOR.join(f"{count} × {one}" if count > 1 else one for one, count in alike.items())
    return ", ".join(f"{name} {value}" for name, value in values.items() if value)


def spelled(job: Job) -> str:
    """The job's nodes as text: "16 × 8 h100 + 1 × 4 a40", or "8 h100" if there is only one node."""
    alike = Counter((node.count, node.device) for node in job.cluster.nodes)
    return " + ".join(
        f"{f'{nodes} × ' if len(job.cluster.nodes) > len(alike) else ''}{count} {kind}"
        for (count, kind), nodes in alike.items()
    )


def shortage(job: Job, gpus: list[str], memory: Sequence[float] = ()) -> str:
    """A sentence on GPUs of the job's cluster that this machine lacks; "" if it has all of them. `memory`: GiB, by
    index."""
    shown = ", ".join(f"{count} {name}" for name, count in Counter(gpus).items())
    if len(gpus) < job.devices:
        or_hosts = ", or name their hosts in cluster.hosts" if job.task != "serve" and not job.cluster.hosts else ""
        return (
            f"cluster.nodes: the job needs {job.devices} GPUs but this machine shows "
            f"{f'{len(gpus)} ({shown})' if gpus else 'none'}; correct cluster.nodes, or run AutoScout on a "
            f"machine that has these GPUs{or_hosts}"
        )
    claimed = _claimed(job, gpus, memory)
    for kind, count in _needed(job).items():
        if len(claimed[kind]) < count:
            like = [name for name in dict.fromkeys(gpus) if is_called(kind, name)]
            why = f": {' and '.join(like)} is not one of {_required_gib(job, kind):.0f} GiB" if like else ""
            return (
                f"cluster.nodes: the job needs {count} {kind} but this machine shows {len(claimed[kind])} "
                f"({shown}){why}; correct cluster.nodes, or run AutoScout on a machine that has these GPUs"
            )
    return ""


def misplaced(job: Job, gpus: list[str]) -> str:
    """A sentence on the first GPU whose kind differs from the job's node at the same position; "" if all kinds
    match."""
    wanted = [node.device for node in used_nodes(job, Configuration({})) for _ in range(node.count)]
    for kind, name in zip(wanted, gpus, strict=False):
        if len(set(wanted)) > 1 and stem_of(kind) and not is_called(kind, name):
            return (
                f"cluster.hosts: a host has {name}, but the job's node at the same position has {kind}; list the "
                "hosts in the order of cluster.nodes"
            )
    return ""


def variables(
    job: Job,
    configuration: Configuration,
    gpus: list[str],
    ranks: int,
    memory: Sequence[float] = (),
    spare: Collection[int] = (),
) -> dict[str, str]:
    """Environment variables that show the ranks only the configuration's GPUs, in the order of the job's nodes; {} if
    all GPUs are alike, since ranks use the first ones by default. `spare`: indices of GPUs to prefer, if they are of
    the right kind.
    """
    kinds = list(_needed(job))
    if len(kinds) == 1 and len(set(gpus)) <= 1 and not spare:
        return {}
    indices: list[int] = []
    for kind, claimed in _claimed(job, gpus, memory, spare).items():
        knob = configuration.knobs.get(kind.replace("-", "_"), 0)
        indices += claimed[: ranks if len(kinds) == 1 else int(knob)]  # a job with one kind has no knob for its count
    return {"CUDA_VISIBLE_DEVICES": ",".join(str(index) for index in indices)}


def _needed(job: Job) -> dict[str, int]:
    needed: dict[str, int] = {}
    for node in job.cluster.nodes:
        needed[node.device] = needed.get(node.device, 0) + node.count
    return needed


def unused(job: Job, gpus: list[str], memory: Sequence[float], taken: Collection[int]) -> list[int]:
    """Indices of GPUs of the job's kinds that the job does not use, without those in `taken`."""
    ours = {index for claimed in _claimed(job, gpus, memory).values() for index in claimed}
    others = [index for index in range(len(gpus)) if index not in ours and index not in taken]
    return [i for i in others if any(i in claimed for claimed in _claimed(job, gpus, memory, others).values())]


def claimable(job: Job, gpus: list[str], memory: Sequence[float] = ()) -> list[int]:
    """Indices of all GPUs that a job with one kind of device may use; [] for a job with several kinds."""
    kinds = list(_needed(job))
    if len(kinds) != 1:
        return []
    every = msgspec.structs.replace(job.cluster.nodes[0], count=len(gpus))
    return _claimed(msgspec.structs.replace(job, cluster=Cluster(nodes=[every])), gpus, memory)[kinds[0]]


def physical(index: int, given: str) -> str:
    """The driver's name of the GPU with this index among those that `given`, a CUDA_VISIBLE_DEVICES, leaves visible."""
    names = named(given)
    return names[index] if index < len(names) else str(index)


def _claimed(job: Job, gpus: list[str], memory: Sequence[float], first: Collection[int] = ()) -> dict[str, list[int]]:
    """Kind → indices of GPUs for it, in the order of the job's nodes, at most as many as the job needs. GPUs in `first`
    are preferred. Kinds that cannot be recognized by a GPU's name get the GPUs that remain."""
    needed = _needed(job)
    free = list(range(len(gpus)))
    claimed: dict[str, list[int]] = {kind: [] for kind in needed}
    for kind in sorted(needed, key=lambda kind: not stem_of(kind)):
        fitting = [
            i
            for i in free
            if not stem_of(kind) or (is_called(kind, gpus[i]) and _has_memory(job, kind, gpus, memory, i))
        ]
        claimed[kind] = sorted(sorted(fitting, key=lambda i: i not in first)[: needed[kind]])
        free = [index for index in free if index not in claimed[kind]]
    return claimed


def _has_memory(job: Job, kind: str, gpus: list[str], memory: Sequence[float], index: int) -> bool:
    """Whether the GPU has the memory of its kind, except for a few per cent that the driver reserves."""
    sliced = re.search(r"\bMIG\b.*?(\d+)gb", gpus[index], re.IGNORECASE)
    if sliced is not None:
        gib = float(sliced[1])
    elif len(memory) == len(gpus) and memory[index] > 0:
        gib = memory[index]
    else:  # the driver does not report the memory ([N/A], unified memory), but the GPU's name may state it
        named = re.search(r"(\d+) ?GB\b", gpus[index])
        gib = float(named[1]) if named else math.inf
    return gib >= KEPT * _required_gib(job, kind)


def _required_gib(job: Job, kind: str) -> float:
    stated = [node.memory_gib for node in job.cluster.nodes if node.device == kind and node.memory_gib]
    return min(stated, default=memory_gib_of(kind) or 0.0)
