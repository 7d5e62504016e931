"""The functions that expressions may call."""

import math
from collections.abc import Callable
from typing import Any

_MOST_DIVISORS_OF = 10**12


def divisors(n: int) -> tuple[int, ...]:
    """Returns all divisors of an integer in ascending order. Errors: TypeError if n is not an integer or too large."""
    if not isinstance(n, int | float) or n != int(n) or n > _MOST_DIVISORS_OF:
        raise TypeError(f"there are no divisors of {n!r}")
    n = int(n)  # in a column with inactive rows (NaN), integers are floats
    small = [d for d in range(1, math.isqrt(n) + 1 if n > 0 else 1) if n % d == 0]
    return tuple(small + [n // d for d in reversed(small) if d * d != n])


FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "divisors": divisors}
