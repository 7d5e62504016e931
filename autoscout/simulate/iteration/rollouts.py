"""How long the answers of an RL iteration take, and how unevenly they end: all are requested at once, most end early,
and the longest delays the rest.

With an engine (vLLM) the event simulation of a server runs them. Without one, the trainer's own `generate` runs each
rank's batch, one kernel after the other, until its longest answer has ended.
"""

from collections.abc import Mapping
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from autoscout.job.requests import Requests
from autoscout.simulate.serving.doubt import stated_error
from autoscout.simulate.serving.events import simulate
from autoscout.simulate.serving.one_replica import engine_of, limits_of
from autoscout.simulate.serving.serving_device import device
from autoscout.simulate.serving.setup import setup
from autoscout.simulate.serving.simulator import rows_of
from autoscout.simulate.training.step import Training
from kb.records import Traffic

Array = np.ndarray
# Standard deviation of the logarithm of an answer's length before the cap, for jobs that state only the mean. The 99th
# percentile is then six times the median, as in the length curves of reasoning models. Assumed, not fitted.
SPREAD = 0.8
SLACK = 0.25  # the tail begins when fewer than this share of an engine's slots are in use
# Log error of `generate`, whose kernels no record has: as large as for TTFT, the least certain metric of a server.
_OWN_ERROR = 0.25


class RolloutTimes(NamedTuple):
    """(n,) seconds each. `steady`: until fewer answers run than SLACK of the slots; `tail`: from then to the last end;
    `full`: for all answers if new ones always take the places of finished ones."""

    steady: Array
    tail: Array
    full: Array
    error: Array


def lengths(traffic: Traffic, longest: int, count: int) -> tuple[int, Array]:
    """(mean tokens of a prompt, (count,) tokens of the answers in rising order, at evenly spaced quantiles)."""
    at = (np.arange(count) + 0.5) / count
    given = traffic.output_len
    if isinstance(given, list):
        found = np.interp(at, np.linspace(0, 1, len(given)), given)
    else:
        shape = np.exp(SPREAD * np.array([NormalDist().inv_cdf(q) for q in at.tolist()]))
        scale = float(min(given, 0.999 * longest))
        for _ in range(60):  # the cap shortens the mean: a larger scale makes up for it
            scale *= min(given, 0.999 * longest) / float(np.minimum(scale * shape, longest).mean())
        found = scale * shape
    prompts = traffic.input_len
    mean = sum(prompts) / len(prompts) if isinstance(prompts, list) else prompts
    return int(mean), np.clip(np.rint(found), 1, longest).astype(int)


def of_engine(own: Array, everyones: Array) -> Array:
    """The answers of the engine that finishes last: an even share of all, plus the longest."""
    mine = own.copy()
    mine[-1] = max(mine[-1], everyones[-1])
    return mine


def answered(columns: Mapping[str, Any], kind: str) -> RolloutTimes:
    """Rollouts of n configurations on one kind of device: `answers` in groups of `group` that share a prompt, on `dp`
    vLLM engines. The columns are those of a server (serving/setup.py). NaN where the weights or one answer do not fit
    into the engine's share of a device."""
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
        # A group's prompt is computed and cached once.
        each = np.full(len(mine), max(int(prompt / group[i]), 1))
        order = np.random.default_rng(0).permutation(len(mine))
        run = simulate(engine_of(s, i), limits, Requests(np.zeros(len(mine)), each, mine[order]))
        slots = min(len(mine), limits.max_seqs)
        found[:, i] = *_split(np.sort(run.end_s), slots), float((run.end_s - run.first_s).sum()) / slots
    steady, tail, full = found
    return RolloutTimes(steady, tail, full, np.full(n, stated_error("output_tokens_per_s", kind)))


def _split(ends: Array, slots: int) -> tuple[float, float]:
    """(steady, tail) of answers that finish at the times `ends`, in rising order."""
    begins = float(ends[-1 - int(SLACK * slots)])
    return begins, float(ends[-1]) - begins


def generated(training: Training, columns: Mapping[str, Any]) -> RolloutTimes:
    """Rollout times of a trainer's own `generate`. Each rank has one batch; every token is a forward pass of one token
    per sequence, until the rank's longest answer has ended."""
    n = rows_of(columns)
    answers, longest, gpus = (np.broadcast_to(columns[name], (n,)) for name in ("answers", "longest", "gpus"))
    prompts, steady, tail, mean = (np.empty(n) for _ in range(4))
    for i in range(n):
        prompts[i], each = lengths(columns["traffic"], int(longest[i]), int(answers[i]))
        own = lengths(columns["traffic"], int(longest[i]), max(int(answers[i] // gpus[i]), 1))[1]
        steady[i], tail[i] = _split(of_engine(own, each).astype(float), len(own))
        mean[i] = own.mean()
    whole = {**columns, "ar": "none", "global_batch": answers, "mbs": np.maximum(answers // gpus, 1)}

    def forward(tokens: Array) -> Array:
        parts = training.predict({**whole, "seq_len": tokens}).parts
        return sum((v for name, v in parts.items() if name not in ("optimizer", "dp")), np.zeros(n)) / 3

    token = forward(np.ones(n))
    first = forward(np.maximum(prompts, 1))
    return RolloutTimes(first + token * steady, token * tail, first + token * mean, np.full(n, _OWN_ERROR))
