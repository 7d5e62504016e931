"""The device-seconds that an experiment of a job's landscape costs. Assumed, not measured: sessions record their real
times.

    t = devices × (launch + loading + iterations × step)

`launch`: processes, imports, communicators, compilation; `loading`: the weights in 16 bits, at 1 GB/s into each device.
The number of iterations is the job's own, or fewer if its time for measuring ends them; a failing experiment ends in
its first iteration. A server measures for a fixed time, on the devices that it uses.
"""

import numpy as np

from autoscout.simulate.encode import length
from autoscout.simulate.member import Columns
from kb.records import Job
from kb.sizes import parameters

_LAUNCH, _LOADED = 30.0, 1e9  # seconds; bytes/s into one device
_FEWEST = 2  # iterations


def device_seconds(job: Job, columns: Columns, step: np.ndarray) -> np.ndarray:
    """(n,) device-seconds; `step` (n,): seconds of an iteration, NaN where it fails (unused for a server)."""
    tp, pp, dp = (
        np.nan_to_num(np.asarray(columns.get(name, 1.0), dtype=float), nan=1.0) for name in ("tp", "pp", "dp")
    )
    started = _LAUNCH + 2 * parameters(job.model) / (tp * pp) / _LOADED + np.zeros(length(columns))
    if job.task == "serve":
        return tp * pp * dp * (started + job.launch.measure_s)
    iterations = np.clip(job.launch.measure_s / step, _FEWEST, job.launch.iterations) + job.launch.warmup
    return job.devices * (started + np.where(np.isnan(step), 0.0, iterations * step))
