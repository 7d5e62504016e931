"""Recipes for DeepSpeed: the lowest ZeRO stage that fits, tried in the order of DeepSpeed's autotuner, with the largest
micro batch. Offloading is used only if nothing else fits; other settings keep their defaults."""

from collections.abc import Iterator, Mapping

from autoscout.simulate.training.memory import estimate_gib
from autoscout.space.graph import Space
from autoscout.targets.recipes import MARGIN, all_devices, nearest, total
from kb.records import Configuration, Value


def advised(space: Space) -> Iterator[dict[str, Value]]:
    """Yields knob values that are estimated to fit, in nested order: offloading off, on; recomputation off, on; stage 0
    to 3; micro batch from the largest. The last values need the least memory and are not checked."""
    devices = all_devices(space)
    for offload in ("none", "cpu"):
        for ckpt in ("none", "torch"):
            for stage in (0, 1, 2, 3):
                for mbs in sorted(space.knob["mbs"].values, reverse=True):
                    wanted = {**devices, "stage": stage, "mbs": mbs, "ckpt": ckpt, "offload_optimizer": offload}
                    if _gib(space, wanted) <= MARGIN * space.attributes["memory_gib"]:
                        yield wanted
    yield {"stage": 3, "mbs": 1, "ckpt": "torch", "offload_optimizer": "cpu"}


def of_lists(space: Space, today: int) -> Iterator[Configuration]:
    """Yields the recipes for a user's ds_config: (1) the launch line's micro batch, `today` (if not 0), with the first
    value of each list; (2) values from the lists that follow DeepSpeed's guides: no offloading, lowest stage, largest
    micro batch; (3) the first value of each list, with which DeepSpeed's autotuner starts. If the model is known,
    recipes (1) and (2) have a stage and a micro batch that are estimated to fit."""
    firsts = {knob.name: knob.values[0] for knob in space.knobs}
    if today in _values(space, "mbs"):
        launched = [{**firsts, "mbs": today, "stage": s} for s in _values(space, "stage") or (0,)]
        yield _first_that_fits(space, launched)
    here = {n: "none" for n in ("offload_optimizer", "offload_param") if "none" in _values(space, n)}
    away: list[dict[str, Value]] = (
        [{"offload_optimizer": "cpu"}] if "cpu" in _values(space, "offload_optimizer") else []
    )
    stages, micro = _numbers(space, "stage"), _numbers(space, "mbs")[::-1]
    sizes = [{**stage, **mbs} for stage in stages or [{}] for mbs in micro or [{}]]
    yield _first_that_fits(space, [{**firsts, **here, **more, **size} for more in ({}, *away) for size in sizes])
    yield nearest(space, firsts)


def _first_that_fits(space: Space, wanted: list[dict[str, Value]]) -> Configuration:
    """Returns the valid configuration nearest to the first candidate that fits. Candidates are ordered by increasing
    memory savings. If none fits, returns the last one. If the model or the device is unknown, returns the first one."""
    room = MARGIN * space.attributes["memory_gib"]
    if not (space.simulated and space.attributes["cuda"] and room):
        return nearest(space, wanted[0])
    found = dict.fromkeys(nearest(space, each) for each in wanted)
    return next((each for each in found if _gib(space, each.knobs) <= room), [*found][-1])


def _values(space: Space, name: str) -> tuple[Value, ...]:
    return space.knob[name].values if name in space.knob else ()


def _numbers(space: Space, name: str) -> list[dict[str, Value]]:
    """Returns a knob's values in ascending order, if all are numbers."""
    values = _values(space, name)
    return [{name: v} for v in sorted(values, key=int)] if all(isinstance(v, int) for v in values) else []


def _gib(space: Space, knobs: Mapping[str, Value]) -> float:
    """Returns the memory of the fullest rank in GiB. Missing knobs have their defaults."""
    others = {knob.name: knob.values[0] if knob.default is None else knob.default for knob in space.knobs}
    devices = all_devices(space)
    columns = space.as_simulated(space.canonical({**others, **knobs, **devices}))
    return estimate_gib(space.attributes, Configuration({**columns.knobs, "gpus": total(space, devices)}))
