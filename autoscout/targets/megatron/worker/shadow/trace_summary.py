"""The result of a traced step: memory by kind over time, the largest storages at the peak, kernels and collectives."""

from collections import Counter
from typing import Any

from allocator import replayed
from watch import Watch, kind

KINDS = ("weights", "gradients", "optimizer", "activations", "buffers", "temporary")
POINTS = 240  # approximate number of rows of the memory timeline
LARGEST = 24  # maximum number of entries in the list of the largest storages
IN_ORDER = 20_000  # maximum number of operators and collectives that are listed in order


def of(watch: Watch) -> dict[str, Any]:
    kinds = {number: kind(*born, watch.died.get(number, "")) for number, born in watch.born.items()}
    timeline, at_peak, largest = _over_time(watch, kinds)
    left: Counter[str] = Counter()
    for _, size, number in watch.live.values():
        left[kinds.get(number, "temporary")] += size
    reserved = replayed(watch.events, float("inf")).most
    return {
        "peak": sum(at_peak.values()),
        "at_peak": at_peak,
        "largest": largest,
        "left": {name: left[name] for name in KINDS},
        "reserved": reserved,
        "timeline": timeline,
        "operators": watch.operators,
        "kernels": [[count, *what] for what, count in watch.kernels.items()],
        "collectives": [[count, *what] for what, count in watch.collectives.items()],
        "chunks": _chunks(watch),
        "order": watch.order[:IN_ORDER],
        "ordered": len(watch.order),
    }


def _chunks(watch: Watch) -> list[dict[str, list[list[Any]]]]:
    """Returns the kernels and collectives of each model chunk; [] if the stage has only one chunk."""
    found = [watch.of_chunks[chunk] for chunk in sorted(watch.of_chunks)]
    names = ("kernels", "collectives")
    made = [
        {name: [[count, *what] for what, count in counts.items()] for name, counts in zip(names, both, strict=True)}
        for both in found
    ]
    return made if len(made) > 1 else []


def _over_time(watch: Watch, kinds: dict[int, str]) -> tuple[list[list[int]], dict[str, int], list[list[Any]]]:
    """Returns (rows of [event, bytes by kind …] at the peak of each interval; bytes by kind at the overall peak; the
    largest storages at that time as [tag, kind, bytes])."""
    now: dict[str, int] = dict.fromkeys(KINDS, 0)
    total, highest, peak_at = 0, -1, 0
    stretch = max(1, len(watch.events) // POINTS)
    rows: list[list[int]] = []
    fullest: tuple[int, list[int]] = (-1, [])
    at_peak = dict(now)
    for at, (number, size) in enumerate(watch.events):
        now[kinds.get(number, "temporary")] += size
        total += size
        if total > highest:
            highest, peak_at, at_peak = total, at, dict(now)
        if total > fullest[0]:
            fullest = (total, [at, *now.values()])
        if at % stretch == stretch - 1:
            rows.append(fullest[1])
            fullest = (-1, [])
    alive: dict[int, int] = {}
    for number, size in watch.events[: peak_at + 1]:
        if size > 0:
            alive[number] = size
        else:
            alive.pop(number, None)
    by_tag: Counter[tuple[str, str]] = Counter()
    for number, size in alive.items():
        by_tag[(watch.born.get(number, ("", ""))[0], kinds.get(number, "temporary"))] += size
    largest = [[tag, what, size] for (tag, what), size in by_tag.most_common(LARGEST)]
    return rows, at_peak, largest
