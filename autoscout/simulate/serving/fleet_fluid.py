"""The fluid model of fleets, for tens of thousands of configurations at once. Engines are taken to be loaded evenly.

Separate engines for prompts are two fluid models in a row: one of requests that end with their prompt, and one of
requests whose prompt is there but for its last token. In a closed loop, the rate is found at which as many requests are
under way as there are users."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from autoscout.simulate.serving.engine_shapes import columns_at
from autoscout.simulate.serving.fleet_run import apart, continues, link_s, load_of_traffic, readers
from autoscout.simulate.serving.fluid import fluid
from autoscout.simulate.serving.router_policies import rules_of
from autoscout.simulate.serving.setup import Setup
from kb.records import Traffic

Found = dict[str, np.ndarray]
_HALVINGS = 10  # of the range of rates in a closed loop: from 10^7 to 1.6 %
_KEEPS = ("session", "prefix")  # rules of routers that send the turns of a session to one engine


def fleet_fluid(columns: Mapping[str, Any], s: Setup, wanted: Collection[str] | None = None) -> Found:
    """Like `fluid`. `columns`: of the same configurations."""
    n = len(s.replicas)
    s = replace(s, found=_found(columns, s))
    split, found = apart(columns, n), Found()
    if not split.any():
        return fluid(s, wanted)
    some = columns_at(columns, np.flatnonzero(split), n)
    pools = s.of(np.flatnonzero(split)), readers(some, s.engine.device, int(split.sum()))
    for rows, of_rows in ((split, _apart(*pools, wanted)), (~split, fluid(s.of(np.flatnonzero(~split)), wanted))):
        for name, values in of_rows.items():
            found.setdefault(name, np.full(n, np.nan))[rows] = values
    return found


def _found(columns: Mapping[str, Any], s: Setup) -> np.ndarray:
    """(n,) mean tokens of a prompt that its engine has read before, beyond the beginning common to all requests."""
    n = len(s.replicas)
    traffic = columns.get("traffic")
    if not isinstance(traffic, Traffic) or not continues(traffic):
        return np.zeros(n)
    paths, seen = load_of_traffic(traffic).paths, set[int]()
    again = 0.0
    for path, answer in zip(paths.prompts, paths.answers, strict=True):
        again += sum(size for node, size in path if node in seen)
        seen.update(node for node, _ in path)
        seen.add(answer)
    stays = np.where(np.isin(rules_of(columns, n), _KEEPS), 1.0, 1 / s.replicas)
    common = np.where(s.prefix_caching, s.shared_prefix // s.block * s.block, 0.0)
    return np.where(s.prefix_caching, np.maximum(again / len(paths.prompts) - common, 0.0) * stays, 0.0)


def _apart(s: Setup, reading: Setup, wanted: Collection[str] | None) -> Found:
    one, each = np.ones_like(s.output_len), np.ones(101)
    reading = replace(reading, found=s.found, output_len=one, output_quantiles=each)
    writing = replace(s, found=np.maximum(s.input_len - 1, 0.0), shared_prefix=0 * one, front_end_s=0 * one)
    link_once, link_each = link_s(reading.engine)
    sent = 1e3 * (link_once + link_each * s.input_len)

    def at(rate: np.ndarray, some: Collection[str] | None) -> Found:
        open_load = {"rate": rate, "concurrency": 0 * one, "requests": s.requests}
        names = None if some is None else {*some, *(name.replace("e2el", "ttft") for name in some)}
        first, then = (fluid(replace(pool, **open_load), names) for pool in (reading, writing))
        found = dict(then)
        for name, values in then.items():
            what, _, quantile = name.partition("_")
            if what == "ttft":
                mean = quantile == "mean_ms"
                found[name] = first[name] + sent + (values if mean else then["ttft_mean_ms"])
            elif what == "e2el":
                found[name] = values + sent + first["ttft_mean_ms"]
            elif name.endswith("_per_s") or name == "goodput_rps":
                found[name] = values * np.minimum(1.0, first["requests_per_s"] / then["requests_per_s"])
        return found

    if not np.any(s.concurrency > 0):
        return at(s.rate, wanted)
    low, high = np.full_like(one, 1e-3), np.full_like(one, 1e4)
    for _ in range(_HALVINGS):
        rate = np.sqrt(low * high)
        under_way = rate * at(rate, ())["e2el_mean_ms"] / 1e3
        many = np.nan_to_num(under_way, nan=np.inf) > s.concurrency
        low, high = np.where(many, low, rate), np.where(many, rate, high)
    return at(low, wanted)
