"""The four simulators of the paper's Table 2: linear regressions of the metric on subsets of the knobs."""

from collections.abc import Mapping, Sequence

import numpy as np

from kb.records import Configuration

MEMBERS: dict[str, tuple[str, ...]] = {
    "3D-Parallelism": ("a100", "a40", "mbs", "tp", "pp", "dp"),
    "5D-Parallelism": ("a100", "a40", "mbs", "tp", "pp", "dp", "ep", "cp", "sp"),
    "DDP-Aware": ("a100", "a40", "mbs", "tp", "pp", "dp", "ddp_optim"),
    "Communication-Aware": ("a100", "a40", "mbs", "tp", "pp", "dp", "ar", "tp_comm"),
}

_ONE_WHEN_INACTIVE = {"tp", "pp", "dp", "ep", "cp"}


def features(configuration: Configuration, names: Sequence[str], devices: Mapping[str, int]) -> list[float]:
    """One row of regressors; `devices` counts those of a cluster of one kind, where they are no knobs."""
    return [_feature(configuration, name, devices) for name in names]


def matrix(rows: Sequence[Configuration], names: Sequence[str], devices: Mapping[str, int]) -> np.ndarray:
    """(configurations, regressors)."""
    return np.array([features(row, names, devices) for row in rows], dtype=float)


def _feature(configuration: Configuration, name: str, devices: Mapping[str, int]) -> float:
    knobs = configuration.knobs
    if name in ("a100", "a40"):
        return float(knobs.get(name, devices.get(name, 0) if len(devices) == 1 else 0))
    if name == "ar":
        return float(knobs.get("ar", "none") != "none")
    if name == "ddp_optim":
        return float(knobs.get("distopt", False))
    return float(knobs.get(name, 1.0 if name in _ONE_WHEN_INACTIVE else 0.0))
