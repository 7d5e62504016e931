"""The parts of an audit (a comparison of a catalog with the engine's own validation) that all engines share: querying
the engine, comparing its answers with the space, and drafting catalog entries."""

import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from autoscout.space.graph import Space
from autoscout.targets.audited import Audit, Unset
from autoscout.targets.seams import Recorded
from kb.records import AutoscoutError, Configuration

DRAWN = 240
_LIMIT_S = 600.0
# Kinds of violations that come from the space itself, not from a rule of the catalog. The audit does not test them.
_WITHIN = ("domain", "inactive", "implied")
_TRIES = 20
# Words in the name or help text of flags that affect speed or memory.
_WORDS = re.compile(
    r"overlap|fus(?:e|ion)|recompute|offload|bucket|buffer|comm(?:unication)?\b|graph|gemm|kernel|memory|stream|_sms\b|"
    r"prefetch|parallel|shard|async|precision|fp8|fp4|cache|stash|chunk|dispatch|pipeline|inflight|nccl|speed|throughput"
)


class EngineAnswer(msgspec.Struct, frozen=True):
    refused: str
    changed: dict[str, list[Any]]
    said: list[str]


class ValidationAnswers(msgspec.Struct, frozen=True):
    """An audit script's output. Fields: see megatron/worker/audit_engine.py and vllm/worker/audit_vllm.py."""

    arguments: dict[str, str]
    helps: dict[str, str]
    fields: dict[str, str]
    answers: list[EngineAnswer]


def ask(python: list[str], script: Path, question: dict[str, Any], engine: str) -> ValidationAnswers:
    """Runs the engine's audit script. Errors: AutoscoutError (exit 2) if the engine does not answer."""
    output = b""
    try:
        asked = msgspec.json.encode(question)
        done = subprocess.run([*python, str(script)], input=asked, capture_output=True, timeout=_LIMIT_S)
        output = done.stderr.strip()
        return msgspec.json.decode(done.stdout.rstrip().rsplit(b"\n", 1)[-1], type=ValidationAnswers)
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
        last = output.decode(errors="replace").rsplit("\n", 1)[-1] or str(error)
        raise AutoscoutError(
            f"{' '.join(python)}: the {engine} of this interpreter cannot be queried ({last[-300:]})", 2
        ) from error


def drawn(
    space: Space, rules: Sequence[str], count: int, rng: np.random.Generator
) -> Iterator[tuple[str, Configuration]]:
    """Yields (rule that forbids the configuration, configuration). The rule is "" for `count` random valid
    configurations. Each is followed by a neighbour that breaks exactly one of `rules`, if _TRIES changes find one."""
    for _ in range(count):
        valid = space.sample(rng)
        yield "", valid
        for _ in range(_TRIES):
            knob = space.knobs[int(rng.integers(len(space.knobs)))]
            value = knob.values[int(rng.integers(len(knob.values)))]
            wrong = space.canonical({**valid.knobs, knob.name: value})
            broken = _broken(space, wrong)
            if len(broken) == 1 and broken[0] in rules:
                yield broken[0], wrong
                break


def _broken(space: Space, configuration: Configuration) -> list[str]:
    found = [violation.rule for violation in space.violations(configuration)]
    return [] if any(rule in _WITHIN for rule in found) else found


def counted(rules: Sequence[str], answers: Sequence[EngineAnswer]) -> dict[str, Any]:
    """Returns the fields of an Audit that count answers. `rules`: for each answer, the rule that forbids its
    configuration; "" if the configuration is valid."""
    pairs = list(zip(rules, answers, strict=True))
    valid = [answer for rule, answer in pairs if not rule]
    examples = {name: (change, a.said) for a in valid for name, change in a.changed.items()}
    accepted = Counter(rule for rule, a in pairs if rule and not a.refused)
    return {
        "drawn": len(valid),
        "refused": dict(Counter(a.refused for a in valid if a.refused).most_common()),
        "changed": {
            name: (count, _example(*examples[name]))
            for name, count in Counter(name for a in valid for name in a.changed).most_common()
        },
        "forbidden": len(pairs) - len(valid),
        "accepted": dict(accepted.most_common()),
    }


def _example(change: list[Any], warnings: list[str]) -> str:
    name = f"{change[0]} became {change[1]}"
    return f"{name} ({warnings[0][:200]})" if warnings else f"{name}, without a warning"


def unset(answers: ValidationAnswers, ours: set[str], known: Recorded) -> Iterator[Unset]:
    """Yields the speed or memory flags that are not in `ours` (the flags that AutoScout sets), most relevant first."""
    first = {name: next(v for v, text in held.items() if text is not None) for name, held in known.names.items()}
    fields = {name.partition(".")[2]: release for name, release in first.items() if "." in name}
    oldest = known.releases[0]
    found = []
    for flag, takes in answers.arguments.items():
        field = flag.removeprefix("--").removeprefix("no-").replace("-", "_")
        count = len(set(_WORDS.findall(f"{field} {answers.helps.get(flag, '')}".lower())))
        if flag not in ours and count:
            since = fields.get(field, first.get(flag, "this release"))
            since = f"{oldest} or older" if since == oldest else since
            found.append(Unset(flag, takes, since, answers.helps[flag], count))
    yield from sorted(found, key=lambda u: (-u.words, u.flag))


def moved(answers: ValidationAnswers, known: Recorded, version: str, catalogs: str) -> dict[str, tuple[str, str]]:
    """Returns field → (default in the catalog's release, default in `version`), for fields whose default differs."""
    if version == catalogs:
        return {}
    before = known.of(catalogs) or {}
    return {
        name: (was, answers.fields[name])
        for name, was in before.items()
        if was is not None and answers.fields.get(name, was) != was
    }


def draft(found: Audit, flags: Sequence[str]) -> str:
    """Returns catalog entries (TOML) that add knobs for flags without a knob. These knobs are tuned only in jobs that
    allow them. Errors: AutoscoutError (exit 2)."""
    known = {each.flag: each for each in found.unset}
    for flag in flags:
        if flag not in known:
            raise AutoscoutError(
                f"{found.engine}: {flag} needs no draft, because it has a knob already, or affects neither speed nor "
                "memory",
                2,
            )
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
        f"default = {_toml(value)}" if value is not None else "# the engine decides if it is not given",
        f"asks = {_toml([v for v in values if v != value])}",
        'asks_for = "drafted from the engine\'s help text; never measured"',
        f"meaning = {_toml(each.help[:200] or each.flag)}",
        f'sets = "{each.flag}"',
        f'since = "{each.since}"' if each.since[0].isdigit() and " " not in each.since else "",
    ]
    return "\n".join(line for line in text if line) + "\n"


def _toml(value: Any) -> str:
    return msgspec.json.encode(value).decode()
