"""What people, agents and scripts propose, as an arm of the search: it has a credit of experiments, and earns more.

A proposal is tried where the search would look far from all that it knows, which costs next to nothing whoever is
right; where the belief expects the most per device-second of it; and now and then although nothing is expected. Each
trial is paid from the credit; one that becomes the best so far is free, and what all others try refills it slowly, so
that a proposer who is always wrong costs a few experiments in a hundred. Only what was measured moves the belief.
"""

import math

import numpy as np

from autoscout.search.belief.surrogate import Surrogate
from autoscout.search.proposers import Proposal
from kb.journal import PROPOSED

_BEGINS = 2.0  # credit at the start, in typical experiments
_REFILLED = 0.02  # credit per experiment of the other arms: at most so large a share goes to those who are wrong
_MOST = 3.0  # credit at most, however often they were right


def proposed_by(by: str, why: str) -> str:
    return f"proposed by {by}: {why}" if why else f"proposed by {by}"


class ProposedArm:
    def __init__(self) -> None:
        self.credit = _BEGINS
        self.held = False  # a person wants none tried for now
        self._open: dict[int, str] = {}  # rows that were proposed and not told yet, and by whom, why
        self._known: dict[int, float] = {}  # row → its cost, inf where it failed
        self._least = math.inf

    def add(self, row: int, by: str, why: str) -> None:
        """The first who proposes a row has it."""
        if row not in self._known:
            self._open.setdefault(row, proposed_by(by, why))

    def tell(self, row: int, cost: float | None, price: float) -> None:
        """Any experiment: its cost (None: it failed, or broke a bound), and what it took in typical experiments."""
        won = cost is not None and cost < self._least
        if self._open.pop(row, None) is None:
            self.credit = min(self.credit + _REFILLED * price, _MOST)
        elif not won:
            self.credit -= price
        self._known[row] = math.inf if cost is None else cost
        self._least = min(self._least, self._known[row])

    def waits(self, pending: set[int]) -> bool:
        """Whether one is open that there is credit for."""
        running = sum(row in pending for row in self._open)
        return not self.held and len(self._open) > running and self.credit - running >= 1

    def trial(self, model: Surrogate, value: np.ndarray, pending: set[int]) -> Proposal | None:
        """If there is credit for one: the open one that the belief expects most of."""
        if not self.waits(pending):
            return None
        row = next(row for row in self._open if row not in pending)
        return self.propose(model, value) or self._proposal(row, 0.0)

    def propose(self, model: Surrogate, value: np.ndarray) -> Proposal | None:
        """The open one of the largest value, if any is among the candidates."""
        at = np.flatnonzero(np.isin(model.candidates, list(self._open)) & (value >= 0))
        if self.held or not len(at):
            return None
        best = int(at[np.argmax(value[at])])
        return self._proposal(int(model.candidates[best]), float(value[best]))

    def _proposal(self, row: int, gain: float) -> Proposal:
        return Proposal(row, PROPOSED, gain, self._open[row])
