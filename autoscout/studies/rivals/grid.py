"""DeepSpeed autotuning's staged grid: stage by stage, first the micro batch, then everything else in order.

From its source: ZeRO stages are tried from the least to the most memory-saving. Within one, the micro batch grows from
its smallest value until it reaches a plateau (5 %), and the best three values are kept; the grid over the other options
follows at those ("fast mode" stops before it). A stage that is not better than the previous one would end the tuning;
comparisons use up the budget, through the stages and then through what the stages left out.

On our spaces, a stage is a degree of splitting the model (tp · pp), or a value of the first sparse knob (else the first
knob) if there are no such knobs. The micro batch is the knob of that name, else the first dense one.
"""

import numpy as np

from autoscout.search.sequential import Pool, Search, rival

_MICRO_BATCH = ("mbs", "micro_batch", "micro_batch_size", "train_micro_batch_size_per_gpu")
_KEPT = 3
_PLATEAU = 0.95  # a larger micro batch must be 5 % better to go on


def grid(pool: Pool, rng: np.random.Generator, fast: bool = False) -> Search:
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
        if not fast:
            codes = [code for _, code in sorted(kept)[:_KEPT]]
            for row in rows[np.isin(pool.codes[rows, micro_batch], codes)]:
                yield int(row)
    if not fast:
        for row in range(len(pool)):
            yield row


def _stages(pool: Pool) -> np.ndarray:
    """(n,) the stage of each row; stages are tried in ascending order."""
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
