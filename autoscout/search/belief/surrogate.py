"""Predicts the cost of all rows by several Gaussian processes (members), one per prior mean, weighted by evidence.

    P(mean k | data) ∝ P(k) · p(y | k)        gain(x) = Σ_k P(k | data) · EI_k(x) · P(x runs)²

`gain` is the expected relative improvement (EI) over the best row's expected cost, times the squared probability of
running (chances.py). The part of a cost that no knob explains is partly noise and partly specific to the configuration;
because of the specific part, a new configuration may be better than its neighbours. Costs are used as their logarithm
above the best one, bent so that hopeless rows count nearly alike (bending.py). p(y | k) is the probability density of
the unbent log-costs, so that scales are comparable."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from autoscout.search.belief.bending import BEND, bent, slope, unbent
from autoscout.search.belief.chances import Chances
from autoscout.search.belief.encoding import EncodedRows, Encoding
from autoscout.search.belief.foreseen import Foreseen
from autoscout.search.belief.posterior import Belief, Posterior
from autoscout.search.belief.prior_means import Mean, Predictor, nothing
from autoscout.search.belief.renewal import Renewal
from autoscout.search.hyper import DefaultHyper
from autoscout.search.hypervolume import improvement
from autoscout.search.pool import CandidatePool

_WORTH = 2.0  # number of observations that a prior mean's `doubt` counts as in the scale of its residuals
_NOTHING = 0.2  # prior probability that no prior mean is right
_GROWTH = 1.25  # factor by which the data must grow to trigger a new fit and new candidates
_CANDIDATES = 5_000  # limit on candidates, the configurations whose gain is computed at every step
_RENEWED = 8  # number of steps after a fit in which the candidates of a sampled pool are renewed
_FEW, _ROUNDS = 25, 3  # without prior means and below _FEW results, candidates are renewed _ROUNDS times per step
_WORK, _LEAST = 600_000, 2_000  # covariances computed to score configurations; least number of configurations scored
_BESIDE = 6  # the other work to score a configuration takes as long as this number of covariances
_FITTED, _STEPS = 100, 30  # limits on measured rows and on optimizer steps to fit hyper-parameters
_QUICK = 50  # with more measured rows, fits are spread over several steps of the search
_HELD = 300  # limit on measured rows that the model uses
_SCORED, _AT_ONCE = 100_000, 4_000  # most rows scored to choose candidates; rows per block, to fit the cache
_KEPT = 200_000  # pools up to this size cache their encoding (400 bytes per row)
_OWN = (0.5, 2.0)  # prior of the configuration-specific share of unexplained variance: mean; weight (in repeats)
_NEGLIGIBLE = 0.02  # members with less weight are ignored


@dataclass
class _Member:
    mean: Mean
    posterior: Posterior
    belief: Belief | None = None
    centre: float = 0.0
    unit: float = 1.0
    weight: float = 0.0
    expected: np.ndarray = field(default_factory=lambda: np.zeros(0))  # (m,) means of the candidates, on the scale BEND

    def shared(self, mean: np.ndarray, deviation: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
        """Converts (mean, deviation) from this member's scale of costs to the common scale BEND."""
        common = bent(unbent(mean, self.mean.bend))
        return common, deviation * slope(common, self.mean.bend)


class Surrogate:
    def __init__(
        self,
        pool: CandidatePool,
        encoding: Encoding,
        means: list[Mean],
        hyper: DefaultHyper,
        rng: np.random.Generator,
        foreseen: Mapping[str, Predictor] | None = None,
    ) -> None:
        """`foreseen`: for each bound, a predictor of log(value / bound), see foreseen.py."""
        self.pool, self.encoding, self.rng = pool, encoding, rng
        unknown = nothing(pool)
        self.members = [  # only the scale BEND, on which costs near the best dominate, detects knobs without effect
            _Member(mean, Posterior(encoding, mean.prior, hyper.effects, drops_inert=mean.bend == BEND))
            for mean in [*unknown, *means]
        ]
        self.nothing = self.members[: len(unknown)]
        self.foreseen = Foreseen(pool, foreseen or {})
        self.chances = Chances(encoding, [m.mean for m in self.members], hyper.failures, self.foreseen)
        self._encoded = encoding.rows(pool.codes) if len(pool) <= _KEPT else None
        self.costs: dict[int, list[float]] = {}  # row → its log-costs, in the order of first measurement
        self.doubts: dict[int, float] = {}  # row → its `doubt`, see `tell`
        self.again: set[int] = set()  # rows in `costs` that were measured more than once
        self.failed: set[int] = set()  # rows that failed, or broke a constraint (these are also in `costs`)
        self.aside: set[int] = set()  # measured rows that the model ignores (search/proposed.py)
        self.wanted: Collection[int] = ()  # rows that are candidates at every step: the open proposals
        self.rows = np.zeros(0, dtype=int)  # (n,) rows in `costs` that the model uses: all, up to _HELD
        self._holding: set[int] = set()  # rows that were ever in `rows`
        self.logs = np.zeros(0)  # (n,) mean log-costs of `rows`
        self.candidates, self.gain = np.zeros(0, dtype=int), np.zeros(0)
        self._fitted_on = 0
        self._believed: list[int] = []  # rows that each member's Belief contains
        self.renewal = None if pool.complete else Renewal(pool, rng)
        self._due = self._left = 0  # number of steps left: to renew the candidates; to continue the fit

    # ---- data -------------------------------------------------------------------------------------------------------

    def tell(
        self,
        row: int,
        cost: float | None,
        full: float = np.nan,
        for_memory: bool = False,
        doubt: float = 0.0,
        over: Mapping[str, float] | None = None,
        kept: bool = True,
    ) -> None:
        """Adds a result. `full`, `for_memory`, `over`: as in chances.py. `doubt`: additional standard deviation of the
        log-cost of a run that was ended early or is from another period; a cost without doubt replaces such costs.
        `kept`: False if it broke a constraint; its cost is used, but the row does not qualify as best."""
        self._grow()
        if row not in self.failed and row not in self.costs:
            ran = cost is not None and kept
            self.chances.tell(row, self._rows(np.array([row])), ran, full, for_memory, over or {})
        if cost is None or not kept:
            self.failed.add(row)
        if cost is not None:
            if self.doubts.get(row) and not doubt:
                self.costs.pop(row)
                self.again.discard(row)
                self._fitted_on = 0  # forces a new fit, since the model used the replaced cost
            self.doubts[row] = doubt
            self.costs.setdefault(row, []).append(float(np.log(cost)))
            if len(self.costs[row]) > 1:
                self.again.add(row)
        if cost is not None and row not in self._holding:
            self._holding.add(row)
            self.rows, self.logs = np.append(self.rows, row), np.append(self.logs, np.nan)
        if cost is not None:
            self.logs[self.rows == row] = sum(self.costs[row]) / len(self.costs[row])

    def _average(self) -> None:
        self.logs = np.array([sum(self.costs[row]) / len(self.costs[row]) for row in self.rows.tolist()])

    def _hold(self) -> None:
        """Limits `rows` to _HELD: the best, the latest, and a random part of the rest. This limits a step's time, and
        costs far above the best one carry little information about it."""
        if len(self.rows) <= _HELD:
            return
        part = _HELD // 3
        best, latest = self._order()[:part], np.arange(len(self.rows))[-part:]
        others = self.rng.permutation(np.setdiff1d(np.arange(len(self.rows)), np.concatenate([best, latest])))
        held = np.unique(np.concatenate([best, latest, others[:part]]))
        self.rows = self.rows[held]
        self._average()

    @property
    def kept(self) -> np.ndarray:
        """(n,) whether each row of `rows` qualifies, because it never failed and broke no constraint."""
        return ~np.isin(self.rows, list(self.failed))

    @property
    def lowest(self) -> float:
        """Log-cost of the best measured row that qualifies (or of all rows if none does)."""
        return float(self.logs[self._order()[0]])

    def _order(self) -> np.ndarray:
        """(n,) positions in `rows`: first those that qualify, then the others, each by cost."""
        return np.lexsort((self.logs, ~self.kept))

    def bent(self, b: float = BEND) -> np.ndarray:
        """(n,) log-costs of `rows` above the best one, compressed (bending.py)."""
        return bent(self.logs - self.lowest, b)

    def unexpected(self, member: _Member) -> np.ndarray:
        """(n,) measured values minus the member's prior mean, in the member's unit."""
        return (self.bent(member.mean.bend) - member.mean.expected(self.rows) - member.centre) / member.unit

    # ---- belief -----------------------------------------------------------------------------------------------------

    def update(self, pending: list[int]) -> None:
        """Learns the results since the last call, and computes `gain` of the `candidates` as if the pending rows had
        returned their expected costs. At least one row must have run."""
        self._grow()
        rows = self.rows
        self.chances.fit()
        fits = True  # whether this step refits a model; if so, it does no other slow work
        if len(rows) >= _GROWTH * self._fitted_on or self._left or not len(self._open(pending)):
            self._hold()
            rows = self.rows
            self._refit(rows, pending)
            self._due = _RENEWED
        elif self.chances.stale(_GROWTH):
            self.chances.fit_bounds()
            self.chances.watch_bounds(self.candidates, self._rows(self.candidates))
        else:
            fits = False
        fresh = rows[len(self._believed) :].tolist()
        self._believed += fresh
        for row in [*fresh, *pending]:
            self._append(row)
        self.look(pending)
        if self.renewal is not None:
            for _ in range(_ROUNDS if len(rows) < _FEW and self._cold() else int(self._due > 0 and not fits)):
                self._renew(self.renewal, rows)
                self.look(pending)
        if missing := sorted({*self.wanted}.difference(self.candidates.tolist(), pending)):
            self._turn(np.arange(len(self.candidates)), np.array(missing))
            self.look(pending)
        for member in self._believing():
            assert member.belief is not None
            member.belief.forget(len(pending))

    def _open(self, pending: list[int]) -> np.ndarray:
        return self.candidates[~self._taken(pending)[self.candidates]]

    @property
    def tried(self) -> set[int]:
        return self.costs.keys() | self.failed

    def _taken(self, pending: list[int]) -> np.ndarray:
        taken = np.zeros(len(self.pool), dtype=bool)
        taken[[*self.tried, *self.aside, *pending]] = True
        return taken

    @property
    def trust(self) -> float:
        """The probability that a simulator needs no correction."""
        return sum(m.weight for m in self.members if m.mean.close)

    def _believing(self) -> list[_Member]:
        """Members with a Belief to update: the active ones, and those that outlook.py uses."""
        return [m for m in self.members if m.belief is not None]

    def active(self) -> list[_Member]:
        return [m for m in self._believing() if m.weight]

    def _refit(self, rows: np.ndarray, pending: list[int]) -> None:
        encoded = self._rows(rows)
        order = self._order()
        fitted_on = np.sort(np.concatenate([order[: _FITTED // 2], order[_FITTED // 2 :][:: len(rows) // _FITTED + 1]]))
        believed = sum(m.weight > 0 for m in self.members) or len(self.members)
        steps = _STEPS if len(fitted_on) <= _QUICK else _STEPS // believed
        self._left = self._left - 1 if self._left else 0 if steps == _STEPS else believed - 1
        for member in self.members:
            y = self.bent(member.mean.bend) - member.mean.expected(rows)
            member.centre = float(y.mean())
            scatter = ((y - member.centre) ** 2).sum() + _WORTH * member.mean.doubt**2
            member.unit = float(np.sqrt(scatter / (len(y) + _WORTH)))
            z = member.mean.z[rows] / member.unit
            vague = self._vague(rows) / member.unit**2
            at = fitted_on  # a subset, since a fit is O(n³)
            scaled = (y - member.centre) / member.unit
            most = steps if member.weight or not self._fitted_on else min(steps, _STEPS // 3)
            member.posterior.fit(encoded[at], scaled[at], z[at], member.mean.spread, vague[at], most)
        if not self._fitted_on:  # later fits of the bounds are steps of their own
            self.chances.fit_bounds()
        self._weigh(fitted_on)
        self._believed = [int(row) for row in rows]
        if self.pool.complete or not len(self._open(pending)):
            if len(self.pool) > _CANDIDATES:
                self._choose_candidates(rows, pending)
            else:
                self.candidates = np.arange(len(self.pool))
        self.candidates = self._open(pending)
        for member in self.members:
            member.belief = self.belief_of(member, self.candidates) if member.weight else None
        self.chances.watch(self.candidates, self._rows(self.candidates))
        self._fitted_on = len(rows)

    def _weigh(self, fitted_on: np.ndarray) -> None:
        above, few = float(np.maximum(self.logs[fitted_on] - self.lowest, 0).sum()), len(self.nothing)
        stretched = np.array([len(fitted_on) * np.log(m.unit) + above / m.mean.bend for m in self.members])
        evidence = np.array([m.posterior.evidence for m in self.members]) - stretched
        if others := len(self.members) - few:
            evidence += np.log([_NOTHING / few] * few + [(1 - _NOTHING) / others] * others)
        weights = np.exp(evidence - evidence.max())
        weights[weights < _NEGLIGIBLE * weights.sum()] = 0.0
        for member, weight in zip(self.members, weights / weights.sum(), strict=True):
            member.weight = float(weight)

    def _choose_candidates(self, rows: np.ndarray, pending: list[int]) -> None:
        """Sets the candidates: the most promising rows, the neighbours of the two best, and some random rows."""
        n = len(self.pool)
        at_once = _WORK // ((len(rows) + _BESIDE) * max(sum(m.weight > 0 for m in self.members), 1))
        most, few = int(np.clip(at_once, _LEAST, _SCORED)), int(np.clip(at_once, _LEAST, _CANDIDATES))
        looked = np.arange(n) if n <= most else self.rng.choice(n, most, replace=False)
        if len(self.gain) == len(self.candidates) < n:  # also score the most promising candidates again
            looked = np.union1d(looked, self.candidates[np.argsort(-self.gain, kind="stable")[: few // 2]])
        gain = self._scored(looked, pending)
        promising = looked[np.argsort(-gain, kind="stable")[: few * 5 // 8]]
        around = [self.pool.near(int(row)) for row in rows[self._order()[:2]]]
        at_random = self.rng.choice(n, few * 3 // 8, replace=False)
        self.candidates = np.unique(np.concatenate([promising, *around, at_random]))

    def _cold(self) -> bool:
        """Whether no prior mean predicts costs."""
        return not any(m.mean.z.shape[1] for m in self.members)

    def _renew(self, renewal: Renewal, rows: np.ndarray) -> None:
        """Replaces part of the candidates by new rows."""
        self._due = max(self._due - 1, 0)
        best = rows[self._order()]
        promising = self.candidates[np.argsort(-self.gain, kind="stable")]
        looked = renewal.rows(best, promising)
        self._grow()
        kept = renewal.renewed(best, self.candidates, self.gain)
        self._turn(kept, np.setdiff1d(looked, self.candidates[kept]))

    def _turn(self, kept: np.ndarray, fresh: np.ndarray) -> None:
        """Keeps the candidates at `kept` (positions), appends fresh ones, and extends the beliefs to them."""
        for member in self._believing():
            assert member.belief is not None
            member.belief.turn(kept, self._member_features(member, fresh))
        self.chances.turn(kept, fresh, self._rows(fresh))
        self.candidates = np.concatenate([self.candidates[kept], fresh])

    def _grow(self) -> None:
        """Extends the encoding and every prior mean to rows that were added to the pool."""
        if self._encoded is not None and len(self._encoded) < len(self.pool):
            fresh = self.encoding.rows(self.pool.codes[len(self._encoded) :])
            self._encoded = EncodedRows(
                np.concatenate([self._encoded.points, fresh.points]),
                np.concatenate([self._encoded.effects, fresh.effects]),
            )
        for member in self.members:
            member.mean.grow(self.pool)

    def _scored(self, looked: np.ndarray, pending: list[int]) -> np.ndarray:
        gain, runs = np.empty(len(looked)), 0.0
        for at in range(0, len(looked), _AT_ONCE):
            self.candidates = looked[at : at + _AT_ONCE]
            for member in self.members:
                member.belief = self.belief_of(member, self.candidates) if member.weight else None
            self.chances.watch(self.candidates, self._rows(self.candidates))
            self.look(pending)
            gain[at : at + _AT_ONCE] = self.gain
            runs += float(np.count_nonzero(self.runs > 0.5))
        self.chances.fails = 1 - runs / len(looked)
        return gain

    def belief_of(self, member: _Member, candidates: np.ndarray) -> Belief:
        believed = np.array(self._believed, dtype=int)
        measured, vague = self._member_features(member, believed), self._vague(believed) / member.unit**2
        return Belief(member.posterior, measured, self._member_features(member, candidates), vague)

    def _vague(self, rows: np.ndarray) -> np.ndarray:
        """(k,) additional noise variance of the rows' log-costs."""
        return np.array([self.doubts.get(int(row), 0.0) ** 2 for row in rows])

    def _member_features(self, member: _Member, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return member.posterior.features(self._rows(rows), member.mean.z[rows] / member.unit, member.mean.spread)

    def _append(self, row: int) -> None:
        for member in self._believing():
            assert member.belief is not None
            vague = self.doubts.get(row, 0.0) ** 2 / member.unit**2
            member.belief.append(self._member_features(member, np.array([row])), vague)

    def _rows(self, rows: np.ndarray) -> EncodedRows:
        return self.encoding.rows(self.pool.codes[rows]) if self._encoded is None else self._encoded[rows]

    # ---- what is expected -------------------------------------------------------------------------------------------

    def look(self, pending: list[int], times: float = 1.0) -> None:
        """Computes the candidates' `gain`, `mean` (log-cost above the best, compressed) and `deviation`. `times`:
        factor on the deviations in `gain`, to compensate for overconfidence."""
        own, added = self.unexplained()
        kept = self.kept if self.kept.any() else np.ones(len(self.rows), dtype=bool)
        self.gain, self.mean, second = np.zeros((3, len(self.candidates)))
        self.least = 0.0
        for member in self.active():
            assert member.belief is not None
            measured, belief = self.bent(member.mean.bend), member.belief
            y = belief.completed(self.unexpected(member))
            offset = member.mean.expected(self.candidates)
            mean = offset + member.centre + member.unit * belief.mean(y)
            deviation = member.unit * belief.deviation
            here = member.mean.expected(self.rows) + member.centre + member.unit * belief.fitted(y)[: len(measured)]
            here += own / (own + added) * (measured - here)
            best = float(here[kept].min())
            self.least += member.weight * best
            promised = improvement(mean, times * np.sqrt(deviation**2 + own), best)
            if member.posterior.inert.any():
                # During `update`, and only then, the belief also contains the pending rows.
                rows = np.array([*self.rows, *pending], dtype=int)[: len(belief.measured[0])]
                known = np.where(np.isin(rows, list(self.failed)), np.nan, member.mean.expected(rows))
                promised = promised * belief.new(offset, known)
            self.gain += member.weight * promised
            member.expected, deviation = member.shared(mean, deviation)
            self.mean += member.weight * member.expected
            second += member.weight * (deviation**2 + member.expected**2)
        self.deviation = np.sqrt(np.maximum(second - self.mean**2, 0))
        self.runs = self.chances.chance(self.candidates, self.gain)
        if 2 * len(self.candidates) > len(self.pool):
            self.chances.fails = float(np.mean(self.runs < 0.5))
        self.gain = self.chances.weighed(self.gain, self.runs, len(self.tried), len(self.failed))
        self.gain[self._taken(pending)[self.candidates]] = -1.0

    def unexplained(self) -> tuple[float, np.ndarray]:
        """(variance of the part of log-costs that is specific to a configuration but not explained by knobs, (n,) noise
        variance of the measured rows' means). Unlike noise, the former is equal in repeated measurements."""
        share, worth = _OWN
        scatter = sum(float(np.var(self.costs[row])) * len(self.costs[row]) for row in self.again)
        count = np.array([len(self.costs[row]) for row in self.rows.tolist()])
        once = (worth * (1 - share) * self.noise**2 + scatter) / (worth + int(count.sum()) - len(count))
        return max(self.noise**2 - once, 0.05 * once), once / count + self._vague(self.rows)

    def corner(self, row: int) -> tuple[float, float] | None:
        """(expected log-cost, standard deviation) of a row at the last `update`; measured rows have the deviation 0.
        None for rows that do not qualify or are not candidates."""
        if row in self.failed:
            return None
        if row in self._believed:
            return self.log_cost(float(self.believed_costs()[self._believed.index(row)])), 0.0
        at = np.flatnonzero(self.candidates == row)
        if not len(at):
            return None
        return self.log_cost(float(self.mean[at[0]])), float(self.deviation[at[0]])

    def log_cost(self, bent: float) -> float:
        return float(self.lowest + unbent(np.array(bent)))

    @property
    def noise(self) -> float:
        """Standard deviation of a single measured log-cost, by the member with the largest weight."""
        most = max(self.members, key=lambda m: m.weight)
        return most.posterior.theta.noise * most.unit

    def believed_costs(self) -> np.ndarray:
        """(n,) expected log-cost above the best, compressed (bending.py), of the rows measured at the last `update`."""
        n = len(self._believed)
        found = np.zeros(n)
        for member in self.active():
            assert member.belief is not None
            expected = member.mean.expected(self.rows[:n]) + member.centre
            here = expected + member.unit * member.belief.fitted(self.unexpected(member)[:n])
            found += member.weight * member.shared(here, 0.0)[0]
        return found
