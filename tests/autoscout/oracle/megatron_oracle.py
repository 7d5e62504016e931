"""Megatron-core as the oracle of its catalog: its configuration classes, process groups, model and first step."""

import functools
import os
import sys

import numpy as np
from agreement import Answers, Verdict, assignments, one_rule_broken

from autoscout.targets.jobs import JobSpace
from autoscout.targets.megatron.arguments import variables
from autoscout.targets.megatron.profiler import worker_config
from kb.records import AutoscoutError, Cluster, Job, Model, Node, Objective, Traffic, Value

BEYOND: dict[str, list[Value]] = {
    "tp": [3, 5, 16],
    "pp": [3, 5, 16],
    "cp": [3, 16],
    "ep": [3, 5],
    "etp": [3],
    "vpp": [5],
    "mbs": [3, 5, 16],
    "ar": ["partial"],
    "ar_method": ["spread"],
    "ar_layers": [5, 7, 100],
    "ddp_bucket": [1024],
}
_OUTSIDE = "a value that is not offered, and that Megatron would take"
_INERT = "Megatron takes the knob and ignores it here, so we leave it out"
_EARLY = "Megatron refuses it later: when the model is built, or in the first step (asked below)"
_SILENT = "Megatron does not notice: it trains something else"
_OURS = "our own choice: all devices, and only the shapes that recipes use"
_GLOO = "only the CPUs' communication library refuses it, which the oracle does not use"
LATER = ("T4", "T5", "T6", "P2", "P3", "P4", "P5", "C2", "M2", "M3", "R5")
DEEP = {
    "domain": _OUTSIDE,
    "inactive": _INERT,
    "I3": _INERT,
    "R6": _INERT,
    "P9": _SILENT,
    "M18": _SILENT,
    "W1": _OURS,
    "implied": _OURS,
    "E1": _OURS,
    "U1": _OURS,
    "M17": _GLOO,
}
EARLY = {**DEEP, **dict.fromkeys(LATER, _EARLY)}


@functools.cache
def verdicts(early: int = 3000, deep: int = 120, each: int = 1, seed: int = 0) -> tuple[list[Verdict], list[Verdict]]:
    """(of the groups and configuration classes, of a whole first step on the first and the last rank). `early` and
    `deep` assignments; the second also of `each` that break one rule alone, a rule and job."""
    spaces: dict[str, JobSpace] = {}
    jobs = [job for i in range(24) if (job := _feasible_job(i, seed, spaces))][:12]
    first = spaces[jobs[0].name]
    environment = {**os.environ, **variables(jobs[0], first.sample(np.random.default_rng(0)))}
    found: dict[bool, list[Verdict]] = {False: [], True: []}
    with Answers(sys.executable, "megatron_answers.py", environment) as oracle:
        for i, job in enumerate(jobs):
            space, rng = spaces[job.name], np.random.default_rng([seed, i])
            broken = one_rule_broken(space, each, 1000, rng)
            asked = [(False, c) for c in assignments(space, early // len(jobs), rng, BEYOND)]
            asked += [(True, c) for c in [*assignments(space, deep // len(jobs), rng, BEYOND), *broken]]
            for is_deep, configuration in asked:
                if is_deep and configuration.knobs.get("ep", 1) != 1:
                    continue  # how many tokens another rank's router sends is not to be invented
                refused = ""
                for rank in {0, job.devices - 1} if is_deep else {0}:
                    config = worker_config(job, configuration, [])
                    question = {"world": job.devices, "rank": rank, "deep": is_deep, "config": config}
                    refused = refused or oracle.ask(question)
                rules = tuple(v.rule for v in space.violations(configuration))
                found[is_deep].append(Verdict(job.name, space.name(configuration), rules, refused))
    return found[False], found[True]


def _feasible_job(number: int, seed: int, spaces: dict[str, JobSpace]) -> Job | None:
    """A job of random shape, its space put into `spaces`; None where nothing is feasible for it."""
    job = _job(number, np.random.default_rng([seed, number]))
    try:
        spaces[job.name] = JobSpace.of_job(job)
    except AutoscoutError:
        return None
    return job


def _job(number: int, rng: np.random.Generator) -> Job:
    def one(*values: int) -> int:
        return int(rng.choice(values))

    heads = one(2, 4, 6, 8)
    experts = one(0, 0, 4, 6) if number % 2 else 0
    return Job(
        name=f"random-{number}",
        target="megatron",
        model=Model(
            layers=one(2, 4, 6, 8),
            hidden=heads * 8,
            heads=heads,
            kv_heads=one(*(d for d in (1, 2, 3, 4, 8) if heads % d == 0)),
            ffn=one(44, 50, 64, 96),
            vocab=one(60, 63, 64, 96),
            bias=not experts and bool(rng.integers(2)),
            gated=bool(rng.integers(2)),
            position="rope",
            experts=experts,
            expert_ffn=32 if experts else 0,
            dtype="bf16" if rng.integers(2) else "fp32",
        ),
        traffic=Traffic(seq_len=one(12, 20, 24, 32), global_batch=one(4, 8, 12, 16)),
        cluster=Cluster(nodes=[Node(device="cpu", count=one(1, 2, 4, 6, 8))]),
        objective=Objective(minimize="step_time_s"),
    )
