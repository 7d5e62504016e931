"""Renews the candidates of a pool that only samples the space, a few at every step, so that no step takes long.

A round either adds all one-knob neighbours of the best measured and the most promising rows that are not yet expanded,
or (every third round, and if all are expanded) random rows, some drawn towards the knob values of good rows and some
drawn uniformly."""

import numpy as np

from autoscout.search import candidates
from autoscout.search.pool import CandidatePool

_BASES, _CLIMBED = 8, 4  # best rows, and promising rows, to expand (to their neighbours); most expanded per round
# _TOWARDS: random rows per round that prefer the knob values of good rows. _EVENLY: uniform rows per round, of each
# kind in `candidates.spread`. _ELITE: number of most promising candidates that count as good.
_TOWARDS, _EVENLY, _ELITE = 250, 50, 100
_NEAR, _MOVED = 150, 6  # random configurations near each of the two best; mean number of knobs in which they differ
_KEPT, _LUCK = 2_500, 1_500  # number of candidates kept: the most promising; random ones


class Renewal:
    def __init__(self, pool: CandidatePool, rng: np.random.Generator) -> None:
        self._pool, self._rng = pool, rng
        self._around: dict[int, np.ndarray] = {}  # row → its one-knob neighbours
        self._rounds = 0

    def rows(self, best: np.ndarray, promising: np.ndarray) -> np.ndarray:
        """New rows for the pool. `best`: measured rows; `promising`: candidates; each array is sorted from best to
        worst."""
        self._rounds += 1
        tops = [*best[:_BASES].tolist(), *promising[:_BASES].tolist()]
        bases = [row for row in dict.fromkeys(tops) if row not in self._around][:_CLIMBED]
        space, codes = self._pool.space, self._pool.codes
        if not bases or self._rounds % 3 == 0:
            good = codes[np.concatenate([best[:_BASES], promising[:_ELITE]])]
            few = min(_MOVED / len(space.knobs), 1.0)
            near = [candidates.towards(space, codes[row][None], _NEAR, self._rng, few) for row in best[:2]]
            drawn = candidates.towards(space, good, _TOWARDS, self._rng)
            return self._pool.add(np.concatenate([*near, drawn, candidates.spread(space, _EVENLY, self._rng)]))
        moved = [candidates.around(space, codes[row][None]) for row in bases]
        found = self._pool.add(np.concatenate(moved))
        ends = np.cumsum([len(each) for each in moved])[:-1]
        self._around |= dict(zip(bases, np.split(found, ends), strict=True))
        return np.unique(np.concatenate([found, *self._neighbours(best)]))

    def renewed(self, best: np.ndarray, looked: np.ndarray, gain: np.ndarray) -> np.ndarray:
        """Positions of the candidates `looked` (n,) to keep: those with the largest `gain`, some at random, and the
        neighbours of the best measured rows."""
        order = np.argsort(-gain, kind="stable")
        lucky = self._rng.permutation(order[_KEPT:])[:_LUCK]
        adjacent = np.flatnonzero(np.isin(looked, np.concatenate([np.zeros(0, int), *self._neighbours(best)])))
        return np.unique(np.concatenate([order[:_KEPT], lucky, adjacent]))

    def _neighbours(self, best: np.ndarray) -> list[np.ndarray]:
        return [self._around[row] for row in best[:_BASES].tolist() if row in self._around]
