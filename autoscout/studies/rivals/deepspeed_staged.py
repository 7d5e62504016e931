"""The whole procedure of DeepSpeed's autotuner: for each ZeRO stage, first the micro batch, then all other settings.

According to its source (autotuning/autotuner.py), it starts with the stage that shards least. It tries the smallest
micro batch, then the largest. If that fails, a binary search finds the largest size that runs, and ends early if a
larger size gains less than 5 %. At most three more sizes are tried, from half of the largest size up. (The original
also tries smaller sizes as long as each gains 5 %, which is omitted here.) Then `gridsearch` tries the other settings
at these sizes, unless the stage's best is no better than the previous stage's. A stage whose largest micro batch is
smaller than the previous stage's ends the search. (The original's mode "fast" omits `gridsearch`.)

Only micro batch sizes in the space are tried. With a fixed global batch, these are its divisors. The metric is 1 /
cost."""

from collections.abc import Generator, Sequence

import numpy as np

from autoscout.search.sequential import Pool, Search, rival
from autoscout.studies.rivals.deepspeed_grid import until_no_gain

GAIN = 0.05  # relative gains below this count as none
KEPT = 3  # maximum number of micro batch sizes that are tried in addition to the largest
_MICRO = ("mbs", "micro_batch", "train_micro_batch_size_per_gpu")
_STAGE = ("stage", "zero", "zero_stage")

Trial = Generator[int, float | None, tuple[int, int]]  # yields a micro batch and is sent its metric (None: failed)


def staged(pool: Pool, rng: np.random.Generator) -> Search:
    micro, stage = _column(pool, _MICRO), _column(pool, _STAGE)
    stages = np.unique(pool.codes[:, stage]) if stage is not None else np.array([0])
    before_most, before_best = 0, float("inf")
    for code in stages:
        rows = np.flatnonzero(pool.codes[:, stage] == code) if stage is not None else np.arange(len(pool))
        if micro is None:
            yield from until_no_gain(pool, rows)
            continue
        by_size = _plainest(pool, rows, micro)
        sizes = sorted(by_size)
        costs: dict[int, float | None] = {}
        search = runs_and_pays(sizes)
        size = next(search)
        while True:
            cost = costs[size] = yield by_size[size]
            try:
                size = search.send(None if cost is None else 1 / cost)
            except StopIteration as found:
                most = found.value[1]
                break
        if most < before_most:
            return
        kept = worth_more(sizes, most)
        for size in kept:
            if size not in costs:
                costs[size] = yield by_size[size]
        best = min((c for c in costs.values() if c is not None), default=float("inf"))
        if best < before_best:
            values = np.array(pool.space.knobs[micro].values, dtype=float)
            inside = rows[np.isin(values[pool.codes[rows, micro]], kept)]
            yield from until_no_gain(pool, inside)
        before_most, before_best = most, min(before_best, best)


def runs_and_pays(sizes: Sequence[int]) -> Trial:
    """Returns (smallest, largest micro batch that runs); (0, 0) if the smallest fails. The search for the largest ends
    early when a larger size gains less than GAIN."""
    least = yield sizes[0]
    if least is None:
        return 0, 0
    if len(sizes) == 1 or (yield sizes[-1]) is not None:
        return sizes[0], sizes[-1]
    low, high, before, most = 1, len(sizes) - 2, least, sizes[0]
    while low <= high:
        middle = (low + high) // 2
        metric = yield sizes[middle]
        if metric is None:
            high = middle - 1
            continue
        low, most = middle + 1, sizes[middle]
        if metric < before * (1 + GAIN):
            break
        before = metric
    return sizes[0], most


def worth_more(sizes: Sequence[int], most: int) -> list[int]:
    """Returns the sizes to try: up to KEPT sizes from half of `most` up, at a constant stride, and `most` itself."""
    upper = [size for size in sizes if most // 2 <= size < most]
    stride = max(-(-len(upper) // KEPT), 1)
    return [*upper[::stride], *([most] if most else [])]


def _plainest(pool: Pool, rows: np.ndarray, micro: int) -> dict[int, int]:
    """Returns, for each micro batch size, the row with this size that is otherwise nearest to the default."""
    far = pool.distance(pool.codes[pool.default])[rows]
    values, codes = pool.space.knobs[micro].values, pool.codes[rows, micro]
    return {int(values[c]): int(rows[codes == c][np.argmin(far[codes == c])]) for c in np.unique(codes) if c >= 0}


def _column(pool: Pool, names: Sequence[str]) -> int | None:
    known = [knob.name for knob in pool.space.knobs]
    found = next((known.index(name) for name in names if name in known), None)
    numbers = found is not None and all(isinstance(v, int) for v in pool.space.knobs[found].values)
    return found if numbers else None


STRATEGY = rival("deepspeed-staged", staged, finite=True)
