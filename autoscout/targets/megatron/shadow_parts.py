"""Composes a configuration's shadow from parts: traces of small jobs that differ from the configuration only in the
numbers of layers per stage, stages and replicas. Parts are cached, so that configurations which differ only in these
numbers share traces."""

from typing import Any

import msgspec

from autoscout.running import interpreter
from autoscout.simulate.shadow.composed import Depth, chunk_layers, composed
from autoscout.simulate.shadow.traced import Rank, Shadow
from autoscout.simulate.shadow.verdict import traced_micro_batches
from autoscout.targets.megatron import arguments
from autoscout.targets.megatron import shadow as whole
from autoscout.targets.tracing import ShadowAsked
from kb.records import AutoscoutError, Configuration, Job

ERROR = 0.005  # standard deviation of log(composed peak memory / traced whole); docs/lab/shadow.md
_SPLIT = ("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split")
_SPLIT += ("--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers")


class Stage(msgspec.Struct, frozen=True):
    """A pipeline stage whose trace is to be composed. `rank`: the stage's rank in the large job. `place`: its index in
    the pipeline, -1 for the last stage. `small`: numbers of pipeline stages of the small jobs to trace."""

    rank: int
    place: int
    wanted: Depth
    small: tuple[int, ...]


def from_parts(asked: ShadowAsked) -> Shadow:
    """Returns the composed shadow. Errors: AutoscoutError if parts do not determine the result, if a part fails, or if
    a part is not cached and `limit_s` is 0."""
    job, configuration = asked.job, asked.configuration
    stages = _stages(job, configuration)
    question = whole.question_of(job, configuration)
    python = interpreter.target_python(job)
    versions = whole.versions_of(python)

    def ranks(of: list[Stage], imbalance: float) -> tuple[list[Rank], int]:
        depths = [(s, Depth(layers, pp)) for s in of for pp in s.small for layers in _depths(configuration)]
        each = [small(question, configuration, s.place, depth, imbalance) for s, depth in depths]
        found, known = whole.answers(asked, each, python, versions, _slim)
        if broken := next((r for r in found if r.verdict != "starts"), None):
            why = f"{broken.type} {broken.message[:200]}" if broken.type else broken.verdict
            raise AutoscoutError(
                f"a part of {asked.name} was not traced: {why}; `autoscout shadow` without --parts traces the "
                "whole configuration"
            )
        joined = []
        for stage in of:
            corners = [(depth, rank) for (s, depth), rank in zip(depths, found, strict=True) if s is stage]
            sharded = bool(configuration.knobs.get("distopt"))
            rank = composed(corners, stage.wanted, int(configuration.knobs.get("dp", 1)), sharded)
            joined.append(msgspec.structs.replace(rank, rank=stage.rank))
        return joined, known

    found, known = ranks(stages, 1.0)
    if job.model.experts:
        fullest = max(found, key=lambda r: r.peak).rank
        tilted, more = ranks([s for s in stages if s.rank == fullest], whole.IMBALANCE)
        found, known = [*found, *tilted], known + more
    return whole.summarised(asked, found, versions, known, ERROR)


def _stages(job: Job, configuration: Configuration) -> list[Stage]:
    knobs = configuration.knobs
    pp, vpp = int(knobs.get("pp", 1)), int(knobs.get("vpp", 1))
    layers = chunk_layers(job.model.layers, knobs)
    micro = whole.micro_batches(job, configuration)
    why = ""
    if layers is None:
        why = "its layers are placed by a layout string"
    elif job.model.dense_layers:
        why = "its first layers have no experts"
    elif knobs.get("ar") == "full" and (knobs.get("ar_method") == "block" or any(n % _chunk(knobs) for n in layers)):
        why = "its layers are not all recomputed in the same way"
    elif knobs.get("fsdp") or int(knobs.get("instances", 1)) > 1:
        why = "replicas share more than the optimizer's state"
    elif vpp > 1 and micro < 2 * pp:
        why = "its pipeline is never full"
    if why or layers is None:
        raise AutoscoutError(f"--parts cannot trace this configuration, because {why}; omit --parts")
    first, inner, last = layers
    world = arguments.world_size(configuration)
    filled = max(1, min(pp, micro))
    if pp == 1:
        return [Stage(0, 0, Depth(first, 1), (1,))]
    ends = [
        Stage(world - 1, -1, Depth(last, pp if vpp > 1 else 2), (2, 3) if vpp > 1 else (2,)),
        Stage(0, 0, Depth(first, filled), (2, 3)),
    ]
    if pp == 2:
        return ends
    return [*ends, Stage(world // pp, 1, Depth(inner, max(2, min(pp, micro + 1))), (3, 4))]


def _chunk(knobs: Any) -> int:
    return int(knobs.get("ar_layers", 1))


def _depths(configuration: Configuration) -> tuple[int, int]:
    """Returns two numbers of layers per chunk for the small jobs: multiples of full recomputation's group size."""
    each = _chunk(configuration.knobs) if configuration.knobs.get("ar") == "full" else 1
    return 2 * each, 3 * each


def small(
    question: dict[str, Any], configuration: Configuration, place: int, depth: Depth, imbalance: float
) -> dict[str, Any]:
    """Returns the worker's input for one rank of a small job."""
    knobs, pp = configuration.knobs, depth.stages
    vpp = int(knobs.get("vpp", 1))
    replicas = 2 * int(knobs.get("ep", 1))
    a_stage = int(knobs.get("tp", 1)) * int(knobs.get("cp", 1)) * replicas
    traced = traced_micro_batches(pp, vpp)
    flags = {name: value for name, value in question["arguments"].items() if name not in _SPLIT}
    flags["--num-layers"] = round(depth.layers) * pp * vpp
    flags["--global-batch-size"] = traced * int(knobs["mbs"]) * replicas
    for name in ("--pipeline-model-parallel-size", "--data-parallel-size"):
        if name in flags:
            flags[name] = pp if "pipeline" in name else replicas
    return {
        **question,
        "arguments": flags,
        "world": a_stage * pp,
        "rank": (place % pp) * a_stage if place >= 0 else a_stage * pp - 1,
        "imbalance": imbalance,
        "micro_batches": traced,
    }


def _slim(rank: Rank) -> Rank:
    return msgspec.structs.replace(rank, timeline=[], order=[], largest=[])
