"""Records what releases of Megatron-core have: signatures under the names that our workers use (seams.json of the
target), flags and fields with their defaults and choices (engine_arguments.json).

    PYTHONPATH=. python tests/tools/record_seams.py PYTHON …

Each PYTHON is an interpreter with torch and one release; all are asked, since a name that is new to us is asked of all.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from autoscout.targets import seams
from autoscout.targets.megatron import engine_audit, engine_seams

_VERSION = "import importlib.metadata as m; print(m.version('megatron-core'))"


def main(pythons: list[str]) -> None:
    names = sorted({seam.name for seam in engine_seams.used()})
    signatures, taken = {}, {}
    for python in pythons:
        version = subprocess.run([python, "-c", _VERSION], capture_output=True, text=True, check=True).stdout.strip()
        signatures[version] = seams.ask([python], engine_seams.RANK, "cpu", names)
        told = engine_audit.ask([python], "", [])
        taken[version] = {**told.arguments, **told.fields}
        print(version, len(signatures[version]), len(taken[version]), file=sys.stderr)
    _write(engine_seams.RECORD, signatures)
    everything = {name for names in taken.values() for name in names}
    _write(engine_audit.RECORD, {v: {name: found.get(name) for name in everything} for v, found in taken.items()})


def _write(path: Path, asked: Mapping[str, Mapping[str, str | None]]) -> None:
    ordered = dict(sorted(asked.items(), key=lambda item: [int(part) for part in item[0].split(".")]))
    found = seams.record(ordered, "PYTHONPATH=. python tests/tools/record_seams.py PYTHON … (torch on CPUs)")
    path.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")


if __name__ == "__main__":
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    main(sys.argv[1:])
