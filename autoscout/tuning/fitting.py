"""Before any run: whether any configuration of a job's space fits into device memory and, if not, what would be
needed."""

import math

import numpy as np

from autoscout.search.candidates import favourites
from autoscout.simulate import encode
from autoscout.simulate.ensemble import memory_of
from autoscout.simulate.hardware.capacity import capacity
from autoscout.targets.jobs import JobSpace


def fits_nowhere(space: JobSpace) -> str:
    """ "" if a recipe or any configuration found fits by the memory model, or there is no model; else a sentence: how
    much is missing, and what would make it fit."""
    if not space.job.model.layers:
        return ""
    model = memory_of(space.job, space, [])
    if model is None:
        return ""
    attributes = encode.of_job(space.job)
    recipes = np.array([space.codes_of(c.knobs) for c in space.recipes], dtype=np.int16)
    columns = {**attributes, **space.columns(recipes)}
    if model.applies(columns) or np.isnan(model.oom_probability(columns)).all():  # on a device that nobody described
        return ""

    def needed(codes: np.ndarray) -> np.ndarray:
        return model.predict({**attributes, **space.columns(codes)}).value

    def fits(codes: np.ndarray) -> np.ndarray:
        return model.fits({**attributes, **space.columns(codes)})

    if fits(recipes).any():
        return ""
    codes, gib = favourites(space, needed, np.random.default_rng(0), recipes)
    if fits(codes[:100]).any():
        return ""
    device = min(map(capacity, space.job.cluster.nodes))
    least, devices = float(gib[0]), space.job.devices
    return (
        f"{space.job.name} fits nowhere on {devices} devices of {device:.1f} GiB: the most frugal configuration found, "
        f"{space.name(space.of_codes(codes[0].tolist()))}, needs {least:.0f} GiB on its fullest rank; about "
        f"{math.ceil(1.1 * devices * least / device)} such devices would hold it, or devices of {1.1 * least:.0f} GiB"
    )
