"""Records what releases of an engine have: signatures under the names that our workers use, flags and fields with their
defaults and choices (two files of the target's folder).

    PYTHONPATH=. python tests/tools/record_seams.py megatron PYTHON …
    PYTHONPATH=. python tests/tools/record_seams.py vllm PYTHON …

Each PYTHON is an interpreter with torch and one release; all are asked, since a name that is new to us is asked of all.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from autoscout.targets import seams
from autoscout.targets.auditing import ValidationAnswers
from autoscout.targets.megatron import engine_audit, engine_seams
from autoscout.targets.vllm import config_audit, engine_calls


def main(engine: str, pythons: list[str]) -> None:
    of_megatron = engine == "megatron"
    package = engine_seams.PACKAGE if of_megatron else "vllm"
    used = engine_seams.used() if of_megatron else engine_calls.used()
    worker, device = (engine_seams.RANK, "cpu") if of_megatron else (engine_calls.SERVE, engine_calls.DEVICE)
    names = sorted({seam.name for seam in used})
    signatures, taken = {}, {}
    for python in pythons:
        version = engine_calls.release_of(_version(python, package))
        signatures[version] = seams.ask([python], worker, device, names)
        told = _asked(of_megatron, python)
        taken[version] = {**told.arguments, **told.fields}
        print(version, len(signatures[version]), len(taken[version]), file=sys.stderr)
    _write(engine_seams.RECORD if of_megatron else engine_calls.RECORD, engine, signatures)
    everything = {name for names in taken.values() for name in names}
    _write(
        engine_audit.RECORD if of_megatron else config_audit.RECORD,
        engine,
        {v: {name: found.get(name) for name in everything} for v, found in taken.items()},
    )


def _version(python: str, package: str) -> str:
    script = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([python, "-c", script], capture_output=True, text=True, check=True).stdout.strip()


def _asked(of_megatron: bool, python: str) -> ValidationAnswers:
    if of_megatron:
        return engine_audit.ask([python], "", [])
    return config_audit.ask([python], {"config": {}, "gpu": None, "launches": []})


def _write(path: Path, engine: str, asked: Mapping[str, Mapping[str, str | None]]) -> None:
    ordered = dict(sorted(asked.items(), key=lambda item: [int(part) for part in item[0].split(".")]))
    made_by = f"PYTHONPATH=. python tests/tools/record_seams.py {engine} PYTHON … (torch on CPUs)"
    found = seams.record(ordered, made_by)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")


if __name__ == "__main__":
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    main(sys.argv[1], sys.argv[2:])
