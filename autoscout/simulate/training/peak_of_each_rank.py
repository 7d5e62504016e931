"""The analytic memory model of one configuration: the peak of every rank, by what its stage holds (rank_memory.py)."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from autoscout.simulate.training.fleet import depths, fleets
from autoscout.simulate.training.inputs import complete
from autoscout.simulate.training.rank_memory import GIB, of_stage, rank_bytes
from kb.records import Configuration


def ranks_gib(attributes: Mapping[str, Any], configuration: Configuration) -> list[float]:
    """Peak of each rank, in order: pipeline stages one after the other."""
    columns = {name: value for name, value in attributes.items() if name != "degrees"} | configuration.knobs
    pp = int(configuration.knobs.get("pp", 1))
    x = complete(columns | {"stage_at": np.arange(pp)})
    layers = np.ceil(x.layers / x.pp) + np.zeros(pp)
    for fleet in fleets(columns, 1, ""):
        ends = np.cumsum([count[0] for count in fleet.counts]) * pp / x.gpus[0]
        of = np.minimum(np.searchsorted(ends, np.arange(pp), side="right"), len(fleet.kinds) - 1)
        layers = np.array([each[0] for each in depths(x.take(np.zeros(1, int)), fleet)])[of]
    stages, gpus = np.broadcast_to(rank_bytes(of_stage(x, x.stage_at, layers)) / GIB, pp), int(x.gpus[0])
    return [float(stages[rank * pp // gpus]) for rank in range(gpus)]
