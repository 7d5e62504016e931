"""Proposals of people, agents and scripts, as an arm of the search with a credit of experiments that it can increase.

The first ideas are tried soon after the reference, later ones where the belief expects most, as long as there is
credit. A trial is judged by its rank among the runs of the other arms: one in the better half earns credit, any other
costs up to an experiment. Experiments of the other arms refill the credit slowly, so that a proposer who is always
wrong costs a few experiments in a hundred. An idea similar to one that failed to become the best waits until another
arm proposes it.

A trial outside the better half is set aside: its row is taken, but the belief does not learn from it, and it replaces
no experiment of the search. Proposers have reasons that the belief does not know: a slow neighbour of the best
configuration, picked because it is slow, would keep the search away from there for longer than the trial took.
"""

import math
from collections.abc import Iterable
from functools import cached_property

import numpy as np

from autoscout.search.belief.surrogate import Surrogate
from autoscout.search.pool import CandidatePool
from autoscout.search.proposers import Proposal
from kb.journal import PROPOSED

_BEGINS = 1.75  # credit at the start, in typical experiments
_REFILLED = 0.01  # credit per experiment of other arms, which bounds the share spent on proposers who are wrong
_NEAR = 0.6  # two ideas are similar if they differ in less than this share of the usual number of knobs
_MOST = 3.0  # largest credit, however often the proposers were right


def proposed_by(by: str, why: str) -> str:
    return f"proposed by {by}: {why}" if why else f"proposed by {by}"


class ProposedArm:
    def __init__(self, pool: CandidatePool) -> None:
        self.credit = _BEGINS
        self.held = False  # whether a person paused the proposals
        self._pool = pool
        self._open: dict[int, str] = {}  # proposed rows without a result → who proposed them, and why
        self._known: set[int] = set()
        self._own: list[float] = []  # costs of the other arms' experiments that ran
        self._least = math.inf
        self._vain: list[int] = []  # rows of this arm's trials that did not become the best

    def add(self, row: int, by: str, why: str) -> None:
        """Adds a proposed row; if several propose the same row, the first one counts."""
        if row not in self._known:
            self._open.setdefault(row, proposed_by(by, why))

    def tell(self, row: int, cost: float | None, price: float, ours: bool) -> bool:
        """Learns from any experiment: `cost` (None: it failed, or broke a bound); `price`: what it took, in typical
        experiments; `ours`: this arm asked for it. Returns whether to set the trial aside."""
        mine = math.inf if cost is None else cost
        won, self._least = mine < self._least, min(mine, self._least)
        self._open.pop(row, None)
        self._known.add(row)
        if not ours:
            if cost is not None:
                self._own.append(mine)
            self.credit = min(self.credit + _REFILLED * price, _MOST)
            return False
        if not won:
            self._vain.append(row)
        own = np.array(self._own)
        better = float((own < mine).sum() + 0.5 * (own == mine).sum())
        rank = (better + 0.5) / (len(own) + 1) if len(own) or won else 1.0  # 0: better than all
        heard = rank < 0.5 or (won and not len(own))  # the first trial that runs also counts
        self.credit = min(self.credit - (2 * rank - 1 if heard else rank) * price, _MOST)
        return not heard

    def trials(self, pending: Iterable[int]) -> list[int]:
        """The open rows that there is credit for, in the order in which they were proposed."""
        running = sum(row in self._open for row in pending)
        if self.held or self.credit - running < 1:
            return []
        return [row for row in self._open if row not in pending and not self._answered(row)]

    def _answered(self, row: int) -> bool:
        codes = self._pool.codes
        apart = (codes[self._vain] != codes[row]).sum(axis=1)
        return bool(len(apart) and apart.min() < _NEAR * self._usual)

    @cached_property
    def _usual(self) -> float:
        """Average number of knobs in which two of the pool's rows differ."""
        codes = self._pool.codes
        shares = (np.unique(column, return_counts=True)[1] / len(codes) for column in codes.T)
        return sum(1 - float((share**2).sum()) for share in shares)

    def first(self, pending: Iterable[int]) -> Proposal | None:
        rows = self.trials(pending)
        return Proposal(rows[0], PROPOSED, 0.0, self._open[rows[0]]) if rows else None

    def trial(self, model: Surrogate, value: np.ndarray, pending: Iterable[int]) -> Proposal | None:
        """The open proposal whose (m,) `value` is largest; the oldest if none is among the model's candidates."""
        rows = self.trials(pending)
        at = np.flatnonzero(np.isin(model.candidates, rows) & (value >= 0))
        if not len(at):
            return self.first(pending)
        best = int(at[np.argmax(value[at])])
        row = int(model.candidates[best])
        return Proposal(row, PROPOSED, float(value[best]), self._open[row])
