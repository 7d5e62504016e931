"""The usable memory of a job's devices."""

from autoscout.job.device_names import is_cpu
from autoscout.simulate.hardware.device import hardware, usable_gib
from autoscout.space.attributes import memory_gib
from kb.records import Job, Node


def capacities(job: Job) -> dict[str, float]:
    """Kind of device → GiB of its smallest device, in the order of ranks. Empty if any size is unknown; for serving,
    where the engine reserves a configured share of the memory; and for CPU ranks, which share the host's memory."""
    if job.task == "serve":
        return {}
    found: dict[str, float] = {}
    for node in job.cluster.nodes:
        gib = capacity(node)
        kind = node.device.replace("-", "_")
        found[kind] = min(gib, found.get(kind, gib))
    return {} if any(map(is_cpu, found)) or not all(found.values()) else found


def capacity(node: Node) -> float:
    """GiB of one of the node's devices, as the job states, or else as their driver reports; 0 if unknown."""
    known, stated = hardware(node.device), memory_gib(node)
    return float(usable_gib(stated, known.memory_gib)) if known and not is_cpu(node.device) else stated
