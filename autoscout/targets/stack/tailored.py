"""The catalog of a stack job: rules instantiated for each of its workloads, its devices, and memory as a rule."""

import re
from collections.abc import Iterator

import msgspec

from autoscout.job.words import nearest_name
from autoscout.simulate.stack.bill import parts
from autoscout.simulate.stack.workloads import Workload, workloads
from autoscout.space.knob import Catalog, KnobEntry, RuleEntry
from autoscout.space.language.functions import divisors
from kb.records import Job, SpaceLimits

_LARGEST_DIMENSION = 4096  # NPUs
_OF_A_WORKLOAD = re.compile(r"\{?\bw_(\w+)\b\}?")


def problems(job: Job) -> Iterator[str]:
    """What in a job file cannot be a design, a sentence each."""
    kinds = {node.device for node in job.cluster.nodes}
    known = parts().device
    if len(kinds) > 1:
        yield "a stack is of one kind of device; name one in cluster.nodes, others in [space] limit = { device = […] }"
    for kind in kinds - known.keys():
        yield f"cluster.nodes.device = '{kind}'{nearest_name(kind, known)} (what a stack is made of: parts.toml)"
    for name, values in {**{k: [v] for k, v in job.space.fix.items()}, **job.space.limit}.items():
        what = name.rstrip("_1234")
        least = min((v for v in values if isinstance(v, int | float)), default=1)
        if what in ("bandwidth", "npus") and least <= 0:
            yield f"[space] wants {name} = {least}: a dimension without {what} joins nothing; give more than 0"
    product, dims = 1, job.space.fix.get("dims", 4)
    for i in range(1, (dims if isinstance(dims, int) else 4) + 1):
        size = job.space.fix.get(f"npus_{i}")
        product = product * size if isinstance(size, int) and product else 0
    if product and "npus" not in job.space.limit and product != (total := job.space.fix.get("npus", job.devices)):
        yield f"[space] fixes dimensions of {product} NPUs together, but the cluster has {total}; make that the product"
    if job.task == "serve" and not job.traffic.concurrency:
        yield "traffic of a stack needs concurrency: how many requests are served at once"


def tailored(catalog: Catalog, job: Job) -> Catalog:
    """The catalog with the job's devices and sizes, unless its [space] names others."""
    named = {*job.space.fix, *job.space.limit}
    instead = {"device": [job.cluster.nodes[0].device], "npus": [job.devices]}
    sizes = [d for d in divisors(job.devices) if 2 <= d <= _LARGEST_DIMENSION]
    found = workloads(job)
    knobs = [_named(_tailored(knob, named, instead, sizes, found[0][1]), job.space) for knob in catalog.knob]
    rules = [_written_out(r, w) for r in catalog.rule for w in _differing(r, [w for _, w in found])]
    device = " else ".join(f"{d.gib} if device == '{name}'" for name, d in parts().device.items())
    rules += [_memory(w, i) for i, (_, w) in enumerate(found)]
    return msgspec.structs.replace(
        catalog, knob=knobs, rule=rules, derived={**catalog.derived, "device_gib": f"({device} else 0)"}
    )


def _tailored(knob: KnobEntry, named: set[str], instead: dict, sizes: list[int], w: Workload) -> KnobEntry:
    values = knob.values
    if knob.name in instead and knob.name not in named:
        values = instead[knob.name]
    elif re.fullmatch(r"npus_\d", knob.name):
        values = sizes
    return msgspec.structs.replace(knob, values=values, when=_filled(knob.when, w))


def _named(knob: KnobEntry, limits: SpaceLimits) -> KnobEntry:
    """Adds any bandwidths or latencies that the user names to the knob's values."""
    if not re.fullmatch(r"(bandwidth|latency)_\d", knob.name) or isinstance(knob.values, str):
        return knob
    wanted = [*limits.limit.get(knob.name, []), *([limits.fix[knob.name]] if knob.name in limits.fix else [])]
    numbers = [v for v in wanted if isinstance(v, int | float) and not isinstance(v, bool)]
    return msgspec.structs.replace(knob, values=sorted({*knob.values, *numbers}))  # type: ignore[type-var]


def _differing(rule: RuleEntry, found: list[Workload]) -> list[Workload]:
    """One workload for each distinct instantiation of a rule, so that no rule is repeated."""
    return list({_filled(rule.holds, w): w for w in found}.values())


def _written_out(rule: RuleEntry, w: Workload) -> RuleEntry:
    holds, reason = _filled(rule.holds, w), _filled(rule.reason, w)
    mark = "" if holds == rule.holds else f" ({w['layers']} layers of {w['hidden']}, {w['batch']} × {w['length']})"
    return msgspec.structs.replace(rule, id=rule.id + mark, holds=holds, reason=reason)


def _filled(text: str, w: Workload) -> str:
    return _OF_A_WORKLOAD.sub(lambda found: str(w[found[1]]), text)


def _memory(w: Workload, number: int) -> RuleEntry:
    """`transformer.memory_gib` as an expression (a test compares the two)."""
    attention = 2 * w["hidden"] * w["heads"] * w["head_dim"] + 2 * w["hidden"] * w["kv_heads"] * w["head_dim"]
    mlp = (3 if w["gated"] else 2) * w["hidden"]
    dense = attention + (0 if w["experts"] else mlp * w["ffn"])
    expert = mlp * w["expert_ffn"] * w["experts"]
    layer = f"({dense} + {expert} / ep) / tp" if w["experts"] else f"{dense} / tp"
    stage = f"-(-{w['layers']} // pp)"
    weights = f"({stage} * {layer} + {w['vocab'] * w['hidden']} / tp)"
    if w["serving"]:
        cache = 4 * w["kv_heads"] * w["head_dim"] * w["longest"]
        total = f"2 * {weights} + {cache} * {stage} / (tp * sp) * max({w['batch']} // dp, 1)"
    else:
        wide = (w["expert_ffn"] * w["topk"] if w["experts"] else w["ffn"]) / (4 * w["hidden"])
        tokens = f"mbs * {w['length']} / sp"
        kept = f"({2 * w['hidden']} if recompute else {w['hidden']} * (10 + {8 + 16 * wide} / tp)) * {tokens}"
        held = f"min(pp, {w['batch']} // (dp * mbs)) * {stage}"
        states = f"12 * {weights} / (dp * sp if zero >= 1 else 1)"
        whole = f"4 * ({weights} / (dp * sp) + {layer} if zero >= 3 else {weights})"
        total = f"{states} + {whole} + {kept} * {held} + {4 * w['vocab']} / tp * {tokens}"
    return RuleEntry(
        id=f"M{number + 1}",
        holds=f"{total} <= device_gib * {2**30}",
        reason=f"the model of {w['layers']} layers does not fit into the memory of a {{device}} so",
        source="simulate/stack/transformer.py: memory_gib",
        checked="ours",
    )
