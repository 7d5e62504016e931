"""Rows that name an engine but not its release: a mixture over the releases of its record, each as likely as it has
releases of the last two years (`recent`), until measured rows of the engine settle it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from autoscout.simulate.member import Prediction
from autoscout.simulate.serving.served_by import family, version_of

Array = np.ndarray
TELLING = 3.0  # rows: the most that an engine's rows weigh together as evidence, as they err together


class RowGroup(NamedTuple):
    """Rows of one framework that say no release; `versions` and the logarithms of their shares."""

    framework: str
    rows: Array
    versions: list[str]
    shares: Array


def groups(columns: Mapping[str, Any], n: int) -> list[RowGroup]:
    """Of tables, which have a column `version`: a job's engine is the newest, unless it says so."""
    versions = columns.get("version")
    if versions is None:
        return []
    names = np.broadcast_to(np.asarray(columns.get("framework", ""), dtype=str), (n,))
    empty = np.broadcast_to(np.asarray(versions, dtype=str) == "", (n,))
    found = []
    for framework in np.unique(names[empty]).tolist():
        rows = [row for row in family(framework).rows if row.recent]
        if len(rows) > 1 and version_of(framework, "") is None:
            shares = np.log([row.recent for row in rows]) - np.log(sum(row.recent for row in rows))
            texts = [".".join(map(str, row.since)) for row in rows]
            found.append(RowGroup(framework, np.flatnonzero(empty & (names == framework)), texts, shares))
    return found


def mixed(each: list[Prediction], shares: Array) -> Prediction:
    """The geometric mean of (n,) predictions, and the error that it has by those of its members and by how far they are
    apart."""
    weights = np.exp(shares - shares.max())
    weights = (weights / weights.sum())[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):  # rates of 0 and times without end: it does not fit
        logs = np.log([one.value for one in each])
        mean = (weights * logs).sum(axis=0)
        between = np.nan_to_num((weights * (logs - mean) ** 2).sum(axis=0), nan=0.0, posinf=0.0)
    within = (weights * np.square([one.error for one in each])).sum(axis=0)
    parts = {name: (weights * np.array([one.parts[name] for one in each])).sum(axis=0) for name in each[0].parts}
    return Prediction(value=np.exp(mean), error=np.sqrt(within + between), parts=parts)


def evidence(each: list[Prediction], values: Array) -> Array:
    """(releases,) log likelihoods by (n,) measured values."""
    with np.errstate(divide="ignore", invalid="ignore"):
        off = np.array([(np.log(values) - np.log(one.value)) / one.error for one in each])
    seen = np.isfinite(off).all(axis=0)
    return -0.5 * min(1.0, TELLING / max(int(seen.sum()), 1)) * np.square(off[:, seen]).sum(axis=1)
