"""Clocks under a power limit.

Dynamic power is proportional to f V², and near a limit V rises more slowly than f; the rest of a device's power does
not depend on its clock:

limit / default limit = STATIC + (1 − STATIC) (f / f₀)²

So products and attention slow down with f, while memory, links and the host keep their speed. f₀ is the clock under the
default limit, which dense products already run at (device.Clocks.sustained). The exponent was fitted to serving on H200
and training on H100 with 500 of 700 W (docs/lab/simulators-training.md, power limits); an exponent of three predicts
all of them too fast.
"""

import numpy as np
from msgspec.structs import replace

from autoscout.simulate.hardware.device import Hardware

Array = np.ndarray
STATIC = 0.2  # share of the default limit for leakage, memory and links: a usual figure, not measured here
LEAST = 0.1  # lowest clock that drivers set, as a share of f₀
DOUBT = 0.5  # relative uncertainty of a slowdown's logarithm: some devices have an exponent of one


def clock(limit: Array | float) -> Array:
    """f / f₀ under a `limit`, which is a share of the default limit."""
    dynamic = (np.minimum(limit, 1.0) - STATIC) / (1 - STATIC)
    return np.maximum(np.sqrt(np.maximum(dynamic, 0.0)), LEAST)


def doubt(limit: Array | float) -> Array:
    """Error of log(measured / predicted) that the clock adds to compute-bound work."""
    return -DOUBT * np.log(clock(limit))


def limited(hw: Hardware, limit: float) -> Hardware:
    """The device under a `limit`, which is a share of its default limit."""
    if limit >= 1:
        return hw
    speed = float(clock(limit))
    return replace(
        hw,
        peak_tflops={dtype: speed * peak for dtype, peak in hw.peak_tflops.items()},
        watts=limit * hw.watts,
        doubt=float(np.hypot(hw.doubt, doubt(limit))),
    )
