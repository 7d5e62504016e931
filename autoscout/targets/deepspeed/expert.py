"""The lowest ZeRO stage that fits, in the order of DeepSpeed's autotuner, with the largest micro batch; offloading only
if nothing else fits; defaults for the rest."""

from collections.abc import Iterator, Mapping

from autoscout.simulate.training.memory import estimate_gib
from autoscout.space.graph import Space
from autoscout.targets.recipes import MARGIN, all_devices, nearest, total
from kb.records import Configuration, Value


def advised(space: Space) -> Iterator[dict[str, Value]]:
    """Stages in the order of DeepSpeed's autotuner, each with the largest micro batch that is estimated to fit."""
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
    """Recipes for a user's ds_config: the micro batch of `today` (0: the line does not say it) with the first value of
    each list; the advice of DeepSpeed's guides within its lists (lowest stage, no offloading, largest micro batch); the
    first value of each list, which its autotuner starts from. Of the first two the lowest stage and the largest micro
    batch that are estimated to fit, where the model is known."""
    firsts = {knob.name: knob.values[0] for knob in space.knobs}
    stages = _numbers(space, "stage") or [firsts.get("stage", 0)]
    if "mbs" in space.knob and today in space.knob["mbs"].values:
        yield nearest(space, _first_that_fits(space, [{**firsts, "mbs": today, "stage": s} for s in stages], firsts))
    offloads = {n: "none" for n in ("offload_optimizer", "offload_param") if "none" in _values(space, n)}
    micro = _numbers(space, "mbs")[::-1] or [firsts.get("mbs", 1)]
    guides = [{**firsts, **offloads, "stage": stage, "mbs": mbs} for stage in sorted(stages) for mbs in micro]
    yield nearest(space, _first_that_fits(space, guides, firsts))
    yield nearest(space, firsts)


def _first_that_fits(
    space: Space, wanted: list[dict[str, Value]], firsts: Mapping[str, Value]
) -> dict[str, Value]:
    """Of candidates from the fastest to the most frugal one; the first where the model or its device is not known."""
    known = [{name: value for name, value in each.items() if name in firsts} for each in wanted]
    if not (space.simulated and space.attributes["cuda"]):
        return known[0]
    room = MARGIN * space.attributes["memory_gib"]
    return next((each for each in known if _gib(space, each) <= room), known[-1])


def _values(space: Space, name: str) -> tuple[Value, ...]:
    return space.knob[name].values if name in space.knob else ()


def _numbers(space: Space, name: str) -> list[Value]:
    """A knob's values, ascending, if all are numbers."""
    values = _values(space, name)
    return sorted(values, key=int) if all(isinstance(v, int) for v in values) else []


def _gib(space: Space, knobs: Mapping[str, Value]) -> float:
    """GiB of the fullest rank; other knobs have their defaults."""
    others = {knob.name: knob.values[0] if knob.default is None else knob.default for knob in space.knobs}
    devices = all_devices(space)
    active = space.canonical({**others, **knobs, **devices}).knobs
    env = space.environment(active)
    told = {name: expression(env) for name, expression in space.simulated.items()}
    return estimate_gib(space.attributes, Configuration({**active, "gpus": total(space, devices), **told}))
