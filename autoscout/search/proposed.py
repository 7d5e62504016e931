"""An arm of the search for configurations proposed by people, agents and scripts. It has a credit of experiments, which
successes increase.

The first proposal is tried soon after the reference; later ones in the order of the model's expected gain, as long as
there is credit. A trial is ranked among the runs of the other arms: if it is in the better half it earns credit,
otherwise it costs up to one experiment. Experiments of other arms refill the credit slowly, so that a proposer who is
always wrong costs a few percent of all experiments. A proposal similar to one that did not become the best is not
tried, unless another arm proposes it.

A trial outside of the better half is set aside: it is not tried again, but the model does not learn from it. Proposers
have reasons that the model does not know; for example, a slow neighbour of the best configuration, proposed because it
is slow, would keep the search away from that region for longer than the trial took. The constants were checked with
simulated proposers (studies/bench/hints.py)."""

import math
from collections.abc import Iterable
from functools import cached_property

import numpy as np

from autoscout.search.belief.surrogate import Surrogate
from autoscout.search.pool import CandidatePool
from autoscout.search.proposers import Proposal
from kb.journal import PROPOSED

_BEGINS = 1.75  # initial credit, in typical experiments
_REFILLED = 0.01  # credit per experiment of other arms, which limits the cost of wrong proposers
_NEAR = 0.6  # proposals are similar if they differ in less than this share of the average number of knobs
_MOST = 3.0  # limit on the credit


def proposed_by(by: str, why: str) -> str:
    return f"proposed by {by}: {why}" if why else f"proposed by {by}"


class ProposedArm:
    def __init__(self, pool: CandidatePool) -> None:
        self.credit = _BEGINS
        self.held = False  # whether a person has paused proposals
        self._pool = pool
        self._open: dict[int, str] = {}  # proposed row without a result → description of its proposer and reason
        self._known: set[int] = set()
        self._own: list[float] = []  # costs of the other arms' experiments that ran
        self._least = math.inf
        self._vain: list[int] = []  # rows tried by this arm that did not become the best

    def add(self, row: int, by: str, why: str) -> None:
        if row not in self._known:
            self._open.setdefault(row, proposed_by(by, why))

    def tell(self, row: int, cost: float | None, price: float, ours: bool) -> bool:
        """Adds the result of an experiment of any arm; returns whether to set it aside. `cost`: None if it failed or
        broke a bound; `price`: relative to a typical experiment; `ours`: whether it is a trial of this arm."""
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
        rank = (better + 0.5) / (len(own) + 1) if len(own) or won else 1.0  # 0: the best
        heard = rank < 0.5 or (won and not len(own))  # or the first run
        self.credit = min(self.credit - (2 * rank - 1 if heard else rank) * price, _MOST)
        return not heard

    def trials(self, pending: Iterable[int]) -> list[int]:
        """The proposed rows that may be tried, oldest first; empty without credit for one more experiment."""
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
        """Mean number of knobs in which two random rows of the pool differ."""
        codes = self._pool.codes
        shares = (np.unique(column, return_counts=True)[1] / len(codes) for column in codes.T)
        return sum(1 - float((share**2).sum()) for share in shares)

    def first(self, pending: Iterable[int]) -> Proposal | None:
        rows = self.trials(pending)
        return Proposal(rows[0], PROPOSED, 0.0, self._open[rows[0]]) if rows else None

    def trial(self, model: Surrogate, value: np.ndarray, pending: Iterable[int]) -> Proposal | None:
        """The proposal to try next: the one with the largest `value` (m,), or the oldest if none is among the model's m
        candidates; None without credit."""
        rows = self.trials(pending)
        at = np.flatnonzero(np.isin(model.candidates, rows) & (value >= 0))
        if not len(at):
            return self.first(pending)
        best = int(at[np.argmax(value[at])])
        row = int(model.candidates[best])
        return Proposal(row, PROPOSED, float(value[best]), self._open[row])
