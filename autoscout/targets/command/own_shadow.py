"""Shadow runs of a person's own training script: the script itself on fake tensors and a fake process group, in a
process of its own with a time limit; what was asked before, from beside the knowledge base."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from autoscout.cluster.devices import device_kind, used_nodes
from autoscout.job.presets import device_memory_gib
from autoscout.running import interpreter
from autoscout.running.shadow_process import said
from autoscout.running.warm_run import startable
from autoscout.simulate.hardware.device import hardware
from autoscout.simulate.shadow.traced import DOUBTED_ERROR, Rank, Shadow
from autoscout.simulate.shadow.verdict import judged
from autoscout.targets.command import surroundings
from autoscout.targets.command.arguments import Place, Started, command_of, started
from kb import traces
from kb.records import AutoscoutError, Configuration, Job, content_hash

WORKER = Path(__file__).parent / "worker"
SCRIPT = WORKER / "script_shadow.py"
_SHARED = Path(__file__).parents[1] / "megatron" / "worker"  # what follows storages is the same
STOOD_IN = (
    "tensors (no storage), process groups (no other ranks), the GPU (operators are those of torch for CPUs)",
    "values that are read (losses, norms): constants",
    "what the script keeps on the host counts as the device's",
)


def shadow(
    job: Job,
    configuration: Configuration,
    name: str,
    kb: Path | None,
    limit_s: float = 300.0,
    ranks: list[int] | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> Shadow:
    """`ranks`: those to trace, else the first: of data parallelism all are alike. `kb`: None remembers nothing.
    `limit_s`: 0 answers from there only.

    Errors: AutoscoutError (exit 2) for a command that is not a Python script's, a rank that does not exist."""
    run = _run(job, configuration)
    world = sum(node.count for node in used_nodes(job, configuration))
    if outside := [r for r in ranks or [] if not 0 <= r < world]:
        raise AutoscoutError(f"--rank {outside[0]}: the configuration has the ranks 0 to {world - 1}", 2)
    versions = surroundings.describe(job, run)
    asked = [question(job, configuration, run, world, rank) for rank in ranks or [0]]
    files = [*WORKER.glob("*.py"), *_SHARED.glob("*.py"), *(_SHARED / "shadow").glob("*.py")]
    code = interpreter.hash_of(sorted(files))
    keys = [content_hash([each, versions, code]) for each in asked]
    found = [traces.known(kb, key, Rank) if kb is not None else None for key in keys]
    unknown = [i for i, known in enumerate(found) if known is None]
    if unknown and limit_s <= 0:
        raise AutoscoutError("it has not been traced yet; `autoscout shadow` does it")
    for i in unknown:
        traced = ask(asked[i], job, run, limit_s, stopping)
        found[i] = traced
        if kb is not None and traced.verdict != "timeout":
            traces.keep(kb, keys[i], traced)
    told = [rank for rank in found if rank is not None]
    shown = {package: version for package, version in versions.items() if package in ("torch", "transformers")}
    base = Shadow(
        job=job.name,
        name=name,
        configuration=configuration.knobs,
        verdict="starts",
        sentence="",
        world=world,
        ranks=told,
        stood_in=list(STOOD_IN),
        versions=shown,
        cached=len(asked) - len(unknown),
        cpu_s=sum(rank.cpu_s for rank in told),
    )
    gib, beside = _device(job, configuration)
    return judged(base, told, DOUBTED_ERROR, beside, gib, 1.0)


def question(job: Job, configuration: Configuration, run: Started, world: int, rank: int) -> dict[str, Any]:
    return {
        "words": run.words,
        "environment": run.environment,
        "cwd": str(Path(job.launch.path or ".").absolute()),
        "rank": rank,
        "world": world,
        "a_node": max(node.count for node in used_nodes(job, configuration)),
        "gpu": device_kind(job) == "cuda",
    }


def ask(
    asked: dict[str, Any], job: Job, run: Started, limit_s: float, stopping: Callable[[], bool] = lambda: False
) -> Rank:
    """Errors: AutoscoutError, as said()."""
    python = surroundings.python_of(job, run)
    answer = said(SCRIPT, [asked], [python], limit_s, surroundings.variables(job, run), stopping)[0]
    if answer is None:
        return Rank(rank=asked["rank"], verdict="timeout")
    return msgspec.convert({**answer, "rank": asked["rank"], "micro_batches": 1}, Rank)


def _run(job: Job, configuration: Configuration) -> Started:
    """Errors: AutoscoutError (exit 2)."""
    if not command_of(job):
        raise AutoscoutError(f"{job.name} has no launch.command, and a shadow runs the script that it starts", 2)
    place = Place(folder="autoscout-run", port="29999", iterations=str(max(job.launch.iterations, 4)))
    run = started(job, configuration, place)
    if run.files:
        raise AutoscoutError(
            "a command that reads rendered files cannot be run as a shadow yet; leave launch.render", 2
        )
    if startable(run.words):
        raise AutoscoutError(
            f"{run.words[0]} cannot be run as a shadow: only `python script.py …`, `python -m module …` and "
            f"`torchrun …` can (DDP and FSDP2; DeepSpeed cannot yet); `autoscout profile` works on it",
            2,
        )
    return run


def _device(job: Job, configuration: Configuration) -> tuple[float | None, float]:
    """(GiB of the smallest device, GiB that the driver and the communicators hold there)."""
    if device_kind(job) == "cpu":
        return None, 0.0
    nodes = used_nodes(job, configuration)
    known = [hardware(node.device) for node in nodes]
    sizes = [
        node.memory_gib or (hw.memory_gib if hw else device_memory_gib(node.device) or 0.0)
        for node, hw in zip(nodes, known, strict=True)
    ]
    return (min(sizes) or None), max(hw.context_gib if hw else 0.7 for hw in known)
