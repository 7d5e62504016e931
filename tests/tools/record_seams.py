"""Records properties of an engine's releases in two files of the target's folder: signatures of the functions that our
workers use, and flags and fields with defaults and choices.

    PYTHONPATH=. python tests/tools/record_seams.py megatron PYTHON …
    PYTHONPATH=. python tests/tools/record_seams.py vllm PYTHON …
    PYTHONPATH=. python tests/tools/record_seams.py transformers RELEASE=FOLDER …       also trl, accelerate, deepspeed

Each PYTHON is an interpreter with torch and one release, each FOLDER the package of an unpacked release, which is read
and not imported. Recorded releases are not read again unless AutoScout uses a new name; then all must be given."""

import ast
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from autoscout.line.launch_line import Line
from autoscout.targets import seams
from autoscout.targets.auditing import ValidationAnswers
from autoscout.targets.command import own_shadow, settings_taken
from autoscout.targets.command.preset import names, preset
from autoscout.targets.megatron import engine_audit, engine_seams
from autoscout.targets.package_sources import declared
from autoscout.targets.target import shipped, target
from autoscout.targets.vllm import config_audit, engine_calls

_ACCELERATE = Line(words=("accelerate", "launch", "train.py"))


def taken() -> settings_taken.Taken:
    """All settings of a trainer that AutoScout sets in any job, and those that shadows replace."""
    found = settings_taken.of_launcher(_ACCELERATE)
    for name in names():
        knobs = shipped("deepspeed").knob if name == target("deepspeed").preset else preset(name).knob
        found |= {f"{name}: {t}": n for t, n in settings_taken.of_preset(preset(name), [k.sets for k in knobs]).items()}
    return found


def patched() -> list[str]:
    tree = ast.parse(own_shadow.SCRIPT.with_name("unreal_torch.py").read_text())
    (table,) = (n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "TRANSFORMERS")
    return [ast.literal_eval(key) for key in table.keys if key] if isinstance(table, ast.Dict) else []


def of_sources(package: str, folders: Mapping[str, Path]) -> None:
    """`folders`: release → folder of the package, oldest first."""
    asked = sorted({n for each in taken().values() for n in each} | {*patched()})
    own = [name for name in asked if name.startswith(f"{package}.")]
    found = {release: {n: declared({package: folder}, n) for n in own} for release, folder in folders.items()}
    record = settings_taken.RECORDS / f"{package}.json"
    _write(record, f"{package} RELEASE=FOLDER …", {**_held(record, own), **found})


def main(engine: str, pythons: list[str]) -> None:
    of_megatron = engine == "megatron"
    package = engine_seams.PACKAGE if of_megatron else "vllm"
    used = engine_seams.used() if of_megatron else engine_calls.used()
    worker, device = (engine_seams.RANK, "cpu") if of_megatron else (engine_calls.SERVE, engine_calls.DEVICE)
    names = sorted({seam.name for seam in used})
    seams_record, flags_record = (
        (engine_seams.RECORD, engine_audit.RECORD) if of_megatron else (engine_calls.RECORD, config_audit.RECORD)
    )
    signatures, taken = _held(seams_record, names), _held(flags_record, [])
    for python in pythons:
        version = engine_calls.release_of(_version(python, package))
        signatures[version] = seams.ask([python], worker, device, names)
        told = _asked(of_megatron, python)
        if (
            told.arguments or of_megatron
        ):  # otherwise its parser cannot be created, and its flags would seem to be of a later release
            taken[version] = {**told.arguments, **told.fields}
        print(version, len(signatures[version]), len(told.arguments), file=sys.stderr)
    by = f"{engine} PYTHON … (torch on CPUs)"
    _write(seams_record, by, signatures)
    everything = {name for names in taken.values() for name in names}
    _write(flags_record, by, {v: {name: found.get(name) for name in everything} for v, found in taken.items()})


def _held(path: Path, names: list[str]) -> dict[str, Mapping[str, str | None]]:
    """The recorded properties by release; {} if one of the names is not recorded."""
    known = seams.read_record(path)
    return {v: known.of(v) or {} for v in known.releases} if set(names) <= set(known.names) else {}


def _version(python: str, package: str) -> str:
    script = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([python, "-c", script], capture_output=True, text=True, check=True).stdout.strip()


def _asked(of_megatron: bool, python: str) -> ValidationAnswers:
    if of_megatron:
        return engine_audit.ask([python], "", [])
    return config_audit.ask([python], {"config": {}, "gpu": None, "launches": []})


def _write(path: Path, engine: str, asked: Mapping[str, Mapping[str, str | None]]) -> None:
    ordered = dict(sorted(asked.items(), key=lambda item: [int(part) for part in item[0].split(".")]))
    made_by = f"PYTHONPATH=. python tests/tools/record_seams.py {engine}"
    found = seams.record(ordered, made_by)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")


if __name__ == "__main__":
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    if all("=" in word for word in sys.argv[2:]):
        of_sources(sys.argv[1], {word.partition("=")[0]: Path(word.partition("=")[2]) for word in sys.argv[2:]})
    else:
        main(sys.argv[1], sys.argv[2:])
