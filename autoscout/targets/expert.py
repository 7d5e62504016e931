"""The expert default: what the target's own guides advise for a job, before any tuning.

Megatron-LM: tensor parallel only as far as memory needs it, then pipeline; expert before tensor parallel for a mixture
of experts; sequence parallel with tensor parallel; distributed optimizer and overlaps on; recomputation only where
activations do not fit, selective first; the micro batch as large as fits, up to 4.

vLLM: its defaults for the device, with the smallest tensor parallel size (and then pipeline) that fits.

DeepSpeed: the lowest ZeRO stage that fits, as its autotuner tries them, with the largest micro batch; offloading only
where nothing else fits; everything else as it is by default.

A target of a person's own: the defaults that its catalog states.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from autoscout.job.presets import device_memory_gib
from autoscout.search.rivals.sequential import Pool, Search
from autoscout.simulate.training.memory import Memory, estimate_gib
from autoscout.space.graph import Space
from kb.records import AutoscoutError, Configuration, Value

_MARGIN = 0.88  # of a device's memory: buffers of others, and two standard errors of the estimate
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


def only_the_default(pool: Pool, rng: np.random.Generator) -> Search:
    """As a strategy: the driver measures the default, and there is nothing else to try."""
    return
    yield


def expert_default(space: Space) -> Configuration:
    """The first of the advised configurations that fits; the most frugal one if none does."""
    stated = _stated(space)
    if "max_num_seqs" in space.knob:
        return _first(space, stated, _vllm(space))
    if "stage" in space.knob:
        return _first(space, {**stated, "overlap_comm": True}, _deepspeed(space))
    if {"tp", "mbs"} <= space.knob.keys():
        return _megatron(space, {**stated, **_PREFERRED})
    return _first(space, stated, iter([{}]))


def _stated(space: Space) -> dict[str, Value]:
    """The defaults that the catalog states."""
    return {k.name: k.default for k in space.knobs if k.default is not None and k.layer != "parallelism"}


# ---- Megatron ---------------------------------------------------------------------------------------------


def advised(space: Space, devices: Mapping[str, Value] | None = None) -> Iterator[Configuration]:
    """What an expert tries one after another until something runs, on these devices (all of them)."""
    if not {"tp", "mbs"} <= space.knob.keys():
        yield expert_default(space)
        return
    firm = {**_all_devices(space), **(devices or {})}
    preferred = {**_stated(space), **_PREFERRED, **firm}
    for wanted in _layouts(space.attributes, _total(space, firm)):
        configuration = space.nearest({**preferred, **wanted}, firm={**firm, **_firm(space, wanted)})
        if configuration is not None:
            yield configuration


def _megatron(space: Space, preferred: dict[str, Value]) -> Configuration:
    """On all devices where that fits the smallest of them, else on one kind of them alone."""
    smallest = None
    for devices in _device_choices(space):
        for some in _batches_of(_layouts(space.attributes, _total(space, devices)), _AT_ONCE):
            found = [space.nearest({**preferred, **devices, **w}, firm={**devices, **_firm(space, w)}) for w in some]
            configurations = [c for c in found if c is not None]
            for configuration, share in zip(configurations, _shares(space, configurations), strict=True):
                if share <= _MARGIN:
                    return configuration
                if smallest is None or share < smallest[0]:
                    smallest = share, configuration
    return smallest[1] if smallest else _nearest(space, preferred)


def _total(space: Space, devices: Mapping[str, Value]) -> int:
    return int(space.attributes["gpus"]) if "gpus" in space.attributes else sum(int(n) for n in devices.values())


def _batches_of(layouts: list[dict[str, Value]], size: int) -> Iterator[list[dict[str, Value]]]:
    for start in range(0, len(layouts), size):
        yield layouts[start : start + size]


def _shares(space: Space, configurations: list[Configuration]) -> list[float]:
    """Of the memory of the smallest device that each uses."""
    if not configurations:
        return []
    codes = np.array([space.codes_of(c.knobs) for c in configurations])
    columns = {**space.attributes, **space.feasible.columns(codes)}
    needed = Memory().predict({n: v for n, v in columns.items() if n != "degrees"}).value
    return [float(gib) / _smallest_gib(space, c) for gib, c in zip(needed, configurations, strict=True)]


def _device_choices(space: Space) -> list[dict[str, Value]]:
    everything = _all_devices(space)
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


# ---- vLLM -------------------------------------------------------------------------------------------------


def _vllm(space: Space) -> Iterator[dict[str, Value]]:
    """vLLM's defaults for a server, which depend on the device (engine/arg_utils.py:2894, get_batch_defaults), on
    the fewest devices per engine that hold the model beside a fifth of memory for everything else."""
    a = space.attributes
    block = {"block_size": 16 if a["cuda"] else 128}
    kinds = [k.name for k in space.sparse if k.layer == "devices"]
    used: list[dict[str, Value]] = [{k: max(space.knob[k].values) if k == kind else 0 for k in kinds} for kind in kinds]
    for devices in used or [{}]:
        for size in sorted({tp * pp for tp in a["degrees"] for pp in a["degrees"]}):
            for tp in (d for d in reversed(a["degrees"]) if size % d == 0 and size // d in a["degrees"]):
                if a["weights_gib"] / size > _MARGIN * a["memory_gib"]:
                    continue
                shape: dict[str, Value] = {**devices, "tp": tp, "pp": size // tp}
                yield {**shape, **block, **_batches(a, size)}
    yield {}


def _batches(a: Mapping[str, Any], ranks: int) -> dict[str, Value]:
    if not a["cuda"]:
        return {"max_num_seqs": 128 * ranks, "max_num_batched_tokens": 2048 * ranks, "kv_cache_mib": a["kv_steps"][-1]}
    if a["memory_gib"] >= 160:
        return {"max_num_seqs": 1024, "max_num_batched_tokens": 16384}
    if a["memory_gib"] >= 70 and a["capability"] != 8.0:  # an A100 loses throughput with larger steps
        return {"max_num_seqs": 1024, "max_num_batched_tokens": 8192}
    return {"max_num_seqs": 256, "max_num_batched_tokens": 2048}


# ---- DeepSpeed --------------------------------------------------------------------------------------------


def _deepspeed(space: Space) -> Iterator[dict[str, Value]]:
    """Stages in the order of DeepSpeed's autotuner, each with the largest micro batch that is estimated to fit."""
    a = space.attributes
    devices = _all_devices(space)
    gpus = _total(space, devices)
    for offload in ("none", "cpu"):
        for ckpt in ("none", "torch"):
            for stage in (0, 1, 2, 3):
                for mbs in sorted(space.knob["mbs"].values, reverse=True):
                    if _zero_gib(a, stage, int(mbs), gpus, ckpt, offload) <= _MARGIN * a["memory_gib"]:
                        yield {**devices, "stage": stage, "mbs": mbs, "ckpt": ckpt, "offload_optimizer": offload}
    yield {"stage": 3, "mbs": 1, "ckpt": "torch", "offload_optimizer": "cpu"}


def _zero_gib(a: Mapping[str, Any], stage: int, mbs: int, gpus: int, ckpt: str, offload: str) -> float:
    """Peak per device. Adam's state, 12 bytes a parameter over all devices, is in the host's memory if offloaded."""
    recomputation = {"ar": "none"} if ckpt == "none" else {"ar": "full", "ar_method": "uniform", "ar_layers": 1}
    knobs: dict[str, Value] = {"tp": 1, "pp": 1, "dp": gpus, "mbs": mbs, "zero": stage, **recomputation}
    offloaded = 12 * a["params"] / gpus / 2**30 if offload == "cpu" and stage else 0.0
    return estimate_gib(a, Configuration(knobs)) - offloaded


# ---- any target -------------------------------------------------------------------------------------------


def _first(space: Space, stated: dict[str, Value], advised: Iterator[dict[str, Value]]) -> Configuration:
    """The first advised configuration that this space (with the person's limits) can have at all: its structure firmly,
    its dense knobs as near as they can be."""
    for wanted in advised:
        structure = {n: v for n, v in wanted.items() if n in space.knob and space.knob[n].kind == "sparse"}
        found = space.nearest({**stated, **_all_devices(space), **wanted}, firm=_firm(space, structure))
        if found is not None:
            return found
    return _nearest(space, stated)


def _nearest(space: Space, wanted: dict[str, Value]) -> Configuration:
    found = space.nearest(wanted)
    if found is None:
        raise AutoscoutError("nothing is feasible for this job", 3)
    return found


def _firm(space: Space, wanted: Mapping[str, Value]) -> dict[str, Value]:
    """What the advice insists on, as far as this space (with the person's limits) can have it at all."""
    return {n: v for n, v in wanted.items() if n in space.knob and v in space.knob[n].values}


def _all_devices(space: Space) -> dict[str, Value]:
    return {knob.name: max(knob.values) for knob in space.sparse if knob.layer == "devices"}
