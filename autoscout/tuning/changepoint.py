"""Finds which of n successive changes made a job slower: a bisection with noisy measurements.

    log cost of point p in pair r = level + δ [p ≥ change] + p_r + s + ε,    ε ~ N(0, σ²),  p_r ~ N(0, ρ σ²)

Point 0 is before all changes, point n after the last; each change has the same prior probability of being the cause. δ
is the slowdown, p_r an effect that is common to both runs of a pair. s is 0 except in a share of slow runs, in which it
is either the excess of the machine's second speed or has a random size; both runs of a pair may be slow together, for
example during a burst of other load. All these values are unknown. Their posterior is represented by particles, which
are reweighted by each pair (Chopin 2002) and moved by differential evolution (ter Braak 2006); given a particle, the
probability of each change follows in closed form. The next pair is the most informative about the change (probabilistic
bisection: Horstein 1963; Waeber, Frazier and Henderson 2013).
"""

import math
from collections.abc import Collection, Iterable
from typing import NamedTuple

import numpy as np

FIRST = 3  # number of first pairs, which all compare the first point with the last one
_PARTICLES = 600
_MOVES = 3  # moves of each particle after each reweighting
_KEPT = 0.5  # smallest share of effective particles after a reweighting; a pair that would leave less needs more steps
_JUMP = 0.2  # share of moves by the full difference of two particles, with which a particle can reach another mode
_TINY = 1e-300

Pair = tuple[int, int, float, float]  # the earlier and the later point, and their log costs


class _Unknowns(NamedTuple):
    """The unknowns of the model, each of shape (particles,). The priors are uniform from _LOW to _HIGH."""

    level: np.ndarray  # log cost of point 0, minus the median of the first pairs
    noise: np.ndarray  # log σ; σ is at least 2e-4, the precision of clocks
    delta: np.ndarray  # log δ; δ is at least 1 %, since noise would hide less
    drift: np.ndarray  # log ρ, from negligible drift to drift that hides everything else
    slow: np.ndarray  # square root of the share of slow runs, which makes small shares likelier a priori
    second: np.ndarray  # log of s in runs at the second speed
    own: np.ndarray  # log of the mean (and standard deviation) of s in the other slow runs
    shared: np.ndarray  # share of the second speed among slow runs
    together: np.ndarray  # probability that the runs of a pair are slow (or not) together, not independently


_LOW = np.array([-2, *np.log([2e-4, 0.01, 0.01]), 0, *np.log([0.01, 0.01]), 0, 0])
_HIGH = np.array([2, *np.log([0.3, 3.4, 100]), 0.95, *np.log([1.5, 1.5]), 1, 1])


class ChangeSearch:
    """The posterior of the change, given the measured pairs. `p`: (changes,) probability that the change is the cause;
    change k, from 0, leads from point k to point k + 1."""

    def __init__(self, changes: int, pairs: Iterable[Pair] = ()) -> None:
        self.p = np.full(changes, 1 / changes)
        self.pairs: list[Pair] = []
        self._changes = np.arange(changes)
        self._rng = np.random.default_rng(51)
        self._particles = self._rng.random((_PARTICLES, len(_LOW)))  # scaled so that 0 is _LOW and 1 is _HIGH
        for each in pairs:
            self.see(each)

    def see(self, pair: Pair) -> None:
        self.pairs.append(pair)
        if len(self.pairs) < FIRST:
            return
        logs = np.array([each[2:] for each in self.pairs])
        self._logs = logs - np.median(logs[:FIRST])
        points = np.array([each[:2] for each in self.pairs])
        after = (points[:, :, None] > self._changes).sum(axis=1)  # (pairs, changes): points after the change
        self._after = (after[:, None] == np.arange(3)[:, None]).reshape(-1, len(self._changes)).astype(float)
        share = np.ones(len(self.pairs))  # exponent of each pair's likelihood, below 1 until it is added in full
        new = slice(0 if len(share) == FIRST else -1, None)
        share[new] = 0.0
        while share[-1] < 1:
            self._reweight(share, new)
            logs = self._move(share)
        self._weights = np.exp(logs - np.logaddexp.reduce(logs, axis=1, keepdims=True)) / _PARTICLES
        self.p = self._weights.sum(axis=0)

    def _reweight(self, share: np.ndarray, new: slice) -> None:
        """Raises the exponent of the new pairs' likelihood as far as enough particles keep weight; resamples them."""
        each, more = self._of_pairs(self._particles), 1 - share[-1]
        before = _of_any(self._of_changes(each, share))
        while True:
            share[new] += more
            logs = _of_any(self._of_changes(each, share)) - before
            weights = np.exp(logs - logs.max())
            if weights.sum() ** 2 >= _KEPT * _PARTICLES * (weights**2).sum():
                break
            share[new] -= more
            more /= 2
        at = (np.arange(_PARTICLES) + self._rng.random()) / _PARTICLES * weights.sum()
        self._particles = self._particles[np.searchsorted(np.cumsum(weights), at).clip(max=_PARTICLES - 1)]

    def _move(self, share: np.ndarray) -> np.ndarray:
        """Moves each half of the particles by differences between particles of the other half. Returns (particles,
        changes): log likelihoods."""
        rng, moved = self._rng, self._particles
        logs = self._of_changes(self._of_pairs(moved), share)
        for turn in range(2 * _MOVES):
            mine, others = np.arange(turn % 2, _PARTICLES, 2), np.arange(1 - turn % 2, _PARTICLES, 2)
            one, other = moved[rng.choice(others, (2, len(mine)))]
            size = len(mine), 1
            by = np.where(rng.random(size) < _JUMP, 1.0, rng.uniform(0.2, 0.7, size))
            there = rng.random((len(mine), len(_LOW))) < rng.choice([0.3, 0.6, 1.0], size)  # unknowns that are moved
            to = moved[mine] + there * by * (one - other) + 1e-4 * rng.standard_normal(one.shape)
            to = np.abs(to)
            to = np.where(to > 1, 2 - to, to)  # reflected at the ends of the prior
            inside = (to > 0).all(axis=1)
            found = self._of_changes(self._of_pairs(np.maximum(to, 0)), share)
            better = _of_any(found) - _of_any(logs[mine])
            taken = inside & (np.log(rng.random(len(mine))) < better)
            moved[mine[taken]], logs[mine[taken]] = to[taken], found[taken]
        return logs

    def _of_pairs(self, particles: np.ndarray) -> np.ndarray:
        """(particles, pairs, 3) log likelihood of each pair in three cases: no point has the change, the later one,
        both."""
        these = _unknowns(particles)
        centre, spread, weight = _kinds(these)
        after = np.array([[0, 0], [0, 1], [1, 1]])
        off = self._logs[:, None] - after * np.exp(these.delta)[:, None, None, None] - these.level[:, None, None, None]
        (own, other, both), total = np.moveaxis(spread, -1, 0), np.zeros(off.shape[:-1])
        area = own * other - both**2
        log = np.log(weight + _TINY) - np.log(2 * math.pi * np.sqrt(area))
        for kind in range(weight.shape[1]):
            one, two = np.moveaxis(off - centre[:, kind, None, None], -1, 0)
            a, b, c = (each[:, kind, None, None] / area[:, kind, None, None] for each in (other, own, both))
            total += np.exp(log[:, kind, None, None] - 0.5 * (a * one**2 + b * two**2 - 2 * c * one * two))
        return np.log(total + _TINY)

    def _of_changes(self, of_pairs: np.ndarray, share: np.ndarray) -> np.ndarray:
        """(particles, changes): log likelihood of all pairs."""
        return (of_pairs * share[:, None]).reshape(len(of_pairs), -1) @ self._after

    def next_pair(self, broken: Collection[int] = ()) -> tuple[int, int]:
        """The two points of the next pair, without `broken` points, which do not run; at first the two ends.

        If a change is known to be the cause, the cost of every point is predicted. The next pair consists of the two
        points whose predictions vary most over the likely changes, jointly and in units of the noise: those with the
        largest determinant of the covariance of their costs."""
        changes = len(self._changes)
        if len(self.pairs) < FIRST:
            return 0, changes
        works = np.array([point for point in range(changes + 1) if point not in broken])
        these = _unknowns(self._particles)
        level, delta = self._expected(these.level), self._expected(np.exp(these.delta))
        costs = level[:, None] + delta[:, None] * (works > self._changes[:, None])  # (changes, points)
        off = np.sqrt(self.p)[:, None] * (costs - self.p @ costs)
        shared, drift = off.T @ off / np.exp(2 * these.noise).mean(), math.exp(these.drift.mean())
        own = 1 + drift + np.diag(shared)
        information = np.where(
            np.triu(np.ones_like(shared), 1) > 0, np.outer(own, own) - (drift + shared) ** 2, -np.inf
        )
        low, high = np.unravel_index(int(np.argmax(information)), information.shape)
        return int(works[low]), int(works[high])

    def slowdown(self, change: int) -> float:
        """Expected increase of the log-cost by a change, given that it is the cause."""
        return float(self._expected(np.exp(_unknowns(self._particles).delta))[change])

    def _expected(self, values: np.ndarray) -> np.ndarray:
        """(changes,) mean over the particles, given that the change is the cause."""
        return values @ self._weights / np.maximum(self.p, _TINY)


def _unknowns(particles: np.ndarray) -> _Unknowns:
    return _Unknowns(*(_LOW + particles * (_HIGH - _LOW)).T)


def _kinds(these: _Unknowns) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The kinds of pairs, by how each of the two runs is slow. Returns (particles, kinds, 2) the mean of s in the two
    runs, (particles, kinds, 3) their variances and covariance, (particles, kinds) the probability of the kind."""
    slow, together, noise = these.slow**2, these.together, np.exp(2 * these.noise)
    excess = np.exp(np.array([np.full(len(noise), -np.inf), these.second, these.own]))
    varies = excess**2 * np.array([0, 0, 1])[:, None]
    p = np.array([1 - slow, slow * these.shared, slow * (1 - these.shared)])
    none, kinds = np.zeros(len(noise)), []
    for i in range(3):
        for j in range(3):
            alike = together * p[i] if i == j else none
            alone = (1 - together) * p[i] * p[j] + (alike if i < 2 else none)
            kinds.append(((excess[i], excess[j]), (varies[i], varies[j], none), alone))
    kinds.append(((excess[2], excess[2]), (varies[2], varies[2], varies[2]), together * p[2]))
    centres, spreads, weights = zip(*kinds, strict=True)
    drift = np.exp(these.drift)
    of_noise = noise[:, None] * np.stack([1 + drift, 1 + drift, drift], axis=1)
    return (
        np.array(centres).transpose(2, 0, 1),
        np.array(spreads).transpose(2, 0, 1) + of_noise[:, None],
        np.array(weights).T,
    )


def _of_any(logs: np.ndarray) -> np.ndarray:
    """(particles,) log likelihood, summed over the changes."""
    return np.logaddexp.reduce(logs, axis=1)
