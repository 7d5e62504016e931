"""Expert recipes, following the guides of Megatron-LM and NVIDIA. Reported gains are relative to the best of these
recipes.

    guide      the least splitting that fits: first reduce the micro batch; then tensor parallelism among the
               devices that NVLink joins, with sequence parallelism; then pipeline parallelism, interleaved. Expert
               parallelism comes before any splitting, context parallelism is for long sequences only, and
               selective recomputation is tried before full recomputation.
    dp first   as many replicas as fit, with full recomputation before any splitting of the model

On a cluster with several kinds of device, each recipe is built for all devices and for each kind alone, and the variant
with the lowest predicted step time is used. An additional recipe is a pipeline over all kinds, with stages balanced by
the time of a layer on each kind, like Metis (Um et al., ATC 2024).

Sources: Megatron-LM docs/user-guide/parallelism-guide.md ("keep TP and EP within a node; use PP across nodes; CP for
sequences of 8K and more") and NVIDIA's recipes in Megatron-Bridge (scripts/performance), core_v0.16. Fine-tuning packs
its samples, as advised in Megatron-Bridge's docs/training/packed-sequences.md."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from autoscout.simulate.training.memory import CAUTION, Memory
from autoscout.simulate.training.step import Training
from autoscout.space.graph import Space
from autoscout.targets.megatron.layouts import Layouts, Way, layouts
from autoscout.targets.megatron.unequal import knob_of
from autoscout.targets.recipes import MARGIN, all_devices, firm, nearest, stated, total
from kb.records import Configuration, Value

WAYS: tuple[Way, ...] = ("guide", "dp first")

_TRIED = 200  # maximum number of layouts, among those expected to fit, that are checked against the space
_FULL = 0.97  # usable share of a device's memory if no layout leaves a margin
_FRUGAL = 20  # number of layouts tried if none is expected to fit
_NOT_BY_ENDS: dict[str, Value] = {"stage_split": "even", "first_layers": 0, "last_layers": 0}
_BALANCED = 50  # maximum number of unequal splits that are checked against the space, in order of predicted time
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
    "packing": True,
}


def portfolio(space: Space) -> list[Configuration]:
    """Returns the recipes without duplicates: the guide's first, or on a mixed cluster by predicted time."""
    if len(all_devices(space)) < 2:
        found = [recommended(space, way) for way in WAYS]
    else:
        found = [min(_placed(space, way), key=lambda c: _seconds(space, c)) for way in WAYS]
        found = sorted([*found, *balanced(space)], key=lambda c: _seconds(space, c))
    return [c for i, c in enumerate(found) if c not in found[:i]]


def _placed(space: Space, way: Way) -> list[Configuration]:
    """Returns a strategy's recipes that fit, on all devices and on each kind alone; if none fits, the recipe that needs
    the least memory."""
    found = [recommended(space, way, [devices]) for devices in _device_choices(space)]
    fitting = [c for c in found if _share(space, c) <= MARGIN]
    return fitting or [recommended(space, way)]


def balanced(space: Space) -> list[Configuration]:
    """Returns a list with one configuration: the pipeline over all kinds of device that fits and has the lowest
    predicted step time, with a different number of layers per stage on each kind. [] if none fits."""
    devices = all_devices(space)
    given = {kind: space.knob[knob_of(kind)] for kind in devices if knob_of(kind) in space.knob}
    gpus, tried = total(space, devices), layouts(space, total(space, devices), "guide")
    usable = np.flatnonzero((tried.columns["pp"] > 1) & (tried.columns.get("vpp", np.ones(1)) == 1))[:_TRIED]
    grid = [each.ravel() for each in np.meshgrid(*(knob.values[1:] for knob in given.values()), indexing="ij")]
    if not given or not len(usable) or not len(grid[0]):
        return []
    rows, which = np.repeat(usable, len(grid[0])), np.tile(np.arange(len(grid[0])), len(usable))
    depths = {kind: each[which] for kind, each in zip(given, grid, strict=True)}
    stages = {kind: int(count) * tried.columns["pp"][rows] / gpus for kind, count in devices.items()}
    left = space.attributes["layers"] - sum(stages[kind] * depth for kind, depth in depths.items())
    sharing = sum(number for kind, number in stages.items() if kind not in given)
    whole = np.all([number % 1 == 0 for number in stages.values()], axis=0)
    possible = whole & np.all([depth * sharing < left for depth in depths.values()], axis=0)
    rows, depths = rows[possible], {knob_of(kind): depth[possible] for kind, depth in depths.items()}
    if not len(rows):
        return []
    columns = {n: v[rows] if np.ndim(v) else v for n, v in _columns(space, tried, devices).items()} | depths
    fits = Memory().oom_probability(columns) <= CAUTION
    order = np.argsort(np.where(fits, Training().predict(columns).value, np.inf), kind="stable")
    preferred = {**stated(space), **_PREFERRED, **devices}
    for i in order[: min(_BALANCED, int(fits.sum()))]:
        wanted = tried.wanted(int(rows[i])) | _NOT_BY_ENDS | {name: int(depth[i]) for name, depth in depths.items()}
        found = space.nearest({**preferred, **wanted}, firm={**devices, **firm(space, wanted)})
        if found is not None and _share(space, found) <= MARGIN:
            return [found]
    return []


def advised(space: Space, devices: Mapping[str, Value] | None = None) -> Iterator[Configuration]:
    """Yields the configurations that an expert would try in turn until one runs, on `devices` (default: all)."""
    fixed = {**all_devices(space), **(devices or {})}
    preferred = {**stated(space), **_PREFERRED, **fixed}
    tried = layouts(space, total(space, fixed), "guide")
    for wanted in map(tried.wanted, range(len(tried))):
        configuration = space.nearest({**preferred, **wanted}, firm={**fixed, **firm(space, wanted)})
        if configuration is not None:
            yield configuration


def recommended(
    space: Space, way: Way = "guide", allowed: Sequence[Mapping[str, Value]] | None = None
) -> Configuration:
    """Returns the first advised configuration that fits with a margin. The `allowed` choices of devices (None: all
    devices, then each kind alone) are tried in order. If none fits with a margin, returns a configuration that fits
    without a margin, else the configuration that needs the least memory."""
    preferred = {**stated(space), **_PREFERRED}
    smallest = None
    choices = []
    for devices in _device_choices(space) if allowed is None else allowed:
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
    """Returns predicted memory as a fraction of the smallest device's memory, (n,), based on the knobs that affect
    memory most."""
    if not len(found):
        return np.zeros(0)
    return Memory().predict(_columns(space, found, devices)).value / _smallest_gib(space, devices)


def _columns(space: Space, found: Layouts, devices: Mapping[str, Value]) -> dict[str, Any]:
    """Returns the simulator inputs for layouts on these devices."""
    gpus, knobs = total(space, devices), found.columns
    stages, of = np.unique(knobs["pp"], return_inverse=True)
    of_pp = {name for share in found.shares.values() for name in share}
    columns = {n: v for n, v in space.attributes.items() if n != "degrees"}
    columns |= {n: np.full(len(found), v) for n, v in {**_PREFERRED, **devices}.items() if n in space.knob}
    columns |= {n: np.array([found.shares[int(pp)].get(n, 1) for pp in stages])[of] for n in of_pp}
    columns |= knobs | {"gpus": gpus, "dp": gpus // (knobs["tp"] * knobs["pp"] * knobs["cp"])}
    if "packing" in columns:
        columns["packing"] = (knobs["cp"] == 1) & space.attributes["packable"]
    columns["sp"] = (knobs["tp"] > 1) & np.array("sp" in space.knob)
    return columns


def _seconds(space: Space, configuration: Configuration) -> float:
    """Returns predicted seconds per step; infinity if unknown."""
    job = getattr(space, "job", None)
    model = Training.of_job(job) if job is not None else Training()
    columns = _described(space, configuration)
    return math.inf if model.applies(columns) else float(model.predict(columns).value[0])


def _described(space: Space, configuration: Configuration) -> dict[str, Any]:
    codes = np.array([space.codes_of(configuration.knobs)])
    return {n: v for n, v in {**space.attributes, **space.columns(codes)}.items() if n != "degrees"}


def _share(space: Space, configuration: Configuration) -> float:
    """Returns predicted memory / device memory on the fullest rank."""
    columns = _described(space, configuration)
    if sum(configuration.knobs.get(kind, 0) != 0 for kind in all_devices(space)) > 1:
        return float(Memory().filled(columns)[0])
    return float(Memory().predict(columns).value[0]) / _smallest_gib(space, configuration.knobs)


def _device_choices(space: Space) -> list[dict[str, Value]]:
    everything = all_devices(space)
    alone = [{k: n if k == kind else 0 for k, n in everything.items()} for kind, most in everything.items() if most]
    return [everything, *(alone if len(everything) > 1 else [])]


def _smallest_gib(space: Space, knobs: Mapping[str, Value]) -> float:
    """Returns the memory in GiB of the smallest used device; of the cluster's smallest device if the used kinds are
    unknown."""
    used = [k.name for k in space.sparse if k.layer == "devices" and knobs.get(k.name)]
    known = [space.capacities[kind] for kind in used if kind in space.capacities]
    return min(known, default=space.attributes.get("memory_gib", float("inf")))
