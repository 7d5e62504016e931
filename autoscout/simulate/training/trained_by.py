"""Applies a training framework's record (simulate/engine_records.py) to rows that name it: values of the training
models' columns, and conventions of the framework's own tables."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from autoscout.job.device_names import DEVICE_FIGURES
from autoscout.simulate.engine_records import NEWEST, PROVENANCE, family_of, release_of, standing_for
from autoscout.simulate.training.inputs import DEFAULTS
from autoscout.simulate.training.software import holds, members, when_of

Columns = dict[str, Any]
_CONTAINER = re.compile(r"\b\d\d\.\d\d\b")  # release of a container: year and month


class Trainer:
    """The record of a row's framework; all groups are empty if there is none. `known`: whether the record determines
    all columns that depend on software. `mixture`: "", or the record (and release) as a value of the column `software`,
    if several software profiles are possible (software.py)."""

    def __init__(self, framework: str, submitted: str = "") -> None:
        """`submitted`: the benchmark round that the run was submitted to, or ""."""
        named = family_of(framework, "train")
        family = standing_for("submitted", "train") if submitted else named
        self.release = max((float(text) for text in _CONTAINER.findall(framework)), default=np.nan)
        self.stated = family.at(release_of(submitted or framework) or NEWEST).groups if family else {}
        if submitted and named:  # the framework's record overrides the benchmark's
            stated = named.at(release_of(framework) or NEWEST).groups
            self.stated = {**self.stated, "columns": {**self.stated["columns"], **stated.get("columns", {})}}
        self.groups = {name: _figures(group) for name, group in self.stated.items() if "when" not in group}
        self.known = "columns" in self.groups
        others = [m for m in members() if family and family.stem in (m.stem, m.runs_on)]
        release = release_of(framework)
        since = ""
        if family and release and all(m.stem == others[0].stem for m in others):
            since = ".".join(map(str, family.at(release).since))
            others = [m for m in others if m.since == since]
        alone = all(m.filled == others[0].filled for m in others)
        self.mixture = "" if family is None or alone or submitted else f"{family.stem} {since}".rstrip()

    def columns(self, with_: str = "columns") -> Columns:
        """The columns that a group of the record sets. Group "columns": defaults for unstated columns; other groups:
        values under the condition that the group is named after."""
        return dict(self.groups.get(with_, {}))

    def where(self, x: Mapping[str, Any]) -> Columns:
        """The columns of all groups whose condition is true for a row; none if there are several software profiles,
        which apply conditions themselves."""

        def value(name: str) -> np.ndarray:
            if name in DEVICE_FIGURES:
                return np.array([DEVICE_FIGURES[name](str(x.get("gpu", "")))])
            said = self.release if name == "release" else x.get(name, DEFAULTS.get(name, np.nan))
            return np.array([said])

        found: Columns = {}
        for group in () if self.mixture else self.stated.values():
            if "when" in group and holds(when_of(group), value).all():
                found |= {name: figure for name, figure in _figures(group).items() if name != "when"}
        return found

    def selective_share(self, model: str) -> float | None:
        """Share of a layer's work that "selective" recomputation repeats in this framework; None: as in Megatron."""
        shares = self.groups.get("selective", {})
        return float(shares.get(model.lower(), shares["share"])) if shares else None


def _figures(group: Mapping[str, Any]) -> Columns:
    return {name: value for name, value in group.items() if name not in PROVENANCE}
