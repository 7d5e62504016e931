"""Compares a release of Megatron-core with the catalog: which flags no knob sets, which defaults changed, and whether
the release accepts configurations drawn from the space and rejects neighbouring ones that the space forbids."""

import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from autoscout.job.shipped import job_file
from autoscout.running.interpreter import target_python
from autoscout.space.knob import RuleEntry
from autoscout.targets import auditing, seams
from autoscout.targets.audited import Audit
from autoscout.targets.auditing import ValidationAnswers
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.targets.megatron import arguments, engine_seams, releases
from autoscout.targets.target import shipped
from kb.records import AutoscoutError, Job, SpaceLimits

RECORD = Path(__file__).with_name("engine_arguments.json")
_SCRIPT = engine_seams.RANK.with_name("audit_engine.py")
_JOBS = ("llama-3.2-3b", "qwen3-30b-a3b")  # in these two jobs together, every knob has an effect
_GROUPING = "core/parallel_state.py"  # the audit does not run checks in this file, because they need process groups
# modules whose checks the audit runs; checks in further modules need a model
_VALIDATION = re.compile(r"core/[a-z_/]*config\.py|training/arguments\.py")


def recorded() -> seams.Recorded:
    return seams.read_record(RECORD)


def ask(python: list[str], path: str, launches: list[dict[str, Any]]) -> ValidationAnswers:
    """Runs the audit script. Errors: AutoscoutError (exit 2) if the engine does not answer."""
    return auditing.ask(python, _SCRIPT, {"path": path, "launches": launches}, engine_seams.PACKAGE)


def audit(job: Job | None, seed: int = 0) -> Audit:
    """Audits a job's interpreter and space. Without a job, audits our interpreter with two shipped jobs in which all
    values are allowed.

    Errors: AutoscoutError (exit 2) if no engine is installed."""
    jobs = [job] if job else [_open(load_job(str(job_file(name)))) for name in _JOBS]
    version = releases.version_of(jobs[0])
    if not version:
        raise AutoscoutError(
            f"{' '.join(target_python(jobs[0]))}: has no {engine_seams.PACKAGE} whose version can be read; install it "
            "there, or name an interpreter that has it in launch.python",
            2,
        )
    rng = np.random.default_rng(seed)
    rules, launches = [], []
    for each in jobs:
        space, entries = JobSpace.of_job(each), {rule.id: rule for rule in shipped(each.target).rule}
        asked = [rule.id for rule in space.rules if not rule.source.startswith(_GROUPING)]
        for rule, found in auditing.drawn(space, asked, auditing.DRAWN // len(jobs), rng):
            rules.append(checked_by(entries[rule], version) if rule in entries else rule)
            flags, variables = arguments.flags(each, found), arguments.variables(each, found)
            launches.append({"flags": flags, "world": arguments.world_size(found), "variables": variables})
    answers = ask(target_python(jobs[0]), jobs[0].launch.path, launches)
    counts = auditing.counted(rules, answers.answers)
    fit = engine_seams.fit(jobs[0], version)
    ours = {flag for launch in launches for flag in launch["flags"]} | _set_by_knobs(jobs[0])
    return Audit(
        engine=f"{engine_seams.PACKAGE} {version}",
        recorded=version in recorded().releases,
        parses=bool(answers.arguments),
        jobs=[each.name for each in jobs],
        **counts,
        unsaid=sum(n for rule, n in counts["accepted"].items() if rule.endswith(f"by {engine_seams.PACKAGE}")),
        unset=list(auditing.unset(answers, ours, recorded())),
        moved=auditing.moved(answers, recorded(), version, shipped("megatron").version.rpartition(" ")[2]),
        unfit=fit.unfit if fit else [],
    )


def _open(job: Job) -> Job:
    """Returns the job with Transformer Engine enabled and all values allowed, including those that need permission."""
    launch = msgspec.structs.replace(job.launch, transformer_engine=True)
    asking = [knob.name for knob in releases.adapted(shipped(job.target), job).knob if knob.asks]
    fix: dict[str, Any] = {"vpp": 1, "ar_method": "block", "mbs": 1}
    return msgspec.structs.replace(job, launch=launch, space=SpaceLimits(fix=fix, allow=asking))


def checked_by(rule: RuleEntry, version: str) -> str:
    """Returns the rule's id and what rejects violations: "W1, checked by megatron-core", if necessary with "since
    VERSION" or "when it builds the model"."""
    by = rule.checked
    if by == engine_seams.PACKAGE and rule.since and not releases.reached(version, rule.since):
        by += f" since {rule.since}"
    elif by == engine_seams.PACKAGE and not all(map(_VALIDATION.search, rule.source.split("; "))):
        by += " when it builds the model"
    return f"{rule.id}, checked by {by}"


def _set_by_knobs(job: Job) -> set[str]:
    """Returns all flags that the catalog may set, by their names in the installed release."""
    today = releases.renamed(job)
    flags = {flag for knob in shipped("megatron").knob for flag in knob.sets.split(", ")}
    return {today.get(flag, flag) for flag in flags} | flags
