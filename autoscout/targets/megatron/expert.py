"""What experts start from, as Megatron-LM's and NVIDIA's guides describe it: a few recipes, of which the best is what
any gain is held against.

    guide      the least splitting that fits: a smaller micro batch before anything else; tensor parallel within the
               devices that NVLink joins, with sequence parallel; then pipeline, interleaved; experts spread before
               anything is split; context parallel for long sequences only; selective before full recomputation
    dp first   as many replicas as fit: full recomputation before the model is split at all

Sources: Megatron-LM docs/user-guide/parallelism-guide.md ("keep TP and EP within a node; use PP across nodes; CP for
sequences of 8K and more") and NVIDIA's recipes in Megatron-Bridge (scripts/performance), core_v0.16.
"""

import itertools
from collections.abc import Iterator, Mapping
from math import log2
from typing import Any, Literal

import numpy as np

from autoscout.job.presets import device_memory_gib
from autoscout.simulate.hardware.device import hardware
from autoscout.simulate.training.memory import Memory
from autoscout.space.graph import Space
from autoscout.targets.recipes import MARGIN, all_devices, firm, nearest, stated, total
from kb.records import Configuration, Value

Way = Literal["guide", "dp first"]
WAYS: tuple[Way, ...] = ("guide", "dp first")

_LONG = 8_192  # tokens of a sequence from which on context parallel is worth its communication
_MOST_TP = 8  # no published recipe has more, even where NVLink joins 72
_PER_CHUNK = 4  # layers of a virtual stage in NVIDIA's recipes: fewer send too often, more leave a longer bubble
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
    for wanted in _layouts(space, total(space, fixed), way):
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
        layouts = _layouts(space, total(space, devices), way)
        choices.append((devices, layouts, _shares(space, layouts, devices)))
    for least, most in ((0.0, MARGIN), (MARGIN, _FULL), (_FULL, np.inf)):
        for devices, layouts, share in choices:
            if most < np.inf:
                order = np.flatnonzero((share > least) & (share <= most))[:_TRIED]
            else:
                order = np.argsort(share, kind="stable")[:_FRUGAL]
            for i in order:
                wanted = layouts[i]
                found = space.nearest({**preferred, **devices, **wanted}, firm={**devices, **firm(space, wanted)})
                if found is None:
                    continue
                needed = _share(space, found)
                if needed <= most < np.inf:
                    return found
                if smallest is None or needed < smallest[0]:
                    smallest = needed, found
    return smallest[1] if smallest else nearest(space, preferred)


def _layouts(space: Space, gpus: int, way: Way) -> list[dict[str, Value]]:
    """Those that divide `gpus` and the batch, in the order in which an expert tries them."""
    a = space.attributes
    degrees, experts = a["degrees"], a["experts"]
    inside = _joined(space)
    batches = space.knob["mbs"].values if "mbs" in space.knob else (1,)
    shares = {pp: _stages(space, int(pp)) for pp in degrees}
    chunks = {pp: _chunks(space, int(pp), shares[pp]) for pp in degrees}
    found: list[tuple[tuple[float, ...], dict[str, Value]]] = []
    for tp, pp, cp in itertools.product(degrees, repeat=3):
        if gpus % (tp * pp * cp) or pp > a["layers"] or (cp > 1 and a["seq_len"] % (2 * cp)):
            continue
        dp = gpus // (tp * pp * cp)
        eps = [ep for ep in degrees if experts % ep == 0 and gpus % (ep * pp) == 0] if experts else [1]
        for ep, ar, mbs in itertools.product(eps, ("none", "selective", "full"), batches):
            if a["global_batch"] % (mbs * dp):
                continue
            micro_batches = a["global_batch"] // (mbs * dp)
            wanted: dict[str, Value] = {"tp": tp, "pp": pp, "cp": cp, "ar": ar, "mbs": mbs, **shares[pp]}
            if experts:
                wanted["ep"] = ep
            if pp > 1 and "vpp" in space.knob:
                wanted["vpp"] = 1 if micro_batches % pp else chunks[pp]
            price = _price(tp, pp, cp, ep if experts else 0, ar, int(mbs), micro_batches, a, inside, way)
            found.append((price, wanted))
    return [wanted for _, wanted in sorted(found, key=lambda each: each[0])]


def _price(
    tp: int,
    pp: int,
    cp: int,
    ep: int,
    ar: str,
    mbs: int,
    micro_batches: int,
    a: Mapping[str, Any],
    inside: int,
    way: Way,
) -> tuple[float, ...]:
    """How reluctantly an expert goes there, in doublings of tensor parallel; the lowest is tried first. Micro batches
    above 4 are not tried before smaller ones: attention and products are efficient by then."""
    beyond = log2(max(tp / inside, 1))  # of what NVLink joins: nobody does
    thin, stage = (2.5, 0.6) if ep else (1.0, 1.25)  # what tensor parallel leaves of small experts is inefficient
    if ep:
        thin *= 1 + log2(max(tp / 2, 1)) / 2
    split = thin * log2(tp) + log2(max(tp / _MOST_TP, 1)) + 8 * beyond + stage * log2(pp)
    split += (1.25 if a["seq_len"] >= _LONG else 4.0) * log2(cp)
    split += 1.5 * min((pp - 1) / micro_batches, 2.0)  # the bubble
    wanted_ep = min(inside, a["experts"]) if ep else 1
    spread = 0.5 * abs(log2(wanted_ep / ep)) + 1.0 * log2(max(ep / inside, 1)) if ep else 0.0
    batch = 0.2 * abs(log2(mbs / 4))
    if way == "dp first":
        return (float(split + beyond), {"none": 0.0, "selective": 1.0, "full": 2.0}[ar], float(spread), float(batch))
    again = {"none": 0.0, "selective": 0.3, "full": 4.0 if ep else 2.5}[
        ar
    ]  # of experts it repeats the exchange of tokens too
    return (float(split + again + spread + batch),)


def _stages(space: Space, pp: int) -> dict[str, Value]:
    """How layers that `pp` does not divide are shared out: the embedding and the loss as if they were layers, or fewer
    layers for the ends."""
    layers = space.attributes["layers"]
    if layers % pp == 0 or "stage_split" not in space.knob:
        return {}
    for split, counted in (("embedding+loss", 2), ("loss", 1)):
        if (layers + counted) % pp == 0:
            return {"stage_split": split}
    for less in range(1, 5):  # fewer layers at both ends
        first, last = less // 2, less - less // 2
        if pp > 2 and (layers + less) % pp == 0 and (inner := (layers + less) // pp) > last:
            return {"stage_split": "even", "first_layers": inner - first if first else 0, "last_layers": inner - last}
    return {}


def _chunks(space: Space, pp: int, shares: Mapping[str, Value]) -> int:
    """Virtual stages of about `_PER_CHUNK` layers, as far as they divide the layers of a stage."""
    if "vpp" not in space.knob:
        return 1
    counted = {"embedding+loss": 2, "loss": 1}.get(str(shares.get("stage_split", "")), 0)
    per_stage, rest = divmod(space.attributes["layers"] + counted, pp)
    possible = [v for v in space.knob["vpp"].values if not rest and per_stage % int(v) == 0]
    if counted:
        possible = [v for v in possible if per_stage > int(v)]
    if not possible:
        return 1
    return int(min(possible, key=lambda v: (abs(log2(per_stage / int(v) / _PER_CHUNK)), int(v))))


def _joined(space: Space) -> int:
    """Devices that NVLink joins: of a node, or of a rack where the hardware file says so."""
    job = getattr(space, "job", None)
    if job is None or not job.cluster.nodes:
        return max(space.attributes["degrees"])
    sizes = []
    for node in job.cluster.nodes:
        known = hardware(node.device)
        rack = known is not None and known.per_node > 16  # the nodes of a rack are one island
        sizes.append(known.per_node if known is not None and (rack or node.count > known.per_node) else node.count)
    return min(sizes)


def _shares(space: Space, layouts: list[dict[str, Value]], devices: Mapping[str, Value]) -> np.ndarray:
    """(n,) of the memory of the smallest device, by the knobs that matter most for it."""
    if not layouts:
        return np.zeros(0)
    names = list(dict.fromkeys(name for wanted in layouts for name in wanted))
    knobs = {n: np.array([w.get(n, 1) for w in layouts]) for n in names}
    gpus = total(space, devices)
    columns = {n: v for n, v in space.attributes.items() if n != "degrees"}
    columns |= {n: np.full(len(layouts), v) for n, v in {**_PREFERRED, **devices}.items() if n in space.knob}
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
