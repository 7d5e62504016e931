"""OPPA ("Configuring Parallel Training of Neural Networks using Bayesian Optimization", and "Bayesian Optimization with
Early Trial Termination for Speeding Up Parallel Neural Network Training", 2026), after its abstracts and its authors'
code (apivich-h/oppa @ dd27d80); the text of the papers was not at hand.

Theirs: a Gaussian process (Matérn 5/2, a length per feature) on throughput, whose mean is an analytic throughput of
the parallelism, 1 / (computation with its pipeline bubble + all-reduces of data and tensor parallelism + pipeline
sends). Its coefficients are positive, fitted to what was measured (least squares, from where the last fit ended) before
the process is fitted to what is left over. Between hosts collectives have coefficients of their own, and communication
fades from the mean within 20 trials. Once a trial ran out of memory, a second process, whose mean is parameters
over tp · pp, activations over devices · micro batches, and a rest, tells the chance to fit. The next trial has the
largest upper confidence bound (β = 1) times that chance; the first five, a tenth of all, and those after three
failures in a row are at random, each of another parallelism in turn. A micro batch takes the same time whatever its
size, and there is one where there is no pipeline: so it stands in their code.

Ours: the process and its features are gp-ei's; coefficients that occur as products only are one; L-BFGS fits them, as
far as 1,000 steps of Adam could go; a run without a known memory counts as a fifth below the limit, a failure as a
fifth beyond it; bound times chance is in closed form, on the best 4,000 rows of each fit; a host is a kind of device,
as a space tells no more. A space without tp, pp and dp has no mean of that kind. Not here: ending trials early, which
saves device time of poor trials (theirs run 30 to 50 iterations, 5 at least) but no trials; the bench charges whole
experiments to everybody.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np

from autoscout.search.sequential import Pool, Search, rival
from autoscout.studies.rivals.gaussian_map import MapGP
from autoscout.studies.rivals.gp_ei import features

_FIRST, _EXPLORED, _UNLUCKY = 5, 0.1, 3
_FADED = 40  # trials in half a turn of the cosine by which communication fades
_BEYOND = 0.2  # what counts as the overflow of a run that failed
_REACH = 10.0  # log; 1,000 steps of Adam at 0.01
_SHARP = 20.0  # of the soft limit to predicted memory
_RANKED, _CANDIDATES, _AT_ONCE = 100_000, 4000, 8000


def oppa(pool: Pool, rng: np.random.Generator) -> Search:
    table, sizes = features(pool), _Sizes(pool)
    speed, memory = _Informed(table, sizes.throughput), _Informed(table, sizes.memory)
    turns = _in_turn(pool, sizes, rng)
    candidates, unlucky = np.array([], dtype=int), 0
    while True:
        ran = {row: cost for row, cost in pool.known.items() if cost is not None}
        by_chance = len(pool.known) <= _FIRST or rng.random() < _EXPLORED or unlucky >= _UNLUCKY
        if by_chance or len(ran) < 2:
            row = next(turns)
        else:
            rows, costs = np.array(list(ran)), np.array(list(ran.values()))
            refitted = speed.fit(rows, costs[0] / costs, len(pool.known))
            failed = len(ran) < len(pool.known)
            if failed:
                memory.fit(*_overflows(pool), 0)
            candidates = candidates[pool.open[candidates]]
            if refitted or not len(candidates):
                every = pool.candidates(rng, _RANKED)
                candidates = every[np.argsort(-_promise(speed, memory if failed else None, every))[:_CANDIDATES]]
            row = int(candidates[np.argmax(_promise(speed, memory if failed else None, candidates))])
        cost = yield row
        unlucky = 0 if cost is not None else unlucky + 1


def _in_turn(pool: Pool, sizes: "_Sizes", rng: np.random.Generator) -> Iterator[int]:
    """Rows at random, one of each parallelism before the next round; for ever."""
    while True:
        free = np.flatnonzero(pool.open)
        kinds = sizes.plans[free]
        for plan in rng.permutation(np.unique(kinds)):
            left = [row for row in free[kinds == plan] if pool.open[row]]
            if left:
                yield int(rng.choice(left))


def _overflows(pool: Pool) -> tuple[np.ndarray, np.ndarray]:
    """Measured rows and how far beyond their memory they went, as a share of it."""
    values = []
    for row, cost in pool.known.items():
        full = pool.full.get(row, math.nan)
        values.append(math.exp(full) - 1 if math.isfinite(full) else _BEYOND if cost is None else -_BEYOND)
    return np.array(list(pool.known)), np.array(values)


def _promise(speed: "_Informed", memory: "_Informed | None", rows: np.ndarray) -> np.ndarray:
    from scipy.stats import norm

    mean, sd = speed.predict(rows)
    if memory is None:
        return mean + sd
    over, spread = memory.predict(rows)
    return np.maximum(mean + sd, 0) * norm.cdf(-over / spread)


class _Sizes:
    """What the analytic means are of: the parallelism of all rows of a pool."""

    def __init__(self, pool: Pool) -> None:
        columns = pool.space.feasible.columns(pool.codes)
        n = len(pool)

        def of(*names: str, default: float = 1.0) -> np.ndarray:
            found = next((columns[name] for name in names if name in columns), None)
            return np.full(n, default) if found is None else np.nan_to_num(found.astype(float), nan=default)

        self.known = {"tp", "pp", "dp"} <= columns.keys()
        self.tp, self.pp, self.dp, self.chunks = of("tp"), of("pp"), of("dp"), of("vpp")
        self.devices = self.tp * self.pp * self.dp * of("cp")
        samples = self.dp * of("mbs", "micro_batch")
        batch = of("global_batch", default=float(pool.space.attributes.get("global_batch", samples.max())))
        self.batches = np.where(self.pp > 1, np.maximum(batch / samples, 1.0), 1.0)  # micro batches: of a pipeline
        kinds = [of(k.name) > 0 for k in pool.space.knobs if k.layer == "devices" and k.kind == "sparse"]
        self.hosts = np.sum(kinds, axis=0) if kinds else np.ones(n)
        self.halved = np.where(of("zero_stage", default=0.0) >= 2, 2.0, 1.0)
        self.plans = np.unique(np.stack([self.devices, self.tp, self.pp, self.dp]), axis=1, return_inverse=True)[1]

    def throughput(self, trial: int) -> "_Mean | None":
        if not self.known:
            return None
        terms = self._on_one_host() if self.hosts.max() <= 1 else self._between_hosts(trial)
        return _Mean(np.column_stack([term for term, _ in terms]), np.log([weight for _, weight in terms]))

    def memory(self, trial: int) -> "_Mean | None":
        if not self.known:
            return None
        terms = [1 / (self.tp * self.pp), 1 / (self.devices * self.batches), np.ones(len(self.tp))]
        return _Mean(np.column_stack(terms), np.zeros(3), capped=True)

    def _on_one_host(self) -> list[tuple[np.ndarray, float]]:
        """Terms of a step's time, and their first weights."""
        s = self
        return [
            ((s.batches + (s.pp - 1) / s.chunks) / s.devices, 1.0),
            (np.log2(s.dp), 1.0),
            (1 - 1 / s.dp, 1.0),
            (s.batches * np.log2(s.tp), 1.0),
            (1 - 1 / s.tp, 1.0),
            (s.batches * s.chunks, 1.0),
            (np.ones(len(s.tp)), 2.0),
        ]

    def _between_hosts(self, trial: int) -> list[tuple[np.ndarray, float]]:
        s, several = self, self.hosts > 1
        a_host = np.maximum(s.devices / s.hosts, 1.0)
        gradients = 1 / s.tp / s.halved
        spread = several & (s.dp > a_host)
        inner = np.where(spread, a_host, np.where(several, 1.0, s.dp))
        outer = np.where(spread, np.ceil(s.dp / a_host), np.where(several, s.dp, 1.0))
        far = several & (s.tp > a_host)
        near_tp, far_tp = np.where(far, 1.0, s.tp), np.where(far, s.tp, 1.0)
        sends = (s.pp - 1) * 2 * s.batches
        communication = [
            (2 * (inner - 1), 1.0),
            ((1 - 1 / inner) * gradients, 6.0),
            (2 * (outer - 1), 10.0),
            ((1 - 1 / outer) * gradients, 30.0),
            (2 * (near_tp - 1) * s.batches, 40.0),
            ((1 - 1 / near_tp) * s.batches, 24.0),
            (2 * (far_tp - 1) * s.batches, 400.0),
            ((1 - 1 / far_tp) * s.batches, 120.0),
            (np.where(several, 0.0, sends), 1.1),
            (np.where(several, sends, 0.0), 10.5),
        ]
        share = max(math.cos(math.pi * trial / _FADED), 0.0)
        computation = (s.batches + (s.pp - 1) / s.chunks) / (s.tp * s.dp)
        faded = [(share * term, weight) for term, weight in communication]
        return [(computation, 1.0), (np.full(len(s.tp), 1 - share), 1.0), *faded]


class _Mean:
    """1 / (terms · e^θ), a throughput; `capped`: terms · e^θ − 1 below a soft limit, an overflow of memory."""

    def __init__(self, terms: np.ndarray, start: np.ndarray, capped: bool = False) -> None:
        self.terms, self.start, self.capped = terms, start, capped

    def at(self, rows: np.ndarray, theta: np.ndarray) -> np.ndarray:
        return self._values(self.terms[rows], theta)[0]

    def fitted(self, rows: np.ndarray, y: np.ndarray, theta: np.ndarray) -> np.ndarray:
        from scipy.optimize import minimize

        terms = self.terms[rows]

        def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
            values, slopes = self._values(terms, theta)
            return float(np.mean((values - y) ** 2)), 2 * ((values - y) * slopes) @ (terms * np.exp(theta)) / len(y)

        bounds = [(middle - _REACH, middle + _REACH) for middle in self.start]
        return minimize(loss, theta, jac=True, method="L-BFGS-B", bounds=bounds).x

    def _values(self, terms: np.ndarray, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values, and their slopes by terms · e^θ."""
        total = np.maximum(terms @ np.exp(theta), 1e-7)
        if not self.capped:
            return 1 / total, -1 / total**2
        below = _SHARP * (_BEYOND - (total - 1))
        return _BEYOND - np.logaddexp(0, below) / _SHARP, 1 / (1 + np.exp(-np.clip(below, -500, 500)))


class _Informed:
    """An analytic mean, if there is one, and a Gaussian process on what it leaves over."""

    def __init__(self, table: np.ndarray, mean: Callable[[int], _Mean | None]) -> None:
        self._table, self._mean_of = table, mean
        self._process = MapGP()
        self._mean: _Mean | None = None
        self._theta: np.ndarray | None = None

    def fit(self, rows: np.ndarray, y: np.ndarray, trial: int) -> bool:
        self._mean = self._mean_of(trial)
        if self._mean is not None:
            self._theta = self._mean.fitted(rows, y, self._mean.start if self._theta is None else self._theta)
        return self._process.fit(self._table[rows], y - self._expected(rows))

    def predict(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        blocks = [rows[start : start + _AT_ONCE] for start in range(0, len(rows), _AT_ONCE)]
        parts = [self._process.predict(self._table[block]) for block in blocks]
        mean, sd = (np.concatenate(part) for part in zip(*parts, strict=True))
        return mean + self._expected(rows), sd

    def _expected(self, rows: np.ndarray) -> np.ndarray:
        if self._mean is None or self._theta is None:
            return np.zeros(len(rows))
        return self._mean.at(rows, self._theta)


STRATEGY = rival("oppa", oppa)
