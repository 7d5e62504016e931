"""What the record of a training framework (simulate/engine_records.py) says of rows that name it: columns of the
training models, and how the framework's own tables say things."""

from collections.abc import Mapping
from typing import Any

from autoscout.simulate.engine_records import NEWEST, PROVENANCE, family_of, release_of

Columns = dict[str, Any]


class Trainer:
    """Of one framework; every group is empty for one that no record describes. `known`: a record has its columns, so
    that a row of it is not of unknown software."""

    def __init__(self, framework: str) -> None:
        family = family_of(framework, "train")
        groups = family.at(release_of(framework) or NEWEST).groups if family else {}
        self.groups = {name: _figures(group) for name, group in groups.items()}
        self.known = bool(self.groups)

    def columns(self, with_: str = "columns") -> Columns:
        """Of a group: what holds wherever a row does not say otherwise, or where what the group's name says is so."""
        return dict(self.groups.get(with_, {}))

    def selective_share(self, model: str) -> float | None:
        """The share of a layer's work that its "selective" recomputation repeats, by model; None: Megatron's."""
        shares = self.groups.get("selective", {})
        return float(shares.get(model.lower(), shares["share"])) if shares else None


def _figures(group: Mapping[str, Any]) -> Columns:
    return {name: value for name, value in group.items() if name not in PROVENANCE}
