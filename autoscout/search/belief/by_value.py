"""Summarizes the belief for people: for each value of a knob, the believed cost of the best configuration with it."""

import math

import numpy as np

from autoscout.search.belief.outlook import worth
from autoscout.search.belief.surrogate import Surrogate
from kb.within_events import ValueBelief

_SIGMAS = 1.96  # half-width of a 95 % interval in standard deviations
_LIKELY = 0.5  # configurations with a higher probability of running are preferred


def by_value(model: Surrogate) -> dict[str, list[ValueBelief]]:
    """Knob → the belief about each of its values after the model's last `update`. A value is represented by the
    configuration believed to be cheapest among the candidates and measured rows that have it; configurations that
    probably run are preferred. Knobs with a single value left are omitted."""
    here, deviation = worth(model)
    ran = np.isfinite(here)
    free = ~np.isin(model.candidates, model.rows)
    codes = model.pool.codes[np.concatenate([model.rows[ran], model.candidates[free]])]
    mean = np.concatenate([here[ran], model.mean[free]])
    spread = np.concatenate([deviation[ran], model.deviation[free]])
    runs = np.concatenate([np.ones(int(ran.sum())), model.runs[free]])
    order = np.lexsort((mean, runs < _LIKELY))  # rows that probably run first, then all others; each by cost
    measured = model.pool.codes[sorted(model.tried)]
    found = {}
    for column, knob in enumerate(model.pool.space.knobs):
        codes_here, first = np.unique(codes[order, column], return_index=True)
        if len(codes_here) > 1:
            found[knob.name] = [
                ValueBelief(
                    value=knob.values[code] if code >= 0 else None,
                    cost=_times(model, float(mean[at])),
                    low=_times(model, float(mean[at] - _SIGMAS * spread[at])),
                    high=_times(model, float(mean[at] + _SIGMAS * spread[at])),
                    runs=float(runs[at]),
                    measured=int(np.count_nonzero(measured[:, column] == code)),
                )
                for code, at in zip(codes_here, order[first], strict=True)
            ]
    return found


def _times(model: Surrogate, bent: float) -> float:
    """Converts a log-cost that is compressed as in bending.py to a multiple of the best measured cost."""
    return math.exp(model.log_cost(bent) - model.lowest)
