"""The cost in device-seconds of an experiment in a job's landscape. The constants are assumed, not measured; sessions
record real times.

    t = devices × (launch + loading + iterations × step)

`launch`: start of processes, imports, communicators, compilation. `loading`: 16-bit weights at 1 GB/s into each device.
The number of iterations is the job's, or fewer if its time limit for measuring is reached; a failing experiment ends in
its first iteration. A server is measured for a fixed time on the devices that it uses."""

import numpy as np

from autoscout.simulate.encode import length
from autoscout.simulate.member import Columns
from kb.records import Job
from kb.sizes import parameters

_LAUNCH, _LOADED = 30.0, 1e9  # seconds of a launch; loading rate in bytes/s per device
_FEWEST = 2  # least number of measured iterations


def device_seconds(job: Job, columns: Columns, step: np.ndarray) -> np.ndarray:
    """Returns the device-seconds of each experiment, (n,). `step`: seconds per iteration, (n,), NaN for a failure."""
    tp, pp, dp = (
        np.nan_to_num(np.asarray(columns.get(name, 1.0), dtype=float), nan=1.0) for name in ("tp", "pp", "dp")
    )
    started = _LAUNCH + 2 * parameters(job.model) / (tp * pp) / _LOADED + np.zeros(length(columns))
    if job.task == "serve":
        return tp * pp * dp * (started + job.launch.measure_s)
    iterations = np.clip(job.launch.measure_s / step, _FEWEST, job.launch.iterations) + job.launch.warmup
    return job.devices * (started + np.where(np.isnan(step), 0.0, iterations * step))
