"""What experts start from, as Megatron-LM's and NVIDIA's guides describe it: a few recipes, of which the best is what
any gain is held against.

    guide      the least splitting that fits: a smaller micro batch before anything else; tensor parallel within the
               devices that NVLink joins, with sequence parallel; then pipeline, interleaved; experts spread before
               anything is split; context parallel for long sequences only; selective before full recomputation
    dp first   as many replicas as fit: full recomputation before the model is split at all

Sources: Megatron-LM docs/user-guide/parallelism-guide.md ("keep TP and EP within a node; use PP across nodes; CP for
sequences of 8K and more") and NVIDIA's recipes in Megatron-Bridge (scripts/performance), core_v0.16.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from autoscout.job.presets import device_memory_gib
from autoscout.simulate.training.memory import Memory
from autoscout.space.graph import Space
from autoscout.targets.megatron.layouts import Layouts, Way, layouts
from autoscout.targets.recipes import MARGIN, all_devices, firm, nearest, stated, total
from kb.records import Configuration, Value

WAYS: tuple[Way, ...] = ("guide", "dp first")

_TRIED = 200  # layouts that should fit and are asked of the space, until the first that it has
_FULL = 0.97  # of a device's memory, where nothing leaves a margin
_FRUGAL = 20  # layouts tried where nothing fits at all
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


def portfolio(space: Space) -> list[Configuration]:
    """The recipes of a space, the guide's first, none twice."""
    found = [recommended(space, way) for way in WAYS]
    return [c for i, c in enumerate(found) if c not in found[:i]]


def advised(space: Space, devices: Mapping[str, Value] | None = None, way: Way = "guide") -> Iterator[Configuration]:
    """What an expert tries one after another until something runs, on these devices (all of them)."""
    fixed = {**all_devices(space), **(devices or {})}
    preferred = {**stated(space), **_PREFERRED, **fixed}
    tried = layouts(space, total(space, fixed), way)
    for wanted in map(tried.wanted, range(len(tried))):
        configuration = space.nearest({**preferred, **wanted}, firm={**fixed, **firm(space, wanted)})
        if configuration is not None:
            yield configuration


def recommended(space: Space, way: Way = "guide") -> Configuration:
    """The first of the advised configurations that fits with a margin, on all devices or else on one kind of them
    alone; then without a margin; the most frugal one if none does."""
    preferred = {**stated(space), **_PREFERRED}
    smallest = None
    choices = []
    for devices in _device_choices(space):
        tried = layouts(space, total(space, devices), way)
        choices.append((devices, tried, _shares(space, tried, devices)))
    for least, most in ((0.0, MARGIN), (MARGIN, _FULL), (_FULL, np.inf)):
        for devices, tried, share in choices:
            if most < np.inf:
                order = np.flatnonzero((share > least) & (share <= most))[:_TRIED]
            else:
                order = np.argsort(share, kind="stable")[:_FRUGAL]
            for i in order:
                wanted = tried.wanted(i)
                found = space.nearest({**preferred, **devices, **wanted}, firm={**devices, **firm(space, wanted)})
                if found is None:
                    continue
                needed = _share(space, found)
                if needed <= most < np.inf:
                    return found
                if smallest is None or needed < smallest[0]:
                    smallest = needed, found
    return smallest[1] if smallest else nearest(space, preferred)


def _shares(space: Space, found: Layouts, devices: Mapping[str, Value]) -> np.ndarray:
    """(n,) of the memory of the smallest device, by the knobs that matter most for it."""
    if not len(found):
        return np.zeros(0)
    gpus, knobs = total(space, devices), found.columns
    stages, of = np.unique(knobs["pp"], return_inverse=True)
    of_pp = {name for share in found.shares.values() for name in share}
    columns = {n: v for n, v in space.attributes.items() if n != "degrees"}
    columns |= {n: np.full(len(found), v) for n, v in {**_PREFERRED, **devices}.items() if n in space.knob}
    columns |= {n: np.array([found.shares[int(pp)].get(n, 1) for pp in stages])[of] for n in of_pp}
    columns |= knobs | {"gpus": gpus, "dp": gpus // (knobs["tp"] * knobs["pp"] * knobs["cp"])}
    columns["sp"] = (knobs["tp"] > 1) & np.array("sp" in space.knob)
    return Memory().predict(columns).value / _smallest_gib(space, devices)


def _share(space: Space, configuration: Configuration) -> float:
    """Of the memory of the smallest device that it uses."""
    codes = np.array([space.codes_of(configuration.knobs)])
    columns = {**space.attributes, **space.columns(codes)}
    needed = Memory().predict({n: v for n, v in columns.items() if n != "degrees"}).value
    return float(needed[0]) / _smallest_gib(space, configuration.knobs)


def _device_choices(space: Space) -> list[dict[str, Value]]:
    everything = all_devices(space)
    alone = [{k: n if k == kind else 0 for k, n in everything.items()} for kind, most in everything.items() if most]
    return [everything, *(alone if len(everything) > 1 else [])]


def _smallest_gib(space: Space, knobs: Mapping[str, Value]) -> float:
    """Memory of the smallest device that is used; of the cluster's where kinds are not known."""
    used = [k.name for k in space.sparse if k.layer == "devices" and knobs.get(k.name)]
    known = [device_memory_gib(name.replace("_", "-")) for name in used]
    sizes = [gib for gib in known if gib is not None]
    return min(sizes) if used and len(sizes) == len(used) else space.attributes.get("memory_gib", float("inf"))
