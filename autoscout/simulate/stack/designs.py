"""Designs → metrics: whole clusters with their layouts, as columns, in one pass.

Two ways: in closed form (more than a million designs a second a core), or with collectives chunk by chunk and
gradients bucket by bucket (`whole`), which stands in for an experiment. No number here was measured.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from autoscout.simulate.encode import length, take
from autoscout.simulate.member import Columns
from autoscout.simulate.stack import bill, chunked
from autoscout.simulate.stack.buckets import exposed, exposed_closed
from autoscout.simulate.stack.dimensions import Dimension, dimensions, group
from autoscout.simulate.stack.transformer import (
    BYTES,
    Layout,
    forward_flops,
    layout,
    memory_gib,
    share,
)

Array = np.ndarray
_BLOCK = 32768  # designs in one pass: fewer are slower (calls), more take memory
_NOTHING = np.zeros(1)
METRICS = (
    "latency_s",
    "tokens_per_s",
    "peak_memory_gib",
    "cluster_usd",
    "cluster_watts",
    "network_usd",
    "bandwidth_gb_s",
    "latency_usd",
    "latency_network_usd",
    "latency_bandwidth",
    "joules",
)


class _Machine(NamedTuple):
    """The cluster of each design, which all its workloads share; (n,) each."""

    fabric: list[Dimension]
    collective: Callable[..., Array]  # seconds of one
    chunks: Array
    hierarchical: Array
    peak: Array  # FLOP/s
    memory: Array  # bytes/s


def evaluate(
    columns: Columns,
    workloads: Sequence[tuple[float, Mapping[str, Any]]],
    whole: bool = False,
    devices: Mapping[str, bill.Device] | None = None,
) -> dict[str, Array]:
    """`workloads`: (weight, the model and its traffic); time and tokens are weighted means, memory the maximum.
    `whole`: chunk by chunk; `devices`: in place of parts.toml's. (n,) by metric, with parts of the time as `part_…`."""
    n = length(columns)
    if n > _BLOCK:
        rows = [slice(i, min(i + _BLOCK, n)) for i in range(0, n, _BLOCK)]
        blocks = [evaluate(take(columns, row), workloads, whole, devices) for row in rows]
        return {name: np.concatenate([each[name] for each in blocks]) for name in blocks[0]}
    fabric = dimensions(columns, n)
    npus = np.prod([d.size for d in fabric], axis=0)
    device = bill.of_devices(columns["device"], n, devices)
    usd, watts, gb_s = bill.network_bill(fabric, npus)
    machine = _Machine(
        fabric,
        chunked.scheduled if whole else chunked.closed,
        np.asarray(columns.get("chunks", 1)),
        np.asarray(columns.get("collectives", "hierarchical")) == "hierarchical",
        1e12 * device["tflops"] * device["reached"],
        1e9 * device["gb_s"],
    )
    total = sum(weight for weight, _ in workloads)
    found: dict[str, Array] = {"peak_memory_gib": np.zeros(n)}
    for weight, m in workloads:
        at = layout(columns, m)
        timed = _served(m, at, machine) if m["serving"] else _step(columns, m, at, machine, whole)
        for name, seconds in timed.items():
            found[f"part_{name}"] = found.get(f"part_{name}", _NOTHING) + seconds * (weight / total)
        latency = sum(timed.values())
        found["latency_s"] = found.get("latency_s", _NOTHING) + latency * (weight / total)
        found["tokens_per_s"] = found.get("tokens_per_s", _NOTHING) + m["tokens"] / latency * (weight / total)
        found["peak_memory_gib"] = np.maximum(found["peak_memory_gib"], memory_gib(m, at))
    latency = found["latency_s"]
    found["cluster_usd"] = usd + npus * device["usd"]
    found["cluster_watts"] = watts + npus * device["watts"]
    found["network_usd"], found["bandwidth_gb_s"] = usd, gb_s
    found["latency_usd"] = latency * found["cluster_usd"]
    found["latency_network_usd"] = latency * usd
    found["latency_bandwidth"] = latency * gb_s
    found["joules"] = latency * found["cluster_watts"]
    return {name: np.broadcast_to(value, n) for name, value in found.items()}


def _step(columns: Columns, m: Columns, at: Layout, machine: _Machine, whole: bool) -> dict[str, Array]:
    """Seconds of one optimizer step, by what they go to."""
    fabric, collective, chunks, hierarchical, peak, memory = machine
    s = share(m, at)
    forward = np.maximum(
        forward_flops(m, at, at.tokens, m["length"] / 2) / peak,
        BYTES * (s.dense + s.expert + 8 * m["hidden"] * at.tokens / at.tp) / memory,
    )
    head = 2 * at.tokens * s.head / peak
    again = np.where(at.recomputed, 1.0, 0.0)
    compute = at.stage * (3 + again) * forward + 3 * head  # of a micro batch on the fullest stage

    inside = BYTES * at.tokens * m["hidden"]
    tp = group(fabric, at.tp, np.ones(1))
    in_layers = (4 + 2 * again) * at.stage * collective(tp, inside, chunks, hierarchical)
    sequence = group(fabric, at.sp, at.tp)
    keys = 2 * BYTES * at.mbs * m["length"] * m["kv_heads"] * m["head_dim"] / at.tp
    of_sequence = (3 + again) * at.stage * collective(sequence, keys, chunks, hierarchical, chunked.GATHER)
    busy = compute + in_layers + of_sequence
    experts = np.zeros(1)
    if m["experts"]:
        sharing = group(fabric, at.ep, at.tp * at.sp)
        experts = (4 + 2 * again) * at.stage * chunked.all_to_all(sharing, inside * m["topk"] / at.tp, chunks)
        busy = busy + experts
    stages = group(fabric, at.pp, at.tp * at.sp * at.dp)
    hops = 2 * chunked.send(stages, inside / at.tp)
    bubble = (at.pp - 1) * (busy + hops)

    replicas = group(fabric, at.dp * at.sp, at.tp)
    sharded = at.zero >= 3
    gradients = BYTES * (at.stage * (s.dense + s.expert / np.maximum(at.dp / at.ep, 1)) + s.head)
    reduced = collective(replicas, gradients, chunks, hierarchical)
    gathered = 0.5 * reduced  # sharded weights are gathered in each pass
    hide = at.stage * 2 * forward
    lifo = np.asarray(columns.get("scheduling", "fifo")) == "lifo"
    left = (exposed if whole else exposed_closed)(reduced, hide, at.stage * forward, at.stage, lifo)
    fetched = at.micro * np.maximum(2 * gathered - at.stage * 3 * forward, 0.0)
    return {
        "compute": at.micro * compute,
        "tensor": at.micro * in_layers,
        "sequence": at.micro * of_sequence,
        "experts": at.micro * experts,
        "pipeline": bubble + at.micro * hops,
        "replicas": np.where(sharded, fetched + np.maximum(0.5 * reduced - hide, 0.0), left),
    }


def _served(m: Columns, at: Layout, machine: _Machine) -> dict[str, Array]:
    """Seconds of one request while a replica serves its share of the users: prefill, then token by token."""
    fabric, collective, chunks, hierarchical, peak, memory = machine
    s = share(m, at)
    tp = group(fabric, at.tp, np.ones(1))
    users = at.mbs * at.micro
    prefill = at.stage * forward_flops(m, at, m["length"] / at.sp, m["length"] / 2) / peak
    cache = 2 * BYTES * m["kv_heads"] * m["head_dim"] * m["longest"] / (at.tp * at.sp)
    touched = np.minimum(users * m["topk"], m["experts"]) / m["experts"] if m["experts"] else 0.0
    read = BYTES * (s.dense + s.expert * touched) + cache * users
    decode = np.maximum(read / memory, forward_flops(m, at, users, m["longest"]) / peak)
    tokens = m["output"]
    long = at.stage * 2 * collective(tp, BYTES * m["hidden"] * m["length"] / at.sp, chunks, hierarchical)
    short = at.stage * 2 * collective(tp, BYTES * m["hidden"] * users, np.ones_like(chunks), hierarchical)
    stages = group(fabric, at.pp, at.tp * at.sp * at.dp)
    return {
        "compute": at.pp * (prefill + tokens * at.stage * decode),
        "tensor": at.pp * (long + tokens * short),
        "pipeline": (at.pp - 1) * (1 + tokens) * chunked.send(stages, BYTES * m["hidden"] * users),
    }
