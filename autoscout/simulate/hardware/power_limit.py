"""Clocks under a power limit.

A device's dynamic power is proportional to f V² (clock f, voltage V), and near the limit V rises more slowly than f.
The remaining power does not depend on the clock:

limit / default limit = STATIC + (1 − STATIC) (f / f₀)²

Matrix products and attention slow down in proportion to f; memory, links and the host keep their speed. f₀ is the clock
under the default limit, which `device.Clocks.sustained` already includes. The exponent 2 was fitted to serving on H200
and training on H100 with 500 of 700 W (docs/lab/simulators-training.md, power limits); with an exponent of 3 all these
runs are predicted too fast."""

import numpy as np
from msgspec.structs import replace

from autoscout.simulate.hardware.device import Hardware

Array = np.ndarray
STATIC = 0.2  # share of the default limit for leakage, memory and links: a usual figure, not measured here
LEAST = 0.1  # lowest clock that drivers set, as a share of f₀
DOUBT = 0.5  # log error of the slowdown as a share of the log slowdown, because some devices have an exponent of 1


def clock(limit: Array | float) -> Array:
    """f / f₀ under a power `limit`, given as a share of the default limit."""
    dynamic = (np.minimum(limit, 1.0) - STATIC) / (1 - STATIC)
    return np.maximum(np.sqrt(np.maximum(dynamic, 0.0)), LEAST)


def doubt(limit: Array | float) -> Array:
    """Standard deviation of log(measured / predicted) that the uncertain clock adds to compute-bound work."""
    return -DOUBT * np.log(clock(limit))


def limited(hw: Hardware, limit: float) -> Hardware:
    """A copy of the device under a power `limit`, given as a share of the default limit."""
    if limit >= 1:
        return hw
    speed = float(clock(limit))
    return replace(
        hw,
        peak_tflops={dtype: speed * peak for dtype, peak in hw.peak_tflops.items()},
        watts=limit * hw.watts,
        doubt=float(np.hypot(hw.doubt, doubt(limit))),
    )
