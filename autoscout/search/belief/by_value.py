"""The belief told a person by knob: what the best configuration with each value of a knob is believed to cost."""

import math

import numpy as np

from autoscout.search.belief.surrogate import Model
from kb.within_events import ValueBelief

_SIGMAS = 1.96
_LIKELY = 0.5  # probability of running above which a configuration counts as usable


def by_value(model: Model) -> dict[str, list[ValueBelief]]:
    """Knob → its values as the last `update` of the model left them, over the candidates and the measured rows. Of
    several configurations with a value the one that is believed to cost least, of those that probably run where there
    are such. Knobs of which one value alone is left say nothing."""
    here, deviation = model.worth()
    ran = np.isfinite(here)
    free = ~np.isin(model.candidates, model.rows)
    codes = model.pool.codes[np.concatenate([model.rows[ran], model.candidates[free]])]
    mean = np.concatenate([here[ran], model.mean[free]])
    spread = np.concatenate([deviation[ran], model.deviation[free]])
    runs = np.concatenate([np.ones(int(ran.sum())), model.runs[free]])
    order = np.lexsort((mean, runs < _LIKELY))  # those that run before the others, the cheapest first
    measured = model.pool.codes[[*model.costs, *model.failed]]
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


def _times(model: Model, bent: float) -> float:
    """Times the best measured cost."""
    return math.exp(model.log_cost(bent) - float(model.logs.min()))
