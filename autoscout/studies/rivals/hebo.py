"""HEBO (Cowen-Rivers et al. 2022): Gaussian process on warped inputs and outputs, several acquisitions at once.

Every knob is an integer (dense) or a category (sparse) of a flat space; a proposal goes to the nearest valid
configuration. HEBO has no notion of failures: they are told as twice the worst cost.
"""

import numpy as np

from autoscout.search.sequential import Pool, Search, rival

_FAILED = 2.0


def hebo_gp(pool: Pool, rng: np.random.Generator) -> Search:
    from hebo.design_space.design_space import DesignSpace  # type: ignore[import-not-found]
    from hebo.optimizers.hebo import HEBO  # type: ignore[import-not-found]

    acting = [j for j, levels in enumerate(pool.levels) if levels > 1]
    names = {j: pool.space.knobs[j].name for j in acting}
    space = DesignSpace().parse(
        [
            {"name": names[j], "type": "int", "lb": 0, "ub": pool.levels[j] - 1}
            if pool.space.knobs[j].kind == "dense"
            else {"name": names[j], "type": "cat", "categories": list(range(pool.levels[j]))}
            for j in acting
        ]
    )
    optimizer = HEBO(space, scramble_seed=int(rng.integers(2**31)))
    while True:
        suggestion = optimizer.suggest(n_suggestions=1)
        codes = np.zeros(len(pool.levels), dtype=int)
        for j in acting:
            codes[j] = int(suggestion[names[j]].iloc[0])
        cost = yield pool.nearest(codes)
        _, told = pool.costs(_FAILED)  # the one that failed is among them
        optimizer.observe(suggestion, np.array([[float(told.max()) if cost is None else cost]]))


HOW = "HEBO 0.3.6 pins NumPy below 1.25, with which AutoScout does not run; other versions are not tried"
STRATEGY = rival(
    "hebo",
    hebo_gp,
    packages=("hebo",),
    how=HOW,
)
