"""Draws conclusions on a configuration from the traces of some of its ranks: whether it starts, whether it fits into
memory, and which rank is fullest."""

import math
from collections.abc import Sequence

import msgspec

from autoscout.simulate.learned.weighing import SPAN
from autoscout.simulate.shadow.traced import EARLY, ERROR, GIB, OUT_OF_BALANCE, ROUTING_SPREAD, Rank, Shadow


def stages(world: int, pp: int, whole: int = 1) -> list[int]:
    """The ranks to trace, one per kind of pipeline stage: the last stage (loss), the first (embedding, most micro
    batches in flight), the second (most micro batches in flight of the inner stages), and stage `whole`, the first
    inner stage whose layers all have experts. Megatron numbers ranks stage by stage."""
    a_stage = world // pp
    inner = [stage * a_stage for stage in (1, whole) if 0 < stage < pp - 1]
    return list(dict.fromkeys([world - 1, 0, *inner]))


def traced_micro_batches(pp: int, vpp: int) -> int:
    """Number of micro batches to trace: enough to fill the pipeline and run one more micro batch, because all further
    ones have the same kernels and memory. An interleaved schedule needs a multiple of the stages."""
    return 2 * pp if vpp > 1 else pp + 1


def judged(
    found: Shadow, ranks: Sequence[Rank], error: float, beside: float, device_gib: float | None, imbalance: float
) -> Shadow:
    """Returns `found` with the conclusions from its traced `ranks` filled in. The ranks are balanced ones and, for
    models with experts, one whose experts have `imbalance` times the mean tokens. `error`: standard deviation of
    log(measured / traced)."""
    broken = next((r for r in ranks if r.verdict != "starts"), None)
    if broken is not None:
        return msgspec.structs.replace(
            found, verdict=broken.verdict, sentence=_refusal(broken), ranks=[broken, *(r for r in ranks if r != broken)]
        )
    plain = sorted((r for r in ranks if r.imbalance == 1.0), key=lambda r: -peak(r))
    tilted = [r for r in ranks if r.imbalance != 1.0]
    allocated = peak(plain[0]) / GIB
    low, high = allocated * math.exp(-SPAN * error), allocated * math.exp(SPAN * error)
    imbalanced = None
    middle, slope = allocated, 0.0
    if tilted:
        slope = (peak(tilted[0]) / GIB - allocated) / (imbalance - 1)
        imbalanced = allocated + slope * (OUT_OF_BALANCE - 1)
        high = max(high, (allocated + slope * (EARLY - 1)) * math.exp(SPAN * ERROR))
        middle = imbalanced
    reserved = plain[0].reserved / GIB
    probability = None
    if device_gib:
        room = device_gib - beside
        needed = max(reserved, middle)
        # At least 0.01, because the allocator's segments take 1 to 5 % more than the allocated bytes.
        spread = math.hypot(max(error, 0.01), slope * ROUTING_SPREAD / max(needed, 1e-9))
        probability = 0.5 * math.erfc(-math.log(max(needed, 1e-9) / max(room, 1e-9)) / spread / math.sqrt(2))
    return msgspec.structs.replace(
        found,
        verdict="starts",
        sentence=_fits(plain[0], allocated, probability, device_gib),
        ranks=[*plain, *tilted],
        allocated=allocated,
        reserved=reserved,
        low=low,
        high=high,
        imbalanced=imbalanced,
        beside=beside,
        device_gib=device_gib,
        oom_probability=probability,
    )


def peak(rank: Rank) -> int:
    """Peak bytes of the last traced step, because the first step does not have the optimizer state yet."""
    last = rank.steps[-1]
    return max(last.forward_backward, last.optimizer)


def _refusal(rank: Rank) -> str:
    if rank.verdict == "timeout":
        return f"rank {rank.rank} was not traced within the time limit; raise the limit with --timeout"
    if rank.verdict == "untraceable":
        return (
            f"rank {rank.rank} cannot be traced without a GPU: {rank.message.splitlines()[0][:300]} ({rank.where}); "
            f"measure it with `autoscout profile`"
        )
    return f"rank {rank.rank} does not start: {rank.type}: {rank.message[:600]} ({rank.where}, phase {rank.phase})"


def _fits(rank: Rank, allocated: float, probability: float | None, device_gib: float | None) -> str:
    said = f"starts; rank {rank.rank} has the highest peak, {allocated:.2f} GiB"
    if probability is None or device_gib is None:
        return said
    if probability > 0.5:
        return f"{said}, which does not fit into {device_gib:g} GiB (P(out of memory) {probability:.0%})"
    return f"{said} of {device_gib:g} GiB (P(out of memory) {probability:.0%})"
