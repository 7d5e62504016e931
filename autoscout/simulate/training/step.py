"""The analytic training model: seconds of one optimizer step, from the shapes of a job and the constants of a device.

    step = pipeline of micro batches (layers and head: compute, tp, cp, ep, pp, host) + dp + optimizer + host

The time of layers is predicted in layer.py, of stages in stage.py, of links in collectives.py, and of the work once per
step in once.py. Measurements of the job correct the result (correction.py)."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from autoscout.simulate.combinations import Combinations, distinct
from autoscout.simulate.encode import job_of, software_of, take
from autoscout.simulate.hardware.collectives import Topology
from autoscout.simulate.hardware.device import Hardware, at, hardware
from autoscout.simulate.member import Columns, Prediction
from autoscout.simulate.training.correction import Alike, Correction, layout
from autoscout.simulate.training.fleet import Fleet, depths, devices, read
from autoscout.simulate.training.inputs import REQUIRED, Inputs, complete, precisions
from autoscout.simulate.training.layer import Times, head_times, layer_times
from autoscout.simulate.training.once import Exchange, exchange, optimizer
from autoscout.simulate.training.priced import MEMORY_ONLY, Priced, priced
from autoscout.simulate.training.software import (
    Unsaid,
    evidence,
    expected,
    middle,
    probabilities,
    settled,
    variants,
    widest,
)
from autoscout.simulate.training.stage import IN_STAGE, Parts, embedding, stage, total
from kb.records import Job

Array = np.ndarray
PARTS = (*IN_STAGE, "bubble", "optimizer")
STRAGGLER = 0.01  # relative standard deviation of step times between ranks; a usual figure, not measured here
# Standard deviation of log(measured / predicted) under validated conditions. This constant and the constants in
# `doubts` are rounded results of a validation that left out one data source at a time (docs/lab/simulators-training.md,
# "What the intervals hold").
USUAL = 0.08
# grid of link speeds: 0 is the recorded speed of the group, 1 that of a pair of devices, see `_slowing`
_SPEEDS = (np.arange(32) + 0.5) / 32
_BLOCK = 1 << 15  # rows per block, so that temporary arrays stay in the processor's cache
# _ONCE_A_STEP: columns that do not affect micro batches. _IN_STAGES: columns that do not affect the exchange between
# replicas and the optimizer.
_ONCE_A_STEP = frozenset({
    "distopt", "overlap_grad", "overlap_param", "ddp_bucket", "delay_wgrad", "reduced_each", "reduce_elements",
    "gathered_bytes", "dp_channels",
})  # fmt: skip
_IN_STAGES = frozenset({
    "global_batch", "mbs", "vpp", "sp", "ar", "ar_method", "ar_layers", "ar_modules", "recomputed", "tp_comm_overlap",
    "tp_comm", "tp_comm_dgrad", "overlap_p2p", "dispatcher", "overlap_experts", "delay_wgrad", "graphs", "op_fuser",
    "cp_comm", "transposes", "fp8_attention", "in_turn", "kept_elements", "near_group", "offload_weights",
    "cp_channels", "drained",
})  # fmt: skip
_PACE = (*IN_STAGE, "working", "bubble", "backward", "others", "crowd", "spread")
_SENT = (*Exchange._fields, "optimizer")
# Columns that affect the time of a layer. Spaces have thousands of configurations per combination of their values.
_SHAPE = (
    "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "gated", "vocab", "experts", "topk",
    "expert_ffn", "expert_bias", "shared_ffn", "dense_layers", "seq_len", "mbs", "tp", "cp", "ep", "etp", "sp",
    "attention", "te", "dropout", "deterministic", "fused_norm", "fused_activation", "fused_gate", "ce_fusion",
    "norm_copy", "grads_apart", "hub", "adapters", "adapter_dropout", "bias", "op_fuser", "transposes",
    "tp_comm_dgrad", "cp_comm", "fp8_attention", "lora",
    "lora_rank", "adapter_width", "packing", "packed_context", "dispatcher", "per_node", "node_gb_s", "kinds_gb_s",
    "grad_bytes", "learned_positions", "cp_channels",
    "kv_lora_rank", "q_lora_rank", "qk_norm", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
)  # fmt: skip


class Training:
    """The analytic training model, a Member for step_time_s. `device`: the default of rows without a column `gpu` or
    counts of each kind of device (`a100`, `a40`)."""

    name = "analytic"

    def __init__(self, device: str = "") -> None:
        self.device = device
        self.correction: Correction | None = None
        self.software: dict[str, float] = {}  # log likelihood of each software profile, given the job's measurements

    @classmethod
    def of_job(cls, job: Job) -> "Training":
        """The model for the space of a job. (On a mixed cluster, the columns count a row's devices of each kind.)"""
        return cls(job.cluster.nodes[0].device)

    def applies(self, columns: Columns) -> str:
        missing = [name for name in (*REQUIRED, "global_batch") if name not in columns]
        if missing:
            return f"this model needs {', '.join(missing)}"
        unknown = [name for name in devices(columns, self.device) if hardware(name) is None]
        return f"no constants for device {unknown[0] or '(none named)'}" if unknown else ""

    def fit(self, columns: Columns, values: np.ndarray) -> None:
        """Learns the likelihoods of the software profiles from measured seconds of a job, then the correction."""
        values = np.asarray(values, dtype=float)
        columns = settled(columns, self.device)
        if len(some := variants(columns, MEMORY_ONLY)) > 1:
            steps = self._steps(columns)
            totals = np.concatenate([steps.seconds(rows).total for rows in steps.blocks()], axis=1)
            self.software = evidence(some, list(np.log(values / totals)), USUAL)
        parts, error = self._parts(columns)
        known = np.isfinite(values) & np.isfinite(error)
        self.correction = Correction(parts, _alike(columns), error, values) if known.any() else None

    def predict(self, columns: Columns) -> Prediction:
        parts, error = self._parts(columns)
        if self.correction is not None:
            return self.correction.apply(parts, _alike(columns), error)
        return Prediction(value=np.sum(list(parts.values()), axis=0), error=error, parts=parts)

    def widest(self, columns: Columns) -> Unsaid | None:
        """The software setting that the first row leaves open and that affects its prediction most, or None."""
        some = take(columns, slice(0, 1))
        steps = self._steps(some)
        shares = [each.log_share + self.software.get(each.name, 0.0) for each in steps.paced.software]
        if len(shares) < 2:
            return None
        return widest(steps.paced.software, steps.seconds(slice(0, 1)).total[:, 0], probabilities(shares, 1)[:, 0])

    def _steps(self, columns: Columns) -> "_Steps":
        columns = settled(columns, self.device)
        every = Combinations(columns, read(columns))
        kinds = 1 if "gpu" in columns else len(devices(columns, self.device))
        paced = priced(every, _ONCE_A_STEP, self.device, dict.fromkeys(_PACE, ()), pace)
        sent = priced(every, _IN_STAGES, self.device, dict.fromkeys(_SENT, (kinds,)), partial(_exchanges, kinds))
        return _Steps(paced, sent)

    def _parts(self, columns: Columns) -> tuple[Parts, Array]:
        steps = self._steps(columns)
        paced, n = steps.paced, len(steps.paced.of)
        m = paced.values["crowd"].shape[-1]
        shares = [each.log_share + self.software.get(each.name, 0.0) for each in paced.software]
        weights = probabilities(shares, m)
        # With measurements, the correction learns how much slower unlisted software is, so no prior mean is applied.
        slower = np.exp(expected(weights, [0.0 * v.slower if self.software else v.slower for v in paced.software]))
        doubt = expected(weights, [np.square(v.unseen) for v in paced.software])
        variance = doubt + (weights * paced.values["spread"]).sum(axis=0) ** 2
        shared = {name: (weights * paced.values["crowd"] * paced.values[name]).sum(axis=0) for name in IN_STAGE}
        parts, error = {name: np.empty(n) for name in PARTS}, np.empty(n)
        for rows in steps.blocks():
            of, seconds = paced.of[rows], steps.seconds(rows)
            each = {name: values[of] for name, values in shared.items()}
            chances = weights[:, of]
            value, between = middle(seconds.total, chances) if len(shares) > 1 else (seconds.total[0], 0.0)
            each["dp"] = each["dp"] + (chances * seconds.dp).sum(axis=0)
            each["optimizer"] = (chances * seconds.optimizer).sum(axis=0)
            each["bubble"] = (chances * seconds.bubble).sum(axis=0)
            scale = slower[of] * value / np.sum(list(each.values()), axis=0)
            for name in PARTS:
                parts[name][rows] = scale * each[name]
            error[rows] = np.sqrt(variance[of] + between**2)
        return parts, error


class _Seconds(NamedTuple):
    dp: Array  # exchange between replicas, once per step
    optimizer: Array
    bubble: Array
    total: Array


class _Steps(NamedTuple):
    """The predicted steps of n rows. `paced`: results by the columns that affect stages (see `pace`); `sent`: results
    by the columns that affect the exchange between replicas and the optimizer."""

    paced: Priced
    sent: Priced

    def blocks(self) -> Iterator[slice]:
        many = _BLOCK // len(self.paced.software)
        for start in range(0, len(self.paced.of), many):
            yield slice(start, start + many)

    def seconds(self, rows: slice) -> _Seconds:
        sent = Exchange(*(self.sent.at(name, rows) for name in Exchange._fields))
        dp = sent.exposed(self.paced.at("backward", rows), self.paced.at("others", rows)).max(axis=0)
        optimizer = self.sent.at("optimizer", rows).max(axis=0)
        # Ranks on CPUs share the node's cores, so each is slower by the factor `crowd`. A rank that waits for another
        # stage frees its core.
        crowd = self.paced.at("crowd", rows)
        working = crowd * (self.paced.at("working", rows) + dp + optimizer)
        bubble = np.maximum(self.paced.at("bubble", rows) - (1 - 1 / crowd) * working, 0)
        return _Seconds(crowd * dp, crowd * optimizer, bubble, working + bubble)


def _alike(columns: Columns) -> Alike:
    """The similarity of rows for the correction. Length scales are short for knobs that change the shapes of GEMMs,
    whose errors differ most, and long for replication. Each precision has kernels of its own."""
    x = complete(columns)
    names = precisions(columns)
    dtype = sum((2.0**i * (names == name) for i, name in enumerate(sorted(set(names.tolist())))), np.zeros(1))
    knobs = [
        (x.tp, 0.4),
        (x.mbs, 0.7),
        (x.seq_len, 1.0),
        (x.cp, 1.0),
        (x.pp, 2.0),
        (x.dp, 3.0),
        (x.ar + 1, 1.0),
        (dtype, 1.0),
    ]
    return Alike(layout(knobs, x.n), *(np.broadcast_to(of(columns), x.n) for of in (job_of, software_of)))


def doubts(x: Inputs, fleet: list[Hardware], sent: Array | float = 1.0) -> dict[str, Array]:
    """Conditions outside of the model's validation → (n,) additional log error (0 where a condition does not apply).
    `sent`: share of a step that tensor parallel communication takes."""
    group = np.where(np.isnan(x.zero_group), x.dp * x.cp, x.zero_group)
    over_pcie = any(hw.island.kind == "PCIe" for hw in fleet)
    found = {
        # DeepSpeed all-reduces every rank's part separately, in time proportional to the ranks; no table has such runs
        "ZeRO-1 or 2 over more than 64 ranks": np.where(((x.zero == 1) | (x.zero == 2)) & (group > 64), 0.20, 0.0),
        # HOOKS_US was measured on two CPU ranks. Predictions are 1.5 times too fast for V100s, and 1.7 times too slow
        # for A100s that wait for hooks.
        "weights that DeepSpeed gathers module by module": np.where((x.zero == 3) & (x.masters_apart > 0), 0.30, 0.0),
        "the host's memory and processors": np.where((x.cpu_adam > 0) | (x.offload_weights > 0), 0.30, 0.0),
        "experts": np.where(x.experts > 0, 0.20, 0.0),
        # outside of MLPerf, only two layouts with more than two ranks were compared: exchanged heads, and a ring with
        # one channel
        "context parallelism": np.where(x.cp > 2, np.where((x.cp_comm > 0) | (x.cp_channels > 0), 0.05, 0.15), 0.0),
        # the speed of attention dominates: NeMo's runs were 10 to 30 % slower than predicted
        # (docs/lab/simulators-training.md)
        "sequences of more than 16,384 tokens": np.where(_seen(x) > 16_384, 0.15, 0.0),
        # compared with runs of one version on one host, whose speed matters for small batches
        # (docs/lab/simulators-training.md)
        "Transformers' own modules": np.where(x.hub > 0, 0.08, 0.0),
        "deterministic kernels": np.where(x.deterministic > 0, 0.05, 0.0),  # the uncertainty of DETERMINISTIC
        # one of Mist's plans took 28 s in one run and 44 s in another on four A10G
        "tensor parallelism over PCIe": np.where(over_pcie & (x.tp > 1), 0.15, 0.0),
        "PCIe whose recorded speed drops with more devices": np.where(x.tp > 2, _slowing(x, fleet, sent), 0.0),
        "several kinds of device": 0.10 if len(fleet) > 1 else 0.0,
        "a device known by its data sheet": 0.05 if any(not hw.calibrated for hw in fleet) else 0.0,
        "a device or a power limit with few runs to compare with": max((hw.doubt for hw in fleet), default=0.0),
        "a CPU": 0.30 if any(hw.cores for hw in fleet) else 0.0,
    }
    return {why: np.asarray(error) for why, error in found.items()}


def _seen(x: Inputs) -> Array:
    """(n,) number of tokens to which a token may attend."""
    return np.where(x.packing > 0, x.packed_context, x.seq_len)


def _slowing(x: Inputs, fleet: list[Hardware], sent: Array | float) -> Array:
    """(n,) additional log error, because hosts differ in how many devices share a PCIe switch. The speed of a larger
    group is assumed to lie between the recorded speed of a pair of devices and the recorded speed of that group
    (log-uniform). All other parts of the step are unaffected."""
    found = np.zeros(1)
    share = np.atleast_1d(sent)[..., None]
    for island in (hw.island for hw in fleet if hw.island.kind == "PCIe" and hw.island.peers):
        speeds = island.all_gather.bus_gb_s
        lost = np.maximum(np.log(speeds[0] / at(speeds, island.ranks, x.tp)), 0)
        steps = 1 - share + share * np.exp(-np.atleast_1d(lost)[..., None] * _SPEEDS)
        found = np.maximum(found, np.sqrt(np.mean(np.log(steps) ** 2, axis=-1)))
    return found


def trust(x: Inputs, fleet: list[Hardware], sent: Array | float) -> Array:
    """(n,) standard deviation of log(measured / predicted) without measurements of the job.
    docs/lab/simulators-training.md states the data from which it was calibrated, and which components are margins where
    data are missing."""
    outside = doubts(x, fleet, sent).values()
    return np.sqrt(np.full(x.n, USUAL) ** 2 + sum(np.square(term) for term in outside))


def topology(hw: Hardware, x: Inputs) -> Topology:
    """The links between the job's ranks. Hosts that share one fast network (trays of an NVL72 rack) count as one
    node."""
    trays = np.where(x.per_node == hw.per_tray, hw.per_node / max(hw.per_tray, 1), 1.0)
    per_node = np.where(np.isnan(x.per_node), hw.per_node, x.per_node * trays)
    return Topology(hw, per_node, np.where(np.isnan(x.node_gb_s), hw.network.node_gb_s, x.node_gb_s * trays))


def pace(x: Inputs, fleet: Fleet) -> dict[str, Array]:
    """(n,) seconds of each component of a step except the exchange between replicas and the optimizer, and further
    quantities that `_Steps` and `Training` need.

    Stages are assigned to ranks in order, one kind of device after the other. A stage on two kinds of device runs at
    the speed of the slower kind, as does every exchange between replicas."""
    x = _linked(x, fleet)
    stages = [_stages(hw, x, layers) for hw, layers in zip(fleet.kinds, depths(x, fleet), strict=True)]
    slowest, path = _slowest(x, stages, fleet.counts)
    parts = {name: x.micro_batches * slowest[name] for name in IN_STAGE}
    # Every step waits for the slowest rank: the expected maximum of normally distributed times of all ranks.
    parts["dp"] = parts["dp"] + STRAGGLER * np.sqrt(2 * np.log(x.gpus)) * x.micro_batches * slowest["compute"]
    parts["host"] = parts["host"] + 1e-3 * max(hw.host.step_ms for hw in fleet.kinds)
    hw = fleet.kinds[0]
    return {
        **parts,
        "working": total(parts),
        "bubble": idle(total(slowest), path, x.vpp) * np.fmax(np.ceil(x.micro_batches / (x.drained * x.pp)), 1),
        "backward": np.maximum(total(slowest) - slowest["pp"] - slowest["host"], 0) * 2 / 3,
        "others": x.micro_batches - 1,
        "crowd": np.maximum(np.minimum(x.gpus, hw.per_node) / hw.cores, 1) if hw.cores else np.ones(1),
        "spread": trust(x, fleet.kinds, parts["tp"] / total(parts)),
    }


def _exchanges(kinds: int, x: Inputs, fleet: Fleet) -> dict[str, Array]:
    """(kinds, n) exchange between replicas and optimizer by kind of device; rows with fewer kinds repeat their first
    kind."""
    x = _linked(x, fleet)
    found = []
    for hw, layers in zip(fleet.kinds, depths(x, fleet), strict=True):
        sent = exchange(hw, topology(hw, x), x, layers)._asdict()
        found.append({**sent, "optimizer": optimizer(hw, x, layers)})
    found += found[:1] * (kinds - len(found))
    return {name: np.array([each[name] + np.zeros(x.n) for each in found]) for name in _SENT}


def _linked(x: Inputs, fleet: Fleet) -> Inputs:
    """The inputs, with `node_gb_s` limited to the bandwidth between different kinds of device."""
    if len(fleet.kinds) == 1:
        return x
    return Inputs(**{**vars(x), "node_gb_s": np.fmin(x.node_gb_s, x.kinds_gb_s)})


def _stages(hw: Hardware, x: Inputs, layers: Array) -> tuple[Parts, Parts]:
    """Seconds per micro batch: first of the last stage, with the output layer; second of any other stage with as many
    layers."""
    first, of = distinct(vars(x), _SHAPE, x.n)
    shapes = x.take(first)
    links = topology(hw, shapes)
    layer = _spread(layer_times(hw, links, shapes), of)
    head = _spread(head_times(hw, links, shapes), of)
    everywhere = topology(hw, x)
    last = stage(hw, everywhere, x, layers, layer, head)
    last["compute"] = last["compute"] + np.where(x.pp == 1, embedding(hw, x), 0.0)
    return last, stage(hw, everywhere, x, layers, layer, None)


def _spread(times: Times, of: Array) -> Times:
    return Times(*(t[..., of] if t.shape[-1] > 1 else t for t in times))


def _slowest(x: Inputs, stages: list[tuple[Parts, Parts]], counts: list[Array]) -> tuple[Parts, Array]:
    """(components of the slowest stage, (n,) seconds of a micro batch through all stages)."""
    last, inner = stages[-1]
    if len(stages) == 1:
        return last, total(last) + (x.pp - 1) * total(inner)
    # Number of stages on a single kind of device, by kind. The remaining stages (`between`) have two kinds.
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
    # Candidates for the slowest stage: the last stage, and every stage without the output layer.
    present = np.where((whole > 0) | ((between > 0) & (seconds == worst)), seconds, 0.0)
    candidates = np.concatenate([ending, present])
    candidates[: len(stages)] = np.where(ending == final, ending, 0.0)
    pace = np.argmax(candidates, axis=0)
    every = [parts for parts, _ in stages] + [parts for _, parts in stages]
    picked = {name: np.choose(pace, [np.broadcast_to(parts[name], x.n) for parts in every]) for name in IN_STAGE}
    return picked, path


def idle(slowest: Array, path: Array, chunks: Array) -> Array:
    """(n,) seconds per step in which the slowest stage waits. In the rest of the step it computes m micro batches in m
    × `slowest` seconds.

    `slowest`: seconds of a micro batch on the slowest stage, forward and backward; `path`: the same, summed over all
    stages. 1F1B is a permutation flow shop with equal jobs: the first micro batch passes all stages, forward and
    backward, and the slowest stage takes `slowest` seconds for each of the m − 1 other micro batches. For p equal
    stages of t seconds, a step takes (m + p − 1) t, as in the AutoScout paper. Interleaving divides the idle time by
    the number v of chunks per stage: m t + (p − 1) t / v."""
    return (path - slowest) / chunks
