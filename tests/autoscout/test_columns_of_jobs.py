"""Columns that a job adds to its configurations: on which of a mixed cluster's devices each of them serves."""

from typing import Any

import numpy as np

from autoscout.simulate.encode import of_job, serving_devices
from kb.records import Cluster, Job, Model, Node, Objective, Traffic

MEMORY = {"x900-94g": 94.0, "a100": 40.0}


def job(*devices: str, task: Any = "serve") -> Job:
    return Job(
        name="mixed",
        task=task,
        target="vllm",
        model=Model(layers=2, hidden=64, heads=4, vocab=100),
        traffic=Traffic(input_len=10, output_len=10),
        cluster=Cluster(nodes=[Node(device=device, count=4, memory_gib=MEMORY[device]) for device in devices]),
        objective=Objective(minimize="tpot_mean_ms"),
    )


def test_each_row_serves_on_one_kind_of_device():
    """Kinds are counted in columns of their own; rows that mix them are on none, as no engine does."""
    two = job("x900-94g", "a100")
    counts = {"x900_94g": np.array([4, 0, 2, 0]), "a100": np.array([0, 4, 2, 0]), "tp": np.array([1, 2, 1, 1])}
    found = serving_devices(two, counts)
    assert found["gpu"].tolist() == ["x900-94g", "a100", "", ""]
    assert found["memory_gib"][:2].tolist() == [94, 40]
    assert serving_devices(job("x900-94g", "a100", task="pretrain"), counts) == {}
    assert serving_devices(job("a100"), counts) == {}
    assert serving_devices(two, {"a100": counts["a100"]}) == {}
    assert of_job(job("a100"))["gpu"] == "a100"
    assert "gpu" not in of_job(two)
