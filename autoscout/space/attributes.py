"""The job's attributes that expressions in catalogs may read, and the knobs for the number of devices to use."""

import itertools
from collections.abc import Mapping
from typing import Any

from autoscout.job import finetune, latent
from autoscout.job.device_names import capability_of, is_cpu, memory_gib_of, small_steps, sold_by
from autoscout.job.metrics import counts_devices
from autoscout.job.trace import HASHED, lengths
from autoscout.space.knob import KnobEntry, RuleEntry
from autoscout.space.language.functions import divisors
from kb.records import Job, Node, shape
from kb.sizes import expert_parameters, parameters, stored_bytes

# tokens in the largest KV-cache block; block sizes are powers of two, so its multiples are multiples of all of them
_LARGEST_BLOCK = 128
# fields of [model] that are attributes of the same name: of every job, and of serving jobs only
_OF_MODEL = (
    *("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "gated", "vocab", "tied", "experts", "expert_ffn"),
    *("topk", "shared_ffn", "dense_layers", "bias", "qk_norm", "qkv_bias"),
)
_OF_SERVED_MODEL = ("stored", "plain_attention", "window", "windowed_layers", "sinks")


def device_counts(job: Job) -> dict[str, int]:
    """Returns the number of devices of each kind, in the job's order. Each "-" in a kind becomes "_", because
    expressions use kinds as names of knobs (see `device_knobs`)."""
    counts: dict[str, int] = {}
    for node in job.cluster.nodes:
        kind = node.device.replace("-", "_")
        counts[kind] = counts.get(kind, 0) + node.count
    return counts


def attributes_of(job: Job) -> Mapping[str, Any]:
    """Returns the attributes for expressions, computed once per job. Lengths are in tokens. Sizes are in the unit that
    the name ends with (such as `_gib`), or else in elements."""
    kept = vars(job)
    if "attributes" not in kept:
        kept["attributes"] = _attributes(job)
    return kept["attributes"]


def _attributes(job: Job) -> dict[str, Any]:
    m = shape(job.model)
    counts = device_counts(job)
    chosen = chooses_devices(job)
    totals = {sum(c) for c in itertools.product(*_choices(job).values())} if chosen else {job.devices}
    attributes: dict[str, Any] = {
        **{name: getattr(m, name) for name in _OF_MODEL},
        **latent.attributes(m),
        "degrees": tuple(sorted({d for total in totals if total for d in divisors(total)})),
        "cuda": not any(map(is_cpu, counts)),
        "params": parameters(m),
        "expert_params": expert_parameters(m),
        "dtype_bytes": 4 if m.dtype == "fp32" else 2,
        "memory_gib": min(memory_gib(node) for node in job.cluster.nodes),
        **(_memory_of_kinds(job) if len(counts) > 1 else {}),
        **(_serving(job) if job.task == "serve" else _training(job)),
        **_network(job),
    }
    if job.task in ("serve", "rl"):
        attributes["node_gpus"] = max(node.count for node in job.cluster.nodes)
    if job.task == "serve":
        some = range(1, attributes["node_gpus"] if attributes["cuda"] else 1)
        attributes["engine_counts"] = tuple(sorted({*attributes["degrees"], *some}))
    if not chosen:
        attributes["gpus"] = job.devices
    if job.task == "serve" and len(counts) == 1:
        attributes["device_gib"] = attributes["memory_gib"]
    return attributes


def _network(job: Job) -> dict[str, float]:
    """Returns the bandwidths in GB/s from a node to other nodes and to other kinds of device, if the job gives them."""
    speeds = {"node_gb_s": job.cluster.network.between_nodes_gbps, "kinds_gb_s": job.cluster.network.between_kinds_gbps}
    return {name: gbps / 8 for name, gbps in speeds.items() if gbps}


def _training(job: Job) -> dict[str, Any]:
    m = shape(job.model)
    halved = "--grad-reduce-in-bf16" in job.launch.current.split()
    return {
        "seq_len": job.traffic.seq_len,
        "global_batch": job.traffic.global_batch,
        "te": job.launch.transformer_engine,
        "checkout": bool(job.launch.path),
        "rmsnorm": m.norm == "rmsnorm",
        "capability": _capability(job),
        "grad_mib": parameters(job.model) * 4 / 2**20,
        **({"grad_bytes": 2} if halved and job.model.dtype == "bf16" else {}),
        **finetune.attributes(job),
    }


def _serving(job: Job) -> dict[str, Any]:
    """Returns the attributes of a serving job. `longest`: maximum tokens of a request, including its answer.
    `model_len`: the required maximum model length, a multiple of all block sizes. `kv_mib`: size in MiB of the KV cache
    of a request with `model_len` tokens, in the model's dtype. `kv_steps`: cache sizes to choose from in MiB, the
    powers of two from half of `kv_mib` to half of a device's memory."""
    m, traffic = shape(job.model), job.traffic
    inputs, outputs = lengths(job)
    token_bytes = latent.kept_of_a_token(m) * (4 if m.dtype == "fp32" else 2)  # bytes per token and layer
    longest = max(inputs) + max(outputs)
    weights, experts = stored_bytes(m)
    model_len = -(-longest // _LARGEST_BLOCK) * _LARGEST_BLOCK
    kept = (m.layers - m.windowed_layers) * model_len + m.windowed_layers * min(m.window, model_len)
    kv_mib = kept * token_bytes / 2**20
    most = min(memory_gib(node) for node in job.cluster.nodes) * 1024 / 2
    return {
        "longest": longest,
        "longest_input": max(inputs),
        "model_len": model_len,
        "input_mean": sum(inputs) / len(inputs),
        "output_mean": sum(outputs) / len(outputs),
        "shared_prefix": traffic.shared_prefix,
        "shares": shares_beginnings(job),
        "draft": job.launch.draft.method if job.launch.draft else "",
        "kv_folder": bool(job.launch.kv_folder),
        "concurrency": traffic.concurrency,
        "rate": traffic.rate,
        "capability": _capability(job),
        "small_steps": any(small_steps(node.device) for node in job.cluster.nodes),
        "weights_gib": weights / 2**30,
        "expert_gib": experts / 2**30,
        **{name: getattr(m, name) for name in _OF_SERVED_MODEL},
        "kv_mib": kv_mib,
        "kv_steps": tuple(step for step in (2**i for i in range(20)) if step >= kv_mib / 2 and step <= most),
    }


def shares_beginnings(job: Job) -> bool:
    """Whether prompts share prefixes, so that a prefix cache is useful."""
    traffic = job.traffic
    hashed = any(trace.endswith(HASHED) for trace in (traffic.trace, *traffic.segments))
    return bool(traffic.shared_prefix or traffic.sessions or hashed)


def _capability(job: Job) -> float:
    """Returns the lowest CUDA compute capability of the cluster's devices; 0 if it is unknown."""
    return min(capability_of(node.device) for node in job.cluster.nodes)


def memory_gib(node: Node) -> float:
    """Returns the memory of one of the node's devices as the driver reports it, even if the job states the nominal
    size. If the job states a size that is not the nominal one, returns the job's size."""
    stated, reported = node.memory_gib, memory_gib_of(node.device) or 0.0
    usual = not stated or (sold_by(stated, reported) and not is_cpu(node.device))
    return reported if usual else stated


def _memory_of_kinds(job: Job) -> dict[str, float]:
    """Returns the GiB per device, by a name such as "a100_gib", of each kind of device whose memory the job states."""
    found: dict[str, float] = {}
    for stated in (node for node in job.cluster.nodes if node.memory_gib):
        alike = (node for node in job.cluster.nodes if node.device == stated.device)
        found[f"{stated.device.replace('-', '_')}_gib"] = min(map(memory_gib, alike))
    return found


def chooses_devices(job: Job) -> bool:
    """Whether the number of devices is a knob: on mixed clusters, and if the job has a limit or objective on it."""
    return len(device_counts(job)) > 1 or counts_devices(job)


def _choices(job: Job) -> dict[str, list[int]]:
    """Returns the possible numbers of devices of each kind: none, or all devices of the kind's first 1, 2, … nodes.
    With an objective or limit on the number of devices, a part of the first node is also possible."""
    found: dict[str, list[int]] = {}
    for kind in dict.fromkeys(node.device for node in job.cluster.nodes):
        whole = list(itertools.accumulate(node.count for node in job.cluster.nodes if node.device == kind))
        parts = range(1, whole[0]) if counts_devices(job) else ()
        found[kind.replace("-", "_")] = [0, *parts, *whole]
    return found


def device_knobs(job: Job) -> tuple[dict[str, str], list[KnobEntry]]:
    """Returns first the derived expressions, such as `gpus`, the total number of devices; second the knobs, one per
    kind of device (such as a100), for the number of devices to use. Both are empty unless `chooses_devices`."""
    counts = device_counts(job)
    if not chooses_devices(job):
        return {}, []
    knobs = [
        KnobEntry(
            name=kind,
            kind="sparse",
            layer="devices",
            values=list(values),
            off=0,
            unit="devices",
            meaning=f"number of the cluster's {values[-1]} {kind} devices to use",
            sets="the launcher's hosts",
        )
        for kind, values in _choices(job).items()
    ]
    derived = {"gpus": " + ".join(counts)}
    if job.task == "serve" and len(counts) > 1:
        used = [
            f"({memory_gib(node)} if {node.device.replace('-', '_')} > 0 else {10**6})" for node in job.cluster.nodes
        ]
        derived["device_gib"] = f"min({', '.join(used)})"
    return derived, knobs


def whole_devices() -> RuleEntry:
    """Returns the rule that at least one device of a mixed cluster is used."""
    return RuleEntry(
        id="H1",
        holds="gpus > 0",
        reason="no device is used",
        source="a job needs a device",
        checked="ours",
    )
