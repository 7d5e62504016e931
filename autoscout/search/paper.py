"""Algorithm 1 of the AutoScout paper as a strategy: a bandit over a sparse and a dense optimizer.

Notation: S a structure (values of the sparse knobs), X a dense point (values of the dense knobs), C a configuration (S
and X, with values of X that are invalid in S replaced), c a cost (lower is better, None: failed), Δ an arm's relative
improvement. `PaperHyper` has the hyper-parameters that the paper leaves open, with the reason for each default. Line
numbers are those of Algorithm 1."""

import itertools
import operator
from collections.abc import Generator, Iterable

import msgspec
import numpy as np

from autoscout.job.objective import cost
from autoscout.search.bandit import UCB1, improvements
from autoscout.search.coordinates import Coordinates, next_point
from autoscout.search.hyper import PaperHyper, hyper_as
from autoscout.search.strategy import Kind
from autoscout.search.structure_tree import Tree
from autoscout.search.tournament import orderings, tournament
from autoscout.space.graph import Point, Space, Structure
from kb.journal import Decided, Event, Rewarded, TournamentRanked
from kb.records import Configuration, Measurement


class ToldCost(msgspec.Struct, frozen=True):
    """The cost of a configuration (None: failed), and whether it is only a prediction."""

    configuration: Configuration
    cost: float | None
    simulated: bool = False


Costs = list[float | None]
Asking = Generator[list[Configuration], list[ToldCost], None]


class Algorithm1:
    """The search as a coroutine: `run()` yields batches of configurations and is sent their costs.

    `events` collects decisions with their reasons. `switched`: whether the session has switched from
    simulation to profiling."""

    def __init__(
        self, space: Space, default: Configuration, seeded: list[list[str]], seed: int, hyper: PaperHyper
    ) -> None:
        self.space = space
        self.default = default
        self.hyper = hyper
        self.rng = np.random.default_rng(seed)
        self.events: list[Event] = []
        self.step = 0
        self.known: dict[str, ToldCost] = {}
        self.reference: float | None = None  # the first cost, which scales the rewards of the tree
        self.closed = np.zeros(len(space.structures), dtype=bool)  # (structures,) whether each structure was evaluated
        self.bandit = UCB1(hyper.c0, hyper.gamma)
        self.orderings = orderings(space, hyper.k, seeded, self.rng)
        self.switched = False
        self.dense: Coordinates | None = None
        self._restart = False

    @property
    def best(self) -> ToldCost | None:
        """(S*, X*), the cheapest known configuration."""
        by_cost = _by_cost(self.known.values())
        return by_cost[0] if by_cost else None

    def run(self) -> Asking:
        space, bandit = self.space, self.bandit
        s_base, x_base = space.split(self.default)
        yield from self._evaluate("default", "DEFAULT", [(s_base, x_base)], "the reference, to compare with")

        # Phase 0 of Algorithm 1: tournament warm-start (line 5)
        tree = yield from self._tournament(x_base)

        # Phase 1 of Algorithm 1: initialization (lines 7-12)
        dense = self.dense = Coordinates([knob.name for knob in space.dense])
        s_base, x_base = self._best_or(s_base, x_base)
        s_cand, why = self._next_structure(tree, s_base)
        x_cand = self._next_point(dense, s_base, x_base)
        arm = "SPARSE"
        self._restart = False

        # Phase 2 of Algorithm 1: iterative coordinated optimization (lines 14-27)
        for t in itertools.count(1):
            grid = [(s_base, x_base), (s_base, x_cand), (s_cand, x_base), (s_cand, x_cand)]
            values = {f"ucb_{a}": u for a, u in bandit.index(t).items() if np.isfinite(u)}
            costs = yield from self._evaluate("search", arm, grid, why, values)
            delta_sparse, delta_dense = improvements(costs, failed=0.0)
            if arm == "SPARSE":
                self._teach(tree, s_cand, _least(costs[2:]))
            else:
                dense.update(delta_dense > 0)
            bandit.update(arm, max(0.0, delta_sparse if arm == "SPARSE" else delta_dense))
            self._log_rewards(costs, delta_sparse, delta_dense)

            (s_base, x_base), (s_control, x_control) = self._advance(grid, costs)
            if self._restart:
                self._restart = False
                s_base, x_base = s_control, x_control = self._best_or(s_base, x_base)
            arm = self._arm(bandit, t)
            s_cand, x_cand, why, before = s_control, x_control, "coordinate step", ""
            if arm == "DENSE":
                x_cand = self._next_point(dense, s_base, x_base)
                if x_cand == x_base:  # all neighbours are known
                    bandit.update("DENSE", 0.0)
                    arm, x_cand, before = "SPARSE", x_control, "the dense knobs have no step left here: "
            if arm == "SPARSE":
                s_cand, why = self._next_structure(tree, s_base)
                why = before + why
            if all(space.configuration(s, x).id in self.known for s in (s_base, s_cand) for x in (x_base, x_cand)):
                fresh = self._fresh()
                if fresh is None:
                    return
                s_cand, x_cand = space.split(fresh)
                arm, why = "SPARSE", f"{before}no new neighbour of the base configuration: a random configuration"

    def _tournament(self, x: Point) -> Generator[list[Configuration], list[ToldCost], Tree]:
        trees = [Tree(self.space, ordering, self.hyper.c_uct, self.hyper.unvisited) for ordering in self.orderings]
        s_default = self.space.split(self.default)[0]
        for tree in trees:
            self._teach(tree, s_default, self.known[self.default.id].cost)
        contest = tournament(trees, self.rng, self.closed, self.space.row(s_default))
        try:
            tree, row = next(contest)
            while True:
                why = f"tree that branches on {' → '.join(tree.ordering[:3])} …"
                s = self.space.structure(row)
                (c,) = yield from self._evaluate("tournament", "SPARSE", [(s, x)], why)
                tree, row = contest.send(self._reward(c))
        except StopIteration as end:
            winner, rounds = end.value
        for r in rounds:
            self.events.append(TournamentRanked(round=r.number, orderings=r.orderings, rewards=r.rewards, kept=r.kept))
        return winner

    def _evaluate(
        self,
        phase: str,
        arm: str,
        cells: list[tuple[Structure, Point]],
        why: str,
        values: dict[str, float] | None = None,
    ) -> Generator[list[Configuration], list[ToldCost], Costs]:
        """EVALBATCHADAPTIVE and UPDATEBEST of Algorithm 1 (lines 20-22): the costs of the grid's cells (S, X)."""
        configurations = [self.space.configuration(s, x) for s, x in cells]
        distinct = list({c.id: c for c in configurations}.values())
        self.step += 1
        self.events.append(
            Decided(
                step=self.step,
                phase=phase,
                arm=arm,
                configurations=distinct,
                names=[self.space.name(c) for c in distinct],
                why=why,
                values=values or {},
                coordinates=self.dense.state() if self.dense else {},
            )
        )
        for result in (yield distinct):
            self.known[result.configuration.id] = result
            self._close(result.configuration)
            self.reference = self.reference or result.cost
        costs = [self.known[c.id].cost for c in configurations]
        if self.switched:
            self.switched = False
            yield from self._switch_to_profiling()
        return costs

    def _switch_to_profiling(self) -> Asking:
        """Continues after the switch from simulation to profiling: keeps the tree, reduces the bandit's statistics to a
        weak prior, discards predicted costs (which are not comparable with measured ones), and first profiles the
        configurations predicted to be best."""
        favourites = _by_cost(t for t in self.known.values() if t.simulated)[: self.hyper.top_k]
        self.known = {key: result for key, result in self.known.items() if not result.simulated}
        self.closed[:] = False
        for result in self.known.values():
            self._close(result.configuration)
        self.bandit.weaken(self.hyper.prior_pulls)
        for result in favourites:
            cell = self.space.split(result.configuration)
            yield from self._evaluate("search", "SPARSE", [cell], "one of the simulators' favourites")
        self._restart = True

    def _arm(self, bandit: UCB1, t: int) -> str:
        """The next arm. For ablations: without the bandit, the arms alternate; without the dense optimizer, the arm is
        always SPARSE."""
        if not self.hyper.dense:
            return "SPARSE"
        return bandit.select(t) if self.hyper.bandit else ("SPARSE", "DENSE")[t % 2]

    def _close(self, configuration: Configuration) -> None:
        row = self.space.row(self.space.split(configuration)[0])
        if row is not None:
            self.closed[row] = True

    def _best_or(self, s: Structure, x: Point) -> tuple[Structure, Point]:
        return self.space.split(self.best.configuration) if self.best else (s, x)

    def _teach(self, tree: Tree, s: Structure, cost: float | None) -> None:
        row = self.space.row(s)
        if row is not None:
            tree.update(row, self._reward(cost))

    def _next_structure(self, tree: Tree, s_base: Structure) -> tuple[Structure, str]:
        """NEXTSPARSEPAIR of Algorithm 1: (the structure that the winning tree proposes, the reason)."""
        like = self.space.row(s_base) if self.rng.random() < self.hyper.near else None
        row = tree.propose(self.closed, self.rng, like)
        if row is None:
            return s_base, "every combination of sparse knobs was tried"
        return self.space.structure(row), "tree search"

    def _next_point(self, dense: Coordinates, s: Structure, x: Point) -> Point:
        """NEXTDENSEPAIR of Algorithm 1: the point that the dense optimizer proposes, x itself if it has none."""
        moved = next_point(dense, self.space, s, x, lambda p: self.space.configuration(s, p).id in self.known)
        return x if moved is None else moved

    def _advance(
        self, grid: list[tuple[Structure, Point]], costs: Costs
    ) -> tuple[tuple[Structure, Point], tuple[Structure, Point]]:
        """(base, control) of the next grid. The best cell becomes the base; the other structure and the other point of
        the grid become the control, unless they failed or are too slow (`control_limit`): then the base serves as its
        own control, which saves experiments."""
        finite = [(c, i) for i, c in enumerate(costs) if c is not None]
        least, at = min(finite, default=(None, 0))
        s, x = grid[at]
        s_other, x_other = grid[at ^ 2][0], grid[at ^ 1][1]
        limit = self.hyper.control_limit * least if least is not None else 0.0
        other_s, other_x = costs[at ^ 2], costs[at ^ 1]
        return (s, x), (
            s_other if other_s is not None and other_s <= limit else s,
            x_other if other_x is not None and other_x <= limit else x,
        )

    def _reward(self, cost: float | None) -> float:
        """The tree's reward c_ref / (c_ref + c): 1/2 for a cost equal to the default's, 0 for a failure."""
        if cost is None or self.reference is None:
            return 0.0
        return self.reference / (self.reference + cost)

    def _fresh(self) -> Configuration | None:
        """A random configuration that was not evaluated yet; None if all were."""
        for _ in range(200):
            configuration = self.space.sample(self.rng)
            if configuration.id not in self.known:
                return configuration
        return next((c for c in self.space.configurations() if c.id not in self.known), None)

    def _log_rewards(self, costs: Costs, delta_sparse: float, delta_dense: float) -> None:
        c_bb, c_bc, c_cb, c_cc = costs
        interaction = None
        if c_bb is not None and c_bc is not None and c_cb is not None and c_cc is not None:
            interaction = ((c_bb - c_cb) - (c_bc - c_cc)) / c_bb
        self.events.append(
            Rewarded(
                step=self.step,
                costs=costs,
                delta_sparse=delta_sparse,
                delta_dense=delta_dense,
                interaction=interaction,
                arms=self.bandit.state(),
            )
        )


def _by_cost(results: Iterable[ToldCost]) -> list[ToldCost]:
    ran = [(t.cost, t) for t in results if t.cost is not None]
    return [t for _, t in sorted(ran, key=operator.itemgetter(0))]


def _least(costs: Costs) -> float | None:
    return min((c for c in costs if c is not None), default=None)


class Paper:
    """The strategy interface of Algorithm1. A batch is a 2×2 grid; if `ask` is called before all its results are known,
    it returns the configurations that are missing."""

    def __init__(
        self, space: Space, default: Configuration, seeded: list[list[str]], seed: int, hyper: PaperHyper
    ) -> None:
        self.space = space
        self.search = Algorithm1(space, default, seeded, seed, hyper)
        self._run = self.search.run()
        self._batch: list[Configuration] = []
        self._told: dict[str, ToldCost] = {}
        self._begun = False

    def ask(self) -> list[Configuration]:
        if self._batch and len(self._told) < len(self._batch):
            return [c for c in self._batch if c.id not in self._told]
        try:
            results = [self._told[c.id] for c in self._batch]
            self._batch = self._run.send(results) if self._begun else next(self._run)
        except StopIteration:
            self._batch = []
        self._begun, self._told = True, {}
        return self._batch

    def tell(self, measurements: list[Measurement]) -> None:
        asked = {c.id for c in self._batch}
        for m in measurements:
            if m.configuration.id in asked:
                found = cost(self.space.objective, m)
                self._told[m.configuration.id] = ToldCost(m.configuration, found, m.fidelity == "predicted")

    def drain(self) -> list[Event]:
        events, self.search.events = self.search.events, []
        return events

    def recommend(self) -> Configuration | None:
        return self.search.best.configuration if self.search.best else None

    def switch_to_profiling(self) -> None:
        self.search.switched = True


STRATEGY = Kind(
    name="paper",
    make=lambda s: Paper(s.space, s.first(), [list(o) for o in s.seeded], s.seed, hyper_as(PaperHyper, s.hyper)),
    hyper=PaperHyper,
)
