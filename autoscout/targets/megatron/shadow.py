"""Shadow runs of a Megatron job: a worker process with a time limit runs Megatron-core's code without a GPU. Answers
are cached with the knowledge base."""

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from autoscout.job.device_names import capability_of
from autoscout.running import interpreter
from autoscout.running.cluster.devices import device_kind, used_nodes
from autoscout.running.shadow_process import shadows_of
from autoscout.simulate.hardware.device import hardware
from autoscout.simulate.shadow.composed import first_with_experts
from autoscout.simulate.shadow.pricing import priced
from autoscout.simulate.shadow.traced import DOUBTED_ERROR, ERROR, Rank, Shadow
from autoscout.simulate.shadow.verdict import judged, stages, traced_micro_batches
from autoscout.targets import tracing
from autoscout.targets.megatron import arguments
from autoscout.targets.megatron.environment import WORKER
from autoscout.targets.tracing import ShadowAsked, answered, existing, room
from kb.records import AutoscoutError, Configuration, Job, content_hash

RANK = WORKER / "shadow" / "shadow_rank.py"
IMBALANCE = 1.5  # tokens of the fullest rank's experts relative to the mean, in an additional trace
_PACKAGES = ("torch", "megatron-core", "transformer-engine")
_TE = "2.3.0"  # the version of Transformer Engine whose interface the fake modules have
_MIB = 2**20
_OVERLAP_STREAMS = 3  # streams on which Transformer Engine overlaps GEMMs (pytorch/module/base.py: _NUM_MAX_UB_STREAMS)
STOOD_IN = (
    "Transformer Engine's modules: LayerNormLinear, Linear, GroupedLinear, norms, DotProductAttention, rotary, "
    "FusedAdam, cross entropy (they allocate, keep and send what the real ones do)",
    "gradients added into main_grad by the GEMM",
    "tensors (no storage), process groups (no other ranks), CUDA streams (in order)",
)


def shadow(asked: ShadowAsked) -> Shadow:
    """Returns the shadow of the given ranks. Default: one rank of each distinct pipeline stage.

    Errors: AutoscoutError (exit 2) for a configuration without flags, an interpreter without torch or megatron-core, or
    a rank that does not exist."""
    job, configuration, ranks = asked.job, asked.configuration, asked.ranks
    existing(ranks, arguments.world_size(configuration))
    python = interpreter.target_python(job)
    versions = versions_of(python)
    experts = bool(job.model.experts)
    question = question_of(job, configuration)
    each = [{**question, "rank": rank} for rank in ranks or differing(job, configuration)]
    found, cached = answers(asked, each, python, versions)
    if experts and all(r.verdict == "starts" for r in found):
        fullest = max(found, key=lambda r: r.peak).rank
        tilted, again = answers(asked, [{**question, "rank": fullest, "imbalance": IMBALANCE}], python, versions)
        found, cached = [*found, *tilted], cached + again
    return summarised(asked, found, versions, cached)


def differing(job: Job, configuration: Configuration) -> list[int]:
    """Returns one rank of each distinct pipeline stage."""
    world, pp = arguments.world_size(configuration), int(configuration.knobs.get("pp", 1))
    return stages(world, pp, first_with_experts(job.model.layers, job.model.dense_layers, configuration.knobs))


def summarised(
    asked: ShadowAsked, found: list[Rank], versions: dict[str, str], cached: int, more_error: float = 0.0
) -> Shadow:
    """Returns the configuration's shadow, combined from the traces of ranks. It has no step time if only certain ranks
    were requested. `more_error`: added to the standard deviation of log(measured / traced)."""
    job, configuration = asked.job, asked.configuration
    micro = micro_batches(job, configuration)
    found = [msgspec.structs.replace(rank, micro_batches=micro) if rank.verdict == "starts" else rank for rank in found]
    base = Shadow(
        job=job.name,
        name=asked.name,
        configuration=configuration.knobs,
        verdict="starts",
        sentence="",
        world=arguments.world_size(configuration),
        ranks=found,
        stood_in=list(STOOD_IN if job.launch.transformer_engine else STOOD_IN[2:]),
        versions=versions,
        cached=cached,
        cpu_s=sum(r.cpu_s for r in found),
    )
    gib, overhead = room(used_nodes(job, configuration))
    overhead += _user_buffers_gib(job, configuration)
    error = _error(job, configuration) + more_error
    judgement = judged(base, found, error, overhead, gib, IMBALANCE)
    return judgement if asked.ranks else with_price(job, configuration, judgement)


def with_price(job: Job, configuration: Configuration, found: Shadow) -> Shadow:
    """Returns the shadow with a step time, if the device is known. Kernel times are measured if in `timed`, else
    predicted."""
    kinds = {node.device for node in used_nodes(job, configuration)}
    known = hardware(kinds.pop()) if len(kinds) == 1 else None
    price = known and priced(found.ranks, configuration.knobs, known.training(), job.model.dtype, found.timed)
    if not price:
        return msgspec.structs.replace(found, step_s=None, parts={})
    return msgspec.structs.replace(found, step_s=price.step_s, parts={**price.parts, "bubble": price.bubble_s})


def remember(asked: ShadowAsked, found: Shadow) -> None:
    """Stores a complete trace in the knowledge base's table `shadow`. Errors: AutoscoutError."""
    if asked.ranks or found.verdict == "timeout":
        return
    fits = found.verdict == "starts"
    columns = {
        "from_parts": fits and not found.ranks[0].timeline,
        "fullest_rank": found.ranks[0].rank,
        "allocated_gib": found.allocated if fits else None,
        "low_gib": found.low if fits else None,
        "high_gib": found.high if fits else None,
        "reserved_gib": found.reserved if fits else None,
        "imbalanced_gib": found.imbalanced,
        "oom_probability": found.oom_probability,
        "step_s": found.step_s,
    }
    tracing.remember(asked, found, columns)


def question_of(job: Job, configuration: Configuration) -> dict[str, Any]:
    """Returns the part of the worker's input that is the same for all ranks."""
    knobs = configuration.knobs
    on_gpus = device_kind(job) == "cuda"
    flags = arguments.flags(job, configuration)
    traced = traced_micro_batches(int(knobs.get("pp", 1)), int(knobs.get("vpp", 1)))
    if micro_batches(job, configuration) > traced:  # a longer trace would only repeat itself
        flags["--global-batch-size"] = traced * _samples(configuration)
    nodes = used_nodes(job, configuration)
    hopper = on_gpus and all(capability_of(node.device) >= 9 for node in nodes)
    te = flags["--transformer-impl"] == "transformer_engine"
    # cuBLAS has two workspaces, for the main thread and for autograd's thread. Transformer Engine has one workspace of
    # its own, or three if GEMMs overlap with communication.
    streams = te * (_OVERLAP_STREAMS if knobs.get("tp_comm_overlap") else 1)
    workspace = 2 * (32 * _MIB if hopper else 8 * _MIB + 2**17) + (32 * _MIB if hopper else 4 * _MIB) * streams
    return {
        "arguments": flags,
        "device": "cuda" if on_gpus else "cpu",
        "world": arguments.world_size(configuration),
        "stand_ins": te,
        "te_version": _TE,
        "flash": not hopper,
        "workspace": workspace if on_gpus else 0,
        "micro_batches": traced,
    }


def _error(job: Job, configuration: Configuration) -> float:
    knobs = configuration.knobs
    held = not job.model.experts and knobs.get("fp8", "none") == "none" and knobs.get("cp", 1) == 1
    return ERROR if held else DOUBTED_ERROR


def _samples(configuration: Configuration) -> int:
    """Returns the samples of one micro batch, summed over the replicas."""
    return int(configuration.knobs["mbs"]) * int(configuration.knobs.get("dp", 1))


def micro_batches(job: Job, configuration: Configuration) -> int:
    """Returns micro batches per replica and step; 0 if the global batch is not divisible."""
    batches, left = divmod(job.traffic.global_batch, _samples(configuration))
    return 0 if left else batches


def _user_buffers_gib(job: Job, configuration: Configuration) -> float:
    """Returns the GiB that Transformer Engine's initialize_ub allocates outside torch's allocator: for each GEMM that
    overlaps with communication, the gathered bf16 input of a layer."""
    knobs = configuration.knobs
    if not knobs.get("tp_comm_overlap"):
        return 0.0
    rows = job.traffic.seq_len * int(knobs["mbs"]) // int(knobs.get("cp", 1))
    return len(arguments.OVERLAPPED_GEMMS) * rows * job.model.hidden * 2 / 2**30


def answers(
    asked: ShadowAsked,
    questions: list[dict[str, Any]],
    python: list[str],
    versions: Mapping[str, str],
    kept: Callable[[Rank], Rank] = lambda rank: rank,
) -> tuple[list[Rank], int]:
    """Returns (answers in the order of the questions, number of cached answers). `kept`: reduces an answer to the part
    to store."""
    code = interpreter.hash_of([*sorted(WORKER.glob("*.py")), *sorted(RANK.parent.glob("*.py"))])
    keys = [content_hash([question, dict(versions), code]) for question in questions]

    def traced(unknown: list[int]) -> list[Rank]:
        return [kept(rank) for rank in ask([questions[i] for i in unknown], python, asked.limit_s, asked.stopping)]

    return answered(keys, Rank, asked, traced)


def ask(
    asked: list[dict[str, Any]], python: list[str], limit_s: float, stopping: Callable[[], bool] = lambda: False
) -> list[Rank]:
    """Runs the worker for questions without a cached answer. Errors: see `shadows_of`."""
    found = shadows_of(RANK, asked, python, limit_s, os.environ, stopping)
    return [
        msgspec.convert({**known, "rank": q["rank"], "imbalance": q.get("imbalance", 1.0)}, Rank)
        if known
        else Rank(rank=q["rank"], verdict="timeout")
        for known, q in zip(found, asked, strict=True)
    ]


def versions_of(python: list[str]) -> dict[str, str]:
    """Returns package → version. Errors: AutoscoutError (exit 2) if torch or megatron-core is missing."""
    line = (
        "import json, importlib.metadata as m, sys; "
        f"have = {{d.metadata['Name'].lower().replace('_', '-'): d.version for d in m.distributions()}}; "
        f"print(json.dumps({{n: have[n] for n in {_PACKAGES!r} if n in have}}))"
    )
    own = python == [sys.executable]
    found = _own_versions() if own else interpreter.probe([*python, "-c", line], " ".join(python))
    for package in ("torch", "megatron-core"):
        if package not in found:
            raise AutoscoutError(
                f"{' '.join(python)}: has no {package}, but a shadow run (the framework's own code without a GPU) "
                "needs it; install it there (`pip install torch megatron-core==0.16.1`, no GPU needed) or name "
                "an interpreter in launch.python",
                2,
            )
    return {name: str(found[name]) for name in _PACKAGES if name in found}


def _own_versions() -> dict[str, str]:
    from autoscout.targets.target import target

    return target("megatron").installed()
