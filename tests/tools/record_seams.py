"""Records what releases of Megatron-core have under the names that our workers use: seams.json of the target.

    PYTHONPATH=. python tests/tools/record_seams.py [VERSION=]PYTHON …        oldest release first

Each PYTHON is an interpreter with torch and one release, in any order; releases that are recorded already are kept.
"""

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from autoscout.targets import seams
from autoscout.targets.megatron import engine_seams

_VERSION = "import importlib.metadata as m; print(m.version('megatron-core'))"


def main(pythons: list[str]) -> None:
    names = sorted({seam.name for seam in engine_seams.used()})
    asked = {}
    for python in pythons:
        version = subprocess.run([python, "-c", _VERSION], capture_output=True, text=True, check=True).stdout.strip()
        asked[version] = seams.ask([python], engine_seams.RANK, "cpu", names)
        print(version, len(asked[version]), "names", file=sys.stderr)
    ordered = dict(sorted(asked.items(), key=lambda item: [int(part) for part in item[0].split(".")]))
    found = seams.record(ordered, f"tests/tools/record_seams.py with torch on CPU, {len(ordered)} interpreters")
    Path(engine_seams.RECORD).write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")


if __name__ == "__main__":
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    main(sys.argv[1:])
