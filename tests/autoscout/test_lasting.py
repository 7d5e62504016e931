"""The fluid of a lasting load at its edges, against the event simulation."""

from typing import Any

import numpy as np
import pytest
from test_serving_sim import LLAMA_3_8B

from autoscout.simulate.serving.fluid import fluid
from autoscout.simulate.serving.serving_device import device
from autoscout.simulate.serving.setup import setup
from autoscout.simulate.serving.simulator import exactly
from kb.records import Traffic


def both(traffic: Traffic, **columns: Any) -> tuple[dict[str, float], dict[str, float]]:
    """(the fluid's, the events') metrics of one configuration."""
    table = {**LLAMA_3_8B, "traffic": traffic, **{name: np.array([v]) for name, v in columns.items()}}
    s = setup(table, device("a100"), 1)
    return {name: float(v[0]) for name, v in fluid(s).items()}, exactly(table, s, 0)


@pytest.mark.parametrize("load", [{"rate": 0.005}, {"concurrency": 1}])
def test_a_step_that_answers_reads_the_context_of_one_request_at_least(load: dict[str, Any]) -> None:
    """Of a server that mostly waits, less than one runs on average: a token of 60,000 took 4.1 ms for 6.3."""
    traffic = Traffic(input_len=[50000, 60000, 70000], output_len=300, requests=100, **load)
    averaged, simulated = both(traffic, tp=4.0)
    assert averaged["tpot_mean_ms"] == pytest.approx(simulated["tpot_mean_ms"], rel=0.1)
