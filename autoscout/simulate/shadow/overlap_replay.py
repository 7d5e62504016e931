"""The time that communication between replicas adds to a rank's step, replayed in the order of kernels and collectives
of its trace: kernels run one after another on one stream, gradients and weights are sent on another."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

REPLICAS = ("dp+cp", "expert dp")
_NEIGHBOURS = "pp"


class ReplayedExchange(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of communication between replicas: before the first pass, after the last pass, blocking in between, and
    hidden behind kernels."""

    before: float = 0.0
    after: float = 0.0
    between: float = 0.0
    hidden: float = 0.0


def replayed(
    order: Sequence[list], kernel: Callable[[str, list], float], collective: Callable[[list], float]
) -> ReplayedExchange:
    """Replays a traced `order` (see traced.Rank), given functions for the seconds of a kernel and of a collective. Each
    bucket of weights is requested when the previous one has arrived (Megatron-core's param_and_grad_buffer.py);
    gradients are sent as soon as their bucket is complete."""
    clock = free = before = between = sent = 0.0
    asked = False
    for name, phase, *what in order:
        if phase not in ("forward", "backward") or name == "pass":
            continue
        if name != "collective":
            clock += kernel(name, what)
        elif what[1] not in REPLICAS:
            clock += 0.0 if what[1] == _NEIGHBOURS else collective([1, *what, phase])
        else:
            seconds = collective([1, *what, phase])
            if "allgather" in what[0] and not asked:
                before, asked = seconds, True
                continue
            if "allgather" in what[0]:
                between += max(free - clock, 0.0)
                clock = max(clock, free)
            free = max(free, clock) + seconds
            sent += seconds
    after = max(free - clock, 0.0)
    return ReplayedExchange(before=before, after=after, between=between, hidden=max(sent - after - between, 0.0))


def supposed(
    gathers: float, reduces: float, knobs: Mapping[str, object], buckets: float, cover: float, first: bool
) -> ReplayedExchange:
    """Estimates the result of `replayed` for traces without an order, given the total seconds of weight `gathers` and
    of gradient `reduces`, and the number of buckets. `cover`: seconds of the last micro batch's backward passes;
    `first`: whether gradients are sent bucket by bucket, as on the first pipeline stage or with chunks."""
    by_bucket = bool(knobs.get("overlap_grad")) and first
    tail = reduces / max(buckets, 1.0)
    after = max(reduces - cover, tail) if by_bucket else reduces
    before = gathers / max(buckets, 1.0) if knobs.get("overlap_param") else gathers
    between = max(gathers - before - cover / 2, 0.0)
    return ReplayedExchange(
        before=before, after=after, between=between, hidden=gathers + reduces - before - after - between
    )
