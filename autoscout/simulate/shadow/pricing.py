"""Seconds of a step from its traces: every kernel and collective that the framework issued, priced with the device's
calibrated operators.

Independent of the closed-form model (simulate/training): what is counted comes from the framework's own code, only the
price of a kernel is shared. Kernels of a rank run one after the other; of data parallel communication what does not fit
beside the last micro batch's backward pass is exposed where it overlaps, all of it where it does not.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from autoscout.simulate.hardware import roofline
from autoscout.simulate.hardware.collectives import Topology
from autoscout.simulate.hardware.device import Hardware
from autoscout.simulate.shadow.traced import Rank, Timed
from autoscout.simulate.training.pipeline import idle
from kb.records import Value

_ADAM_BYTES = 28  # a parameter: master weight and two moments read and written, gradient read
_TOUCHED = {"norm": 2, "norm backward": 3, "rotary": 2, "quantise": 1.5, "moved": 1, "cross entropy": 1.5}


class Priced(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds: the step, its parts on the slowest stage (times its micro batches), and how long that stage waits."""

    step_s: float
    parts: dict[str, float]
    bubble_s: float


def priced(
    ranks: Sequence[Rank], knobs: Mapping[str, Value], hw: Hardware, dtype: str, timed: Sequence[Timed] = ()
) -> Priced | None:
    """None where a rank was not traced. `ranks`: last stage, first stage, and an inner one if there are any. `timed`:
    those of them that a device ran, whose seconds take the place of their kernels' prices."""
    measured = {t.rank: t for t in timed if t.verdict == "starts"}
    plain = {r.rank: r for r in ranks if r.imbalance == 1.0}
    if not plain or any(r.verdict != "starts" for r in plain.values()):
        return None
    pp, vpp = int(knobs.get("pp", 1)), int(knobs.get("vpp", 1))
    each = {number: _micro_batch(rank, knobs, hw, dtype, measured.get(number)) for number, rank in plain.items()}
    seconds = {number: sum(parts.values()) for number, parts in each.items()}
    ordered = [seconds[number] for number in sorted(seconds)]
    inner = ordered[1] if len(ordered) > 2 else float(np.mean(ordered))
    path = ordered[0] + (ordered[-1] if pp > 1 else 0.0) + max(pp - 2, 0) * inner
    slowest = max(seconds, key=seconds.__getitem__)
    rank = plain[slowest]
    bubble = float(idle(np.array(seconds[slowest]), np.array(path), np.array(vpp)))
    parts = {name: value * rank.micro_batches for name, value in each[slowest].items()}
    once = _once(rank, knobs, hw, dtype, measured.get(slowest))
    backward = sum(_kernels(rank, ("backward",), hw, dtype).values()) / max(rank.micro_batches_traced, 1)
    if knobs.get("overlap_grad"):
        once["dp"] = max(once.get("dp", 0.0) - backward * (pp == 1 or vpp > 1), 0.0)
    parts |= once
    return Priced(step_s=sum(parts.values()) + bubble, parts=parts, bubble_s=bubble)


def _micro_batch(
    rank: Rank, knobs: Mapping[str, Value], hw: Hardware, dtype: str, timed: Timed | None
) -> dict[str, float]:
    """Seconds of one micro batch, forward and backward."""
    found = {} if timed else _kernels(rank, ("forward", "backward"), hw, dtype)
    for name, value in _sent(rank, knobs, hw).items():
        if name != "dp":
            found[name] = found.get(name, 0.0) + value
    each = {name: value / max(rank.micro_batches_traced, 1) for name, value in found.items()}
    return {"kernels": timed.micro_batch_s, **each} if timed else each


def _once(rank: Rank, knobs: Mapping[str, Value], hw: Hardware, dtype: str, timed: Timed | None) -> dict[str, float]:
    """Seconds of what a step does once."""
    found = {"optimizer": timed.optimizer_s if timed else sum(_kernels(rank, ("step",), hw, dtype).values())}
    if timed:
        found["once"] = timed.once_s
    if data := _sent(rank, knobs, hw).get("dp"):
        found["dp"] = data
    return found


def _kernels(rank: Rank, phases: Iterable[str], hw: Hardware, dtype: str) -> dict[str, float]:
    found: defaultdict[str, float] = defaultdict(float)
    for count, name, phase, *shapes in rank.kernels:
        if phase in phases:
            kind, seconds = _kernel(name, shapes, hw, dtype)
            found[kind] += count * seconds
    return dict(found)


def _kernel(name: str, shapes: list, hw: Hardware, dtype: str) -> tuple[str, float]:
    """(what its time goes to, seconds)."""
    width = 4 if dtype == "fp32" else 2
    if name.startswith("matmul"):
        *batch, m, k, n = (np.array(float(size)) for size in shapes[0])
        speed = 2.0 if name.endswith("8-bit") else 1.0
        if batch:
            return "matmul", float(roofline.batched_gemm(hw, batch[0], m, n, k, dtype))
        return "matmul", float(roofline.gemm(hw, m, n, k, dtype)) / speed
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


def _sent(rank: Rank, knobs: Mapping[str, Value], hw: Hardware) -> dict[str, float]:
    """Seconds by what a collective is for."""
    links = Topology(hw, np.array(float(hw.per_node)), np.array(hw.network.node_gb_s))
    tp, cp = int(knobs.get("tp", 1)), int(knobs.get("cp", 1))
    stage = max(1, tp * cp * int(knobs.get("dp", 1)))
    strides = {"tp": 1, "etp": 1, "cp": tp, "ep": tp, "tp+ep": 1, "pp": stage}
    kinds = {"tp": "tp", "etp": "ep", "ep": "ep", "tp+ep": "ep", "cp": "cp", "pp": "pp", "dp+cp": "dp"}
    found: defaultdict[str, float] = defaultdict(float)
    for count, operation, group, ranks, size, phase in rank.collectives:
        if phase == "step" or operation == "recv" or ranks < 2:  # a receipt is its sender's time
            continue
        n, stride = np.array(float(ranks)), np.array(float(strides.get(group, tp * cp)))
        moved = np.array(float(size))
        if operation == "send":
            seconds = links.send(moved, stride)
        elif "alltoall" in operation:
            seconds = links.all_to_all(moved, n, stride)
        elif "reduce_scatter" in operation:
            seconds = links.reduce_scatter(moved, n, stride)
        elif "allgather" in operation:
            seconds = links.all_gather(moved, n, stride)
        else:
            seconds = links.all_reduce(moved, n, stride)
        kind = kinds.get(group, "dp")
        late = float(links.late(n)) if kind in ("tp", "ep") else 0.0
        found[kind] += count * (float(seconds) + late)
    return dict(found)
