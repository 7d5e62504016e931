"""Checks whether shadows (dry runs) reject the same configurations as Megatron-core with real tensors
(tests/autoscout/oracle), on random assignments of small jobs: valid ones, and ones with one invalid knob.

    PYTHONPATH=. python tests/tools/shadow_verdicts.py [ASSIGNMENTS [FIRST_JOB]]

Jobs for CPUs use Megatron's own layers; those for 8 to 1,024 GPUs replace Transformer Engine's layers in both, so
Transformer Engine's own rejections are not tested. With ep > 1, other ranks' routers are assumed to choose like this
rank's. Timeouts are not counted. Disagreements between the space and Megatron are printed too."""

import os
import sys
import time
from collections import Counter
from typing import Any

import msgspec
import numpy as np

sys.path.insert(0, "tests/autoscout/oracle")

from agreement import Answers, assignments
from megatron_oracle import BEYOND, _job

from autoscout.targets.jobs import JobSpace
from autoscout.targets.megatron import arguments
from autoscout.targets.megatron.shadow import ask, micro_batches, question_of
from kb.records import AutoscoutError, Cluster, Configuration, Job, LaunchSettings, Node, SpaceLimits

EACH = 24  # assignments per job
LIMIT_S = 600.0
MOST = 16  # limit on micro batches, which Megatron all runs with real tensors
# Knobs that need a package without a replacement in the oracle (DeepEP, einops, Megatron-FSDP, CUDA graphs).
_LEFT_OUT = ("instances", "cuda_graph", "fsdp", "offload", "nccl_ctas", "nccl_nvls", "nccl_proto", "nccl_buffer")
_BEYOND = {**BEYOND, "mbs": [3, 5], "dp": [3, 5]}


def main(count: int, first: int = 0) -> None:
    found: Counter[str] = Counter()
    began = time.monotonic()
    number = first
    while found["asked"] < count:
        number += 1
        job = _job_number(number)
        try:
            space = JobSpace.of_job(job)
        except AutoscoutError:
            continue
        found += _asked(job, space, np.random.default_rng([1, number]))
        print(
            f"{found['alike']} of {found['asked']} alike ({found['refused']} refused by both, {found['experts']} with "
            f"ep > 1, {found['out of time']} out of time, {time.monotonic() - began:.0f} s)",
            flush=True,
        )


def _job_number(number: int) -> Job:
    """The job with this number: every second one is for GPUs, half of which have experts."""
    rng = np.random.default_rng([1, number])
    job = _job(number, rng)
    if number % 2:
        return job
    gpus = int(rng.choice([8, 16, 64, 256, 1024]))
    experts = 8 if number % 4 == 0 else 0
    model = msgspec.structs.replace(
        job.model,
        hidden=job.model.heads * 16,
        ffn=128,
        vocab=256,
        experts=experts,
        expert_ffn=64 if experts else 0,
        bias=job.model.bias and not experts,
    )
    batch = msgspec.structs.replace(job.traffic, seq_len=64, global_batch=4 * gpus)
    limits = SpaceLimits(allow=["fp8", "moments", "stage_split"], fix={})
    return msgspec.structs.replace(
        job,
        model=model,
        traffic=batch,
        cluster=Cluster(nodes=[Node(device="h100", count=gpus)]),
        launch=LaunchSettings(transformer_engine=True),
        space=limits,
    )


def _asked(job: Job, space: JobSpace, rng: np.random.Generator) -> Counter[str]:
    chosen = [c for c in assignments(space, EACH, rng, _BEYOND) if micro_batches(job, c) <= MOST]
    questions = [{**question_of(job, c), "world": job.devices, "rank": job.devices - 1} for c in chosen]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}
    how = ["experts", *["stand-ins"] * job.launch.transformer_engine]
    with Answers(sys.executable, "megatron_answers.py", environment, *how) as oracle:
        real = [oracle.told(_real(job, c)) for c in chosen]
    known = [answer["phase"] != "lost" for answer in real]
    told = ask([q for q, k in zip(questions, known, strict=True) if k], [sys.executable], LIMIT_S)
    found: Counter[str] = Counter()
    pairs = [(c, r) for c, r, k in zip(chosen, real, known, strict=True) if k]
    for (configuration, answer), rank in zip(pairs, told, strict=True):
        if rank.verdict == "timeout":
            found["out of time"] += 1
            continue
        refused, name = answer["refused"], space.name(configuration)
        if refused and not space.violations(configuration):
            print(f"{job.name} {name}: the space takes it, Megatron refuses it: {refused}", flush=True)
        same = bool(refused) == (rank.verdict == "refused") and rank.verdict != "untraceable"
        found["asked"] += 1
        found["alike"] += same
        found["experts"] += configuration.knobs.get("ep", 1) != 1
        found["refused"] += same and bool(refused)
        if not same:
            said = f"{rank.verdict} {rank.message[:200]} {rank.where}"
            print(f"{job.name} {name}: real {refused or 'takes it'}; shadow {said}", flush=True)
    return found


def _real(job: Job, configuration: Configuration) -> dict[str, Any]:
    """Megatron's result for the job's whole batch, of which a shadow traces only a part."""
    config = {
        "arguments": arguments.flags(job, configuration),
        "device": "cuda" if job.launch.transformer_engine else "cpu",
        "warmup": 0,
    }
    return {"world": job.devices, "rank": job.devices - 1, "deep": True, "apart": True, "config": config}


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:3] or ["300"]))
