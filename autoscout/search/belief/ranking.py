"""Ranks measured configurations by the model's expected cost, so that configurations whose neighbours are also good
precede those with a lucky measurement. Also shows whether the optimum is narrow or flat, by the expected costs of the
valid configurations that differ in one knob."""

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from autoscout.search.belief.encoding import Encoding
from autoscout.search.belief.outlook import worth
from autoscout.search.belief.surrogate import Surrogate
from autoscout.search.hyper import DefaultHyper
from autoscout.search.pool import CandidatePool
from autoscout.space.graph import Space
from kb.records import Configuration

_FEW = 4  # successful measurements needed to fit the model


class BelievedCost(msgspec.Struct, frozen=True):
    """The belief about one configuration. `excess`: expected log-cost (compressed, see bending.py) minus that of the
    best configuration; `deviation`: standard deviation of `excess`."""

    configuration: Configuration
    excess: float
    deviation: float


class Around(msgspec.Struct, frozen=True):
    """The neighbours of a configuration, which are the valid configurations that differ in one knob. `within`: share of
    neighbours that cost at most 5 % more; `median`: median log ratio of their costs to the configuration's, with the 95
    % interval `low` to `high`."""

    neighbours: int
    within: float
    median: float
    low: float
    high: float


class Ranking:
    """Ranks the measured configurations. `rows`: (configuration, cost or None if it failed) of each measurement;
    `doubts`: id of a configuration with a less certain cost → additional standard deviation of its log-cost; `broken`:
    measurements that broke a constraint, from which the model learns, but which are not ranked. `believed`: the
    ranking, best first."""

    def __init__(
        self,
        space: Space,
        rows: Sequence[tuple[Configuration, float | None]],
        doubts: Mapping[str, float] | None = None,
        broken: Sequence[tuple[Configuration, float]] = (),
    ) -> None:
        rng = np.random.default_rng(0)
        pool = CandidatePool(space, rng)
        measured = [*((x, c, True) for x, c in rows), *((x, c, False) for x, c in broken)]
        for configuration, _, _ in measured:
            pool.taken_in(configuration)
        self._model = Surrogate(pool, Encoding(space.knobs, pool.codes), [], DefaultHyper(), rng)
        for configuration, cost, kept in measured:
            row = pool.row(configuration)
            if row is not None:
                self._model.tell(row, cost, doubt=(doubts or {}).get(configuration.id, 0.0), kept=kept)
        self._pool = pool
        self._learned = len(self._model.costs) >= _FEW
        if self._learned:
            self._model.update([])
        self.believed = self._ranked()

    @property
    def noise(self) -> float:
        """Standard deviation of a single measured log-cost; 0 if too little was measured to fit the model."""
        return self._model.noise if self._learned else 0.0

    def _ranked(self) -> list[BelievedCost]:
        model = self._model
        if not model.costs:
            return []
        if self._learned:
            value, deviation = worth(model)
        else:
            value, deviation = np.where(model.kept, model.bent(), np.inf), np.full(len(model.rows), np.inf)
        order = [int(i) for i in np.argsort(value, kind="stable") if math.isfinite(value[i])]
        return [
            BelievedCost(
                self._pool.configuration(int(model.rows[i])), float(value[i] - value[order[0]]), float(deviation[i])
            )
            for i in order
        ]

    def around(self, configuration: Configuration) -> Around | None:
        """The configuration's neighbours; None if it has none, or if too little was measured."""
        row = self._pool.row(configuration)
        if not self._learned or row is None or row not in self._model.costs:
            return None
        near = self._pool.near(row)
        near = near[(self._pool.codes[near] != self._pool.codes[row]).sum(axis=1) == 1]
        if not len(near):
            return None
        mean, deviation = believed_of(self._model, np.append(near, row))
        excess = mean[:-1] - mean[-1]
        middle = float(np.median(excess))
        error = 1.96 * float(np.median(deviation[:-1]))
        return Around(
            neighbours=len(near),
            within=float(np.mean(excess <= math.log(1.05))),
            median=middle,
            low=middle - error,
            high=middle + error,
        )


def believed_of(model: Surrogate, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """((k,) expected compressed log-cost (bending.py), (k,) its deviation) of any rows, as of the last `update`."""
    mean, second = np.zeros(len(rows)), np.zeros(len(rows))
    for member in model.active():
        belief = model.belief_of(member, rows)
        found = member.mean.expected(rows) + member.centre + member.unit * belief.mean(model.unexpected(member))
        found, deviation = member.shared(found, member.unit * belief.deviation)
        mean += member.weight * found
        second += member.weight * (deviation**2 + found**2)
    return mean, np.sqrt(np.maximum(second - mean**2, 0))
