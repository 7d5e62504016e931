"""The time that the exchange between replicas adds to a rank's step, replayed from the order of kernels and collectives
in its trace: kernels run one after the other on their stream, while gradients and weights travel on another."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

REPLICAS = ("dp+cp", "expert dp")
_NEIGHBOURS = "pp"


class ReplayedExchange(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds: before the first pass, after the last one, blocking in between, and hidden behind kernels."""

    before: float = 0.0
    after: float = 0.0
    between: float = 0.0
    hidden: float = 0.0


def replayed(
    order: Sequence[list], kernel: Callable[[str, list], float], collective: Callable[[list], float]
) -> ReplayedExchange:
    """`order`: as traced (traced.Rank). Weights are gathered bucket by bucket, each requested when the previous one has
    arrived (param_and_grad_buffer.py); gradients are sent as soon as they are complete."""
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
    """An estimate without an order. `cover`: seconds of the last micro batch's backward passes; `first`: gradients of
    the first stage, of the only one or of chunks are sent bucket by bucket."""
    by_bucket = bool(knobs.get("overlap_grad")) and first
    tail = reduces / max(buckets, 1.0)
    after = max(reduces - cover, tail) if by_bucket else reduces
    before = gathers / max(buckets, 1.0) if knobs.get("overlap_param") else gathers
    between = max(gathers - before - cover / 2, 0.0)
    return ReplayedExchange(
        before=before, after=after, between=between, hidden=gathers + reduces - before - after - between
    )
