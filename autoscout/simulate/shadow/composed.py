"""Derives the trace of a rank of a large job from traces of small jobs, so that hundreds of traces suffice to predict
thousands of configurations. (A trace records the memory, kernels and collectives of one rank, see traced.py.)

The small jobs differ from the large one only in layers per stage, number of stages and number of replicas. In a full
pipeline, bytes and counts are linear in a stage's layers and in the number of stages, each of which adds one micro
batch in flight; the optimizer state per rank is inversely proportional to the replicas. So the traces of two depths
(layers per stage) and two numbers of stages determine all others."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from autoscout.simulate.shadow.traced import KINDS, Chunk, Rank, Step
from kb.records import Value

_REPLICATED = ("dp+cp", "expert dp")
_NOTHING = 1e-9  # counts below this are rounding errors


class Depth(msgspec.Struct, frozen=True):
    """The size of a job along the two linear axes: layers of a chunk, and number of pipeline stages."""

    layers: float
    stages: int


def chunk_layers(layers: int, knobs: Mapping[str, Value]) -> tuple[float, float, float] | None:
    """Layers per chunk (virtual stage) of first, inner and last stages; None if `stage_split` is a layout string."""
    pp, vpp = int(knobs.get("pp", 1)), int(knobs.get("vpp", 1))
    split = str(knobs.get("stage_split", "even"))
    if split.startswith("spread"):
        return None
    given = [int(knobs.get(f"{end}_layers", 0)) for end in ("first", "last")]
    if any(given):
        left = pp - sum(1 for number in given if number)
        inner = (layers - sum(given)) / max(left, 1)
        return (given[0] or inner) / vpp, inner / vpp, (given[1] or inner) / vpp
    embedding, loss = int("embedding" in split), int("loss" in split)
    each = (layers + embedding + loss) / pp
    return (each - embedding) / vpp, each / vpp, (each - loss) / vpp


def first_with_experts(layers: int, dense: int, knobs: Mapping[str, Value]) -> int:
    """The index (at least 1) of the first stage whose layers all have experts; the first `dense` layers have no
    experts."""
    pp, vpp = int(knobs.get("pp", 1)), int(knobs.get("vpp", 1))
    if pp == 1:
        return 1
    first, inner, last = chunk_layers(layers, knobs) or [layers / (pp * vpp)] * 3
    left = dense % (first + (pp - 2) * inner + last)  # dense layers in the first round of chunks with experts
    return 1 + math.ceil(max(left - first, 0) / max(inner, 1))


def composed(corners: Sequence[tuple[Depth, Rank]], wanted: Depth, replicas: int, sharded: bool) -> Rank:
    """The trace of a rank of the large job, with counts per micro batch. `corners`: traces of small jobs with two
    depths, each with one or two numbers of stages. `sharded`: whether the optimizer state is sharded over the
    replicas."""
    weighed = [(_weight(corners, depth, wanted), rank) for depth, rank in corners]
    first = corners[0][1]
    share = first.replicas / replicas if sharded else 1.0

    def total(values: Sequence[float]) -> float:
        return sum(weight * value for (weight, _), value in zip(weighed, values, strict=True))

    left = {kind: round(total([r.left[kind] for _, r in weighed])) for kind in KINDS}
    fewer = round(left["optimizer"] * (share - 1))  # bytes added to the optimizer state: < 0 with more replicas
    at_peak = {kind: round(total([r.at_peak[kind] for _, r in weighed])) for kind in KINDS}
    steps = [
        Step(
            forward_backward=round(total([r.steps[-1].forward_backward for _, r in weighed])) + fewer,
            optimizer=round(total([r.steps[-1].optimizer for _, r in weighed])) + fewer,
            left=round(total([r.steps[-1].left for _, r in weighed])) + fewer,
        )
    ]
    highest = max(steps[-1].forward_backward, steps[-1].optimizer)
    reserved = [r.reserved / r.peak for _, r in weighed]
    return Rank(
        rank=first.rank,
        verdict="starts",
        imbalance=first.imbalance,
        cpu_s=0.0,
        parameters=round(total([r.parameters for _, r in weighed])),
        built=round(total([r.built for _, r in weighed])),
        peak=highest,
        reserved=round(highest * max(reserved)),
        steps=steps,
        micro_batches_traced=1,
        replicas=replicas,
        at_peak={**at_peak, "optimizer": at_peak["optimizer"] + fewer},
        left={**left, "optimizer": left["optimizer"] + fewer},
        operators=round(total([r.operators for _, r in weighed])),
        kernels=_kernels(weighed, share),
        collectives=_collectives(weighed, replicas),
        chunks=[
            Chunk(_kernels(some, share), _collectives(some, replicas))
            for number in range(len(first.chunks))
            if (some := [(weight, _of_chunk(rank, number)) for weight, rank in weighed])
        ],
        torch=first.torch,
    )


def _of_chunk(rank: Rank, number: int) -> Rank:
    chunk = rank.chunks[number]
    return msgspec.structs.replace(rank, kernels=chunk.kernels, collectives=chunk.collectives)


def _weight(corners: Sequence[tuple[Depth, Rank]], depth: Depth, wanted: Depth) -> float:
    """The weight of a corner (a traced small job) in the bilinear (Lagrange) extrapolation to `wanted`."""
    found = 1.0
    for at, own, to in (
        (sorted({d.layers for d, _ in corners}), depth.layers, wanted.layers),
        (sorted({d.stages for d, _ in corners}), depth.stages, wanted.stages),
    ):
        for other in at:
            if other != own:
                found *= (to - other) / (own - other)
    return found


def _kernels(weighed: Sequence[tuple[float, Rank]], share: float) -> list[list]:
    """The combined kernels. Kernels of the forward and backward passes are grouped by shape; if a shape depends on the
    depth, one corner contributes a negative count, so that the total time is extrapolated. Kernels of the optimizer
    step are merged by name, because their sizes depend on the depth."""
    found: defaultdict[str, float] = defaultdict(float)
    what: dict[str, list] = {}
    for weight, rank in weighed:
        for count, name, phase, *shapes in rank.kernels:
            if phase == "step":
                size = shapes[0][0] if isinstance(shapes[0], list) else shapes[0]
                key = f"step {name}"
                found[key] += weight * count * size * share
                what[key] = [name, phase, shapes[0]]
            else:
                key = str((name, phase, shapes))
                found[key] += weight * count / rank.micro_batches_traced
                what[key] = [name, phase, *shapes]
    made = []
    for key, value in found.items():
        name, phase, *shapes = what[key]
        if phase == "step":
            made.append([1, name, phase, [value] if isinstance(shapes[0], list) else value])
        elif abs(value) > _NOTHING:
            made.append([value, name, phase, *shapes])
    return made


def _collectives(weighed: Sequence[tuple[float, Rank]], replicas: int) -> list[list]:
    """The collectives of the weighted ranks, combined. For collectives between replicas, the bytes of all calls of an
    operation are added up, because the split into buckets depends on the number of layers."""
    found: defaultdict[tuple, float] = defaultdict(float)
    for weight, rank in weighed:
        for count, operation, group, ranks, size, phase in rank.collectives:
            if group in _REPLICATED:
                found[(operation, group, ranks * replicas // rank.replicas, None, phase)] += weight * count * size
            else:
                found[(operation, group, ranks, size, phase)] += weight * count / rank.micro_batches_traced
    return [
        [1, operation, group, ranks, value, phase] if size is None else [value, operation, group, ranks, size, phase]
        for (operation, group, ranks, size, phase), value in found.items()
        if abs(value) > _NOTHING
    ]
