"""Helpers for recipes. A recipe is a configuration that an engine's own guides advise for a job, before any tuning."""

from collections.abc import Iterator, Mapping

from autoscout.space.graph import Space
from kb.records import AutoscoutError, Configuration, Value

MARGIN = 0.89  # usable fraction of memory; 11 % are left for further buffers and two standard errors of the estimate


def stated(space: Space) -> dict[str, Value]:
    """Returns the catalog's declared defaults, without those of parallelism."""
    return {k.name: k.default for k in space.knobs if k.default is not None and k.layer != "parallelism"}


def total(space: Space, devices: Mapping[str, Value]) -> int:
    return int(space.attributes["gpus"]) if "gpus" in space.attributes else sum(int(n) for n in devices.values())


def first(space: Space, stated: dict[str, Value], advised: Iterator[dict[str, Value]]) -> Configuration:
    """Returns the first advised configuration that is valid within the user's limits. Knobs of kind "sparse", such as
    degrees of parallelism, must have the advised values. Other knobs may have the nearest valid values."""
    for wanted in advised:
        structure = {n: v for n, v in wanted.items() if n in space.knob and space.knob[n].kind == "sparse"}
        found = space.nearest({**stated, **all_devices(space), **wanted}, firm=firm(space, structure))
        if found is not None:
            return found
    return nearest(space, stated)


def nearest(space: Space, wanted: dict[str, Value]) -> Configuration:
    """Returns the valid configuration nearest to `wanted`. Errors: AutoscoutError (exit 3) if the space has no valid
    configuration."""
    found = space.nearest(wanted)
    if found is None:
        raise AutoscoutError("no configuration of this job is valid; relax [space] or change the cluster", 3)
    return found


def firm(space: Space, wanted: Mapping[str, Value]) -> dict[str, Value]:
    """Returns those of the `wanted` values that the user's limits allow."""
    return {n: v for n, v in wanted.items() if n in space.knob and v in space.knob[n].values}


def all_devices(space: Space) -> dict[str, Value]:
    return {knob.name: max(knob.values) for knob in space.sparse if knob.layer == "devices"}
