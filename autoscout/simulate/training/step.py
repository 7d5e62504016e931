"""The analytic training model: seconds of one optimizer step, from the shapes of a job and the constants of a device.

    step = pipeline of micro batches (layers and head: compute, tp, cp, ep, pp, host) + dp + optimizer + host

Layers come from layer.py, a stage from stage.py, the pipeline's order from pipeline.py, links from collectives.py,
what happens once per step from once.py; a few measured rows of a job correct the result (correction.py).
"""

import numpy as np

from autoscout.simulate.encode import job_of, length, software_of
from autoscout.simulate.hardware.collectives import Topology
from autoscout.simulate.hardware.device import Hardware, hardware
from autoscout.simulate.member import Columns, Prediction
from autoscout.simulate.training.correction import Alike, Correction, layout
from autoscout.simulate.training.fleet import Fleet, depths, devices, fleets
from autoscout.simulate.training.inputs import REQUIRED, Inputs, by_precision, complete, distinct
from autoscout.simulate.training.layer import Times, head_times, layer_times
from autoscout.simulate.training.once import data_parallel, optimizer
from autoscout.simulate.training.pipeline import idle
from autoscout.simulate.training.software import Variant, evidence, mixed, stacked, variants
from autoscout.simulate.training.stage import IN_STAGE, Parts, embedding, stage, total
from kb.records import Job

Array = np.ndarray
PARTS = (*IN_STAGE, "bubble", "optimizer")
STRAGGLER = 0.01  # standard deviation of a rank's step against its peers': a usual figure, not measured here
_MEMORY_ONLY = frozenset({"split_loss"})  # columns of software profiles that affect memory only
USUAL = 0.10  # standard deviation of log(measured / predicted) within the range of the data
# Software that nobody named: the mean bias of the ten frameworks and devices of docs/simulators-training.md, and about
# how far they lie from each other.
SLOWER, UNSEEN = 0.055, 0.12
_BLOCK = 1 << 15  # rows at a time: temporaries stay in the cache
# What the time of a layer depends on; a space has thousands of configurations for every combination of these.
_SHAPE = (
    "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "gated", "vocab", "experts", "topk",
    "expert_ffn", "seq_len", "mbs", "tp", "cp", "ep", "etp", "sp", "attention", "te", "dropout", "fused_norm",
    "fused_activation", "lora", "lora_rank", "adapter_width", "packing", "packed_context",
    "dispatcher", "per_node", "node_gb_s", "kinds_gb_s", "grad_bytes", "learned_positions",
)  # fmt: skip


class Training:
    """`device`: that of rows that name none, in a column `gpu` or by counting devices of a kind (`a100`, `a40`)."""

    name = "analytic"

    def __init__(self, device: str = "") -> None:
        self.device = device
        self.correction: Correction | None = None
        self.software: dict[str, float] = {}  # log likelihood of each software profile, by rows of the job

    @classmethod
    def of_job(cls, job: Job) -> "Training":
        """For the columns of the job's space; on a mixed cluster those say how many of each device a row uses."""
        return cls(job.cluster.nodes[0].device)

    def applies(self, columns: Columns) -> str:
        missing = [name for name in (*REQUIRED, "global_batch") if name not in columns]
        if missing:
            return f"it needs {', '.join(missing)}"
        unknown = [name for name in devices(columns, self.device) if hardware(name) is None]
        return f"no constants for device {unknown[0] or '(none named)'}" if unknown else ""

    def fit(self, columns: Columns, values: np.ndarray) -> None:
        """Corrects itself by measured rows of one job, which first tell what software it runs."""
        values = np.asarray(values, dtype=float)
        if len(some := variants(columns, _MEMORY_ONLY)) > 1:
            totals = [np.sum(list(parts.values()), axis=0) for parts, _ in self._of_each(some, length(columns))]
            self.software = evidence(some, [np.log(values / total) for total in totals], USUAL)
        parts, error = self._parts(columns)
        known = np.isfinite(values) & np.isfinite(error)
        self.correction = Correction(parts, _alike(columns), error, values) if known.any() else None

    def predict(self, columns: Columns) -> Prediction:
        parts, error = self._parts(columns)
        if self.correction is not None:
            return self.correction.apply(parts, _alike(columns), error)
        return Prediction(value=np.sum(list(parts.values()), axis=0), error=error, parts=parts)

    def _parts(self, columns: Columns) -> tuple[Parts, Array]:
        some = variants(columns, _MEMORY_ONLY)
        if len(some) == 1:
            return self._known(columns)
        each = self._of_each(some, length(columns))
        totals = [np.sum(list(parts.values()), axis=0) for parts, _ in each]
        shares = [variant.log_share + self.software.get(variant.name, 0.0) for variant in some]
        value, between, weights = mixed(totals, shares)
        parts = {name: sum(w * parts[name] for w, (parts, _) in zip(weights, each, strict=True)) for name in PARTS}
        error = sum(w * spread for w, (_, spread) in zip(weights, each, strict=True))
        unknown = np.isfinite(some[-1].log_share) & (not self.software)
        scale = np.exp(np.where(unknown, SLOWER, 0.0)) * value / np.sum(list(parts.values()), axis=0)
        doubt = np.where(unknown, UNSEEN, 0.0)
        return {name: scale * part for name, part in parts.items()}, np.sqrt(error**2 + between**2 + doubt**2)

    def _of_each(self, some: list[Variant], n: int) -> list[tuple[Parts, Array]]:
        parts, error = self._known(stacked(some, n))
        cuts = [slice(i * n, (i + 1) * n) for i in range(len(some))]
        return [({name: part[cut] for name, part in parts.items()}, error[cut]) for cut in cuts]

    def _known(self, columns: Columns) -> tuple[Parts, Array]:
        groups = [(rows, *self._same_precision(some)) for rows, some in by_precision(columns)]
        n = sum(len(rows) for rows, _, _ in groups)
        parts, error = {name: np.empty(n) for name in PARTS}, np.empty(n)
        for rows, seconds, spread in groups:
            error[rows] = spread
            for name in PARTS:
                parts[name][rows] = seconds[name]
        return parts, error

    def _same_precision(self, columns: Columns) -> tuple[Parts, Array]:
        x = complete(columns)
        parts = {name: np.full(x.n, np.nan) for name in PARTS}
        error = np.full(x.n, np.nan)
        for fleet in fleets(columns, x.n, self.device):
            for start in range(0, len(fleet.rows), _BLOCK):
                block = fleet.rows[start : start + _BLOCK]
                some = x.take(block)
                for name, seconds in step(some, fleet.of(block)).items():
                    parts[name][block] = seconds
                error[block] = trust(some, fleet.kinds)
        return parts, error


def _alike(columns: Columns) -> Alike:
    """Layouts err alike mostly by the shapes of their products, least by how they are replicated."""
    x = complete(columns)
    knobs = [(x.tp, 0.4), (x.mbs, 0.7), (x.seq_len, 1.0), (x.cp, 1.0), (x.pp, 2.0), (x.dp, 3.0), (x.ar + 1, 1.0)]
    return Alike(layout(knobs, x.n), job_of(columns), software_of(columns))


def trust(x: Inputs, fleet: list[Hardware]) -> Array:
    """Standard deviation of log(measured / predicted) without measured rows of the job; docs/simulators-training.md
    says what it was calibrated on, and what is a margin for ground that no data covers."""
    group = np.where(np.isnan(x.zero_group), x.dp * x.cp, x.zero_group)
    outside = [
        np.where(x.gpus > 64, 0.05, 0.0),
        # ZeRO-1 and 2 send every rank's part by itself: a cost in proportion to the ranks, which no table measures
        np.where(((x.zero == 1) | (x.zero == 2)) & (group > 64), 0.20, 0.0),
        np.where(x.experts > 0, 0.15, 0.0),
        np.where(x.cp > 1, 0.10, 0.0),
        0.10 if len(fleet) > 1 else 0.0,
        0.10 if any(not hw.calibrated for hw in fleet) else 0.0,
        max((hw.doubt for hw in fleet), default=0.0),
        0.30 if any(hw.name == "cpu" for hw in fleet) else 0.0,
    ]
    return np.sqrt(np.full(x.n, USUAL) ** 2 + sum(np.square(term) for term in outside))


def topology(hw: Hardware, x: Inputs) -> Topology:
    """Links of the job's nodes. Hosts of an island that spans several (the trays of an NVL72 rack) are one node."""
    trays = np.where(x.per_node == hw.per_tray, hw.per_node / max(hw.per_tray, 1), 1.0)
    per_node = np.where(np.isnan(x.per_node), hw.per_node, x.per_node * trays)
    return Topology(hw, per_node, np.where(np.isnan(x.node_gb_s), hw.network.node_gb_s, x.node_gb_s * trays))


def step(x: Inputs, fleet: Fleet) -> Parts:
    """Seconds of each part of a step, (n,) each.

    Stages lie along the ranks, devices of one kind after the other. A stage whose ranks are of two kinds runs at the
    pace of the slower one, and so does every exchange between replicas.
    """
    deep = list(zip(fleet.kinds, depths(x, fleet), strict=True))
    if len(fleet.kinds) > 1:
        x = Inputs(**{**vars(x), "node_gb_s": np.fmin(x.node_gb_s, x.kinds_gb_s)})
    stages = [_stages(hw, x, layers) for hw, layers in deep]
    slowest, path = _slowest(x, stages, fleet.counts)
    parts = {name: x.micro_batches * slowest[name] for name in IN_STAGE}
    parts["bubble"] = idle(total(slowest), path, x.vpp)
    backward = np.maximum(total(slowest) - slowest["pp"] - slowest["host"], 0) * 2 / 3
    exchanges = [data_parallel(hw, topology(hw, x), x, backward, layers) for hw, layers in deep]
    # Every step waits for the slowest of the ranks: the expected maximum of that many normal times.
    straggler = STRAGGLER * np.sqrt(2 * np.log(x.gpus)) * x.micro_batches * slowest["compute"]
    parts["dp"] = parts["dp"] + np.max(np.broadcast_arrays(*exchanges), axis=0) + straggler
    parts["optimizer"] = np.max(np.broadcast_arrays(*(optimizer(hw, x, layers) for hw, layers in deep)), axis=0)
    parts["host"] = parts["host"] + 1e-3 * max(hw.host.step_ms for hw in fleet.kinds)
    if fleet.kinds[0].cores:
        parts = _shared(x, fleet.kinds[0], parts)
    return {name: np.broadcast_to(parts[name], x.n) for name in PARTS}


def _shared(x: Inputs, hw: Hardware, parts: Parts) -> Parts:
    """Ranks that share the cores of a node take turns: each is slower by as much as there are more of them, and who
    waits for another stage leaves its core to it."""
    crowd = np.maximum(np.minimum(x.gpus, hw.per_node) / hw.cores, 1)
    slower = {name: crowd * seconds for name, seconds in parts.items() if name != "bubble"}
    alone = sum(seconds for name, seconds in parts.items())
    slower["bubble"] = np.maximum(alone - sum(slower.values()), 0)
    return slower


def _stages(hw: Hardware, x: Inputs, layers: Array) -> tuple[Parts, Parts]:
    """Per micro batch: the last stage, with the head, and a stage without it, of so many layers."""
    first, of = distinct(x, _SHAPE)
    shapes = x.take(first)
    links = topology(hw, shapes)
    layer = _spread(layer_times(hw, links, shapes), len(first), of)
    head = _spread(head_times(hw, links, shapes), len(first), of)
    everywhere = topology(hw, x)
    last = stage(hw, everywhere, x, layers, layer, head)
    last["compute"] = last["compute"] + np.where(x.pp == 1, embedding(hw, x), 0.0)
    return last, stage(hw, everywhere, x, layers, layer, None)


def _spread(times: Times, n: int, of: Array) -> Times:
    return Times(*(np.broadcast_to(t, n)[of] for t in times))


def _slowest(x: Inputs, stages: list[tuple[Parts, Parts]], counts: list[Array]) -> tuple[Parts, Array]:
    """The stage that sets the pace, and the seconds of a micro batch on its way through all stages."""
    last, inner = stages[-1]
    if len(stages) == 1:
        return last, total(last) + (x.pp - 1) * total(inner)
    # How many stages have ranks of each kind only; what is left over are stages of two kinds.
    per_stage = x.gpus / x.pp
    ends = np.cumsum(counts, axis=0)
    starts = np.concatenate([np.zeros((1, x.n)), ends[:-1]])
    whole = np.maximum(np.floor(ends / per_stage + 1e-9) - np.ceil(starts / per_stage - 1e-9), 0)
    between = x.pp - whole.sum(axis=0)
    seconds = np.array([np.broadcast_to(total(parts), x.n) for _, parts in stages])
    worst = seconds.max(axis=0)
    ending = np.array([np.broadcast_to(total(parts), x.n) for parts, _ in stages])
    final = np.where(whole[-1] > 0, ending[-1], ending.max(axis=0))
    path = (whole * seconds).sum(axis=0) + between * worst
    path = path + final - np.where(whole[-1] > 0, seconds[-1], worst)
    # Candidates: the final stage, and any stage without the head.
    present = np.where((whole > 0) | ((between > 0) & (seconds == worst)), seconds, 0.0)
    candidates = np.concatenate([ending, present])
    candidates[: len(stages)] = np.where(ending == final, ending, 0.0)
    pace = np.argmax(candidates, axis=0)
    every = [parts for parts, _ in stages] + [parts for _, parts in stages]
    picked = {name: np.choose(pace, [np.broadcast_to(parts[name], x.n) for parts in every]) for name in IN_STAGE}
    return picked, path
