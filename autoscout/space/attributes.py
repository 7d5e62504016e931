"""What a job tells its space: the attributes that expressions may read, and knobs for its kinds of device."""

import itertools
from typing import Any

from autoscout.presets import device_memory_gib
from autoscout.space.knob import KnobEntry, RuleEntry
from autoscout.space.rules import divisors
from kb.records import Job, Model, shape
from kb.sizes import parameters


def expert_parameters(model: Model) -> int:
    m = shape(model)
    return m.layers * m.experts * (3 if m.gated else 2) * m.hidden * m.expert_ffn


def device_counts(job: Job) -> dict[str, int]:
    """Devices by kind, in the job's order; the kind's name is its knob's name on a mixed cluster."""
    counts: dict[str, int] = {}
    for node in job.cluster.nodes:
        kind = node.device.replace("-", "_")
        counts[kind] = counts.get(kind, 0) + node.count
    return counts


def attributes_of(job: Job) -> dict[str, Any]:
    m = shape(job.model)
    counts = device_counts(job)
    totals = {sum(c) for n in range(1, len(counts) + 1) for c in itertools.combinations(counts.values(), n)}
    attributes: dict[str, Any] = {
        "layers": m.layers,
        "hidden": m.hidden,
        "heads": m.heads,
        "kv_heads": m.kv_heads,
        "ffn": m.ffn,
        "vocab": m.vocab,
        "experts": m.experts,
        "expert_ffn": m.expert_ffn,
        "topk": m.topk,
        "bias": m.bias,
        "seq_len": job.traffic.seq_len,
        "global_batch": job.traffic.global_batch,
        "degrees": tuple(sorted({d for total in totals for d in divisors(total)})),
        "cuda": "cpu" not in counts,
        "te": job.launch.transformer_engine,
        "params": parameters(m),
        "expert_params": expert_parameters(m),
        "dtype_bytes": 4 if m.dtype == "fp32" else 2,
        "grad_mib": parameters(m) * 4 / 2**20,
        "memory_gib": min(node.memory_gib or device_memory_gib(node.device) or 0.0 for node in job.cluster.nodes),
    }
    if len(counts) == 1:
        attributes["gpus"] = job.devices
    return attributes


def device_knobs(job: Job) -> tuple[dict[str, str], list[KnobEntry]]:
    """On a mixed cluster each kind of device is used or left out (the paper's a100 and a40); `gpus` is the sum."""
    counts = device_counts(job)
    if len(counts) == 1:
        return {}, []
    knobs = [
        KnobEntry(
            name=kind,
            kind="sparse",
            layer="devices",
            values=[0, count],
            off=0,
            unit="devices",
            meaning=f"how many of the cluster's {count} {kind} are used",
            sets="the launcher's hosts",
        )
        for kind, count in counts.items()
    ]
    return {"gpus": " + ".join(counts)}, knobs


def device_rules(job: Job) -> list[RuleEntry]:
    counts = device_counts(job)
    if len(counts) == 1:
        return []
    whole = RuleEntry(
        id="H1",
        holds="gpus > 0",
        reason="no device is used",
        source="a job needs a device",
        checked="ours",
    )
    groups = RuleEntry(
        id="H2",
        holds=" and ".join(f"{kind} % tp == 0" for kind in counts),
        reason="a tensor parallel group of {tp} would span two kinds of device",
        source="one step of a group waits for its slowest rank after every layer",
        checked="ours",
    )
    return [whole, groups]
