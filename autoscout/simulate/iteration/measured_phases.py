"""The phases of an RL iteration that runs have timed, as a column for the iteration model."""

import statistics
from collections.abc import Iterable, Sequence

import numpy as np

from kb.records import Configuration, Measurement

COLUMN = "measured_phases"  # name of the column, which only the iteration model reads
# Phase → metrics whose sum it is. Waiting for answers of other ranks is a part of the rollout, whose predicted time is
# that of the last rank; `rest` is what no other phase has.
_METRICS = {
    "rollout": ("rollout_s", "wait_s"),
    "logprobs": ("logprobs_s", "reference_s"),
    "update": ("update_s",),
    "weights": ("weights_s",),
}
PHASES = (*_METRICS, "rest")
_TYPE = np.dtype([(phase, float) for phase in PHASES])


def measured_phases(rows: Iterable[Measurement], configurations: Sequence[Configuration]) -> np.ndarray:
    """(n,) records of seconds by phase, the medians over each configuration's runs; NaN where nothing timed phases."""
    found: dict[Configuration, list[tuple[float, ...]]] = {}
    for m in rows:
        if m.status == "ok" and {"rollout_s", "update_s", "step_time_s"} <= m.metrics.keys():
            timed = [sum(m.metrics.get(name, 0.0) for name in names) for names in _METRICS.values()]
            rest = max(0.0, m.metrics["step_time_s"] - sum(timed))
            found.setdefault(m.configuration, []).append((*timed, rest))
    unknown = (float("nan"),) * len(PHASES)
    medians = [
        tuple(map(statistics.median, zip(*found[each], strict=True))) if each in found else unknown
        for each in configurations
    ]
    return np.array(medians, dtype=_TYPE)
