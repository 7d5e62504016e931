"""The evidence behind each component of a predicted step time: a table measured on the device, a fit to measured
kernels, or a guess (another device's figures, scaled by the ratio of the data sheets)."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from autoscout.job.device_names import stem_of
from autoscout.job.device_records import contents, records
from kb.records import Job

Basis = Literal["table", "fit", "guess"]
_BASES: tuple[Basis, ...] = ("table", "fit", "guess")  # ordered from most to least certain
# The groups of figures in a device record that each component of a step time depends on.
_PRODUCTS, _LINKS = ("gemm", "attention", "elementwise"), ("island",)
_TRAINED = {
    "compute": _PRODUCTS,
    "recompute": _PRODUCTS,
    "optimizer": ("elementwise",),
    **dict.fromkeys(("tp", "cp", "ep", "pp", "dp"), _LINKS),
    "host": ("host",),
}
_SERVED = {
    "weights": ("gemm", "elementwise"),
    "attention": ("decode",),
    "communication": ("all_reduce",),
    "guesses": ("gemm",),
    "host": ("host",),
}


class Ground(msgspec.Struct, frozen=True):
    """The evidence behind one component of a step time. `source`: source of the least certain figures, as in the device
    record."""

    part: str
    basis: Basis
    source: str


def grounds(job: Job, parts: Mapping[str, float]) -> list[Ground]:
    """The evidence behind each component of nonzero duration; on a mixed cluster, for the least certain device."""
    kinds = dict.fromkeys(stem for node in job.cluster.nodes if (stem := stem_of(node.device)))
    groups = _SERVED if job.task == "serve" else _TRAINED
    found = []
    for part, seconds in parts.items():
        if seconds > 0 and part in groups:
            names = (*groups[part], *(("experts",) if part == "weights" and job.model.experts else ()))
            of_part = _served if job.task == "serve" else _trained
            each = [of_part(kind, name) for kind in kinds for name in names]
            if each:
                basis, source = max(each, key=lambda one: _BASES.index(one[0]))
                found.append(Ground(part, basis, source))
    return found


def _served(kind: str, group: str) -> tuple[Basis, str]:
    serving = contents()[kind]["serving"]
    if group in serving["borrowed"]:
        lender = serving["lender"]
        return ("fit", f"{group} as on {lender}") if serving["same"] else ("guess", _scaled(group, lender))
    record = records()[kind]
    return "table" if group == "all_reduce" else "fit", record.sources.get(f"serving.{group}", record.source)


def _trained(kind: str, section: str) -> tuple[Basis, str]:
    record = records()[kind]
    if record.calibrated:
        return "fit", record.sources.get(section, record.source)
    lender = record.links if section == "island" and record.links else record.like
    return "guess", _scaled(section, lender) if lender else record.source


def _scaled(group: str, lender: str) -> str:
    return f"{group} of {lender}, scaled by the ratio of the devices' data sheets"
