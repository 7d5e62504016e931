"""What a release of Megatron-core takes, asked of itself, against the catalog: flags that no knob sets, defaults that
moved, and what it makes of configurations drawn from the space, and of neighbours that the space forbids."""

import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from autoscout.job.shipped import job_file
from autoscout.running.interpreter import target_python
from autoscout.space.graph import Space
from autoscout.space.knob import RuleEntry
from autoscout.targets import seams
from autoscout.targets.audited import Audit, Unset
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.targets.megatron import arguments, engine_seams, releases
from autoscout.targets.target import shipped
from kb.records import AutoscoutError, Configuration, Job, SpaceLimits

RECORD = Path(__file__).with_name("engine_arguments.json")
DRAWN = 240
_SCRIPT = engine_seams.RANK.with_name("audit_engine.py")
_LIMIT_S = 600.0
_JOBS = ("llama-3.2-3b", "qwen3-30b-a3b")  # every knob acts in one of them
_WITHIN = ("domain", "inactive", "implied")  # not rules: the engine was not asked this
_TRIES = 20
_GROUPING = "core/parallel_state.py"  # checked when ranks are grouped, which nobody asks for here
_VALIDATION = re.compile(r"core/[a-z_/]*config\.py|training/arguments\.py")  # what is asked; the rest builds a model
# Of speed or memory, by their flag or help.
_WORDS = re.compile(
    r"overlap|fus(?:e|ion)|recompute|offload|bucket|buffer|comm(?:unication)?\b|graph|gemm|kernel|memory|stream|_sms\b|"
    r"prefetch|parallel|shard|async|precision|fp8|fp4|cache|stash|chunk|dispatch|pipeline|inflight|nccl|speed|throughput"
)


class EngineAnswer(msgspec.Struct, frozen=True):
    refused: str
    changed: dict[str, list[Any]]
    said: list[str]


class ValidationAnswers(msgspec.Struct, frozen=True):
    """As worker/audit_engine.py answers."""

    arguments: dict[str, str]
    helps: dict[str, str]
    fields: dict[str, str]
    answers: list[EngineAnswer]


def recorded() -> seams.Recorded:
    """`--flag` and `Class.field` → "default of choices", by release."""
    return msgspec.json.decode(RECORD.read_bytes(), type=seams.Recorded)


def ask(python: list[str], path: str, launches: list[dict[str, Any]]) -> ValidationAnswers:
    """Errors: AutoscoutError (exit 2) if the engine cannot be asked."""
    question = msgspec.json.encode({"path": path, "launches": launches})
    said = b""
    try:
        done = subprocess.run([*python, str(_SCRIPT)], input=question, capture_output=True, timeout=_LIMIT_S)
        said = done.stderr.strip()
        return msgspec.json.decode(done.stdout.rstrip().rsplit(b"\n", 1)[-1], type=ValidationAnswers)
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
        last = said.decode(errors="replace").rsplit("\n", 1)[-1] or str(error)
        raise AutoscoutError(f"{' '.join(python)}: its Megatron-core cannot be asked ({last[-300:]})", 2) from error


def audit(job: Job | None, seed: int = 0) -> Audit:
    """Of a job's interpreter and space, or of our interpreter and two shipped jobs with all that can be allowed.

    Errors: AutoscoutError (exit 2) without an engine that can be asked."""
    jobs = [job] if job else [_open(load_job(str(job_file(name)))) for name in _JOBS]
    version = releases.version_of(jobs[0])
    if not version:
        raise AutoscoutError(f"{' '.join(target_python(jobs[0]))}: has no {engine_seams.PACKAGE} to audit", 2)
    rng = np.random.default_rng(seed)
    rows = [row for each in jobs for row in _rows(each, version, DRAWN // len(jobs), rng)]
    launches = [{"flags": f, "world": w, "variables": v} for _, f, w, v in rows]
    told = ask(target_python(jobs[0]), jobs[0].launch.path, launches)
    pairs = [(rule, answer) for (rule, *_), answer in zip(rows, told.answers, strict=True)]
    drawn = [answer for rule, answer in pairs if not rule]
    examples = {name: (change, a.said) for a in drawn for name, change in a.changed.items()}
    fit = engine_seams.fit(jobs[0], version)
    accepted = Counter(rule for rule, a in pairs if rule and not a.refused)
    return Audit(
        engine=f"{engine_seams.PACKAGE} {version}",
        recorded=version in recorded().releases,
        parses=bool(told.arguments),
        jobs=[each.name for each in jobs],
        drawn=len(drawn),
        refused=dict(Counter(a.refused for a in drawn if a.refused).most_common()),
        changed={
            name: (count, _example(*examples[name]))
            for name, count in Counter(name for a in drawn for name in a.changed).most_common()
        },
        forbidden=len(pairs) - len(drawn),
        accepted=dict(accepted.most_common()),
        unsaid=sum(count for rule, count in accepted.items() if rule.endswith(f"by {engine_seams.PACKAGE}")),
        unset=list(_unset(told, {flag for _, flags, *_ in rows for flag in flags} | _set_by_knobs(jobs[0]))),
        moved=_moved(told, version),
        unfit=fit.unfit if fit else [],
    )


def _example(change: list[Any], said: list[str]) -> str:
    name = f"{change[0]} became {change[1]}"
    return f"{name} ({said[0][:200]})" if said else f"{name}, and nothing is said"


def _open(job: Job) -> Job:
    """With everything that has to be allowed, and with Transformer Engine."""
    launch = msgspec.structs.replace(job.launch, transformer_engine=True)
    asking = [knob.name for knob in releases.adapted(shipped(job.target), job).knob if knob.asks]
    fix: dict[str, Any] = {"vpp": 1, "ar_method": "block", "mbs": 1}
    return msgspec.structs.replace(job, launch=launch, space=SpaceLimits(fix=fix, allow=asking))


def _rows(
    job: Job, version: str, count: int, rng: np.random.Generator
) -> Iterator[tuple[str, arguments.Flags, int, dict[str, str]]]:
    """("" or the rule that forbids it, flags, ranks, environment variables) of valid configurations, each followed by a
    neighbour that just one rule forbids, if some tries find one."""
    space = JobSpace.of_job(job)
    entries = {rule.id: rule for rule in shipped(job.target).rule}
    of_job = (r for r in space.rules if not r.source.startswith(_GROUPING))
    asked = {r.id: _checked(entries[r.id], version) if r.id in entries else r.id for r in of_job}
    for _ in range(count):
        valid = space.sample(rng)
        yield "", arguments.flags(job, valid), arguments.world_size(valid), arguments.variables(job, valid)
        for _ in range(_TRIES):
            knob = space.knobs[int(rng.integers(len(space.knobs)))]
            value = knob.values[int(rng.integers(len(knob.values)))]
            wrong = space.canonical({**valid.knobs, knob.name: value})
            broken = _broken(space, wrong)
            if len(broken) == 1 and broken[0] in asked:
                variables = arguments.variables(job, wrong)
                yield asked[broken[0]], arguments.flags(job, wrong), arguments.world_size(wrong), variables
                break


def _checked(rule: RuleEntry, version: str) -> str:
    by = rule.checked
    if by == engine_seams.PACKAGE and rule.since and not releases.reached(version, rule.since):
        by += f" since {rule.since}"
    elif by == engine_seams.PACKAGE and not _VALIDATION.search(rule.source):
        by += " when it builds the model"
    return f"{rule.id}, checked by {by}"


def _set_by_knobs(job: Job) -> set[str]:
    """Flags of the catalog's own words, by the names of this release, whether a draw had them or not."""
    today = releases.renamed(job)
    flags = {flag for knob in shipped("megatron").knob for flag in knob.sets.split(", ")}
    return {today.get(flag, flag) for flag in flags} | flags


def _broken(space: Space, configuration: Configuration) -> list[str]:
    found = [violation.rule for violation in space.violations(configuration)]
    return [] if any(rule in _WITHIN for rule in found) else found


def _unset(told: ValidationAnswers, ours: set[str]) -> Iterator[Unset]:
    """Flags with words of speed or memory that no launch of ours has, most of them first."""
    first = {name: next(v for v, text in held.items() if text is not None) for name, held in recorded().names.items()}
    fields = {name.partition(".")[2]: release for name, release in first.items() if "." in name}
    oldest = recorded().releases[0]
    found = []
    for flag, takes in told.arguments.items():
        field = flag.removeprefix("--").removeprefix("no-").replace("-", "_")
        count = len(set(_WORDS.findall(f"{field} {told.helps.get(flag, '')}".lower())))
        if flag not in ours and count:
            since = fields.get(field, first.get(flag, "this release"))
            since = f"{oldest} or older" if since == oldest else since
            found.append(Unset(flag, takes, since, told.helps[flag], count))
    yield from sorted(found, key=lambda u: (-u.words, u.flag))


def _moved(told: ValidationAnswers, version: str) -> dict[str, tuple[str, str]]:
    catalog = shipped("megatron").version.rpartition(" ")[2]
    before = recorded().of(catalog) or {}
    if version == catalog:
        return {}
    return {
        name: (was, told.fields[name])
        for name, was in before.items()
        if was is not None and told.fields.get(name, was) != was
    }


def draft(found: Audit, flags: Sequence[str]) -> str:
    """Catalog rows for flags that no knob sets, off until a job allows them. Errors: AutoscoutError (exit 2)."""
    known = {each.flag: each for each in found.unset}
    for flag in flags:
        if flag not in known:
            raise AutoscoutError(f"{found.engine}: {flag} is no flag of speed or memory that no knob sets", 2)
    return "\n".join(_row(known[flag]) for flag in flags)


def _row(each: Unset) -> str:
    default, _, listed = each.takes.partition(" of ")
    value = msgspec.json.decode(default)
    values: list[Any] = [False, True] if isinstance(value, bool) else [v for v in listed.split(" | ") if v]
    if isinstance(value, int | float) and not isinstance(value, bool):
        values = [value / 2 if isinstance(value, float) else value // 2, value, value * 2]
    if not values:
        values = [] if value is None else [value]
    text = [
        "[[knob]]",
        f'name = "{each.flag.removeprefix("--").replace("-", "_")}"',
        'kind = "dense"',
        'layer = "own"',
        f"values = {_toml(values)}" + ("" if len(values) > 1 else "  # write values that your job may try"),
        f"default = {_toml(value)}" if value is not None else "# the engine decides where it is not given",
        f"asks = {_toml([v for v in values if v != value])}",
        'asks_for = "drafted from the engine\'s own words; nobody has measured it"',
        f"meaning = {_toml(each.help[:200] or each.flag)}",
        f'sets = "{each.flag}"',
        f'since = "{each.since}"' if each.since[0].isdigit() and " " not in each.since else "",
    ]
    return "\n".join(line for line in text if line) + "\n"


def _toml(value: Any) -> str:
    return msgspec.json.encode(value).decode()
