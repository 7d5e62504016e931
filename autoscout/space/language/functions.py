"""The functions that expressions may call."""

import math
from collections.abc import Callable
from typing import Any

_MOST_DIVISORS_OF = 10**12


def divisors(n: int) -> tuple[int, ...]:
    """All divisors in ascending order. Errors: TypeError for anything but a whole number, and for too large ones."""
    if not isinstance(n, int | float) or n != int(n) or n > _MOST_DIVISORS_OF:
        raise TypeError(f"there are no divisors of {n!r}")
    n = int(n)  # columns of integers with inactive rows are columns of floats
    small = [d for d in range(1, math.isqrt(n) + 1 if n > 0 else 1) if n % d == 0]
    return tuple(small + [n // d for d in reversed(small) if d * d != n])


FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "divisors": divisors}
