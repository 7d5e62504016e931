"""AutoScout's default strategy: the paper's bandit chooses among the proposers MODEL, SPARSE and DENSE (its arms),
which all use one probabilistic model of the whole space, the belief.

    tell ──► model (posterior over all valid configurations) ──► MODEL ┐
                 │ gains                                       SPARSE ├─► bandit ──► ask
                 └─ tournament of orderings ──► tree ─────────► DENSE ┘

Experiments come in this order: first the reference; then a few configurations far from each other or, with prior means
(predictions of simulators or past jobs), those predicted to be best; then in each step the proposal of the arm that the
bandit chooses. The session re-measures the best configurations at the end.

Rewards are the paper's difference of differences (§3.3) on a 2×2 grid: the structure (values of the sparse knobs) of
the base (the best row so far) or of the proposal, combined with the dense point (values of the dense knobs) of either.
c_bc is the cost of the base's structure with the proposal's dense point. Base and proposal are measured; the two mixed
corners come from the posterior unless they were measured, and the journal records their error:

    Δ_sparse = ½ [(c_bb − c_cb) / c_bb + (c_bc − c_cc) / c_bc]
    Δ_dense  = ½ [(c_bb − c_bc) / c_bb + (c_cb − c_cc) / c_cb]
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from autoscout.job.objective import cost_of_run, costs, costs_of_run
from autoscout.search.bandit import UCB1, improvements, mean_improvement
from autoscout.search.belief.bending import bent
from autoscout.search.belief.by_value import by_value
from autoscout.search.belief.encoding import Encoding
from autoscout.search.belief.limits import beyond
from autoscout.search.belief.outlook import best_row, look_unaided, outlook, worth
from autoscout.search.belief.peaks import failed_for_memory, fullness
from autoscout.search.belief.prior_means import Mean, Predictor, hypotheses, of_past, of_simulator
from autoscout.search.belief.spending import Spending
from autoscout.search.belief.surrogate import Surrogate
from autoscout.search.candidates import as_costs, favourites
from autoscout.search.hyper import DefaultHyper, hyper_as
from autoscout.search.pool import CandidatePool
from autoscout.search.proposed import PROPOSED, ProposedArm
from autoscout.search.proposers import DenseArm, Proposal, SparseArm, by_model
from autoscout.search.strategy import Kind, Proposed, Search
from autoscout.search.threads import one_thread
from autoscout.search.tournament import completed, ranked
from autoscout.search.trade import Trade
from kb.journal import Believed, Decided, Event, Outlook, Rewarded, TournamentRanked
from kb.records import Configuration, Measurement

_OUTLOOK, _AHEAD, _MARGIN = 5, 10, 0.01  # experiments between gain forecasts; their horizon; smallest gain that counts
_FAVOURITES = 1_000  # best predictions per simulator to add to a pool that cannot list the space
_SOON = 8  # experiments after which a correct simulator has usually led to the best configuration
# _TRUST: simulators trusted less are tested with distant configurations. _SURE: above it, _CHECKS such tests suffice.
_TRUST, _SURE, _CHECKS = 0.5, 0.9, 2
_WIDE, _WIDER = 3, 3.0  # if little gain is expected: every 3rd step triples standard deviations
_FIRST = 3  # number of first experiments, which follow the first prior mean (a simulator or past job)
_ASKED = 4_000  # number of random configurations to choose from while all measured ones break a bound
_FAR = 400  # random configurations, from which the opening chooses one far from all tried ones


class AutoScout:
    @one_thread
    def __init__(self, search: Search) -> None:
        space, hyper = search.space, hyper_as(DefaultHyper, search.hyper)
        self.space, self.hyper, self.batch = space, hyper, search.batch
        self.rng = np.random.default_rng(search.seed)
        self.pool = CandidatePool(space, self.rng, hyper.listed)
        self.encoding = Encoding(space.knobs, self.pool.levels())
        if not self.pool.complete and hyper.simulators:
            self._look_ahead(search)
        past = [p for p in search.past if p.rows or p.broken] if hyper.simulators else []
        self.past = [of_past(p, self.pool, self.encoding) for p in past]
        self.default = None if search.default is None else self.pool.taken_in(search.default)
        means = [*self._means(search.simulators), *self.past]
        foreseen = search.foreseen if hyper.simulators else {}
        self.model = Surrogate(self.pool, self.encoding, means, hyper, self.rng, foreseen)
        launch = [i for i, knob in enumerate(space.knobs) if knob.name not in search.live] if search.live else []
        self.spending = Spending(self.encoding, launch)
        self.bandit = UCB1(hyper.explore, hyper.gamma, ("MODEL", "SPARSE", "DENSE"))
        self.dense, self.proposed = DenseArm([knob.name for knob in space.knobs]), ProposedArm(self.pool)
        self.model.wanted = self.proposed.open
        self.sparse = [SparseArm(o, hyper.probe) for o in self._orderings(search.seeded)]
        self.pending: dict[int, Proposal | None] = {}
        self.trade = Trade(space.objective, self.encoding) if space.objective.also else None
        self.asked = 0  # experiments that the search itself chose; those that users proposed do not shift its schedule
        self._events: list[Event] = []
        self._prices, self._value = np.ones(0), np.ones(0)  # of each candidate: relative price; gain / price
        self._step = self._rounds = 0
        self._apart = max(self.hyper.opening - 1 - len(search.told), 0)  # distant configurations left to try
        self._worthwhile = True  # whether gains in the first objective are still expected
        self.proposed.held = search.held
        for each in search.proposed:
            self.propose(each)
        if search.told:
            self.tell(list(search.told))

    def _look_ahead(self, search: Search) -> None:
        """Adds the configurations that each simulator predicts to be best to a pool that only samples the space."""
        for predictor in search.simulators.values():
            start = None if search.default is None else self.pool.encode(search.default)[None]
            found, _ = favourites(self.space, as_costs(self.space.objective, predictor), self.rng, start)
            self.pool.add(found[:_FAVOURITES])

    def _means(self, simulators: Mapping[str, Predictor]) -> list[Mean]:
        if not self.hyper.simulators:
            return []
        means = [of_simulator(name, p, self.pool, self.encoding, self.rng) for name, p in simulators.items()]
        return [each for mean in means for each in hypotheses(mean)]

    def propose(self, proposed: Proposed) -> None:
        if (row := self.pool.taken_in(proposed.configuration)) is not None:
            self.proposed.add(row, proposed.by, proposed.why)
            self.bandit.join(PROPOSED)

    def hold(self, held: bool) -> None:
        self.proposed.held = held

    # ---- ask ----------------------------------------------------------------------------------------------------

    @one_thread
    def ask(self) -> list[Configuration]:
        asked: list[Configuration] = []
        for _ in range(self.batch):
            row = self._next()
            if row is None:
                break
            asked.append(self.pool.configuration(row))
        return asked

    def _next(self) -> int | None:
        known = len({*self.model.tried, *self.pending})
        if known + len(self.model.aside) == self.pool.every:
            return None
        informed = any(m.mean.z.shape[1] for m in self.model.members)
        if self.default is not None and not known:
            return self._decide("default", Proposal(self.default, "DEFAULT", 0.0, "the reference, to compare with"))
        few = _FIRST if informed else 0 if self.proposed.proven else min(self.hyper.opening, len(self.pool))
        if known < few or not self.model.kept.any():
            if not informed and (idea := self.proposed.early(self.model, self.pending)) is not None:
                return self._decide("opening", idea)
            return self._decide("opening", self._favourite() if informed else self._far())
        if self.trade is not None:
            self.trade.turn(first=self._step % (2 if self._worthwhile else 8) == 0)
        self.model.update(list(self.pending))
        if self.proposed.open and (trial := self.proposed.trial(self.model, self._valued(), self.pending)) is not None:
            return self._decide("search", replace(trial, base=best_row(self.model)))
        self.bandit.age()
        if informed and self._apart and self.asked % 2 and self._doubtful(known):
            self._apart -= 1
            return self._decide("opening", self._far(likely=self._apart % 2 == 0))
        if self.asked and self.asked % _OUTLOOK == 0 and (self.trade is None or self.trade.first):
            chance, gain = outlook(self.model, _AHEAD, _MARGIN)
            self._events.append(Outlook(step=self._step, chance=chance, gain=gain, ahead=_AHEAD))
            self._events.append(Believed(step=self._step, knobs=by_value(self.model)))
        if self.asked % _WIDE == 0 and self._stays() and (wider := self._wider()) is not None:
            return self._decide("search", wider)
        proposals = self._proposals()
        gains = {p.arm: p.gain for p in proposals}
        index = self.bandit.expecting(gains, self.hyper.prior_pulls)
        chosen = max(proposals, key=lambda p: index[p.arm])
        if self.trade is None or self.trade.first:
            self._worthwhile = float(self.model.gain.max()) > self.hyper.explore
        at = int(np.argmax(self.model.candidates == chosen.row))
        price, gain = float(self._prices[at]), float(self._value[at])
        values = {
            **{f"ucb_{arm}": value for arm, value in index.items()},
            **{f"gain_{arm}": max(0.0, gain) for arm, gain in gains.items()},
            ("predicted_gain" if self.trade is None or self.trade.first else "hypervolume"): gain * price,
            "uncertainty": float(self.model.deviation[at]),
            **({} if price == 1 else {"price": price}),
        }
        return self._decide("search", chosen, values)

    def _proposals(self) -> list[Proposal]:
        best = best_row(self.model)
        self._value = self._valued()
        value = self.proposed.weighed(self.model, self._value)
        found = [by_model(self.model, value)]
        if self.hyper.sparse and len(self.pool.sparse):
            measured = np.array(sorted(self.model.tried), dtype=int)
            found.append(self._sparse(value, self.pool.codes[measured]))
        if self.hyper.dense and len(self.pool.dense):
            found.append(self.dense.propose(self.model, value, self.pool.codes[best]))
        toward = "" if self.trade is None else self.trade.why
        return [replace(p, base=best, why=toward or p.why) for p in found if p is not None]

    def _valued(self) -> np.ndarray:
        """(m,) expected gain of each candidate divided by its relative price; −1 for rows already tried or pending."""
        model, gain = self.model, self._gained()
        self._prices = np.ones(len(model.candidates))
        if self.hyper.spending:
            self._prices = self.spending.prices(self.pool.codes[model.candidates])
        return np.where(gain < 0, gain, gain / self._prices)

    def _gained(self) -> np.ndarray:
        """(m,) expected gain of each candidate, in the first objective or in hypervolume; −1 as in `_valued`."""
        model, trade = self.model, self.trade
        if trade is None or trade.first:
            return model.gain
        held = trade.held()
        logs = np.array([np.mean(model.costs[int(row)]) for row in held])
        rows, encoded = (self.encoding.rows(self.pool.codes[at]) for at in (model.candidates, held))
        gain = trade.gain(bent(logs - model.lowest), encoded, model.mean, model.deviation, rows)
        weighed = model.chances.weighed(gain, model.runs, len(model.tried), len(model.failed))
        return np.where(model.gain < 0, -1.0, weighed)

    def _orderings(self, seeded: Sequence[list[str]]) -> list[list[int]]:
        """Up to K orderings (column indices) of the varying sparse knobs: earlier winners, as declared, random ones."""
        column = {knob.name: i for i, knob in enumerate(self.space.knobs)}
        names = [k.name for k in self.space.sparse if k.name in self.encoding.names]
        known = [completed(o, names) for o in seeded]
        drawn = [[n for n in self.space.ordering(self.rng) if n in names] for _ in range(self.hyper.k)]
        distinct = dict.fromkeys(tuple(o) for o in [*known, names, *drawn])
        return [[column[n] for n in o] for o in list(distinct)[: self.hyper.k]]

    def _sparse(self, value: np.ndarray, visited: np.ndarray) -> Proposal | None:
        """The best tree's proposal. With several trees, this is also a round of the tournament (paper §3.2): the half
        of the trees with the better proposals stays, or all trees if a tie would decide."""
        proposals = [arm.propose(self.model, value, visited) for arm in self.sparse]
        if len(self.sparse) > 1:
            gains = [-1.0 if p is None else p.gain for p in proposals]
            order = ranked(gains)
            kept = order[: (len(order) + 1) // 2]
            if gains[kept[-1]] == gains[order[len(kept)]]:
                return proposals[order[0]]
            knobs = self.space.knobs
            orderings = [[knobs[c].name for c in arm.ordering] for arm in self.sparse]
            self._events.append(TournamentRanked(round=self._rounds, orderings=orderings, rewards=gains, kept=kept))
            self._rounds += 1
            self.sparse, proposals = [self.sparse[i] for i in kept], [proposals[i] for i in kept]
        return proposals[0]

    def _favourite(self) -> Proposal:
        """The untried row with the lowest predicted cost (by the first prior mean) plus a penalty for the risk of
        running out of memory. Rows predicted to fail or to break a bound are excluded if others are left."""
        open_rows = np.setdiff1d(self._open_rows(), list(self.model.aside))
        first = next(m.mean for m in self.model.members if m.mean.z.shape[1])
        failed = self.pool.codes[sorted(self.model.failed)]
        if self.model.costs and not self.model.kept.any():  # all broke bounds, so use the learned probabilities
            some = self.rng.choice(open_rows, min(_ASKED, len(open_rows)), replace=False)
            open_rows = some[self._may_run(some, np.max)]
        else:
            open_rows = self.model.foreseen.within(open_rows)
            if len(failed) and not self.model.costs:  # neighbours of a failure likely fail
                apart = np.min([(self.pool.codes[open_rows] != each).sum(axis=1) for each in failed], axis=0)
                open_rows = open_rows[apart >= min(1 + len(failed), int(apart.max()))]
        row = open_rows[np.argmin(first.expected(open_rows) + self.model.chances.risk(open_rows))]
        return Proposal(int(row), "MODEL", 0.0, f"predicted to be best by {first.name}")

    def _doubtful(self, known: int) -> bool:
        """Whether to test the prior means by a distant configuration: if trust in them is low, if they promise no more
        gain, or after _SOON experiments; no longer if _CHECKS such tests have led to high trust."""
        trust = self.model.trust
        if trust > _SURE and self._apart <= self.hyper.opening - 1 - _CHECKS:
            return False
        return trust < _TRUST or known >= _SOON or float(self.model.gain.max()) < self.hyper.explore

    def _far(self, likely: bool = False) -> Proposal:
        """Of some random rows, the one farthest from all tried ones (the most central one if nothing was tried), for
        the opening without prior means, and to test prior means. `likely`: whether to choose only among the quarter of
        all rows with the lowest predicted cost."""
        taken = sorted({*self.model.tried, *self.pending})
        open_rows = self.model.foreseen.within(self._open_rows())
        as_full = self.model.chances.as_full_as_an_oom(open_rows)
        open_rows = open_rows if as_full.all() else open_rows[~as_full]
        if likely:
            first = next(m.mean for m in self.model.members if m.mean.z.shape[1])
            expected = first.expected(open_rows)
            open_rows = open_rows[expected <= np.quantile(expected, 0.25)]
        rows = self.rng.choice(open_rows, min(_FAR, len(open_rows)), replace=False)
        points = self.encoding.rows(self.pool.codes[rows]).points
        tried = self.encoding.rows(self.pool.codes[taken]).points if taken else points.mean(axis=0)[None]
        gaps = ((points[:, None] - tried[None]) ** 2).sum(axis=2).min(axis=1)
        if self.model.failed and not len(self.model.candidates):
            gaps *= self._may_run(rows, np.median)
        gaps[np.isin(rows, list(self.model.aside))] = -1.0
        at = int(np.argmax(gaps)) if taken else int(np.argmin(gaps))
        why = "far from all configurations tried so far" if taken else "in the middle of the space"
        return Proposal(int(rows[at]), "MODEL", 0.0, why)

    def _may_run(self, rows: np.ndarray, least: Callable[[np.ndarray], float]) -> np.ndarray:
        """(n,) whether each row's probability of running within all bounds is at least min(1/2, least(p)), where p
        are the probabilities of all rows."""
        chances, encoded = self.model.chances, self.encoding.rows(self.pool.codes[rows])
        chances.fit()
        chances.fit_bounds()
        chances.watch(rows, encoded)
        found = chances.chance(rows, np.ones(len(rows)))
        return found >= min(0.5, float(least(found)))

    def _stays(self) -> bool:
        """Whether hardly any gain is expected, so that an overconfident search would stay near the best row."""
        alone = self.trade is None or self.trade.first
        return alone and 0 <= float(self.model.gain.max()) < self.hyper.explore

    def _wider(self) -> Proposal | None:
        """After _SOON experiments, a proposal chosen without the simulators, if the belief depends mostly on them; else
        one chosen with larger standard deviations, if trust in the simulators is low; else None."""
        if sum(m.weight for m in self.model.nothing) < _TRUST and len(self.model.costs) >= _SOON:
            look_unaided(self.model, list(self.pending))
            why = "the simulators predict hardly any gain: chosen from measurements alone"
        elif self.model.trust < _TRUST:
            self.model.look(list(self.pending), _WIDER)
            why = "hardly any gain is expected nearby: chosen from a wider search"
        else:
            return None
        value = self._valued()
        at = int(np.argmax(value))
        return Proposal(int(self.model.candidates[at]), "MODEL", float(value[at]), why)

    def _open_rows(self) -> np.ndarray:
        """Untried rows that are not predicted to fail; all untried rows if that leaves none."""
        taken = [*self.model.tried, *self.pending]
        rows = np.setdiff1d(np.arange(len(self.pool)), taken)
        for fails in (m.mean.fails for m in self.model.members if m.mean.foresees and m.mean.fails is not None):
            run = rows[fails[rows] < 0.5]
            rows = run if len(run) else rows
        return rows

    def _decide(self, phase: str, proposal: Proposal, values: dict[str, float] | None = None) -> int:
        self.pending[proposal.row] = proposal
        self.asked += proposal.arm != PROPOSED
        self._step += 1
        configuration = self.pool.configuration(proposal.row)
        self._events.append(
            Decided(
                step=self._step,
                phase=phase,
                arm=proposal.arm,
                configurations=[configuration],
                names=[self.space.name(configuration)],
                why=proposal.why,
                values=values or {},
                coordinates=self.dense.coordinates(),
            )
        )
        return proposal.row

    # ---- tell ---------------------------------------------------------------------------------------------------

    @one_thread
    def tell(self, measurements: list[Measurement]) -> None:
        results: list[tuple[int, float | None, float, bool, float, dict[str, float], bool]] = []
        for measurement in measurements:
            row = self.pool.taken_in(measurement.configuration)
            if row is None:
                continue
            objective = self.space.objective
            ran = cost_of_run(objective, measurement)
            ran = ran if ran is not None and math.isfinite(ran) else None
            kept = costs(objective, measurement) is not None
            full = fullness(self.space, measurement)
            doubt = measurement.conditions.get("doubt", 0.0)
            for_memory = failed_for_memory(self.space, measurement, full)
            proposal, price = self.pending.pop(row, None), self.spending.price(measurement.device_s)
            idea = proposal is not None and proposal.arm == PROPOSED
            if self.proposed.tell(row, ran if kept else None, price, idea) and self.trade is None:
                self.model.aside.add(row)
                proposal = None
            else:
                results.append((row, ran, full, for_memory, doubt, beyond(objective, measurement), kept))
            if self.trade is not None and ran is not None and (of_all := costs_of_run(objective, measurement)):
                self.trade.tell(row, of_all, kept)
            if proposal is not None and proposal.base is not None and (self.trade is None or self.trade.first):
                self._reward(proposal, proposal.base, ran if kept else None, measurement.device_s)
            self.spending.tell(self.pool.codes[row], measurement.device_s, None if ran is None else math.log(ran))
        for each in results:  # after all rewards, which use predictions made without these results
            self.model.tell(*each)

    def _reward(self, proposal: Proposal, base: int, measured: float | None, device_s: float) -> None:
        """Rewards the proposal's arm by the difference of differences, divided by the price paid. Must be called before
        the model learns the result, because the predicted corners must not depend on it. The measured cost is shrunk
        towards its prediction, so that a lucky near-tie earns nothing."""
        (s_base, x_base), (s_new, x_new) = (self.space.split(self.pool.configuration(r)) for r in (base, proposal.row))
        corners = [self.model.corner(base)]
        believed = self.model.corner(proposal.row)
        new = None
        if measured is not None and believed is not None:
            expected, deviation = believed
            trust = deviation**2 / (deviation**2 + self.model.noise**2)
            new = expected + trust * (math.log(measured) - expected), deviation * math.sqrt(1 - trust)
        for s, x in ((s_base, x_new), (s_new, x_base)):
            row = self.pool.row(self.space.configuration(s, x))
            corners.append(new if row == proposal.row else None if row is None else self.model.corner(row))
        costs = [None if corner is None else math.exp(corner[0]) for corner in [*corners, new]]
        delta_sparse, delta_dense = improvements(costs, failed=None)
        whole = mean_improvement([(costs[0], costs[3])], failed=None)
        known = [c for c in costs if c is not None]
        earned = {"SPARSE": delta_sparse, "DENSE": delta_dense}.get(proposal.arm, whole)
        paid = self.spending.price(device_s) if self.hyper.spending else 1.0
        self.bandit.update(proposal.arm, max(0.0, earned) / paid, proposal.gain)
        if proposal.arm == "DENSE":
            self.dense.update(self.pool.codes[base], self.pool.codes[proposal.row], whole > 0)
        self._events.append(
            Rewarded(
                step=self._step,
                costs=costs,
                delta_sparse=delta_sparse,
                delta_dense=delta_dense,
                interaction=known[3] - known[1] - known[2] + known[0] if len(known) == 4 else None,
                arms=self.bandit.state(),
                errors=[0.0 if corner is None else corner[1] for corner in [*corners, new]],
            )
        )

    def drain(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def switch_to_profiling(self) -> None: ...

    def recommend(self) -> Configuration | None:
        """The configuration with the lowest expected (not measured, partly lucky) cost; None if nothing ran."""
        if not self.model.kept.any():
            return None
        self.model.update([])
        return self.pool.configuration(int(self.model.rows[int(np.argmin(worth(self.model)[0]))]))


STRATEGY = Kind(
    name="autoscout",
    make=AutoScout,
    lists=False,
    asks_simulators=True,
    learns=True,
    listens=True,
    several=True,
    hyper=DefaultHyper,
)
