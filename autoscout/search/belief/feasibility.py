"""The probability that a configuration runs, learned from successes and failures by Gaussian process classification.

The model of the cost does not use failures, because they carry no information on speed. Resources that run out (memory,
registers, time) are mostly products of knobs, so in logarithms the boundary is nearly a plane:

    logit P(x runs) = c + w·x + Σ_d g_d(x_d) + h(x),    w, g, h normal around 0, h Matérn 5/2

Inference uses Laplace's approximation (Rasmussen and Williams, algorithms 3.1 and 3.2), and MacKay's approximation to
average the probability over the logit. The prior standard deviations below are chosen large, because a boundary may be
sharp, and may be anywhere. n rows have results; m rows are watched (predicted)."""

import numpy as np

from autoscout.search.belief.encoding import EncodedRows, Encoding
from autoscout.search.belief.posterior import matern, solved

_OFFSET, _CONSTANT = 1.0, 2.0  # prior mean of the logit c, and its standard deviation: most valid configurations run
_SLOPE, _EFFECT, _BEND = 4.0, 2.0, 8.0  # prior standard deviations of w, g and h, for coordinates within 0 … 1
_LENGTH = 2.0  # length scale of h, times √(D / 4) for D axes
_STEPS = 20  # limit on Newton steps; starting from the last solution, three or four suffice
_HELD = 300  # most results that the model keeps; those farthest from the boundary are dropped
_AVERAGED = 1024  # number of most important configurations, whose probability is averaged over the uncertain logit


class Feasibility:
    def __init__(self, encoding: Encoding) -> None:
        self._length = np.float32(_LENGTH * np.sqrt(max(len(encoding) / 4, 1.0)))
        self._told: tuple[np.ndarray, np.ndarray] | None = None
        self._watched: tuple[np.ndarray, np.ndarray] | None = None
        self._across = np.zeros((0, 0), dtype=np.float32)  # (n, m) covariances with the watched rows
        self._ran = np.zeros(0, dtype=bool)
        self._logit = np.zeros(0)

    @property
    def failed(self) -> bool:
        """Whether any row failed; until then all probabilities are 1."""
        return not self._ran.all()

    def features(self, rows: EncodedRows, hints: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """(points / length scale, regressors of the linear part). `hints`: (n, H) 1 where a simulator predicts a
        failure."""
        linear = [
            np.full((len(rows), 1), np.float32(_CONSTANT)),
            rows.points * np.float32(_SLOPE),
            rows.effects * np.float32(_EFFECT),
        ]
        if hints is not None:
            linear.append((hints * _SLOPE).astype(np.float32))
        return rows.points / self._length, np.concatenate(linear, axis=1)

    def tell(self, features: tuple[np.ndarray, np.ndarray], ran: np.ndarray) -> None:
        self._ran = np.concatenate([self._ran, ran])
        self._told = features if self._told is None else _joined(self._told, features)
        self._logit = np.concatenate([self._logit, np.full(len(ran), _OFFSET)])

    def fit(self) -> None:
        """Finds the posterior mode of the logits. At least one row must have failed."""
        assert self._told is not None
        if len(self._ran) > _HELD * 4 // 3:
            kept = np.sort(np.argsort(np.abs(self._logit), kind="stable")[:_HELD])  # nearest to the boundary
            self._told = self._told[0][kept], self._told[1][kept]
            self._ran, self._logit = self._ran[kept], self._logit[kept]
            self._across = self._across[kept[kept < len(self._across)]]
        k = _covariance(self._told, self._told).astype(float)
        y, f = self._ran.astype(float), self._logit
        a, root, low = np.zeros_like(f), np.ones_like(f), np.eye(len(f))
        for _ in range(_STEPS):
            p = 1 / (1 + np.exp(-f))
            root = np.sqrt(np.maximum(p * (1 - p), 1e-9))
            low = np.linalg.cholesky(np.eye(len(f)) + root[:, None] * k * root)
            b = root**2 * (f - _OFFSET) + y - p
            inner = solved(low, root * (k @ b))
            a = b - root * solved(low, inner, turned=True)
            step = _OFFSET + k @ a - f
            f = f + step
            if np.abs(step).max() < 1e-3:
                break
        self._logit, self._pull, self._root, self._low = f, a.astype(np.float32), root.astype(np.float32), low

    def watch(self, features: tuple[np.ndarray, np.ndarray]) -> None:
        self._watched = features
        self._across = np.zeros((0, len(features[0])), dtype=np.float32)

    def turn(self, kept: np.ndarray, fresh: tuple[np.ndarray, np.ndarray]) -> None:
        """Replaces the watched rows by those at the positions `kept`, followed by the `fresh` ones."""
        assert self._watched is not None
        assert self._told is not None
        self._watched = _joined((self._watched[0][kept], self._watched[1][kept]), fresh)
        known = self._across[:, kept]
        known_features = self._told[0][: len(known)], self._told[1][: len(known)]
        self._across = np.concatenate([known, _covariance(known_features, fresh)], axis=1)

    def chance(self, importance: np.ndarray) -> np.ndarray:
        """(m,) probability that each watched row runs; 1 while nothing failed. Rows with the largest `importance` (m,)
        are computed most precisely."""
        if not self.failed or self._watched is None or self._told is None:
            return np.ones(len(importance), dtype=np.float32)
        if len(self._across) < len(self._ran):
            fresh = tuple(part[len(self._across) :] for part in self._told)
            self._across = np.concatenate([self._across, _covariance((fresh[0], fresh[1]), self._watched)])
        logit = _OFFSET + self._pull @ self._across
        found = 1 / (1 + np.exp(-logit))
        matters = np.arange(len(found))
        if len(found) > _AVERAGED:
            matters = np.argpartition(-importance * found, _AVERAGED)[:_AVERAGED]
        known = solved(self._low.astype(np.float32), self._root[:, None] * self._across[:, matters])
        variance = np.float32(_BEND**2) + (self._watched[1][matters] ** 2).sum(axis=1) - (known**2).sum(axis=0)
        found[matters] = 1 / (1 + np.exp(-logit[matters] / np.sqrt(1 + np.pi / 8 * np.maximum(variance, 0))))
        return found


def _covariance(a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    squares = (a[0] ** 2).sum(axis=1)[:, None] + (b[0] ** 2).sum(axis=1)[None] - 2 * a[0] @ b[0].T
    return np.float32(_BEND**2) * matern(np.sqrt(np.maximum(squares, 0))) + a[1] @ b[1].T


def _joined(a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([a[0], b[0]]), np.concatenate([a[1], b[1]])
