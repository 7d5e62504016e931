"""Reports if the network between nodes limits the step time, and whether its speed was stated or assumed."""

import math

import numpy as np

from autoscout.simulate.hardware.device import hardware
from autoscout.simulate.member import Columns
from autoscout.simulate.training.fleet import devices
from autoscout.simulate.training.step import Training
from kb.records import Job

_DECIDES = 0.05  # the network is reported if twice its speed would save more than this share of the step; a convention


def network_matters(job: Job, columns: Columns) -> str:
    """ "", or a sentence on the time that the configuration in `columns` would save with a network twice as fast."""
    if job.task == "serve":
        return ""
    model, network = Training.of_job(job), job.cluster.network
    used = [name for name in devices(columns, model.device) if np.all(np.asarray(columns.get(name, 1)) > 0)]
    known = [hw for name in used if (hw := hardware(name)) is not None]
    if not known or len(known) < len(used) or known[0].cores or model.applies(columns):
        return ""
    stated = network.between_nodes_gbps
    if len(known) > 1 and network.between_kinds_gbps:
        stated = min(stated or math.inf, network.between_kinds_gbps)
    assumed = columns.get("node_gb_s", min(hw.network.node_gb_s for hw in known))
    gb_s = stated / 8 or float(np.min(np.asarray(assumed, dtype=float)))
    once, twice = (_seconds(model, columns, gb_s * times) for times in (1, 2))
    saved = 1 - twice / once
    if saved < _DECIDES:
        return ""
    if stated:
        return (
            f"the network between nodes ({stated:g} Gb/s) limits the speed: twice the bandwidth would shorten the "
            f"step by {saved:.0%}"
        )
    return (
        f"the network between nodes is assumed to have {gb_s * 8:g} Gb/s, and limits the speed: twice the "
        f"bandwidth would shorten the step by {saved:.0%}; set your own bandwidth: cluster.network = {{ "
        "between_nodes_gbps = … }"
    )


def _seconds(model: Training, columns: Columns, gb_s: float) -> float:
    return float(model.predict({**columns, "node_gb_s": gb_s, "kinds_gb_s": gb_s}).value[0])
