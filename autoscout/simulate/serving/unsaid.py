"""Predicts rows that do not state the engine's release, or that have 8-bit weights but do not state the KV cache's
format. The prediction is a mixture over the possibilities: the releases in the engine's record, each weighted by the
number of releases of the last two years that it stands for (`recent`), and the cache formats. An 8-bit cache is
weighted by the share (`cache`) of published weights that include scales for it, because engines use such a cache if
scales are present. Measured rows of the engine update these weights."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from autoscout.simulate.member import Prediction
from autoscout.simulate.serving.served_by import NEWEST, family, version_of

Array = np.ndarray
# Assumed: an engine's measured rows count as at most this many independent rows, because their errors are correlated.
TELLING = 3.0
Choice = tuple[tuple[str, str], ...]  # (column, value that fills it) …


class RowGroup(NamedTuple):
    """Rows of one framework with the same unstated columns. `choices`: possible values of these columns; `shares`: log
    probabilities of the choices."""

    framework: str
    rows: Array
    choices: list[Choice]
    shares: Array


def groups(columns: Mapping[str, Any], n: int) -> list[RowGroup]:
    """The rows with unstated columns, in groups. Only tables have such rows, because jobs without `version` use the
    newest release."""
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
    """The geometric mean of (n,) predictions, weighted by exp(`shares`). The error combines the errors of the
    predictions and the differences between them."""
    weights = np.exp(shares - shares.max())
    weights = (weights / weights.sum())[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):  # rates of 0 and times of inf mean out of memory
        logs = np.log([one.value for one in each])
        mean = (weights * logs).sum(axis=0)
        between = np.nan_to_num((weights * (logs - mean) ** 2).sum(axis=0), nan=0.0, posinf=0.0)
    within = (weights * np.square([one.error for one in each])).sum(axis=0)
    parts = {name: (weights * np.array([one.parts[name] for one in each])).sum(axis=0) for name in each[0].parts}
    return Prediction(value=np.exp(mean), error=np.sqrt(within + between), parts=parts)


def evidence(each: list[Prediction], values: Array) -> Array:
    """(choices,) log likelihood of the (n,) measured values under the predictions of each choice."""
    with np.errstate(divide="ignore", invalid="ignore"):
        off = np.array([(np.log(values) - np.log(one.value)) / one.error for one in each])
    seen = np.isfinite(off).all(axis=0)
    return -0.5 * min(1.0, TELLING / max(int(seen.sum()), 1)) * np.square(off[:, seen]).sum(axis=1)
