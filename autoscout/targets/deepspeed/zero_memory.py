"""Memory of a rank by ZeRO stage, and the micro batches that are worth trying: the formulas of DeepSpeed's autotuner.

Adam: weights and gradients 4 bytes a parameter (2 in half precision), the optimizer's state 8 (16: with the master
weights). From stage 1 on the state, from 2 on the gradients, from 3 on the weights are divided by the ranks.
"""

from collections.abc import Callable, Sequence

PLATEAU = 0.05  # less than that is no gain


def needed_bytes(params: int, stage: int, ranks: int, half: bool = False, mp_size: int = 1) -> float:
    """Of a rank, before any activation."""
    weights = gradients = params * (2.0 if half else 4.0)
    state = params * (16.0 if half else 8.0)
    return (
        weights / (ranks if stage >= 3 else 1)
        + gradients / (ranks if stage >= 2 else 1)
        + state / (ranks if stage >= 1 else 1)
    ) / mp_size


def largest_micro_batch(memory: float, needed: float, activation: float) -> int:
    """What fits by calculation: `activation` bytes a sample; 0 if the model itself does not."""
    if memory <= needed + activation:
        return 0
    return int((memory - needed) // activation) if activation > 0 else 2**30


def stages_that_fit(params: int, activation: float, memory: float, ranks: int, half: bool = False) -> list[int]:
    """In the order of trying: stage 0 first, which communicates least."""
    return [s for s in range(4) if memory > needed_bytes(params, s, ranks, half) + activation]


def runnable_and_worth(run: Callable[[int], float | None], least: int, calculated: int, most: int) -> tuple[int, int]:
    """(smallest, largest) micro batch that runs, the largest no larger than pays: (0, 0) if the smallest does not run.

    `run` yields a metric, higher is better, or None for a run that failed. First 5 % more than calculated, that, and
    5 % less; where none of them runs, a binary search, which ends early when a larger one gains less than 5 %."""
    seen: dict[int, float | None] = {}

    def metric(micro: int) -> float | None:
        if micro not in seen:
            seen[micro] = run(micro)
        return seen[micro]

    if metric(least) is None:
        return 0, 0
    top = min(calculated, most)
    for micro in dict.fromkeys((-(-top * 105 // 100), top, top * 95 // 100)):
        if least <= micro <= most and metric(micro) is not None:
            return least, micro
    low, high, before = least, max(top, least), metric(least)
    while low <= high:
        middle = (low + high) // 2
        known = middle in seen
        found = metric(middle)
        if found is None:
            high = middle - 1
            continue
        low = middle + 1
        if not known and before and (found - before) / before < PLATEAU:
            break
        before = found
    return least, max(low - 1, least)


def micro_batches(least: int, most: int, batch: int, count: int) -> list[int]:
    """At most `count` + 1 of them in the upper half, by a constant stride; `batch` samples of a rank a step. Those that
    need as many accumulation steps as the largest are left out: they do the same with less."""
    if least <= 0 or most <= 0:
        return []
    least = max(least, most // 2)
    stride = max((most - least) // count, 1)
    fewest = batch // most
    return [*(m for m in range(least, most, stride) if batch // m != fewest), most]


def smaller_with_same_steps(run: Callable[[int], float | None], sizes: Sequence[int]) -> int:
    """The largest of `sizes` may be slow, as memory is nearly full: smaller ones above the next size down, as long as
    each gains 5 %."""
    largest = sizes[-1]
    least = sizes[-2] + 1 if len(sizes) > 1 else 1
    best, metric = largest, run(largest) or 0.0
    for micro in reversed(range(least, largest, max((largest - least) // 3, 1))):
        found = run(micro)
        if found is None or found <= metric * (1 + PLATEAU):
            break
        best, metric = micro, found
    return best


def first_that_pays(metrics: Sequence[tuple[int, float]]) -> int:
    """By growing micro batch: the last before the gain is less than 5 %."""
    before: tuple[int, float] | None = None
    for micro, metric in sorted(metrics):
        if before is not None and metric < before[1] * (1 + PLATEAU):
            return before[0]
        before = (micro, metric)
    return before[0] if before else 0
