"""Shadow runs of a user's own training script: a separate process with a time limit runs the script without a GPU, on
fake tensors and a fake process group. Results are cached next to the knowledge base."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from autoscout.running import interpreter
from autoscout.running.cluster.devices import device_kind, used_nodes
from autoscout.running.shadow_process import shadows_of
from autoscout.running.warm_run import startable
from autoscout.simulate.shadow.traced import DOUBTED_ERROR, Rank, Shadow
from autoscout.simulate.shadow.verdict import judged
from autoscout.targets.command import surroundings
from autoscout.targets.command.arguments import Place, Started, command_of, started
from autoscout.targets.tracing import ShadowAsked, answered, existing, room
from kb.records import AutoscoutError, Configuration, Job, content_hash

WORKER = Path(__file__).parent / "worker"
SCRIPT = WORKER / "script_shadow.py"
_SHARED = Path(__file__).parents[1] / "megatron" / "worker"  # code for tracking tensor storages, shared with Megatron
STOOD_IN = (
    "tensors (no storage), process groups (no other ranks), the GPU (operators are those of torch for CPUs)",
    "values that the script reads (losses, norms), which are constants",
    "memory that the script uses on the host counts as device memory",
)


def shadow(asked: ShadowAsked) -> Shadow:
    """Returns the result of a shadow run of the given ranks, by default of the first rank only, since all data parallel
    ranks do the same work. Errors: AutoscoutError (exit 2) for a command that does not start a Python script, or an
    unknown rank."""
    job, configuration = asked.job, asked.configuration
    run = _run(job, configuration)
    world = sum(node.count for node in used_nodes(job, configuration))
    existing(asked.ranks, world)
    versions = surroundings.describe(job, run)
    questions = [question(job, configuration, run, world, rank) for rank in asked.ranks or [0]]
    files = [*WORKER.glob("*.py"), *_SHARED.glob("*.py"), *(_SHARED / "shadow").glob("*.py")]
    code = interpreter.hash_of(sorted(files))
    keys = [content_hash([each, versions, code]) for each in questions]

    def traced(unknown: list[int]) -> Iterator[Rank]:
        return (ask(questions[i], job, run, asked.limit_s, asked.stopping) for i in unknown)

    traces, cached = answered(keys, Rank, asked, traced)
    shown = {package: version for package, version in versions.items() if package in ("torch", "transformers")}
    base = Shadow(
        job=job.name,
        name=asked.name,
        configuration=configuration.knobs,
        verdict="starts",
        sentence="",
        world=world,
        ranks=traces,
        stood_in=list(STOOD_IN),
        versions=shown,
        cached=cached,
        cpu_s=sum(rank.cpu_s for rank in traces),
    )
    gib, overhead = room(used_nodes(job, configuration))
    return judged(base, traces, DOUBTED_ERROR, overhead, gib, 1.0)


def question(job: Job, configuration: Configuration, run: Started, world: int, rank: int) -> dict[str, Any]:
    return {
        "words": run.words,
        "environment": {"WANDB_MODE": "disabled", **run.environment},
        "cwd": str(Path(job.launch.path or ".").absolute()),
        "rank": rank,
        "world": world,
        "a_node": max(node.count for node in used_nodes(job, configuration)),
        "gpu": device_kind(job) == "cuda",
    }


def ask(
    asked: dict[str, Any], job: Job, run: Started, limit_s: float, stopping: Callable[[], bool] = lambda: False
) -> Rank:
    """Runs the worker for one question and returns its answer, with the verdict "timeout" after `limit_s` seconds."""
    python = surroundings.python_of(job, run)
    answer = shadows_of(SCRIPT, [asked], [python], limit_s, surroundings.variables(job, run), stopping)[0]
    if answer is None:
        return Rank(rank=asked["rank"], verdict="timeout")
    return msgspec.convert({**answer, "rank": asked["rank"], "micro_batches": 1}, Rank)


def _run(job: Job, configuration: Configuration) -> Started:
    """Returns the command whose script a shadow run executes. Errors: AutoscoutError (exit 2)."""
    if not command_of(job):
        raise AutoscoutError(
            f"{job.name} has no launch.command, but a shadow run (without a GPU) runs the script that "
            "launch.command starts",
            2,
        )
    # a constant path, because it is part of the cache key
    folder = Path(tempfile.gettempdir()) / f"autoscout-run-{os.getuid()}"
    place = Place(folder=str(folder), port="29999", iterations=str(max(job.launch.iterations, 4)))
    run = started(job, configuration, place)
    if run.files:
        raise AutoscoutError(
            "a command that reads rendered files cannot be run as a shadow (without a GPU) yet; remove launch.render", 2
        )
    if startable(run.line):
        raise AutoscoutError(
            f"{run.words[0]} cannot be run as a shadow: only `python script.py …`, `python -m module …` and "
            "`torchrun …` can (DDP and FSDP2; DeepSpeed cannot yet); use `autoscout profile` instead",
            2,
        )
    return run
