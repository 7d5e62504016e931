"""Audits a release of vLLM by its own configuration classes, without a device: tests whether these accept valid
configurations of the space, and reject invalid ones that break exactly one rule."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from autoscout.job.shipped import job_file
from autoscout.running.interpreter import target_python
from autoscout.targets import auditing, seams
from autoscout.targets.audited import Audit
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.targets.target import shipped
from autoscout.targets.vllm import arguments, installed
from autoscout.targets.vllm.engine_calls import fit_of, release_of
from autoscout.targets.vllm.serving_shadow import OF_PLACES, gpu_of
from kb.records import AutoscoutError, Cluster, Job, SpaceLimits

RECORD = Path(__file__).with_name("vllm_arguments.json")
_SCRIPT = Path(__file__).parent / "worker" / "audit_vllm.py"
_JOB = "llama-3-8b-serve"
_WRITTEN = (
    "prefill",
    "router",
    "kv_disk",
)  # knobs that keep their default: they concern several servers or a folder, not the configuration of one engine


def recorded() -> seams.Recorded:
    return seams.read_record(RECORD)


def ask(python: list[str], question: dict[str, Any]) -> auditing.ValidationAnswers:
    """Runs the audit script. Errors: AutoscoutError (exit 2) if the engine does not answer."""
    return auditing.ask(python, _SCRIPT, question, "vLLM")


def audit(job: Job | None, seed: int = 0) -> Audit:
    """Audits a job's interpreter and space. Without a job, audits our interpreter with a shipped job in which all
    values are allowed. Errors: AutoscoutError (exit 2) if no engine is installed."""
    given_job, job = job, job or load_job(str(job_file(_JOB)))
    found = installed.version_of(job)
    if found is None:
        # raises an error with the reason if the engine cannot be used
        ask(target_python(job), {"config": {}, "gpu": None, "launches": []})
        python = " ".join(target_python(job))
        raise AutoscoutError(
            f"{python}: {installed.SILENT.format('vllm')}; set launch.python to a different interpreter", 2
        )
    job = job if given_job else _open(job, found)
    space, version = JobSpace.of_job(job), release_of(found.version)
    by = {rule.id: f"{rule.id}, checked by {rule.checked}" for rule in space.rules}
    pairs = list(auditing.drawn(space, list(by), auditing.DRAWN, np.random.default_rng(seed)))
    given = arguments.engine_arguments_of(job)
    launches = [{n: v for n, v in given(c).items() if n not in OF_PLACES} for _, c in pairs]
    gpu = gpu_of(job, pairs[0][1], job.cluster.nodes[0].device)
    question = {"config": arguments.model_config(job), "gpu": gpu, "launches": launches}
    answers = ask(target_python(job), question)
    counts = auditing.counted([by.get(rule, "") for rule, _ in pairs], answers.answers)
    ours = {flag for launch in launches for flag in arguments.flags(launch)}
    ours |= {f"--{knob.sets.partition('.')[0].replace('_', '-')}" for knob in shipped("vllm").knob}
    return Audit(
        engine=f"vllm {version}",
        recorded=version in recorded().releases,
        parses=bool(answers.arguments),
        jobs=[job.name],
        **counts,
        unsaid=sum(n for rule, n in counts["accepted"].items() if rule.endswith("by vllm")),
        unset=list(auditing.unset(answers, ours, recorded())),
        moved=auditing.moved(answers, recorded(), version, shipped("vllm").version),
        unfit=fit_of(target_python(job), version).unfit,
    )


def _open(job: Job, found: installed.Installed) -> Job:
    """Returns the job on its first kind of device, in which knobs may have the values that need the user's permission
    (`asks`), except knobs in _WRITTEN."""
    asking = [k.name for k in installed.adapted(shipped("vllm"), found).knob if k.asks and k.name not in _WRITTEN]
    return msgspec.structs.replace(job, cluster=Cluster(nodes=job.cluster.nodes[:1]), space=SpaceLimits(allow=asking))
