"""Warns before the first experiment if it is predicted to exceed its time limit."""

from functools import partial

from autoscout.simulate.ensemble import Simulators
from autoscout.space.graph import Space
from autoscout.targets.jobs import simulators_of
from autoscout.targets.target import reference_of
from kb.records import AutoscoutError, Configuration, Job

_LEAST = 2  # minimum number of measured iterations
_SECONDS = ("step_time_s", "step_time_min_s")


def too_slow(job: Job, space: Space, default: Configuration) -> str:
    """A sentence if the reference's warm-up and fewest measured iterations are predicted to take more than half of
    `launch.timeout_s`, which must also include start-up; else ""."""
    if job.objective.metric not in _SECONDS or job.launch.launcher == "replay":
        return ""
    try:
        simulators = Simulators(job, space, [], bases=partial(simulators_of, job))
        step = float(simulators.ensemble.explain(simulators.columns([default]))[0].value[0])
    except AutoscoutError:
        return ""
    needed = step * (job.launch.warmup + _LEAST)
    if not 0.5 * job.launch.timeout_s < needed < float("inf"):
        return ""
    return (
        f"{reference_of(job)} is predicted to take {step:.3g} s per step: {job.launch.warmup} steps of warm-up "
        f"and {_LEAST} measured ones take {needed:.0f} s, and launch.timeout_s = {job.launch.timeout_s:g} must "
        f"also cover the start; set launch.timeout_s = {3 * needed + 120:.0f} or more"
    )
