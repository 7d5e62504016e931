"""Tiny serving jobs for the tests of autoscout/profile."""

from pathlib import Path
from typing import Any

import pytest

from kb.records import Cluster, Job, LaunchSettings, Model, Node, Objective, Traffic

PYTHON = Path(".venv-vllm/bin/python")
needs_vllm = pytest.mark.skipif(
    not Path(".venv-vllm/ready").is_file(), reason="the real vLLM is not installed (make .venv-vllm/ready)"
)


def serving_job(**changes: Any) -> Job:
    """A Llama that starts in a second; `changes` are fields of Traffic and Launch."""
    traffic: dict[str, Any] = {"concurrency": 4, "input_len": 24, "output_len": 6, "shared_prefix": 8}
    if "rate" in changes or "trace" in changes:
        del traffic["concurrency"]
    launch: dict[str, Any] = {"python": str(PYTHON.absolute()), "iterations": 2, "measure_s": 2.0, "timeout_s": 300.0}
    for name, value in changes.items():
        (launch if name in LaunchSettings.__struct_fields__ else traffic)[name] = value
    return Job(
        name="tiny-serve",
        task="serve",
        target="vllm",
        model=Model(
            layers=2, hidden=128, heads=4, kv_heads=2, ffn=256, vocab=512, gated=True, norm="rmsnorm", bias=False
        ),
        traffic=Traffic(**traffic),
        cluster=Cluster(nodes=[Node(device="cpu", count=1)]),
        objective=Objective(maximize="output_tokens_per_s"),
        launch=LaunchSettings(**launch),
    )
