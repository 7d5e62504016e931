"""Predicts the seconds of a training step from traces of its ranks: every kernel and collective that the framework
launched is timed with the device's calibrated operators, and replayed in the order of stages and streams.

Unlike in the closed-form model (simulate/training), the counts come from the framework's own code; only the operators'
times and the constants of overlap are shared. Kernels of a rank run one after another. Stages wait for each other as in
Megatron-core's schedule (pipeline_replay.py). Communication between replicas overlaps with kernels in the traced order
(overlap_replay.py)."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from autoscout.simulate.hardware import roofline
from autoscout.simulate.hardware.collectives import Topology
from autoscout.simulate.hardware.device import Hardware
from autoscout.simulate.shadow.overlap_replay import REPLICAS, ReplayedExchange, replayed, supposed
from autoscout.simulate.shadow.pipeline_replay import ends
from autoscout.simulate.shadow.traced import Chunk, Rank, Timed
from autoscout.simulate.training.layer import IMBALANCE
from autoscout.simulate.training.stage import HIDDEN_TP, NCCL_MULTIPROCESSORS
from autoscout.simulate.training.step import STRAGGLER
from kb.records import Value

_ADAM_BYTES = 28  # bytes per parameter: fp32 master weight and two moments read and written, gradient read
# How many times a memory-bound kernel reads or writes each element of its shape, derived from its computation.
_TOUCHED = {"norm": 2, "norm backward": 3, "rotary": 2, "quantise": 2, "moved": 1, "cross entropy": 1.5}
_TOUCHED |= {"softmax": 1.5, "softmax backward": 3}  # causal: reads the lower triangle, writes all scores
_PASSES = ("forward", "backward")
_FP32_SUM = 8.0  # bytes per weight to accumulate an fp32 gradient: read and written
_MIB = 2.0**20  # bytes

Parts = dict[str, float]


class PricedTrace(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted seconds of the step, of its components on the slowest stage (over all micro batches), and of waits."""

    step_s: float
    parts: dict[str, float]
    bubble_s: float


class Setting(NamedTuple):
    """The inputs of every prediction. `copies`: experts per token if DeepEP sends each token once per node, else 0."""

    knobs: Mapping[str, Value]
    hw: Hardware
    dtype: str
    copies: int


class PricedStage(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one stage by component: of a micro batch's passes by chunk, and of the work `once` per step."""

    forward: list[Parts]
    backward: list[Parts]
    send: float
    exchange: ReplayedExchange
    once: Parts

    def busy(self) -> Parts:
        found: defaultdict[str, float] = defaultdict(float)
        for parts in (*self.forward, *self.backward):
            for name, seconds in parts.items():
                found[name] += seconds
        return dict(found)


def priced(
    ranks: Sequence[Rank],
    knobs: Mapping[str, Value],
    hw: Hardware,
    dtype: str,
    timed: Sequence[Timed] = (),
    copies: int = 0,
) -> PricedTrace | None:
    """The predicted step; None if a rank was not traced. `ranks`: traces of one rank of the last stage, the first
    stage, and up to two inner stages. `timed`: ranks that also ran on a real device; their measured seconds replace the
    predicted seconds of their kernels. `copies`: see Setting."""
    measured = {t.rank: t for t in timed if t.verdict == "starts"}
    plain = sorted((r for r in ranks if r.imbalance == 1.0), key=lambda r: r.rank)
    if not plain or any(r.verdict != "starts" for r in plain):
        return None
    pp, micro = int(knobs.get("pp", 1)), plain[0].micro_batches
    on = Setting(knobs, hw, dtype, copies)
    made = [_stage(rank, on, measured.get(rank.rank)) for rank in plain]
    if more := _of_the_busiest(ranks, plain, on):
        made = [_with(stage, more) for stage in made]
    inner = made[1:-1] or made[:1]
    # Index of the stage of the second inner trace; without a second inner trace, index of the last stage.
    others = int(plain[2].rank * pp // _world(knobs)) if len(inner) > 1 else pp - 1
    along = [made[0], *inner[:1] * (others - 1), *inner[-1:] * (pp - 1 - others), made[-1]] if pp > 1 else [made[-1]]
    overlapped = bool(knobs.get("overlap_p2p")) and int(knobs.get("vpp", 1)) > 1
    over = ends(
        [[sum(parts.values()) for parts in stage.forward] for stage in along],
        [[sum(parts.values()) for parts in stage.backward] for stage in along],
        max(stage.send for stage in along),
        micro,
        [stage.exchange.before for stage in along],
        overlapped,
    )
    done = [end + stage.exchange.between + stage.exchange.after for end, stage in zip(over, along, strict=True)]
    slowest = max(range(pp), key=lambda i: (sum(along[i].busy().values()), i))
    stage = along[slowest]
    parts = {name: seconds * micro for name, seconds in stage.busy().items()}
    if pp > 1 and not overlapped and stage.send:
        parts["pp"] = stage.send * micro * (2 * len(stage.forward) - (slowest in (0, pp - 1)))
    waits = max(done) - sum(parts.values())
    beside = [stage.exchange.before, stage.exchange.between, stage.exchange.after]
    compute = sum(parts.get(name, 0.0) for name in ("matmul", "attention", "elementwise", "kernels"))
    straggler = STRAGGLER * np.sqrt(2 * np.log(_world(knobs))) * compute
    dp = sum(beside) + NCCL_MULTIPROCESSORS / hw.multiprocessors * stage.exchange.hidden + float(straggler)
    if dp:
        parts["dp"] = parts.get("dp", 0.0) + dp
    for name, seconds in stage.once.items():
        parts[name] = parts.get(name, 0.0) + seconds
    bubble = max(waits - sum(beside), 0.0)
    return PricedTrace(step_s=sum(parts.values()) + bubble, parts=parts, bubble_s=bubble)


def _world(knobs: Mapping[str, Value]) -> float:
    return float(np.prod([int(knobs.get(name, 1)) for name in ("tp", "pp", "cp", "dp")]))


def _stage(rank: Rank, on: Setting, timed: Timed | None) -> PricedStage:
    chunks = rank.chunks or [Chunk(rank.kernels, rank.collectives)]
    traced = max(rank.micro_batches_traced, 1)
    vpp = int(on.knobs.get("vpp", 1))
    if len(chunks) < vpp:  # the trace does not separate the chunks: they share it equally
        chunks, traced = chunks * vpp, traced * vpp
    passes = [[_pass(chunk, phase, traced, on) for chunk in chunks] for phase in _PASSES]
    if timed:
        passes = _as_measured(passes, timed.micro_batch_s)
    if on.knobs.get("overlap_experts"):
        passes = _beside_another(passes, rank.micro_batches, on)
    sends = [c for c in rank.collectives if c[1] == "send" and c[2] == "pp"]
    send = max((_collective(c, on) for c in sends), default=0.0)
    once = {"optimizer": timed.optimizer_s if timed else sum(_kernels(rank.kernels, ("step",), on).values())}
    if timed:
        once["once"] = timed.once_s
    left = [c for c in rank.collectives if _late(c)]
    if late := sum(c[0] * _collective(c, on) for c in left):
        once["dp"] = late
    exchange = _exchange(rank, on, sum(sum(parts.values()) for parts in passes[1]))
    return PricedStage(forward=passes[0], backward=passes[1], send=send, exchange=exchange, once=once)


def _of_the_busiest(ranks: Sequence[Rank], plain: Sequence[Rank], on: Setting) -> list[list[Parts]] | None:
    """Additional seconds of a micro batch's passes, by phase and chunk, because all ranks wait for the rank whose
    experts have the most tokens. Interpolated from the trace of a rank with more tokens; None without such a trace."""
    tilted = next((r for r in ranks if r.imbalance > 1.0 and r.verdict == "starts"), None)
    even = next((r for r in plain if tilted and r.rank == tilted.rank), None)
    if not tilted or not even:
        return None
    share = (IMBALANCE - 1) / (tilted.imbalance - 1)
    passes = [(stage.forward, stage.backward) for stage in (_stage(tilted, on, None), _stage(even, on, None))]
    return [
        [
            {name: share * (seconds - before.get(name, 0.0)) for name, seconds in after.items()}
            for after, before in zip(*both, strict=True)
        ]
        for both in zip(*passes, strict=True)
    ]


def _with(stage: PricedStage, more: list[list[Parts]]) -> PricedStage:
    forward, backward = (
        [
            {name: parts.get(name, 0.0) + added.get(name, 0.0) for name in {**parts, **added}}
            for parts, added in zip(passes, extra, strict=True)
        ]
        for passes, extra in zip((stage.forward, stage.backward), more, strict=True)
    )
    return msgspec.structs.replace(stage, forward=forward, backward=backward)


def _late(c: list) -> bool:
    """Whether a collective belongs to the optimizer step: gathered weights, reductions between stages (tied embeddings,
    gradient norm)."""
    _, operation, group, ranks, _, phase = c
    gathered = group in REPLICAS and "allgather" in operation
    return ranks > 1 and (gathered if phase == "step" else group in ("embedding", "model"))


def _as_measured(passes: list[list[Parts]], seconds: float) -> list[list[Parts]]:
    """Replaces the kernels' predicted seconds by a micro batch's measured `seconds`, split in proportion."""
    prices = [[sum(parts[name] for name in parts if name in _KERNELS) for parts in some] for some in passes]
    total = sum(map(sum, prices))
    usual = [[1 / 3 / len(passes[0])] * len(passes[0]), [2 / 3 / len(passes[1])] * len(passes[1])]
    shares = [[price / total for price in some] for some in prices] if total else usual
    return [
        [
            {"kernels": share * seconds, **{n: s for n, s in parts.items() if n not in _KERNELS}}
            for parts, share in zip(some, of, strict=True)
        ]
        for some, of in zip(passes, shares, strict=True)
    ]


_KERNELS = ("matmul", "attention", "elementwise", "host")


def _beside_another(passes: list[list[Parts]], micro: int, on: Setting) -> list[list[Parts]]:
    """Applies overlap_experts as the closed-form model does: tokens are exchanged while kernels of another micro batch
    run (except for the first and the last one), and the exchange takes multiprocessors from these kernels."""
    each = [parts for some in passes for parts in some]
    ep = sum(parts.get("ep", 0.0) for parts in each)
    kernels = sum(parts.get(name, 0.0) for parts in each for name in (*_KERNELS, "kernels"))
    hidden = min(1.0, kernels / ep) * (1 - 1 / max(micro, 1)) if ep else 0.0
    left = 1 - hidden * (1 - NCCL_MULTIPROCESSORS / on.hw.multiprocessors)
    return [[{**parts, "ep": left * parts["ep"]} if "ep" in parts else parts for parts in some] for some in passes]


def _pass(chunk: Chunk, phase: str, traced: int, on: Setting) -> Parts:
    """Seconds by component of one chunk's forward or backward pass of one micro batch."""
    found: Parts = {name: s / traced for name, s in _kernels(chunk.kernels, (phase,), on).items()}
    issued = sum(k[0] for k in chunk.kernels if k[2] == phase)
    sent: defaultdict[str, float] = defaultdict(float)
    for c in chunk.collectives:
        if (kind := _KINDS.get(c[2])) and c[5] == phase and c[1] != "recv":  # a transfer counts at its sender only
            sent[kind] += c[0] * _collective(c, on) / traced
            issued += c[0]
    if "cp" in sent:  # attention on one block of keys hides the transfer of the next block
        hidden = (
            (1 - 1 / int(on.knobs.get("cp", 1)))
            * found.get("attention", 0.0)
            * (on.knobs.get("cp_comm", "p2p") == "p2p")
        )
        sent["cp"] = max(sent["cp"] - hidden, 0.0)
    if "tp" in sent and on.knobs.get("tp_comm_overlap"):
        found["matmul"], sent["tp"] = _beside_products(found.get("matmul", 0.0), sent["tp"], on)
    found |= sent
    return found


def _beside_products(matmul: float, tp: float, on: Setting) -> tuple[float, float]:
    """(seconds of GEMMs, exposed seconds of tp communication) with tp_comm_overlap, as in the closed-form model:
    communication takes multiprocessors from the GEMMs that hide it."""
    multiprocessors = float(on.knobs.get("tp_comm", 16))
    moving = tp * max(16 / max(multiprocessors, 1.0), 0.8)
    hidden = min(HIDDEN_TP * moving, matmul)
    return matmul + hidden * multiprocessors / on.hw.multiprocessors, moving - hidden


def _exchange(rank: Rank, on: Setting, cover: float) -> ReplayedExchange:
    def kernel(name: str, shapes: list) -> float:
        key = (name, str(shapes))
        if key not in known:
            known[key] = _kernel(name, shapes, on.hw, on.dtype)[1]
        return known[key]

    def collective(c: list) -> float:
        key = ("collective", str(c))
        if key not in known:
            known[key] = _collective(c, on)
        return known[key]

    known: dict[tuple[str, str], float] = {}
    if rank.order and rank.ordered <= len(rank.order):
        return replayed(rank.order, kernel, collective)
    own = [c for c in rank.collectives if c[2] in REPLICAS and c[5] in _PASSES]
    gathers, reduces = (
        sum(c[0] * _collective(c, on) for c in own if ("allgather" in c[1]) == gathering) for gathering in (True, False)
    )
    size = sum(c[0] * c[4] for c in own if "allgather" not in c[1])
    buckets = size / (float(on.knobs.get("ddp_bucket", 160)) * _MIB)
    by_bucket = rank.rank == 0 or int(on.knobs.get("vpp", 1)) > 1 or int(on.knobs.get("pp", 1)) == 1
    return supposed(gathers, reduces, on.knobs, buckets, cover, by_bucket)


def _kernels(kernels: Iterable[list], phases: Iterable[str], on: Setting) -> Parts:
    found: defaultdict[str, float] = defaultdict(float)
    for count, name, phase, *shapes in kernels:
        if phase in phases:
            kind, seconds = _kernel(name, shapes, on.hw, on.dtype)
            found[kind] += count * seconds
    return dict(found)


def _kernel(name: str, shapes: list, hw: Hardware, dtype: str) -> tuple[str, float]:
    """(component of the step, seconds) of one kernel."""
    width = 4 if dtype == "fp32" else 2
    if name.startswith("matmul"):
        *batch, m, k, n = (np.array(float(size)) for size in shapes[0])
        kind = "fp8" if "8-bit" in name else dtype
        summed = _FP32_SUM * m * n if "into gradient" in name else np.zeros(())
        if batch:
            more = roofline.memory_bound(hw, batch[0] * summed, hw.gemm.bandwidth, 0.0)
            return "matmul", float(roofline.batched_gemm(hw, batch[0], m, n, k, kind) + more)
        return "matmul", float(roofline.gemm(hw, m, n, k, kind, summed))
    if name.startswith("attention"):
        (a, b, heads, size), keys, ranks = shapes[0], shapes[1], shapes[2]
        batch, length = min(a, b), max(a, b)
        all_keys = np.array(float(max(keys[0], keys[1]) * ranks))
        arrays = [np.array(float(v)) for v in (batch, heads, length, size)]
        forward = roofline.flash(hw, arrays[0], arrays[1], arrays[2], all_keys, arrays[3], dtype)
        return "attention", float(roofline.flash_backward(hw, forward) if name.endswith("backward") else forward)
    if name == "adam":
        moved = _ADAM_BYTES * float(shapes[0][0])
    elif name in _TOUCHED or name.removesuffix(" backward") in _TOUCHED:
        factor = _TOUCHED.get(name, _TOUCHED.get(name.removesuffix(" backward"), 2))
        moved = factor * width * float(np.prod(shapes[0]))
    else:
        moved = float(shapes[0]) if shapes and isinstance(shapes[0], int | float) else 0.0
    share = hw.elementwise.norm_bandwidth if name.startswith("norm") else hw.elementwise.bandwidth
    return "elementwise", float(roofline.memory_bound(hw, np.array(moved), share))


def _collective(c: list, on: Setting) -> float:
    _, operation, group, ranks, size, _ = c
    if ranks < 2:
        return 0.0
    knobs, hw = on.knobs, on.hw
    links = Topology(hw, np.array(float(hw.per_node)), np.array(hw.network.node_gb_s))
    tp, cp = int(knobs.get("tp", 1)), int(knobs.get("cp", 1))
    stage = max(1, tp * cp * int(knobs.get("dp", 1)))
    etp = int(knobs.get("etp", tp))  # within a stage, experts are split differently from other layers
    experts = {"etp": 1, "ep": etp, "tp+ep": 1, "expert dp": etp * int(knobs.get("ep", 1))}
    strides = {"tp": 1, "cp": tp, "dp+cp": tp, "pp": stage, **experts}
    n, stride = np.array(float(ranks)), np.array(float(strides.get(group, tp * cp)))
    moved = np.array(float(size))
    if operation == "send":
        seconds = links.send(moved, stride)
    elif "alltoall" in operation:
        once = moved / on.copies if on.copies else 0.0
        seconds = links.all_to_all(moved, n, stride, once, float(on.copies))
    elif "reduce_scatter" in operation:
        seconds = links.reduce_scatter(moved, n, stride)
    elif "allgather" in operation:
        seconds = links.all_gather(moved, n, stride)
    else:
        seconds = links.all_reduce(moved, n, stride)
    late = float(links.late(n)) if _KINDS.get(group) in ("tp", "ep") else 0.0
    return float(seconds) + late


# Process group of a collective within a pass → component of the step.
_KINDS = {"tp": "tp", "etp": "ep", "ep": "ep", "tp+ep": "ep", "cp": "cp"}
