"""Which knobs may do nothing at all: a spike at ℓ = ∞ beside the prior of each length (posterior.py).

Lengths that data do not bound stay where their prior has them, and a search then tries the best configuration again and
again with other values of a knob that does nothing. The share of such knobs has a Beta prior; that k of D are inert
has the prior odds B(a + k, b + D − k) / B(a, b + D). What stands against them is the prior's mass beyond the fitted
lengths, Φ(−off) each, as far as the likelihood is flat from there on. A set has to be 20 times as likely as not: knobs
that do little decide among the best, and what is left out is not tried.
"""

from collections.abc import Iterator

import numpy as np
from scipy.special import betaln, log_ndtr, ndtr

_SHARE = (1.0, 5.0)  # Beta prior of the share of knobs that do nothing
_SURE = np.log(20)  # how much likelier than not a set has to be
_BEYOND = 0.25  # of the prior's mass at most beyond the fitted length, where the likelihood may be flat from there on


def inert_sets(off: np.ndarray) -> Iterator[tuple[np.ndarray, float]]:
    """At most two sets of axes as masks (D,), the larger first, each with what leaving it out may cost of log p(y | θ).
    `off`: (D,) how far the fitted log lengths are above their prior's medians, in its standard deviations."""
    d, (a, b) = len(off), _SHARE
    order = np.argsort(-off, kind="stable")
    order = order[ndtr(-off[order]) < _BEYOND]
    if not len(order):
        return
    k = np.arange(1, len(order) + 1)
    odds = betaln(a + k, b + d - k) - betaln(a, b + d) - np.cumsum(log_ndtr(-off[order]))
    most = int(np.argmax(odds)) + 1
    for count in (most, most // 2):
        if count and odds[count - 1] > _SURE:
            yield np.isin(np.arange(d), order[:count]), float(odds[count - 1] - _SURE)
