"""How long the answers of an RL iteration take, and how unevenly: all are asked for at once, most end early, and the
longest holds up the rest.

With an engine (vLLM) the event simulation of a server runs them. Without one, the trainer's own `generate` runs a batch
of a rank until its longest answer has ended, one kernel after the other.
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
# Standard deviation of the logarithm of an answer's length before the cap, where a job states the mean alone: its
# 99th percentile is then six times its median, as in the length curves of reasoning models. No fit.
SPREAD = 0.8
SLACK = 0.25  # share of an engine's slots below which it is idle for the most part: there the tail begins
_OWN_ERROR = (
    0.25  # log error of `generate`, whose kernels no record has; that of TTFT, the widest of a server's metrics
)


class RolloutTimes(NamedTuple):
    """(n,) seconds each. `steady`: until fewer run than SLACK of those that can; `tail`: from then to the last one;
    `full`: of all where engines are kept full, since others follow those that have ended."""

    steady: Array
    tail: Array
    full: Array
    error: Array


def lengths(traffic: Traffic, longest: int, count: int) -> tuple[int, Array]:
    """(mean tokens of a prompt, (count,) tokens of answers in rising order, at evenly spaced quantiles)."""
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
    """The answers of the engine that ends last: a fair share, and the longest of all."""
    mine = own.copy()
    mine[-1] = max(mine[-1], everyones[-1])
    return mine


def answered(columns: Mapping[str, Any], kind: str) -> RolloutTimes:
    """Of n configurations on one kind of device, each of `answers` to groups of `group` that share a prompt, by `dp`
    engines of vLLM. The columns are those of a server (serving/setup.py). NaN where the weights or one answer do not
    fit into the engine's share of a device."""
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
        # A prompt is computed and kept once for its group.
        each = np.full(len(mine), max(int(prompt / group[i]), 1))
        order = np.random.default_rng(0).permutation(len(mine))
        run = simulate(engine_of(s, i), limits, Requests(np.zeros(len(mine)), each, mine[order]))
        slots = min(len(mine), limits.max_seqs)
        found[:, i] = *_split(np.sort(run.end_s), slots), float((run.end_s - run.first_s).sum()) / slots
    steady, tail, full = found
    return RolloutTimes(steady, tail, full, np.full(n, stated_error("output_tokens_per_s", kind)))


def _split(ends: Array, slots: int) -> tuple[float, float]:
    """(steady, tail) of answers that end then, in rising order."""
    begins = float(ends[-1 - int(SLACK * slots)])
    return begins, float(ends[-1]) - begins


def generated(training: Training, columns: Mapping[str, Any]) -> RolloutTimes:
    """The same by a trainer's own `generate`, whose ranks each have one batch: every token is a forward pass of one
    token a sequence, until the longest answer of the rank has ended."""
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
