"""The lowest ZeRO stage that fits, in the order of DeepSpeed's autotuner, with the largest micro batch; offloading only
if nothing else fits; defaults for the rest."""

from collections.abc import Iterator, Mapping
from typing import Any

from autoscout.simulate.training.memory import estimate_gib
from autoscout.space.graph import Space
from autoscout.targets.recipes import MARGIN, all_devices, nearest, total
from kb.records import Configuration, Value


def advised(space: Space) -> Iterator[dict[str, Value]]:
    """Stages in the order of DeepSpeed's autotuner, each with the largest micro batch that is estimated to fit."""
    a = space.attributes
    devices = all_devices(space)
    gpus = total(space, devices)
    for offload in ("none", "cpu"):
        for ckpt in ("none", "torch"):
            for stage in (0, 1, 2, 3):
                for mbs in sorted(space.knob["mbs"].values, reverse=True):
                    if _zero_gib(a, stage, int(mbs), gpus, ckpt, offload) <= MARGIN * a["memory_gib"]:
                        yield {**devices, "stage": stage, "mbs": mbs, "ckpt": ckpt, "offload_optimizer": offload}
    yield {"stage": 3, "mbs": 1, "ckpt": "torch", "offload_optimizer": "cpu"}


def of_lists(space: Space, today: int) -> Iterator[Configuration]:
    """Recipes for a user's ds_config: the micro batch of `today` (0: the line does not say it) with the first value of
    each list; the advice of DeepSpeed's guides within its lists (lowest stage, no offloading, largest micro batch); the
    first value of each list, which its autotuner starts from."""
    firsts = {knob.name: knob.values[0] for knob in space.knobs}
    if "mbs" in space.knob and today in space.knob["mbs"].values:
        yield nearest(space, {**firsts, "mbs": today})
    wanted = dict(firsts)
    for name, pick in (("stage", min), ("mbs", max)):
        if name in space.knob and all(isinstance(v, int) for v in space.knob[name].values):
            wanted[name] = pick(int(v) for v in space.knob[name].values)
    for name in ("offload_optimizer", "offload_param"):
        if name in space.knob and "none" in space.knob[name].values:
            wanted[name] = "none"
    yield nearest(space, wanted)
    yield nearest(space, firsts)


def _zero_gib(a: Mapping[str, Any], stage: int, mbs: int, gpus: int, ckpt: str, offload: str) -> float:
    """Peak GiB per device. If offloaded, Adam's state, 12 bytes per parameter over all devices, is in host memory."""
    recomputation = {"ar": "none"} if ckpt == "none" else {"ar": "full", "ar_method": "uniform", "ar_layers": 1}
    knobs: dict[str, Value] = {"tp": 1, "pp": 1, "dp": gpus, "mbs": mbs, "zero": stage, **recomputation}
    offloaded = 12 * a["params"] / gpus / 2**30 if offload == "cpu" and stage else 0.0
    return estimate_gib(a, Configuration(knobs)) - offloaded
