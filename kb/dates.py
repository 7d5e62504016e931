"""The current date, without jumps of the machine's clock (by NTP or a resumed VM).

A process reads the wall clock once and then advances it by the monotonic clock, so that later events have later dates,
and differences are durations. Other code must not use `time.time` (a ruff rule in pyproject.toml), except for dates in
workers, which run under another interpreter.
"""

import time

_BEGAN = time.time() - time.monotonic()  # noqa: TID251


def now() -> float:
    """Unix time in seconds."""
    return _BEGAN + time.monotonic()
