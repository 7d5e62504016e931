"""What Megatron-LM's guides advise for a job.

Tensor parallel only as far as memory needs it, then pipeline; expert before tensor parallel for a mixture of experts;
sequence parallel with tensor parallel; distributed optimizer and overlaps on; recomputation only where activations do
not fit, selective first; the micro batch as large as fits, up to 4.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from autoscout.job.presets import device_memory_gib
from autoscout.simulate.training.memory import Memory
from autoscout.space.graph import Space
from autoscout.targets.recipes import MARGIN, all_devices, firm, nearest, stated, total
from kb.records import Configuration, Value

_AT_ONCE = 64  # layouts whose memory is estimated together
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
    "permute_fusion": True,
    "ce_fusion": True,
    "ddp_bucket": 128,
    "tp_comm": 16,
    "ar_method": "uniform",
    "ar_layers": 1,
}


def advised(space: Space, devices: Mapping[str, Value] | None = None) -> Iterator[Configuration]:
    """What an expert tries one after another until something runs, on these devices (all of them)."""
    fixed = {**all_devices(space), **(devices or {})}
    preferred = {**stated(space), **_PREFERRED, **fixed}
    for wanted in _layouts(space.attributes, total(space, fixed)):
        configuration = space.nearest({**preferred, **wanted}, firm={**fixed, **firm(space, wanted)})
        if configuration is not None:
            yield configuration


def recommended(space: Space) -> Configuration:
    """The first of the advised configurations that fits, on all devices or else on one kind of them alone; the most
    frugal one if none does."""
    preferred = {**stated(space), **_PREFERRED}
    smallest = None
    for devices in _device_choices(space):
        for some in _batches_of(_layouts(space.attributes, total(space, devices)), _AT_ONCE):
            found = [space.nearest({**preferred, **devices, **w}, firm={**devices, **firm(space, w)}) for w in some]
            configurations = [c for c in found if c is not None]
            for configuration, share in zip(configurations, _shares(space, configurations), strict=True):
                if share <= MARGIN:
                    return configuration
                if smallest is None or share < smallest[0]:
                    smallest = share, configuration
    return smallest[1] if smallest else nearest(space, preferred)


def _batches_of(layouts: list[dict[str, Value]], size: int) -> Iterator[list[dict[str, Value]]]:
    for start in range(0, len(layouts), size):
        yield layouts[start : start + size]


def _shares(space: Space, configurations: list[Configuration]) -> list[float]:
    """Of the memory of the smallest device that each uses."""
    if not configurations:
        return []
    codes = np.array([space.codes_of(c.knobs) for c in configurations])
    columns = {**space.attributes, **space.columns(codes)}
    needed = Memory().predict({n: v for n, v in columns.items() if n != "degrees"}).value
    return [float(gib) / _smallest_gib(space, c) for gib, c in zip(needed, configurations, strict=True)]


def _device_choices(space: Space) -> list[dict[str, Value]]:
    everything = all_devices(space)
    alone = [{k: n if k == kind else 0 for k, n in everything.items()} for kind in everything]
    return [everything, *(alone if len(everything) > 1 else [])]


def _smallest_gib(space: Space, configuration: Configuration) -> float:
    """Memory of the smallest device that the configuration uses; of the cluster's where kinds are not known."""
    used = [k.name for k in space.sparse if k.layer == "devices" and configuration.knobs.get(k.name)]
    known = [device_memory_gib(name.replace("_", "-")) for name in used]
    sizes = [gib for gib in known if gib is not None]
    return min(sizes) if used and len(sizes) == len(used) else space.attributes.get("memory_gib", float("inf"))


def _layouts(attributes: Mapping[str, Any], gpus: int) -> list[dict[str, Value]]:
    """Those that divide `gpus`, in the order in which an expert tries them: least communication first."""
    degrees = attributes["degrees"]
    experts = attributes["experts"]
    layouts = sorted(
        ((pp, tp) for tp in degrees for pp in degrees if gpus % (tp * pp) == 0), key=lambda d: (d[0] * d[1], d[0])
    )
    return [
        {"tp": tp, "pp": pp, "ar": ar, "mbs": mbs, **({"ep": ep} if experts else {})}
        for pp, tp in layouts
        for ar in ("none", "selective", "full")
        for mbs in (4, 2, 1)
        for ep in (reversed(degrees) if experts else (1,))
    ]
