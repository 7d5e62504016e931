"""Simulates users who propose configurations, to measure the gain and the risk of trying proposals
(search/proposed.py). The kinds of proposals are:

    good      every third proposal is similar to the best configuration and nearly as fast; all others are random
    random    random configurations
    worst     the slowest hundredth of the configurations that run
    failing   the failing configurations most similar to the best one; if none fails, the slowest neighbours of the best
"""

import numpy as np

from autoscout.job.words import nearest_name
from autoscout.search.strategy import Proposed
from autoscout.studies.bench.landscape import Landscape
from kb.records import AutoscoutError

KINDS = ("good", "random", "worst", "failing")
_COUNT, _RIGHT = 6, 3  # number of proposals; one in _RIGHT proposals of kind `good` is near the best
_REGION = 0.1  # largest relative excess over the best cost that counts as near the best
_WORST, _LEAST = 0.01, 6  # share of the configurations that count as the worst; minimum number of rows to choose from
_NEAR = 50  # number of neighbours of the best configuration to choose from


def hinted(name: str) -> str:
    """The kind of proposals in a strategy's name ("autoscout@worst"), or "". Errors: AutoscoutError (exit 2)."""
    kind = name.partition("@")[2]
    if kind and kind not in KINDS:
        raise AutoscoutError(f"{name}: '{kind}'{nearest_name(kind, KINDS)}", 2)
    return kind


def hints(landscape: Landscape, kind: str, seed: int) -> list[Proposed]:
    """The proposals of the given kind, made before anything is measured."""
    if not kind:
        return []
    rng = np.random.default_rng((seed, 3))
    cost = landscape.truth if landscape.goal == "min" else -landscape.truth
    order = np.argsort(cost, kind="stable")  # failures (NaN) come last
    ran = int(np.isfinite(cost).sum())
    few = max(int(_WORST * ran), _LEAST)
    codes = landscape.space.feasible.codes
    apart = (codes != codes[order[0]]).sum(axis=1)
    anywhere = rng.permutation(len(order))[:_COUNT]
    if kind == "good":
        steps = apart[order[1:ran]] + 100 * (np.abs(cost / cost[order[0]] - 1)[order[1:ran]] > _REGION)
        region = order[1:ran][np.argsort(steps, kind="stable")][: max(int((steps <= 2).sum()), _LEAST)]
        right = rng.permutation(region)[: _COUNT // _RIGHT]
        rows = rng.permutation([*right, *anywhere[: _COUNT - len(right)]])
    elif kind == "worst":
        rows = rng.permutation(order[:ran][-few:])[:_COUNT]
    elif kind == "failing":
        if ran < len(order):
            rows = order[ran:][np.argsort(apart[order[ran:]], kind="stable")][:_COUNT]
        else:
            near = np.argsort(apart, kind="stable")[1 : 1 + _NEAR]
            rows = near[np.argsort(-cost[near], kind="stable")][:_COUNT]
    else:
        rows = anywhere
    of = landscape.space.feasible.configuration
    return [Proposed(configuration=of(int(row)), by="a colleague", why=kind) for row in rows]
