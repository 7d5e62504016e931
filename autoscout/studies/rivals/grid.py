"""DeepSpeed autotuning's staged grid: for each stage, first the micro batch, then all other settings in order.

According to its source, ZeRO stages are tried from the least to the most memory-saving one. In a stage, the micro batch
grows from its smallest value to a plateau (gains below 5 %). A grid over the other settings follows at its best three
values. The original ends at a stage that is not better than the previous one; in comparisons, this strategy tries all
stages, and then the remaining configurations, until the budget ends.

On AutoScout's spaces, a stage is a degree of model parallelism (tp · pp), or without these knobs a value of the first
sparse knob (or else of the first knob). The micro batch is a knob named in `_MICRO_BATCH`, or the first dense knob."""

import numpy as np

from autoscout.search.sequential import Pool, Search, rival

_MICRO_BATCH = ("mbs", "micro_batch", "micro_batch_size", "train_micro_batch_size_per_gpu")
_KEPT = 3
_PLATEAU = 0.95  # a larger micro batch must reduce the cost by 5 % to continue


def grid(pool: Pool, rng: np.random.Generator) -> Search:
    stages = _stages(pool)
    micro_batch = _micro_batch(pool)
    for stage in np.unique(stages):
        rows = np.flatnonzero(stages == stage)
        kept: list[tuple[float, int]] = []
        last = float("inf")
        for code in np.unique(pool.codes[rows, micro_batch]):
            with_it = rows[pool.codes[rows, micro_batch] == code]
            cost = yield int(with_it[np.argmin(pool.distance(pool.codes[pool.default])[with_it])])
            if cost is None:
                continue
            kept.append((cost, int(code)))
            if cost > _PLATEAU * last:
                break
            last = cost
        codes = [code for _, code in sorted(kept)[:_KEPT]]
        for row in rows[np.isin(pool.codes[rows, micro_batch], codes)]:
            yield int(row)
    for row in range(len(pool)):
        yield row


def _stages(pool: Pool) -> np.ndarray:
    """Returns the stage of each row, (n,). Stages are tried in ascending order."""
    columns = pool.space.feasible.columns()
    if "tp" in columns and "pp" in columns:
        return np.nan_to_num(columns["tp"], nan=1) * np.nan_to_num(columns["pp"], nan=1)
    first = next((j for j, knob in enumerate(pool.space.knobs) if knob.kind == "sparse"), 0)
    return pool.codes[:, first]


def _micro_batch(pool: Pool) -> int:
    names = [knob.name for knob in pool.space.knobs]
    dense = [j for j, knob in enumerate(pool.space.knobs) if knob.kind == "dense"]
    return next((names.index(name) for name in _MICRO_BATCH if name in names), dense[0] if dense else 0)


STRATEGY = rival("grid", grid)
