"""Proposals of people, agents and scripts, as an arm of the search whose trials the belief chooses.

The belief, which does not know the proposers' reasons, ranks the open proposals among all candidates. The best of them
is tried if it is in the arm's share of the candidates, at first the best quarter. (After six experiments, this quarter
contains two thirds of the good proposals, and a seventh of the proposals that are among the slowest configurations.) A
trial that becomes the best doubles the share, any other one halves it, or more if it took long. So a proposer
who is always wrong is soon tried only where the belief would go next anyway. A proposal similar to one that was set
aside waits until another arm proposes it.

A trial outside the better half of the other arms' runs is set aside: it is not tried again, but neither the belief nor
the bandit learns from it, and it replaces no experiment of the search. A slow neighbour of the best configuration,
picked because it is slow, would keep the search away from there for longer than the trial took.

A trial that became the best proves its proposal right. From then on the search prefers the values of proven proposals,
knob by knob, and this preference fades, as in πBO (Hvarfner et al., "πBO", ICLR 2022). Without the fading, a proposal
that was right by luck would hide the best region.
"""

import copy
import math
from collections.abc import Iterable
from functools import cached_property

import numpy as np

from autoscout.search.belief.surrogate import Surrogate
from autoscout.search.pool import CandidatePool
from autoscout.search.proposers import Proposal
from kb.journal import PROPOSED

_SHARE, _MOST = 0.25, 0.5  # a proposal must rank in this top share of the candidates: initial; maximum
_EARLY = 4  # experiments after which the belief may choose a proposal
_RANKED = 3  # runs needed before the opening tries a proposal, and runs of other arms needed to prove it right
_NEAR = 0.6  # two proposals are similar if they differ in less than this share of the usual number of knobs
_FADING = 10  # experiments after which the preference for a proven proposal's values is halved
_EVEN = 0.2  # weight spread over all values of a knob, relative to the weight of the values of proven proposals


def proposed_by(by: str, why: str) -> str:
    return f"proposed by {by}: {why}" if why else f"proposed by {by}"


class ProposedArm:
    def __init__(self, pool: CandidatePool) -> None:
        self.share = _SHARE
        self.held = False  # whether a person paused the proposals
        self.open: dict[int, str] = {}  # proposed rows without a result → who proposed them, and why
        self.proven: list[int] = []  # rows of this arm's trials that became the best
        self._pool = pool
        self._known: set[int] = set()
        self._own: list[float] = []  # costs of the other arms' experiments that ran
        self._least = math.inf
        self._since = 0  # number of experiments at the last proof
        self._aside: list[int] = []  # rows of this arm's trials that were set aside

    def add(self, row: int, by: str, why: str) -> None:
        """Adds a proposed row; if several propose the same row, the first one counts."""
        if row not in self._known:
            self.open.setdefault(row, proposed_by(by, why))

    def tell(self, row: int, cost: float | None, price: float, ours: bool) -> bool:
        """Adds the result of an experiment of any arm; returns whether to set it aside. `cost`: None if it failed or
        broke a bound; `price`: its relative device time; `ours`: whether it is a trial of this arm."""
        mine = math.inf if cost is None else cost
        won, self._least = mine < self._least, min(mine, self._least)
        self.open.pop(row, None)
        self._known.add(row)
        if not ours:
            if cost is not None:  # running where others failed proves nothing
                self._own.append(mine)
            return False
        own = np.array(self._own)
        better = float((own < mine).sum() + 0.5 * (own == mine).sum())
        rank = (better + 1) / (len(own) + 2)  # expected rank among further runs; 0: better than all
        self.share = min(self.share * (2 if won else 0.5**price), _MOST)
        if won and len(own) >= _RANKED:
            self.proven.append(row)
            self._since = len(self._known)
        if won or rank < 0.5:
            return False
        self._aside.append(row)
        return True

    def early(self, model: Surrogate, pending: Iterable[int]) -> Proposal | None:
        """Like `trial`, but during the opening. It asks a copy of the model, so that proposals that are set aside do
        not change the search; if simulators predict bounds, it returns None, because they cannot always be copied."""
        few = len(model.tried) < _EARLY or np.count_nonzero(model.kept) < _RANKED
        if few or self.held or not self.open or len(model.foreseen):
            return None
        model = copy.deepcopy(model)
        model.update(list(pending))
        return self.trial(model, model.gain, pending)

    def trial(self, model: Surrogate, value: np.ndarray, pending: Iterable[int]) -> Proposal | None:
        """The open proposal with the largest value; None if it does not rank in this arm's top share of the candidates.
        `value`: (m,), one number per candidate."""
        rows = [row for row in self.open if not self._answered(row)]
        if self.held or not rows or any(row in self.open for row in pending):
            return None
        value = self.weighed(model, value)
        at = np.flatnonzero(np.isin(model.candidates, rows) & (value >= 0))
        if not len(at):
            return None
        best = int(at[np.argmax(value[at])])
        if np.mean(value[value >= 0] > value[best]) > self.share:
            return None
        row = int(model.candidates[best])
        return Proposal(row, PROPOSED, float(value[best]), self.open[row])

    def weighed(self, model: Surrogate, value: np.ndarray) -> np.ndarray:
        """(m,) `value`, smaller for each knob of a candidate that lacks the values of proven proposals."""
        if not self.proven:
            return value
        codes, right = self._pool.codes[model.candidates], self._pool.codes[self.proven]
        even = _EVEN / np.array([len(knob.values) for knob in self._pool.space.knobs])
        alike = (codes[:, None] == right[None]).mean(axis=1)
        faded = _FADING / (_FADING + len(self._known) - self._since)
        return np.where(value < 0, value, value * np.prod((alike + even) / (1 + even), axis=1) ** faded)

    def _answered(self, row: int) -> bool:
        codes = self._pool.codes
        apart = (codes[self._aside] != codes[row]).sum(axis=1)
        return bool(len(apart) and apart.min() < _NEAR * self._usual)

    @cached_property
    def _usual(self) -> float:
        """Average number of knobs in which two of the pool's rows differ."""
        codes = self._pool.codes
        shares = (np.unique(column, return_counts=True)[1] / len(codes) for column in codes.T)
        return sum(1 - float((share**2).sum()) for share in shares)
