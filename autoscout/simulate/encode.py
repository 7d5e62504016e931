"""Converts columns to the numeric inputs of the learned simulators, and measures how far a row lies outside the range
of the rows that a simulator was fitted on."""

from collections.abc import Iterable, Sequence
from typing import Any
from zlib import crc32

import numpy as np

from autoscout.job.metrics import DEVICES, HIGHEST_RATE, named_metrics
from autoscout.job.objective import latency_limits, request_limits
from autoscout.simulate.hardware.device import hardware
from autoscout.simulate.member import Columns
from autoscout.space.attributes import attributes_of, device_counts, memory_gib
from autoscout.space.graph import Space
from kb.records import Configuration, Job

_OF_A_JOB = (
    "layers", "hidden", "seq_len", "gpus", "global_batch", "input_len", "output_len", "batch", "concurrency", "rate",
)  # fmt: skip
# Text columns that learned simulators ignore, because the effects of one release do not predict those of the next.
_UNORDERED = ("version",)


def length(columns: Columns) -> int:
    """Number of rows in the columns; 1 if all are scalars."""
    return max((len(v) for v in columns.values() if _is_array(v)), default=1)


def take(columns: Columns, rows: np.ndarray | slice) -> dict[str, Any]:
    """The columns restricted to `rows`: a mask, indices or a slice."""
    return {name: np.asarray(v)[rows] if _is_array(v) else v for name, v in columns.items()}


def of_configurations(
    space: Space, configurations: Sequence[Configuration], of: Job | None = None
) -> dict[str, np.ndarray]:
    """One array per knob, plus the columns derived from knobs, like `Space.columns`. `of`: the job of the
    configurations, if it is not the job of the space."""
    columns = {}
    for knob in space.knobs:
        absent = knob.off if knob.off is not None else ("" if isinstance(knob.values[0], str) else float("nan"))
        columns[knob.name] = np.array([c.knobs.get(knob.name, absent) for c in configurations])
    return space.with_simulated(columns, len(configurations), attributes_of(of) if of else None)


def serving_devices(job: Job, columns: Columns) -> dict[str, Any]:
    """Columns that describe the devices of each row: number and price per hour, if the job's metrics need these. A
    mixed cluster adds `gpu`, the kind of device ("" for a mix of kinds, which no engine supports), and `memory_gib`."""
    return {**_paid(job, columns), **_one_kind(job, columns)}


def _paid(job: Job, columns: Columns) -> dict[str, Any]:
    """Number and hourly price of each row's devices. A row takes the first nodes of each kind, as
    running/cluster/devices.py allocates them."""
    wanted = named_metrics(job.objective)
    if job.task != "serve" or not any("_per_gpu" in name or "usd_" in name or name == DEVICES for name in wanted):
        return {}
    devices, dollars = np.zeros(1), np.zeros(1)
    left: dict[str, Any] = {}
    for node in job.cluster.nodes:
        kind = node.device.replace("-", "_")
        here = np.clip(left.setdefault(kind, np.asarray(columns.get(kind, np.inf), dtype=float)), 0, node.count)
        devices, dollars = devices + here, dollars + here / node.count * node.price_per_hour
        left[kind] = left[kind] - here
    priced = all(node.price_per_hour for node in job.cluster.nodes)
    found = {"devices_used": devices} | ({"usd_per_hour": dollars} if priced else {})
    return {name: values if len(values) > 1 else float(values[0]) for name, values in found.items()}


def _one_kind(job: Job, columns: Columns) -> dict[str, Any]:
    kinds = list(device_counts(job))
    if job.task != "serve" or len(kinds) < 2 or not all(kind in columns for kind in kinds):
        return {}
    memory = {node.device.replace("-", "_"): memory_gib(node) for node in job.cluster.nodes}
    used = np.stack([np.asarray(columns[kind], dtype=float) > 0 for kind in kinds], axis=-1)
    alone, which = used.sum(axis=-1) == 1, used.argmax(axis=-1)
    return {
        "gpu": np.where(alone, np.array([kind.replace("_", "-") for kind in kinds])[which], ""),
        "memory_gib": np.array([memory[kind] for kind in kinds])[which],
    }


def of_job(job: Job) -> dict[str, Any]:
    """The columns that all configurations of a job share: its attributes, its load, and the device if the cluster has
    only one kind. A device without a hardware file is also named, so that the error message of a prediction can name
    it."""
    kinds = list(device_counts(job))
    load = _load(job) if job.task == "serve" else {"traffic": job.traffic} if job.task == "rl" else {}
    # Megatron fuses its loss only if a knob requests it (releases from 0.18.2 on have no such knob). The layers of a
    # custom trainer, and so its software, are unknown.
    trains = {"ce_fusion": 0.0} if job.target == "megatron" else {"software": "unknown", "te": np.nan}
    unknown = {} if job.task == "serve" else trains
    strange = [kind for kind in kinds if hardware(kind) is None]
    gpu = {"gpu": (strange or kinds)[0]} if len(kinds) == 1 or (strange and job.task != "serve") else {}
    return {**(_node(job) if gpu else {}), **attributes_of(job), **load, **unknown, **gpu}


def _node(job: Job) -> dict[str, float]:
    """Devices per node and network bandwidth, if all nodes are equal but their size differs from the hardware file. A
    smaller node is assumed to have a proportional share of the bandwidth. A node with more devices than the file's
    links support is assumed to be several nodes, so its size is ignored."""
    counts, hw = {node.count for node in job.cluster.nodes}, hardware(job.cluster.nodes[0].device)
    if len(counts) > 1 or hw is None or hw.per_tray or hw.cores:
        return {}
    count = counts.pop()
    if count == hw.per_node or count > max(hw.island.ranks):
        return {}
    return {"per_node": count, "node_gb_s": hw.network.node_gb_s * min(1.0, count / hw.per_node)}


def _load(job: Job) -> dict[str, Any]:
    limits = {f"slo_{name}_ms": bound for name, bound in request_limits(job.objective).items()}
    if job.objective.metric == HIGHEST_RATE:
        limits |= {f"limit_{metric}": bound for metric, bound in latency_limits(job.objective)}
    return {"traffic": job.traffic, "accepted": job.launch.accepted, **limits}


def software_of(columns: Columns) -> np.ndarray:
    """(n,) hashes, equal for rows that run the same framework on the same kind of device."""
    return _code(columns, ("framework", "gpu"))


def family_of(columns: Columns) -> np.ndarray:
    """(n,) hashes, equal for rows of the same framework, regardless of version ("Megatron-Bridge 26.06") and device."""
    words, which = np.unique(np.atleast_1d(np.asarray(columns.get("framework", ""), dtype=str)), return_inverse=True)
    families = [crc32(word.lower().partition(" ")[0].encode()) for word in words.tolist()]
    return np.broadcast_to(np.array(families, dtype=float)[which], length(columns))


def job_of(columns: Columns) -> np.ndarray:
    """(n,) hashes, equal for rows with the same model, batch, sequence lengths, software and number of devices."""
    return _code(columns, _OF_A_JOB) + software_of(columns)


def _code(columns: Columns, names: Sequence[str]) -> np.ndarray:
    found = np.zeros(length(columns))
    for i, name in enumerate(names):
        values = np.atleast_1d(np.asarray(columns.get(name, 0.0)))
        if values.dtype.kind not in "fiub":
            words, which = np.unique(values.astype(str), return_inverse=True)
            values = np.array([crc32(word.encode()) for word in words], dtype=float)[which]
        found = found + np.nan_to_num(values.astype(float)) * np.sqrt(2 + i)  # irrational, so sums rarely coincide
    return found


class FittedColumns:
    """The columns that a simulator was fitted on: their order in its feature matrix, and the range of their values."""

    def __init__(self, columns: Columns) -> None:
        self.names = [name for name, v in columns.items() if kind(v) and name not in _UNORDERED]
        self.categories: dict[str, np.ndarray] = {}
        self.ranges: dict[str, tuple[float, float]] = {}
        self.switches: set[str] = set()
        for name in self.names:
            values = np.atleast_1d(np.asarray(columns[name]))
            if values.dtype == bool:
                self.switches.add(name)
            if kind(values) == "U":
                self.categories[name] = np.unique(values)
            elif np.isfinite(known := values.astype(float)).any():
                self.ranges[name] = float(np.nanmin(known)), float(np.nanmax(known))

    @property
    def varying(self) -> list[str]:
        """Names of the columns that had several values in the fitted rows."""
        return [
            n
            for n in self.names
            if len(self.categories.get(n, ())) > 1 or (n in self.ranges and self.ranges[n][0] < self.ranges[n][1])
        ]

    def matrix(self, columns: Columns, names: Iterable[str]) -> np.ndarray:
        """(n, names) feature matrix: numbers are unchanged, text values become indices among the fitted rows' values
        (NaN if not among these)."""
        n = length(columns)
        return np.stack([np.broadcast_to(self._numbers(name, columns), n) for name in names], axis=1)

    def outside(self, columns: Columns) -> np.ndarray:
        """(n,) how far each row lies outside the fitted ranges, in doublings, summed over the columns. A text or
        boolean value that no fitted row had counts as one doubling."""
        total = np.zeros(length(columns))
        for name in self.names:
            if name in columns:
                total = total + self._outside(name, columns)
        return total

    def why_outside(self, columns: Columns) -> str:
        """ "" or the columns in which the first row lies outside the fitted range, as text: "pp 8 (seen 1 to 4)"."""
        found = []
        for name in self.names:
            if name in columns and np.atleast_1d(self._outside(name, columns))[0] > 0:
                value = np.atleast_1d(np.asarray(columns[name]))[0]
                seen = ", ".join(self.categories[name]) if name in self.categories else _span(*self.ranges[name])
                found.append(f"{name} {_plain(value)} (seen {seen})")
        return ", ".join(found)

    def _numbers(self, name: str, columns: Columns) -> np.ndarray:
        if name not in columns:
            return np.array(np.nan)
        values = np.asarray(columns[name])
        if name not in self.categories:
            return values.astype(float)
        places = np.full(values.shape, np.nan)
        for i, category in enumerate(self.categories[name]):
            places[values == category] = i
        return places

    def _outside(self, name: str, columns: Columns) -> np.ndarray:
        values = np.asarray(columns[name])
        if name in self.categories:
            return 1.0 - np.isin(values, self.categories[name]).astype(float)
        if name not in self.ranges:
            return np.zeros(values.shape)
        low, high = self.ranges[name]
        values = values.astype(float)
        if not ((values < low) | (values > high)).any():
            return np.zeros(values.shape)
        if low < 0 or name in self.switches:
            return ((values < low) | (values > high)).astype(float)
        # log2(1 + x) instead of log2(x), so that a distance from 0 is finite
        distance = np.maximum(np.log2(1 + low) - np.log2(1 + values), np.log2(1 + values) - np.log2(1 + high))
        return np.maximum(np.nan_to_num(distance), 0.0)


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray | list) and np.ndim(value) == 1  # type: ignore[arg-type]


def kind(value: object) -> str:
    """ "U" if the values are names; "f" if they are numbers or booleans; "" otherwise."""
    letter = np.asarray(value).dtype.kind if isinstance(value, np.ndarray | list | bool | int | float | str) else ""
    return {"U": "U", "f": "f", "i": "f", "u": "f", "b": "f"}.get(letter, "")


def _span(low: float, high: float) -> str:
    return _plain(low) if low == high else f"{_plain(low)} to {_plain(high)}"


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float | np.floating) else str(value)
