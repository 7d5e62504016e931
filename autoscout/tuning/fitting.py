"""Predicts before the first run whether any configuration fits into device memory, and if not, how much is missing."""

import contextlib
import math

import msgspec
import numpy as np

from autoscout.search.candidates import favourites
from autoscout.simulate import encode
from autoscout.simulate.ensemble import memory_of
from autoscout.simulate.hardware.capacity import capacity
from autoscout.targets.jobs import JobSpace
from kb.records import AutoscoutError, Configuration

_FREEING = ("offload", "fsdp")  # knobs that free memory, if a job allows them


def does_not_fit(space: JobSpace) -> str:
    """A sentence if no configuration fits, or if the reference of an RL job does not fit together with the inference
    engine on its devices; else ""."""
    return fits_nowhere(space) or beside_engine(space, space.reference)


def fits_nowhere(space: JobSpace) -> str:
    """A sentence on how much memory is missing, and what would help; "" if the memory model finds a configuration that
    fits, or there is no memory model."""
    frugal = _frugal(space)
    if frugal is None:
        return ""
    name, least, chance = frugal
    device, devices = min(map(capacity, space.job.cluster.nodes)), space.job.devices
    allowed = next((knob for knob in _FREEING if _fits_with(space, knob)), "")
    return (
        f"{space.job.name} fits nowhere on {devices} devices of {device:.1f} GiB: the configuration that needs "
        f"the least memory, {name}, takes {least:.0f} GiB on one rank (probability of running out of memory "
        f"{chance:.0%}); about {math.ceil(1.1 * devices * least / device)} such devices would hold it, or devices "
        f"of {1.1 * least:.0f} GiB" + (f", or use these devices with [space] allow = ['{allowed}']" if allowed else "")
    )


def beside_engine(space: JobSpace, configuration: Configuration) -> str:
    """A sentence if training would fit alone, but not together with the inference engine on its devices; else ""."""
    model = memory_of(space.job, space, []) if space.job.task == "rl" else None
    if model is None:
        return ""
    columns = {**encode.of_job(space.job), **encode.of_configurations(space, [configuration])}
    alone = {**columns, "resident_gib": np.zeros(1), "engine_gib": np.zeros(1)}
    engine = max(float(np.max(columns.get(name, 0.0))) for name in ("resident_gib", "engine_gib"))
    if not engine or model.applies(columns) or model.fits(columns)[0] or not model.fits(alone)[0]:
        return ""
    device = min(map(capacity, space.job.cluster.nodes))
    awake = configuration.knobs.get("sleep") is False
    switch = next((knob.sets.rstrip("=") for knob in space.knobs if knob.name == "sleep" and awake), "")
    needed, together = (float(model.predict(each).value[0]) for each in (alone, columns))
    return (
        f"training alone takes {needed:.0f} of {device:.1f} GiB and fits; together with the engine that generates "
        f"answers, which takes {engine:.0f} GiB, the total is {together:.0f} GiB: reduce the engine's share of "
        "memory" + (f", or let the engine sleep during training ({switch})" if switch else "")
    )


def _frugal(space: JobSpace) -> tuple[str, float, float] | None:
    """The configuration found to need least memory, if none fits: (name, GiB of the rank that needs most, probability
    to run out of memory). None if a configuration fits, or nothing can be predicted."""
    if not space.job.model.layers:
        return None
    model = memory_of(space.job, space, [])
    if model is None:
        return None
    attributes = encode.of_job(space.job)
    recipes = np.array([space.codes_of(c.knobs) for c in space.recipes], dtype=np.int16)
    columns = {**attributes, **space.columns(recipes)}
    if model.applies(columns) or np.isnan(model.oom_probability(columns)).all():  # the device's memory is unknown
        return None

    def needed(codes: np.ndarray) -> np.ndarray:
        return model.predict({**attributes, **space.columns(codes)}).value

    def fits(codes: np.ndarray) -> np.ndarray:
        return model.fits({**attributes, **space.columns(codes)})

    if fits(recipes).any():
        return None
    codes, gib = favourites(space, needed, np.random.default_rng(0), recipes)
    if fits(codes[:100]).any():
        return None
    chance = model.oom_probability({**attributes, **space.columns(codes[:1])})
    return space.name(space.of_codes(codes[0].tolist())), float(gib[0]), float(chance[0])


def _fits_with(space: JobSpace, knob: str) -> bool:
    """Whether a configuration is predicted to fit if the job allows a knob that it does not allow now."""
    if knob not in space.closed:
        return False
    limits = msgspec.structs.replace(space.job.space, allow=[*space.job.space.allow, knob])
    with contextlib.suppress(AutoscoutError):  # the installed version of the engine may lack the knob
        return _frugal(JobSpace.of_job(msgspec.structs.replace(space.job, space=limits))) is None
    return False
