"""Computes when each pipeline stage ends, by replaying its passes in Megatron-core's order (schedules.py): 1F1B, or
interleaved 1F1B with several chunks (virtual stages). Times may differ between stages and chunks; each pass waits for
its inputs."""

from collections.abc import Sequence

Seconds = Sequence[Sequence[float]]  # [stage][chunk]
_ROUNDS = 4  # rounds of pp micro batches to replay; further rounds take as long as the last one


def order(pp: int, stage: int, chunks: int, micro: int) -> list[tuple[bool, int, int]]:
    """The passes of a stage in order: (whether forward, chunk, micro batch)."""
    turns = [
        (chunk, batch)
        for first in range(0, micro, pp)
        for chunk in range(chunks)
        for batch in range(first, min(first + pp, micro))
    ]
    ahead = pp - stage - 1 if chunks == 1 else 2 * (pp - stage - 1) + (chunks - 1) * pp
    if chunks == 1:
        turns = [(0, batch) for batch in range(micro)]
    forward = [(True, chunk, batch) for chunk, batch in turns]
    backward = [(False, chunks - 1 - chunk, batch) for chunk, batch in turns]
    ahead = min(ahead, len(turns))
    found = forward[:ahead]
    for number, back in enumerate(backward):
        found += [*forward[ahead + number : ahead + number + 1], back]
    return found


def ends(
    forward: Seconds, backward: Seconds, send: float, micro: int, ready: Sequence[float], overlapped: bool
) -> list[float]:
    """(pp,) seconds at which each stage is done. `send`: seconds to send a tensor to the next stage, during which a
    stage waits unless `overlapped`. `ready`: (pp,) seconds at which each stage can begin."""
    most = _ROUNDS * len(forward)
    if micro <= most:
        return _replayed(forward, backward, send, micro, ready, overlapped)
    rest = micro - most
    whole = most + rest % len(forward)
    fewer = _replayed(forward, backward, send, whole - len(forward), ready, overlapped)
    found = _replayed(forward, backward, send, whole, ready, overlapped)
    rounds = (micro - whole) // len(forward)
    return [end + rounds * (end - before) for end, before in zip(found, fewer, strict=True)]


def _replayed(
    forward: Seconds, backward: Seconds, send: float, micro: int, ready: Sequence[float], overlapped: bool
) -> list[float]:
    pp, chunks = len(forward), len(forward[0])
    last = pp * chunks - 1
    programs = [order(pp, stage, chunks, micro) for stage in range(pp)]
    clock, at = list(ready), [0] * pp
    arrived: dict[tuple[bool, int, int], float] = {}
    left = sum(len(program) for program in programs)
    while left:
        for stage, program in enumerate(programs):
            while at[stage] < len(program):
                there, chunk, batch = program[at[stage]]
                place = chunk * pp + stage
                before = _needs(there, place, batch, last)
                if before is not None and before not in arrived:
                    break
                seconds = (forward if there else backward)[stage][chunk]
                end = max(clock[stage], arrived[before] if before else 0.0) + seconds
                sends = place < last if there else place > 0
                arrived[there, place, batch] = end + send * sends
                clock[stage] = end + send * (sends and not overlapped)
                at[stage] += 1
                left -= 1
    return clock


def _needs(there: bool, place: int, batch: int, last: int) -> tuple[bool, int, int] | None:
    """The pass whose output this pass needs, as (whether forward, virtual stage, micro batch); None for the very first
    pass."""
    if there:
        return (True, place - 1, batch) if place else None
    return (True, place, batch) if place == last else (False, place + 1, batch)
