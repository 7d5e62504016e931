"""When warm-up is over, and when enough was measured: by what the iterations took. Every rank decides alike, since all
of them know the time of the slowest. Plain Python, for the target's interpreter."""

from collections.abc import Sequence

import ending

_FALLING = 0.1  # of its time: an iteration was warm-up if the one after it is faster by more than this
_MOST_WARM = 5  # iterations beyond those that are asked for
_LEAST = 2  # measured iterations


def still_warm(seconds: Sequence[float], warmed: int, asked: int) -> bool:
    """Whether the first of the measured iterations was still warm-up, of which there were `warmed` and `asked` for."""
    return len(seconds) == _LEAST and warmed < asked + _MOST_WARM and seconds[1] < (1 - _FALLING) * seconds[0]


def enough(seconds: Sequence[float], iterations: int, measure_s: float) -> bool:
    """Whether that was measured which a decision needs: `iterations`, or fewer of the usual ones where they tell the
    mean within 1 %, or what `measure_s` has room for."""
    n = len(seconds)
    if n < _LEAST:
        return False
    if n >= iterations or sum(seconds) + min(seconds) > measure_s:
        return True
    if n < ending.FEW or iterations > ending.USUAL:
        return False
    return ending.width(seconds) <= ending.NARROW
