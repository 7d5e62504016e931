"""Do the space and the target agree? Random assignments, valid ones and ones with a knob off valid, asked of both.

What the space forbids and the target takes must fall into a class that says why; what the space calls valid and the
target refuses is a mistake of ours.
"""

import json
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from autoscout.space.graph import Space
from kb.records import Configuration, Value

HERE = Path(__file__).parent
_INACTIVE = 1 / 8
# With these broken, the target was asked something else than the other rules were: of a knob that cannot act, or with
# the data parallel size that it works out itself.
_NOT_RULES = ("domain", "inactive", "implied")
_DECISIVE = ("inactive", "implied", "W1")


class Verdict(msgspec.Struct, frozen=True):
    """One assignment: the ids of the rules that forbid it here (none: valid), and what the target says ("": fine)."""

    job: str
    name: str
    rules: tuple[str, ...]
    refused: str

    @property
    def agree(self) -> bool:
        return bool(self.rules) == bool(self.refused)


class Answers:
    """A script that answers questions, one JSON line each; ends with the block."""

    def __init__(self, python: str, script: str, environment: Mapping[str, str], *arguments: str) -> None:
        self._process = subprocess.Popen(
            [python, str(HERE / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=dict(environment),
        )
        self._read()

    def __enter__(self) -> "Answers":
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()  # it has nothing to lose, and leaving torch takes its time on a busy machine
        self._process.wait()

    def ask(self, question: dict[str, Any]) -> str:
        """ "" or why it is refused."""
        return self.told(question)["refused"]

    def told(self, question: dict[str, Any]) -> dict[str, str]:
        """All that the script answers."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._read())

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the oracle ended with {self._process.wait()}")
        return line


def assignments(
    space: Space, count: int, rng: np.random.Generator, beyond: Mapping[str, list[Value]]
) -> Iterator[Configuration]:
    """Valid ones, and as many again with one knob off valid: another value, one from `beyond` its domain, or (one in
    eight) a value although the knob is inactive."""
    for _ in range(count // 2):
        valid = space.sample(rng)
        yield valid
        acting = [k for k in space.knobs if k.name in valid.knobs or rng.random() < _INACTIVE]
        knob = acting[int(rng.integers(len(acting)))]
        values = [v for v in [*knob.values, *beyond.get(knob.name, [])] if v != valid.knobs.get(knob.name)]
        if values:
            yield _completed(space, valid.knobs, {knob.name: values[int(rng.integers(len(values)))]})


def one_rule_broken(space: Space, each: int, tries: int, rng: np.random.Generator) -> Iterator[Configuration]:
    """Assignments of values from the domains that break just one rule, up to `each` a rule."""
    found: Counter[str] = Counter()
    for _ in range(tries):
        knobs = [space.knobs[i] for i in rng.choice(len(space.knobs), size=int(rng.integers(1, 4)), replace=False)]
        changed = {k.name: k.values[int(rng.integers(len(k.values)))] for k in knobs}
        configuration = _completed(space, space.sample(rng).knobs, changed)
        rules = [v.rule for v in space.violations(configuration)]
        if len(rules) == 1 and rules[0] not in _NOT_RULES and found[rules[0]] < each:
            found[rules[0]] += 1
            yield configuration


def _completed(space: Space, valid: Mapping[str, Value], changed: Mapping[str, Value]) -> Configuration:
    """Knobs that the change activates get their first value, those that it switches off go, and what the others imply
    follows."""
    knobs = {**valid, **changed}
    off = {**space.attributes, **{k.name: k.off for k in space.knobs}}
    for k in space.knobs:
        active = k.when is None or bool(k.when({**off, **knobs}))
        if active and k.name not in knobs:
            knobs[k.name] = k.values[0]
        elif not active and k.name in knobs and k.name not in changed:
            del knobs[k.name]
        elif active and k.implied is not None and k.name not in changed:
            knobs[k.name] = max(1, k.implied({**off, **knobs}))
    return Configuration({k.name: knobs[k.name] for k in space.knobs if k.name in knobs})


def classes(verdicts: Iterable[Verdict], listed: Mapping[str, str]) -> tuple[Counter[str], list[Verdict]]:
    """Disagreements by class, and those that no class explains. `listed`: rule → why the target takes it."""
    found: Counter[str] = Counter()
    unexplained = []
    for verdict in verdicts:
        if verdict.agree:
            continue
        decisive = [rule for rule in verdict.rules if rule in _DECISIVE and rule in listed]
        if verdict.rules and (decisive or all(rule in listed for rule in verdict.rules)):
            found[listed[(decisive or verdict.rules)[0]]] += 1
        else:
            unexplained.append(verdict)
    return found, unexplained


def confirmed(verdicts: Iterable[Verdict]) -> Counter[str]:
    """Rules that were the only one broken where the target refused: the catalog without one would have been caught."""
    return Counter(v.rules[0] for v in verdicts if len(v.rules) == 1 and v.refused and v.rules[0] not in _NOT_RULES)


def report(title: str, verdicts: list[Verdict], listed: Mapping[str, str]) -> str:
    found, unexplained = classes(verdicts, listed)
    total, agreed = len(verdicts), sum(v.agree for v in verdicts)
    both = sum(v.agree and not v.rules for v in verdicts)
    lines = [
        f"{title}: {total:,} assignments, the same answer for {agreed:,} ({100 * agreed / total:.1f} %: {both:,} taken "
        f"and {agreed - both:,} refused by both); {len(unexplained)} disagreements that no class explains"
    ]
    lines += [f"  {number:6,}  {reason}" for reason, number in found.most_common()]
    lines += [
        f"  unexplained: {v.job} {v.name} {v.rules or 'valid'}: {v.refused or 'accepted'}" for v in unexplained[:10]
    ]
    alone = ", ".join(f"{rule} {number}×" for rule, number in sorted(confirmed(verdicts).items()))
    lines.append(f"  refused by both, and just one rule broken: {alone}")
    return "\n".join(lines)
