"""Queries the argument names and defaults of the vLLM that is installed in the target's interpreter.

They change with every release, so a short script in the target's interpreter lists the engine's arguments with their
defaults, and the server's flags. Since importing vLLM takes seconds, the answer is cached in the user's cache folder by
interpreter, version and install location."""

import contextlib
import functools
import json
import os
import subprocess
import sys
from typing import Any

import msgspec

from autoscout.space.attributes import attributes_of
from autoscout.space.knob import Catalog, KnobEntry, of_release, reached
from autoscout.space.opened import asking, instead, without
from kb.records import AutoscoutError, Job, Value, content_hash
from kb.user_folders import user_folder

SILENT = "has no {} that reports its version and arguments"
_LIMIT_S = 120.0

_WHERE = """
import importlib.metadata, importlib.util, json, os
spec = importlib.util.find_spec("vllm")
where = os.path.dirname(spec.origin) if spec and spec.origin else ""
version = importlib.metadata.version("vllm") if where else ""
print(json.dumps({"version": version, "where": where, "changed": os.stat(where).st_mtime if where else 0}))
"""

_ARGUMENTS = """
import contextlib, dataclasses, json, os, sys
with contextlib.redirect_stdout(sys.stderr):
    from vllm.engine.arg_utils import EngineArgs
arguments = {}
for field in dataclasses.fields(EngineArgs):
    plain = field.default is not dataclasses.MISSING and isinstance(field.default, (bool, int, float, str))
    arguments[field.name] = field.default if plain else None
options = []
with contextlib.redirect_stdout(sys.stderr), contextlib.suppress(Exception, SystemExit):
    try:
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
    except ImportError:
        from vllm.entrypoints.openai.cli_args import make_arg_parser
    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError:
        from vllm.utils import FlexibleArgumentParser
    actions = make_arg_parser(FlexibleArgumentParser())._actions
    options = sorted({o for action in actions for o in action.option_strings if o.startswith("--")})
print(json.dumps({"arguments": arguments, "options": options}))
"""


class Installed(msgspec.Struct, frozen=True):
    """An installed vLLM. `arguments`: name → default, None if the default is computed later or has no plain value.
    `options`: the server's flags; () if they could not be listed."""

    version: str
    arguments: dict[str, Value | None]
    options: tuple[str, ...] = ()


def version_of(job: Job) -> Installed | None:
    """Returns the installed vLLM; None if there is none. (Callers then assume the catalog's version.) With
    `launch.command_prefix`, the interpreter in the container is queried."""
    return _asked((*job.launch.command_prefix, job.launch.python or sys.executable))


def adapted(catalog: Catalog, installed: Installed | None) -> Catalog:
    """Returns the catalog with the installed version's defaults and without knobs that this version lacks. In
    expressions, a removed knob has its `off` value, else its default. Errors: AutoscoutError (exit 2) if a removed knob
    has neither."""
    catalog = of_release(catalog, installed.version if installed else catalog.version)
    if installed is None:
        return catalog
    gone = {knob.name: _left_out(installed, catalog, knob) for knob in catalog.knob if not _has(installed, knob)}
    catalog = without(catalog, gone)
    return msgspec.structs.replace(
        catalog, version=installed.version, knob=[_with_default(knob, installed) for knob in catalog.knob]
    )


def notes(catalog: Catalog, job: Job) -> list[str]:
    """Returns the differences between the catalog and the installed version."""
    installed = version_of(job)
    if installed is None:
        asked = job.launch.python or sys.executable
        lacks = SILENT.format(job.target)
        return [f"{asked} {lacks}: names and defaults are those of {job.target} {catalog.version}"]
    found = []
    attributes = attributes_of(job)
    named = {*job.space.fix, *job.space.limit, *job.space.allow}
    for knob in catalog.knob:
        if not _has(installed, knob):
            if knob.name in named or not asking(knob, catalog, attributes):
                found.append(_left_out(installed, catalog, knob))
        elif (here := _with_default(knob, installed).default) != knob.default:
            found.append(f"{knob.name} is {here} by default in {job.target} {installed.version}, not {knob.default}")
    return found


def _left_out(installed: Installed, catalog: Catalog, knob: KnobEntry) -> str:
    """Returns a sentence with the reason why the knob is removed."""
    if instead(knob) is None:
        raise AutoscoutError(
            f"{catalog.target} {installed.version} has no {_argument(knob)}, which AutoScout's catalog needs; install "
            f"{catalog.target} {catalog.version}, for which the catalog was written",
            2,
        )
    lacks = knob.sets if _argument(knob) in installed.arguments else _argument(knob)
    return f"{knob.name} is left out: {catalog.target} {installed.version} has no {lacks}"


def _argument(knob: KnobEntry) -> str:
    """Returns the engine argument that a knob sets; if the knob sets a nested field, the argument that contains this
    field."""
    return knob.sets.split(".")[0]


def _has(installed: Installed, knob: KnobEntry) -> bool:
    if knob.since and not reached(installed.version, knob.since):
        return False  # the argument may exist already, but this version lacks the knob's field or value
    return _argument(knob).startswith("the ") or _argument(knob) in installed.arguments


def _with_default(knob: KnobEntry, installed: Installed) -> KnobEntry:
    default = installed.arguments.get(knob.sets)
    if default is None or not isinstance(knob.values, list) or default not in knob.values:
        return knob
    return msgspec.structs.replace(knob, default=default)


@functools.cache
def _asked(python: tuple[str, ...]) -> Installed | None:
    where = _run(python, _WHERE)
    if not where or not where["version"]:
        return None
    cache = user_folder("XDG_CACHE_HOME", ".cache") / "autoscout" / "installed"
    kept = cache / f"{content_hash([python, where, _ARGUMENTS])}.json"
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(kept.read_bytes(), type=Installed)
    answer = _run(python, _ARGUMENTS)
    if not answer:
        return None
    installed = Installed(where["version"], answer["arguments"], tuple(answer["options"]))
    with contextlib.suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(f".{os.getpid()}")
        part.write_bytes(msgspec.json.encode(installed))
        part.replace(kept)
    return installed


def _run(python: tuple[str, ...], script: str) -> dict[str, Any] | None:
    """Returns the last line of the script's output, parsed as JSON; None if that fails."""
    try:
        done = subprocess.run(
            [*python, "-c", script],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LIMIT_S,
            env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"},
        )
        return json.loads(done.stdout.decode(errors="replace").strip().rsplit("\n", 1)[-1])
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
