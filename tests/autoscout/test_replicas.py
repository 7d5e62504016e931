"""Users and batches that do not divide by the replicas."""

from typing import Any

import numpy as np
import pytest
from test_serving_sim import LLAMA_3_8B, exact

from autoscout.simulate.serving.fluid import fluid
from autoscout.simulate.serving.serving_device import device
from autoscout.simulate.serving.setup import setup
from autoscout.simulate.serving.simulator import ServingSimulator
from kb.records import Traffic

LENGTHS = {"input_len": 500.0, "output_len": 100.0}


@pytest.mark.parametrize("load", ["batch", "concurrency"])
@pytest.mark.parametrize(("users", "replicas"), [(1.0, 4.0), (5.0, 4.0), (3.0, 2.0)])
def test_no_user_is_counted_twice(load: str, users: float, replicas: float) -> None:
    """One user of four replicas was answered four times as fast as one of a single replica."""
    alone = exact(**LENGTHS, **{load: 1.0})["output_tokens_per_s"]
    columns: dict[str, Any] = {**LLAMA_3_8B, **LENGTHS, load: users, "dp": replicas}
    simulated = exact(**LENGTHS, **{load: users}, dp=replicas)
    averaged = fluid(setup(columns, device("a100"), 1))
    for tokens_per_s in (simulated["output_tokens_per_s"], averaged["output_tokens_per_s"][0]):
        assert 0.8 * users * alone < tokens_per_s < 1.05 * users * alone


def test_replicas_without_users_wait_for_nobody() -> None:
    """Fewer users than replicas made the share of other people's requests negative, and latencies NaN."""
    traffic = Traffic(input_len=[1, 1, 9000], output_len=[1, 3, 50], concurrency=2)
    columns = {**LLAMA_3_8B, "traffic": traffic}
    few, alone = (fluid(setup({**columns, "dp": n}, device("a100"), 1)) for n in (3.0, 2.0))
    for name in ("ttft_p99_ms", "tpot_p99_ms", "itl_p99_ms", "e2el_mean_ms", "output_tokens_per_s"):
        assert few[name] == pytest.approx(alone[name]), name


def test_a_replica_that_nobody_asks_is_paid_for() -> None:
    """Rates by device are of all devices that a configuration takes."""
    columns = {**LLAMA_3_8B, **LENGTHS, "concurrency": np.array([1.0]), "dp": np.array([4.0])}
    of_each, whole = (
        ServingSimulator(metric).predict(columns).value[0]
        for metric in ("output_tokens_per_s_per_gpu", "output_tokens_per_s")
    )
    assert of_each == pytest.approx(whole / 4)
