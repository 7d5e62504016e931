"""The expert default: what Megatron-LM's own guides advise for the job, before any tuning.

Tensor parallel only as far as memory needs it, then pipeline; expert before tensor parallel for a mixture of
experts; sequence parallel with tensor parallel; distributed optimizer and overlaps on; recomputation only
where activations do not fit, selective first; the micro batch as large as fits, up to 4.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from autoscout.rivals.sequential import Pool, Search
from autoscout.simulate.memory import estimate_gib
from autoscout.space.graph import Space
from kb.records import AutoscoutError, Configuration, Value

_MARGIN = 0.8  # of a device's memory: fragmentation, buffers and the estimate's own error
_PREFERRED: dict[str, Value] = {
    "cp": 1,
    "vpp": 1,
    "etp": 1,
    "dispatcher": "alltoall",
    "sp": True,
    "tp_comm_overlap": True,
    "distopt": True,
    "overlap_grad": True,
    "overlap_param": True,
    "overlap_p2p": True,
    "ddp_bucket": 128,
    "tp_comm": 16,
    "ar_method": "uniform",
    "ar_layers": 1,
}


def only_the_default(pool: Pool, rng: np.random.Generator) -> Search:
    """As a strategy: the driver measures the default, and there is nothing else to try."""
    return
    yield


def expert_default(space: Space) -> Configuration:
    """The first of the advised configurations whose estimated memory fits; the most frugal one if none does."""
    device_memory = space.attributes.get("memory_gib", float("inf"))
    smallest = None
    for wanted in _advised(space.attributes):
        configuration = space.nearest({**_PREFERRED, **_all_devices(space), **wanted}, firm=_firm(space, wanted))
        if configuration is None:
            continue
        memory = estimate_gib(space.attributes, configuration)
        if memory <= _MARGIN * device_memory:
            return configuration
        if smallest is None or memory < smallest[0]:
            smallest = memory, configuration
    fallback = smallest[1] if smallest else space.nearest(_PREFERRED)
    if fallback is None:
        raise AutoscoutError("nothing is feasible for this job", 3)
    return fallback


def _advised(attributes: Mapping[str, Any]) -> list[dict[str, Value]]:
    """Layouts in the order in which an expert tries them: least communication first."""
    degrees = attributes["degrees"]
    experts = attributes["experts"]
    layouts = sorted(((pp, tp) for tp in degrees for pp in degrees), key=lambda d: (d[0] * d[1], d[0]))
    return [
        {"tp": tp, "pp": pp, "ar": ar, "mbs": mbs, **({"ep": ep} if experts else {})}
        for pp, tp in layouts
        for ar in ("none", "selective", "full")
        for mbs in (4, 2, 1)
        for ep in (reversed(degrees) if experts else (1,))
    ]


def _firm(space: Space, wanted: Mapping[str, Value]) -> dict[str, Value]:
    """What the advice insists on, as far as this space (with the person's limits) can have it at all."""
    return {n: v for n, v in wanted.items() if n in space.knob and v in space.knob[n].values}


def _all_devices(space: Space) -> dict[str, Value]:
    return {knob.name: max(knob.values) for knob in space.sparse if knob.layer == "devices"}
