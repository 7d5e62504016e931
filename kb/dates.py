"""The current date, without the jumps of a machine's clock (NTP, a resumed VM).

A process reads the wall clock once; from then on the monotonic clock advances it. So the difference of two dates of one
process is a duration, and a later event has a later date. Ruff refuses `time.time` elsewhere (pyproject.toml), except
in workers under another interpreter, which use it only for dates.
"""

import time

_BEGAN = time.time() - time.monotonic()  # noqa: TID251


def now() -> float:
    """Unix time in seconds."""
    return _BEGAN + time.monotonic()
