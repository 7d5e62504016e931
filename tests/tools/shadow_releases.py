"""Peak memory of shadows (dry runs) by release of Megatron-core: the table of docs/lab/shadow.md.

    PYTHONPATH=. python tests/tools/shadow_releases.py PYTHON …

Each PYTHON is an interpreter with torch and one release, the oldest first. A row is the last rank's peak of one
configuration; cells are empty if a release lacks a knob."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from autoscout.job.shipped import job_file
from autoscout.simulate.shadow.traced import Rank
from autoscout.space.knob import reached
from autoscout.targets.jobs import load_job
from autoscout.targets.megatron import arguments, shadow
from autoscout.targets.target import shipped
from kb.records import Cluster, Configuration, Job, Node

LAYERS = 8  # few, because tracing time grows with the number of layers
DENSE: dict[str, Any] = {"tp": 2, "pp": 2, "dp": 2, "mbs": 1, "distopt": True, "sp": True}
EXPERTS: dict[str, Any] = {"tp": 1, "pp": 2, "dp": 4, "ep": 4, "mbs": 1, "distopt": True, "dispatcher": "alltoall"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("llama-3.2-3b", DENSE),
    "dense, all layers recomputed": ("llama-3.2-3b", {**DENSE, "ar": "full", "ar_method": "uniform", "ar_layers": 1}),
    "dense, cp": ("llama-3.2-3b", {**DENSE, "tp": 1, "sp": False, "cp": 2}),
    "experts": ("qwen3-30b-a3b", EXPERTS),
    "dense, offload_acts": ("llama-3.2-3b", {**DENSE, "offload_acts": "core_attn"}),
    "dense, half of it": ("llama-3.2-3b", {**DENSE, "offload_acts": "core_attn", "offload_acts_share": 0.5}),
    "dense, mlp_chunks": ("llama-3.2-3b", {**DENSE, "mlp_chunks": 4}),
    "dense, op_fuser": ("llama-3.2-3b", {**DENSE, "op_fuser": True}),
}


def of_case(name: str, knobs: dict[str, Any], python: str) -> tuple[Job, Configuration]:
    job = load_job(str(job_file(name)))
    launch = msgspec.structs.replace(job.launch, python=python, transformer_engine=True)
    eight, model = Cluster(nodes=[Node(device="h100", count=8)]), msgspec.structs.replace(job.model, layers=LAYERS)
    return msgspec.structs.replace(job, launch=launch, cluster=eight, model=model), Configuration(knobs)


def release_of(python: str) -> str:
    script = "import importlib.metadata as m; print(m.version('megatron-core'))"
    return subprocess.run([python, "-c", script], capture_output=True, text=True, check=True).stdout.strip()


def has(release: str, knobs: dict[str, Any]) -> bool:
    since = {knob.name: knob.since for knob in shipped("megatron").knob if knob.name in knobs}
    return all(not first or reached(release, first) for first in since.values())


def traced(python: str, release: str) -> dict[str, Rank]:
    asked = {}
    for case, (name, knobs) in CASES.items():
        if has(release, knobs):
            job, configuration = of_case(name, knobs, python)
            last = arguments.world_size(configuration) - 1
            asked[case] = {**shadow.question_of(job, configuration), "rank": last}
    return dict(zip(asked, shadow.ask(list(asked.values()), [python], 1800.0), strict=True))


def table(found: dict[str, dict[str, Rank]]) -> Iterator[str]:
    yield f"| bytes at the peak of the last rank | {' | '.join(found)} |"
    yield "|---" * (len(found) + 1) + "|"
    for case in CASES:
        first, cells = 0, []
        for ranks in found.values():
            rank = ranks.get(case)
            peak = rank.peak if rank and rank.verdict == "starts" else 0
            more = f" ({peak / first - 1:+.4%})" if first and peak != first else ""
            cells.append(f"{peak:,}{more}" if peak else rank.message if rank else "")
            first = first or peak
        yield f"| {case} | {' | '.join(cells)} |"


if __name__ == "__main__":
    releases = {release_of(python): python for python in sys.argv[1:]}
    print("\n".join(table({release: traced(python, release) for release, python in releases.items()})))
