"""Predicts by the closed-form memory model which layouts may run out of memory. Before such a layout runs, a shadow run
(a dry run without GPUs) checks it. The shadow is composed of traces of small jobs, which several layouts share
(shadow_parts.py)."""

import contextlib
import time
from pathlib import Path

import numpy as np

from autoscout.simulate.shadow.traced import Shadow
from autoscout.simulate.training.memory import Memory
from autoscout.space.attributes import attributes_of
from autoscout.targets.foretold import LIMIT_S, Doubts, Stopping
from autoscout.targets.megatron.shadow import shadow
from autoscout.targets.megatron.shadow_parts import from_parts
from autoscout.targets.tracing import ShadowAsked
from kb.records import AutoscoutError, Configuration, Job
from kb.store import default_path

# Knobs that hardly affect start-up or peak memory, so that configurations which differ only in these share a shadow.
_NOT_OF_LAYOUT = ("ddp_bucket", "tp_comm", "overlap_grad", "overlap_param", "overlap_p2p", "tp_comm_overlap")


def doubts(job: Job, kb: Path | None = None) -> Doubts:
    """Returns the predictor of one tuning session. `kb`: path of the knowledge base; None: the default path."""

    def likely(configuration: Configuration) -> float:
        attributes = {name: value for name, value in attributes_of(job).items() if name != "degrees"}
        columns = {**attributes, **configuration.knobs}
        model = Memory.of_job(job)
        probability = np.nan if model.applies(columns) else float(model.oom_probability(columns)[0])
        return 1.0 if np.isnan(probability) else probability

    def traced(configuration: Configuration, name: str, stopping: Stopping) -> Shadow:
        """Returns the layout's shadow (a dry run without GPUs): from stored traces of the whole layout; else from
        traces of small jobs, which later layouts can share; else from new traces of the whole layout."""
        known = kb or default_path()
        until = time.monotonic() + LIMIT_S
        with contextlib.suppress(AutoscoutError):
            return shadow(ShadowAsked(job, configuration, name, known, 0.0))
        with contextlib.suppress(AutoscoutError):
            return from_parts(ShadowAsked(job, configuration, name, known, LIMIT_S, stopping=stopping))
        left_s = max(1.0, until - time.monotonic())
        return shadow(ShadowAsked(job, configuration, name, known, left_s, stopping=stopping))

    return Doubts(job, likely, traced, _NOT_OF_LAYOUT, ("timeout", "untraceable"))
