"""The common base of rival strategies (studies/rivals): a search written as a coroutine over the valid configurations,
adapted to the ask/tell interface.

A search yields rows of the pool and is sent their costs. A search gets integer codes, and uses knob names only if it
treats certain knobs specially. The default is measured first. If a search yields a row that was measured before, it is
sent the known cost; after _DUPLICATES such rows in succession (fewer when little of the space is left) a random new row
is measured instead. Only valid configurations are rows."""

from collections.abc import Callable, Generator, Mapping

import numpy as np

from autoscout.job.objective import cost
from autoscout.search.belief.peaks import fullness
from autoscout.search.strategy import Kind
from autoscout.search.strategy import Search as Setting
from autoscout.space.codes import INACTIVE
from autoscout.space.graph import Space
from kb.journal import Decided, Event
from kb.records import Configuration, Measurement

Search = Generator[int, float | None, None]  # yields a row and is sent its cost (lower is better; None: failed)
Predictor = Callable[[np.ndarray], np.ndarray]

# known rows in succession after which a random new one is measured, so that a search cannot loop forever
_DUPLICATES = 15


class Pool:
    """The valid configurations as `codes` (n, knobs). `known`: measured row → cost (None: failed); `full`: measured row
    → log of the share of device memory that it used (inf: it ran out of memory; NaN: unknown)."""

    def __init__(self, space: Space, default: Configuration, simulators: Mapping[str, Predictor] | None = None) -> None:
        self.space = space
        self.codes = space.feasible.codes
        self.levels = [len(knob.values) for knob in space.knobs]
        self.default = space.feasible.index(default) or 0
        self.simulators = simulators or {}
        self.known: dict[int, float | None] = {}
        self.full: dict[int, float] = {}
        self.open = np.ones(len(self.codes), dtype=bool)  # (n,) whether each row is unmeasured
        # number of trials without a gain after which a search that ends by itself stops
        self.patience: int | None = None
        self._ordered = [knob.kind == "dense" for knob in space.knobs]

    def __len__(self) -> int:
        return len(self.codes)

    def learn(self, row: int, cost: float | None) -> None:
        self.known[row] = cost
        self.open[row] = False

    @property
    def best(self) -> int | None:
        ran = {row: cost for row, cost in self.known.items() if cost is not None}
        return min(ran, key=ran.__getitem__, default=None)

    def costs(self, failed: float) -> tuple[np.ndarray, np.ndarray]:
        """(measured rows, their costs). A failed row costs `failed` times the worst cost (1 if no row ran)."""
        worst = max((c for c in self.known.values() if c is not None), default=1.0)
        values = [failed * worst if c is None else c for c in self.known.values()]
        return np.array(list(self.known), dtype=int), np.array(values)

    def candidates(self, rng: np.random.Generator, most: int) -> np.ndarray:
        """Unmeasured rows; a random sample of `most` if there are more."""
        rows = np.flatnonzero(self.open)
        return rows if len(rows) <= most else rng.choice(rows, most, replace=False)

    def distance(self, codes: np.ndarray) -> np.ndarray:
        """(n,) distance of every row from `codes` (knobs,), summed over knobs. Dense knob: index steps as a share of
        the domain. Sparse knob: 1 if the values differ. 1 also if the knob is inactive in only one of the two."""
        total = np.zeros(len(self.codes), dtype=np.float32)
        for j, levels in enumerate(self.levels):
            steps = np.arange(levels + 1, dtype=np.float32)  # last entry: inactive
            far = np.abs(steps - codes[j]) / max(levels - 1, 1) if self._ordered[j] else (steps != codes[j]) * 1.0
            far[levels] = 1.0
            if codes[j] == INACTIVE:
                far[:] = 1.0
                far[levels] = 0.0
            total += far.astype(np.float32)[self.codes[:, j]]
        return total

    def nearest(self, codes: np.ndarray) -> int:
        """The row nearest to `codes` (knobs,), which need not be valid."""
        return int(np.argmin(self.distance(codes)))

    def scaled(self, rows: np.ndarray | None = None) -> np.ndarray:
        """(rows, knobs) features in [0, 1]: numbers by value, names by index; inactive knobs by their `off` value if it
        is a number, else 0."""
        codes = self.codes if rows is None else self.codes[rows]
        return np.column_stack([_scale(knob)[codes[:, j]] for j, knob in enumerate(self.space.knobs)])


def _scale(knob) -> np.ndarray:
    """(values + 1,) a knob's values scaled to [0, 1], by code; the last entry is for the inactive knob."""
    values = np.arange(len(knob.values), dtype=float)
    if all(isinstance(v, int | float) for v in knob.values):
        values = np.array(knob.values, dtype=float)
    spread = max(float(values.max() - values.min()), 1e-12)
    off = (float(knob.off) - values.min()) / spread if isinstance(knob.off, int | float) else 0.0
    return np.append((values - values.min()) / spread, min(max(off, 0.0), 1.0))


class Sequential:
    """A search as a strategy. `ask` returns one configuration, and the same one until its result arrives."""

    def __init__(
        self,
        name: str,
        search: Callable[[Pool, np.random.Generator], Search],
        space: Space,
        default: Configuration,
        seed: int,
        simulators: Mapping[str, Predictor] | None = None,
        patience: int | None = None,
    ) -> None:
        self.name = name
        self.space = space
        self._search = search
        self._start = (space, default, simulators)
        self._seed, self._patience = seed, patience
        self._events: list[Event] = []
        self._step = 0
        self._begin()

    def _begin(self) -> None:
        self.pool = Pool(*self._start)
        self.pool.patience = self._patience
        self._rng = np.random.default_rng(self._seed)
        self._rows = self._proposals()
        self._pending: int | None = None
        self._asked: Configuration | None = None

    def _proposals(self) -> Generator[int, None, None]:
        """Yields the rows to measure: the default, then the unmeasured rows that the search yields."""
        pool = self.pool
        yield pool.default
        search, duplicates = self._search(pool, self._rng), 0
        row = next(search, None) if pool.open.any() else None
        while row is not None:
            if pool.open[row]:
                duplicates = 0
                yield row
            elif (duplicates := duplicates + 1) > _DUPLICATES * pool.open.mean():
                duplicates = 0
                yield int(self._rng.choice(np.flatnonzero(pool.open)))
            if not pool.open.any():
                return
            try:
                row = search.send(pool.known[row])
            except StopIteration:
                return

    def ask(self) -> list[Configuration]:
        if self._asked is None:
            self._pending = next(self._rows, None)
            if self._pending is None:
                return []
            self._asked = self.space.feasible.configuration(self._pending)
            self._step += 1
            self._events.append(
                Decided(
                    step=self._step,
                    phase="search" if self.pool.known else "default",
                    arm=self.name.upper(),
                    configurations=[self._asked],
                    names=[self.space.name(self._asked)],
                    why=f"proposed by {self.name}" if self.pool.known else "the reference, to compare with",
                )
            )
        return [self._asked]

    def tell(self, measurements: list[Measurement]) -> None:
        for measurement in measurements:
            if self._asked is not None and measurement.configuration.id == self._asked.id and self._pending is not None:
                self.pool.learn(self._pending, cost(self.space.objective, measurement))
                self.pool.full[self._pending] = fullness(self.space, measurement)
                self._pending = self._asked = None

    def recommend(self) -> Configuration | None:
        return None if self.pool.best is None else self.space.feasible.configuration(self.pool.best)

    def drain(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def switch_to_profiling(self) -> None:
        """Restarts the search, because predicted costs are not comparable with measured ones."""
        self._begin()


def rival(
    name: str,
    search: Callable[[Pool, np.random.Generator], Search],
    packages: tuple[str, ...] = (),
    how: str = "",
    finite: bool = False,
) -> Kind:
    """The declaration (`Kind`) of a strategy that runs a given search."""

    def make(setting: Setting) -> Sequential:
        s = setting
        return Sequential(name, search, s.space, s.first(), s.seed, s.simulators, s.patience)

    return Kind(name=name, make=make, packages=packages, how=how, finite=finite)
