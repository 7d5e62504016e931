"""Generation times of an RL iteration's answers. All are requested at once and most end early, so the longest determine
when the rollout ends.

With an inference engine (vLLM), they are simulated event by event like the requests of a server. Without one, the
trainer's own `generate` decodes each rank's batch until its longest answer has ended, launching kernels one by one."""

from collections.abc import Mapping
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from autoscout.job.requests import Requests
from autoscout.simulate.hardware.device import Hardware
from autoscout.simulate.iteration.cpu_ranks import called, instead_of_launches, shared
from autoscout.simulate.serving.doubt import stated_error
from autoscout.simulate.serving.events import simulate
from autoscout.simulate.serving.one_replica import engine_of, limits_of
from autoscout.simulate.serving.serving_device import device
from autoscout.simulate.serving.setup import setup
from autoscout.simulate.serving.simulator import rows_of
from autoscout.simulate.training.step import Training
from kb.records import Traffic

Array = np.ndarray
# Standard deviation of the log answer length before it is capped, for jobs that state only the mean. It puts the 99th
# percentile at six times the median, as in the length distributions of reasoning models. Assumed, not fitted.
SPREAD = 0.8
SLACK = 0.25  # the tail begins when fewer than this share of an engine's slots are in use; a convention
# Log error of `generate`, whose kernels were not measured: assumed equal to TTFT's, the least certain serving metric.
_OWN_ERROR = 0.25
_MOVES = 3  # how often a decode step moves the cached keys and values: read and written for the copy, and then read


class RolloutTimes(NamedTuple):
    """(n,) seconds each, and (n,) log `error`. `steady`: until less than SLACK of the slots are in use; `tail`: from
    then until the last answer ends; `full`: time for all answers if new requests keep every slot in use. `host`: share
    of the trainer's own Python."""

    steady: Array
    tail: Array
    full: Array
    error: Array
    host: Array


def lengths(traffic: Traffic, longest: int, count: int) -> tuple[int, Array]:
    """(mean tokens of a prompt, (count,) tokens of each answer: ascending quantiles of the length distribution)."""
    at = (np.arange(count) + 0.5) / count
    given = traffic.output_len
    if isinstance(given, list):
        found = np.interp(at, np.linspace(0, 1, len(given)), given)
    else:
        shape = np.exp(SPREAD * np.array([NormalDist().inv_cdf(q) for q in at.tolist()]))
        scale = float(min(given, 0.999 * longest))
        for _ in range(60):  # find the scale at which the capped lengths have the stated mean
            scale *= min(given, 0.999 * longest) / float(np.minimum(scale * shape, longest).mean())
        found = scale * shape
    prompts = traffic.input_len
    mean = sum(prompts) / len(prompts) if isinstance(prompts, list) else prompts
    return int(mean), np.clip(np.rint(found), 1, longest).astype(int)


def of_engine(own: Array, everyones: Array) -> Array:
    """(answers,) answer lengths on the engine that finishes last: one engine's ascending lengths `own`, the last of
    which is replaced by the longest answer of all engines (the last of `everyones`)."""
    mine = own.copy()
    mine[-1] = max(mine[-1], everyones[-1])
    return mine


def answered(columns: Mapping[str, Any], kind: str) -> RolloutTimes:
    """Rollout times of n configurations on vLLM engines on one kind of device: `answers` in groups of `group` that
    share a prompt, distributed over `dp` engines. `columns`: as for a server (serving/setup.py). NaN where the weights
    or one answer do not fit into the engine's share of the device memory."""
    n = rows_of(columns)
    traffic, s = columns["traffic"], setup({**columns, "batch": 1.0}, device(kind), n)
    answers, group, longest = (np.broadcast_to(columns[name], (n,)) for name in ("answers", "group", "longest"))
    found = np.full((3, n), np.nan)
    for i in range(n):
        engines = max(int(s.replicas[i]), 1)
        prompt, everyones = lengths(traffic, int(longest[i]), int(answers[i]))
        own = lengths(traffic, int(longest[i]), max(int(answers[i]) // engines, 1))[1]
        mine = of_engine(own, everyones)
        limits = limits_of(s, i)
        if limits.kv_tokens < prompt + int(mine[-1]):
            continue
        # The prefix cache computes a group's prompt once, so each answer accounts for a share of it.
        each = np.full(len(mine), max(int(prompt / group[i]), 1))
        order = np.random.default_rng(0).permutation(len(mine))
        run = simulate(engine_of(s, i), limits, Requests(np.zeros(len(mine)), each, mine[order]))
        slots = min(len(mine), limits.max_seqs)
        found[:, i] = *split(np.sort(run.end_s), slots), float((run.end_s - run.first_s).sum()) / slots
    steady, tail, full = found
    return RolloutTimes(steady, tail, full, np.full(n, stated_error("output_tokens_per_s", kind)), np.zeros(n))


def split(ends: Array, slots: int) -> tuple[float, float]:
    """(steady, tail) as in RolloutTimes, from the ascending end times of one engine's answers."""
    begins = float(ends[-1 - int(SLACK * slots)])
    return begins, float(ends[-1]) - begins


def generated(training: Training, hw: Hardware, columns: Mapping[str, Any]) -> RolloutTimes:
    """Rollout times of a trainer's own `generate`. Each rank has one batch, and each decode step is a forward pass over
    one token per sequence, until the rank's longest answer has ended."""
    n = rows_of(columns)
    answers, longest, gpus = (np.broadcast_to(columns[name], (n,)) for name in ("answers", "longest", "gpus"))
    prompts, steady, tail, mean = (np.empty(n) for _ in range(4))
    for i in range(n):
        prompts[i], each = lengths(columns["traffic"], int(longest[i]), int(answers[i]))
        own = lengths(columns["traffic"], int(longest[i]), max(int(answers[i] // gpus[i]), 1))[1]
        steady[i], tail[i] = split(of_engine(own, each).astype(float), len(own))
        mean[i] = own.mean()
    whole = {**columns, "ar": "none", "global_batch": answers, "mbs": np.maximum(answers // gpus, 1)}

    def forward(tokens: Array, cache: Array) -> tuple[Array, Array]:
        """((n,) seconds of a forward pass that moves the `cache` in as many seconds, (n,) those of Python)"""
        parts = training.predict({**whole, "seq_len": tokens}).parts
        parts = {name: value / 3 for name, value in parts.items() if name not in ("optimizer", "dp")}
        parts = {**instead_of_launches(parts, called(hw, columns, "token")), "cache": cache}
        parts = shared(hw, columns, parts)
        return sum(parts.values(), np.zeros(n)), parts["host"]

    token, host = forward(np.ones(n), _copied(hw, columns, whole["mbs"], prompts + (steady + tail) / 2))
    first, _ = forward(np.maximum(prompts, 1), np.zeros(n))
    times = first + token * steady, token * tail, first + token * mean
    return RolloutTimes(*times, np.full(n, _OWN_ERROR), host / token)


def _copied(hw: Hardware, columns: Mapping[str, Any], sequences: Array, kept: Array) -> Array:
    """(n,) seconds of a decode step in which keys and values of `kept` tokens of all sequences are moved: Transformers
    appends to its cache by copying it (cache_utils.py, DynamicLayer), and attention reads it."""
    width = columns["kv_heads"] * columns["head_dim"] * columns["dtype_bytes"]
    moved = 2 * _MOVES * sequences * kept * columns["layers"] * width
    return moved / (1e9 * hw.memory_gb_s * hw.elementwise.bandwidth)
