"""Checks that our workers (scripts that run in an engine's interpreter) fit a release of the engine. The engine's names
that a worker uses are extracted from the worker's code and looked up among the names of the release, which are recorded
in the target's seams.json or queried from an installed engine."""

import ast
import inspect
import itertools
import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from autoscout.running import processes
from autoscout.running.interpreter import probe
from kb.records import AutoscoutError

REMEDY = "set launch.python to an interpreter with a release that `autoscout targets` calls proven"
_END = 300  # maximum length of an interpreter's output in messages
_LIMIT_S = 300.0  # seconds; importing an engine is slow on a busy machine
_INSTALLED = """
import contextlib, importlib.metadata, importlib.util, json, os
found = {name: "missing" for name in NEEDED if not importlib.util.find_spec(name)}
with contextlib.suppress(importlib.metadata.PackageNotFoundError):
    package, first, spec = importlib.metadata.distribution(PACKAGE), MODULE.replace(".", "/") + "/__init__.py", None
    with contextlib.suppress(ImportError):
        spec = importlib.util.find_spec(MODULE)
    there = str(package.locate_file(first))
    imported = bool(spec and spec.origin and os.path.exists(there) and os.path.samefile(there, spec.origin))
    if not imported or (package.read_text("direct_url.json") and first in map(str, package.files or ())):
        found[PACKAGE] = "changed"
print(json.dumps(found))
"""


class Seam(msgspec.Struct, frozen=True):
    """A use of the engine's `name` by a worker. `positional` and `keywords`: arguments of a call, None if the name is
    not called. `open`: the call also has * or ** arguments. `needed`: the worker cannot work without the name. `where`:
    file and line."""

    name: str
    positional: int | None
    keywords: tuple[str, ...]
    open: bool
    needed: bool
    where: str


class Recorded(msgspec.Struct, frozen=True):
    """Signatures of releases. `names`: name → {release: signature from this release on, None if the name is
    missing}."""

    made_by: str
    releases: list[str]
    names: dict[str, dict[str, str | None]]

    def of(self, release: str) -> dict[str, str | None] | None:
        """Returns the signatures of a release; None if it was not recorded."""
        if release not in self.releases:
            return None
        upto = self.releases[: self.releases.index(release) + 1]
        return {name: next(held[r] for r in reversed(upto) if r in held) for name, held in self.names.items()}


class SeamFit(msgspec.Struct, frozen=True, kw_only=True):
    """Whether an engine accepts the calls of our workers. `known`: whether the release is recorded, so that the engine
    was not queried. `names`: number of names compared. `unfit`: a sentence for each call that the engine does not
    accept. `tried`: whether a session first trains briefly, because the release is not recorded."""

    engine: str
    known: bool
    names: int
    unfit: list[str]
    tried: bool = False

    @property
    def verdict(self) -> str:
        if self.unfit:
            return f"some names that AutoScout calls or sets do not fit {self.engine}: {'; '.join(self.unfit)}"
        if self.known:
            return f"AutoScout's record of {self.engine} has all {self.names} names that AutoScout calls or sets"
        return (
            f"AutoScout has no record of {self.engine}; the engine's code has all {self.names} names that AutoScout "
            "calls or sets"
        )


def read_record(path: Path) -> Recorded:
    return msgspec.json.decode(path.read_bytes(), type=Recorded)


def record(asked: Mapping[str, Mapping[str, str | None]], made_by: str) -> Recorded:
    """Combines signatures of several releases. `asked`: release → signatures, oldest release first."""
    names: dict[str, dict[str, str | None]] = {}
    for release, signatures in asked.items():
        for name, signature in signatures.items():
            held = names.setdefault(name, {})
            if not held or next(reversed(held.values())) != signature:
                held[release] = signature
    return Recorded(made_by, list(asked), dict(sorted(names.items())))


def seams(workers: Path, package: str) -> list[Seam]:
    """Returns the uses of `package` in all workers of a folder."""
    return [seam for path in sorted(workers.rglob("*.py")) for seam in _in_file(path, package)]


def _in_file(path: Path, package: str) -> Iterator[Seam]:
    tree = ast.parse(path.read_text())
    names: dict[str, str] = {}  # local name in the file → name in the package
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{package}."):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    yield from _uses(tree, names, path.name, True)


def _uses(node: ast.AST, names: Mapping[str, str], file: str, needed: bool) -> Iterator[Seam]:
    """Yields the uses in a statement. Names under `try`, or in an `if` with hasattr, are optional."""
    called: ast.expr | None = None
    if isinstance(node, ast.Call) and (name := _dotted(node.func, names)):
        called = node.func
        starred = any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg is None for k in node.keywords)
        plain = sum(not isinstance(a, ast.Starred) for a in node.args)
        given = tuple(k.arg for k in node.keywords if k.arg is not None)
        yield Seam(name, plain, given, starred, needed, f"{file}, line {node.lineno}")
    elif isinstance(node, ast.Attribute | ast.Name) and (name := _dotted(node, names)):
        yield Seam(name, None, (), False, needed, f"{file}, line {node.lineno}")
        return
    elif isinstance(node, ast.ImportFrom) and names:
        for alias in node.names:
            if (name := f"{node.module}.{alias.name}") in names.values():
                yield Seam(name, None, (), False, needed, f"{file}, line {node.lineno}")
    for field, value in ast.iter_fields(node):
        without = (isinstance(node, ast.Try) and field == "body") or (
            isinstance(node, ast.If) and _tests_for(node.test)
        )
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and child is not called:
                yield from _uses(child, names, file, needed and not without)


def _tests_for(test: ast.expr) -> bool:
    return any(isinstance(n, ast.Name) and n.id == "hasattr" for n in ast.walk(test))


def _dotted(node: ast.AST, names: Mapping[str, str]) -> str:
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    inner = _dotted(node.value, names) if isinstance(node, ast.Attribute) else ""
    return f"{inner}.{node.attr}" if inner and isinstance(node, ast.Attribute) else ""


def unfit(used: list[Seam], signatures: Mapping[str, str | None]) -> list[str]:
    """Returns a sentence for each use that does not match these signatures. Names without a signature are skipped."""
    return list(dict.fromkeys(problem for seam in used if seam.needed and (problem := _unfit(seam, signatures))))


def _unfit(seam: Seam, signatures: Mapping[str, str | None]) -> str:
    signature = signatures.get(seam.name, "")
    if signature is None:
        return f"{seam.name} is missing ({seam.where})"
    if not signature or seam.positional is None:
        return ""
    taken = _parsed(signature)
    try:
        bind = taken.bind_partial if seam.open else taken.bind
        bind(*itertools.repeat(0, seam.positional), **dict.fromkeys(seam.keywords, 0))
    except TypeError as error:
        return f"{seam.name}({signature}): {error} ({seam.where})"
    return ""


def _parsed(signature: str) -> inspect.Signature:
    found: list[inspect.Parameter] = []
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    for word in signature.split(", "):
        name = word.removesuffix("=…")
        default = 0 if name != word else inspect.Parameter.empty
        if name == "/":
            found = [p.replace(kind=inspect.Parameter.POSITIONAL_ONLY) for p in found]
        elif name.startswith("**"):
            found.append(inspect.Parameter(name[2:], inspect.Parameter.VAR_KEYWORD))
        elif name.startswith("*"):
            kind = inspect.Parameter.KEYWORD_ONLY
            found += [inspect.Parameter(name[1:], inspect.Parameter.VAR_POSITIONAL)] if name[1:] else []
        else:
            found.append(inspect.Parameter(name, kind, default=default))
    return inspect.Signature(found)


def installed(python: list[str], package: str, module: str, needed: Sequence[str] = ()) -> tuple[bool, list[str]]:
    """Returns (whether the package that an interpreter imports is a published release, needed modules that are
    missing). A checkout or a fork is no published release, because it may report a release's version although its code
    differs."""
    given = {"NEEDED": [*needed], "PACKAGE": package, "MODULE": module}
    script = re.sub("|".join(given), lambda name: repr(given[name[0]]), _INSTALLED)
    found = probe([*python, "-c", script], " ".join(python))
    return package not in found, [name for name in needed if name in found]


def ask(python: list[str], worker: Path, device: str, names: list[str]) -> dict[str, str | None]:
    """Returns name → signature (None if missing) of an interpreter's engine. Errors: AutoscoutError (exit 2) if the
    engine cannot be imported."""
    command = [*python, str(processes.WORKER / "engine_signatures.py"), str(worker), device]
    try:
        done = subprocess.run(command, input=json.dumps(names), capture_output=True, text=True, timeout=_LIMIT_S)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError) as error:
        raise _not_imported(python, str(error)) from error
    try:
        return msgspec.json.decode(done.stdout.rstrip().rsplit("\n", 1)[-1], type=dict[str, str | None])
    except msgspec.MsgspecError as error:
        output = (done.stderr.strip() or done.stdout.strip()).rsplit("\n", 1)[-1]
        raise _not_imported(python, output[-_END:]) from error


def _not_imported(python: list[str], reason: str) -> AutoscoutError:
    return AutoscoutError(
        f"{' '.join(python)}: the engine of this interpreter cannot be imported as in an experiment ({reason})", 2
    )
