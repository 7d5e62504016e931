"""Rows that do not state the engine's release, or have 8-bit weights but no format of the KV cache. They are predicted
as a mixture, until measured rows of the engine settle the question: over the releases of the engine's record, weighted
by how many appeared in the last two years (`recent`), and over the cache's formats (`cache`: how often weights of a
format come with scales for an 8-bit cache, which engines then use)."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from autoscout.simulate.member import Prediction
from autoscout.simulate.serving.served_by import NEWEST, family, version_of

Array = np.ndarray
TELLING = 3.0  # evidence of an engine counts as at most this many rows, since their errors are correlated
Choice = tuple[tuple[str, str], ...]  # columns and the values that fill them


class RowGroup(NamedTuple):
    """Rows of one framework with the same gaps; the `choices` to fill them, with the logs of their probabilities."""

    framework: str
    rows: Array
    choices: list[Choice]
    shares: Array


def groups(columns: Mapping[str, Any], n: int) -> list[RowGroup]:
    """Groups of a table's rows, which have a column `version`. A job without a version means the newest engine."""
    if columns.get("version") is None:
        return []
    names = ("framework", "version", "quantization", "kv_cache_dtype")
    texts = [np.broadcast_to(np.asarray(columns.get(name, "auto"), dtype=str), (n,)) for name in names]
    keys, of = np.unique(np.array(texts), axis=1, return_inverse=True)
    found = []
    for which, (framework, version, quantization, cache) in enumerate(keys.T.tolist()):
        choices = _choices(framework, version, quantization, cache)
        if len(choices) > 1:
            rows = np.flatnonzero(np.reshape(of, -1) == which)
            found.append(RowGroup(framework, rows, list(choices), np.log(list(choices.values()))))
    return found


def _choices(framework: str, version: str, quantization: str, cache: str) -> dict[Choice, float]:
    """The probabilities of the ways to fill the gaps."""
    named = family(framework)
    said = version_of(framework, version)
    recent = [row for row in named.rows if row.recent]
    releases = [(".".join(map(str, row.since)), row.recent, row) for row in recent]
    if version or said is not None or len(releases) < 2:
        releases = [(version, 1.0, named.at(said or NEWEST))]
    found: dict[Choice, float] = {}
    for text, share, row in releases:
        eight = float(row.groups.get("cache", {}).get(quantization, 0.0)) if cache == "" else 0.0
        of = share / sum(each for _, each, _ in releases)
        formats = {"fp8": eight, cache or "auto": 1 - eight}
        found |= {(("version", text), ("kv_cache_dtype", each)): of * part for each, part in formats.items() if part}
    return found


def mixed(each: list[Prediction], shares: Array) -> Prediction:
    """The geometric mean of (n,) predictions; its error comes from their errors and from how far they differ."""
    weights = np.exp(shares - shares.max())
    weights = (weights / weights.sum())[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):  # rates of 0 and infinite times: out of memory
        logs = np.log([one.value for one in each])
        mean = (weights * logs).sum(axis=0)
        between = np.nan_to_num((weights * (logs - mean) ** 2).sum(axis=0), nan=0.0, posinf=0.0)
    within = (weights * np.square([one.error for one in each])).sum(axis=0)
    parts = {name: (weights * np.array([one.parts[name] for one in each])).sum(axis=0) for name in each[0].parts}
    return Prediction(value=np.exp(mean), error=np.sqrt(within + between), parts=parts)


def evidence(each: list[Prediction], values: Array) -> Array:
    """(choices,) log likelihoods of (n,) measured values."""
    with np.errstate(divide="ignore", invalid="ignore"):
        off = np.array([(np.log(values) - np.log(one.value)) / one.error for one in each])
    seen = np.isfinite(off).all(axis=0)
    return -0.5 * min(1.0, TELLING / max(int(seen.sum()), 1)) * np.square(off[:, seen]).sum(axis=1)
