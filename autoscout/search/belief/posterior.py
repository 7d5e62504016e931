"""The model of the log-cost of every configuration, given the few that were measured: a Gaussian process.

    f(x) = Σⱼ bⱼ zⱼ(x) + c + Σ_d g_d(x_d) + h(x),    y = f(x) + ε

z  predictions of simulators or of past jobs (log), slopes b learned around their expected values
g  main effects, one per knob; variance s_e² (`effects`)
h  the rest, Matérn 5/2 with a length of its own per knob (ARD), variance s_h² (`residual`), plus a rough part, Matérn
   1/2 with the same lengths, variance s_r² (`rough`), because measured costs have steps and ridges, near which a smooth
   field is overconfident
ε  noise, and quirks of single configurations that no knob explains; standard deviation `noise`

Notation: n measured rows, m candidates, D axes (knobs). θ = log(s_e, s_h, s_r, noise, ℓ₁ … ℓ_D) is fitted by maximum a
posteriori; the default priors on θ assume that y has unit variance. Knobs that seem to have no effect (`inert_sets`)
are excluded from g and h."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_solve, get_lapack_funcs, solve_triangular
from scipy.special import betaln, log_ndtr, ndtr

from autoscout.search.belief.encoding import EncodedRows, Encoding, numbered

_potrf, _potri = get_lapack_funcs(("potrf", "potri"), dtype=float)
_SCALES = 4  # number of elements of θ before the lengths ℓ: s_e, s_h, s_r and noise
_ALIKE = 3  # decimals to which prior means are rounded when they are compared (see `Belief.new`)
_CONSTANT = 1.0  # prior variance of c, for centred y of unit variance


@dataclass(frozen=True)
class Prior:
    """The prior of θ: for each parameter, (median, standard deviation of the logarithm). The defaults are from
    tests/tools/learn_prior.py on generated landscapes (medians: effects 0.05, residual 1.4, rough 0.14, noise 0.06,
    lengths 2.4, each within a factor of 1.5 to 3.5), but larger for effects and roughness, as in measured kernels."""

    effects: tuple[float, float] = (0.15, 0.7)
    residual: tuple[float, float] = (1.2, 0.6)
    rough: tuple[float, float] = (0.2, 0.7)
    noise: tuple[float, float] = (0.07, 0.8)
    length: tuple[float, float] = (2.0, 1.2)  # times √(D / 4), because distances grow with the number of axes


@dataclass(frozen=True)
class Theta:
    effects: float
    residual: float
    rough: float
    noise: float
    lengths: np.ndarray  # (D,)

    @staticmethod
    def of(log: np.ndarray) -> "Theta":
        e = np.exp(log)
        return Theta(float(e[0]), float(e[1]), float(e[2]), float(e[3]), e[_SCALES:])


@dataclass(frozen=True)
class _Pairs:
    """All P pairs i < j of the rows that θ is fitted on. `gaps`: (D, P) squared distances by axis; `fixed`, `linear`:
    (P,) covariances that do not depend on lengths; `…_own`: (n,) the corresponding variances of the rows; `below`: (P,)
    indices of the pairs in a flat column-major (n, n) matrix."""

    i: np.ndarray
    j: np.ndarray
    below: np.ndarray
    gaps: np.ndarray
    fixed: np.ndarray
    linear: np.ndarray
    fixed_own: np.ndarray
    linear_own: np.ndarray


def matern(r: np.ndarray) -> np.ndarray:
    """The Matérn 5/2 correlation at distances r."""
    t = np.sqrt(5.0, dtype=r.dtype) * r
    return (1 + t + t * t / 3) * np.exp(-t)


def solved(low: np.ndarray, y: np.ndarray, turned: bool = False) -> np.ndarray:
    """L⁻¹ y, or L⁻ᵀ y if `turned`, without SciPy's check for NaN, which takes as long as the solution."""
    return solve_triangular(low, y, lower=True, trans=int(turned), check_finite=False)


class Posterior:
    """θ, fitted on the measured rows, with the covariances and features that follow from it."""

    def __init__(self, encoding: Encoding, prior: Prior, use_effects: bool = True, drops_inert: bool = False) -> None:
        self.encoding = encoding
        self.prior = prior
        self.use_effects = use_effects
        self.drops_inert = drops_inert
        d = max(len(encoding), 1)
        scales = (prior.effects, prior.residual, prior.rough, prior.noise)
        self._centre = np.log([*(scale for scale, _ in scales), *[prior.length[0] * np.sqrt(max(d / 4, 1.0))] * d])
        self._width = np.array([*(width for _, width in scales), *[prior.length[1]] * d])
        self.log_theta = self._centre.copy()
        self.inert = np.zeros(d, dtype=bool)  # axes without effect on f
        self.evidence = -np.inf

    # ---- fitting ----------------------------------------------------------------------------------------------------

    def fit(
        self,
        rows: EncodedRows,
        y: np.ndarray,
        z: np.ndarray,
        slopes: np.ndarray,
        vague: np.ndarray | float = 0.0,
        iterations: int = 30,
    ) -> None:
        """Fits θ. `y`: (n,) values minus the prior mean; `z`: (n, J) predictions; `slopes`: (J,) prior standard
        deviations of b; `vague`: (n,) additional noise variance of single rows."""
        self.inert = np.zeros_like(self.inert)
        unlikely, self.log_theta = self._minimized(self._pairs(rows, z, slopes, vague), y, iterations)
        self.evidence = -unlikely
        for inert, allowed in inert_sets(self._off(self.log_theta)[_SCALES:]) if self.drops_inert else ():
            self.inert = inert
            without, log = self._minimized(self._pairs(rows, z, slopes, vague), y, iterations // 3)
            if self._without_inert_prior(without, log) < self._without_inert_prior(unlikely, self.log_theta) + allowed:
                lengths = np.where(inert, self.log_theta[_SCALES:], log[_SCALES:])  # inert axes keep their lengths
                self.log_theta = np.append(log[:_SCALES], lengths)
                return
        self.inert = np.zeros_like(self.inert)

    def _off(self, log: np.ndarray) -> np.ndarray:
        return (log - self._centre) / self._width

    def _without_inert_prior(self, unlikely: float, log: np.ndarray) -> float:
        """−log p(y, θ) without the prior of the lengths of inert axes."""
        return unlikely - 0.5 * float((self._off(log)[_SCALES:][self.inert] ** 2).sum())

    def _minimized(self, of: "_Pairs", y: np.ndarray, iterations: int) -> tuple[float, np.ndarray]:
        # Imported here, because it takes 0.1 s and predictions do not need it.
        from scipy.optimize import minimize

        best = minimize(
            self._objective,
            self.log_theta,
            args=(of, y),
            jac=True,
            method="L-BFGS-B",
            bounds=list(zip(self._centre - 3 * self._width, self._centre + 3 * self._width, strict=True)),
            options={"maxiter": iterations},
        )
        return float(best.fun), best.x

    def _pairs(self, rows: EncodedRows, z: np.ndarray, slopes: np.ndarray, vague: np.ndarray | float) -> "_Pairs":
        points, effects, n = rows.points.astype(float), self._effects(rows).astype(float), len(rows)
        i, j = np.triu_indices(n, 1)
        gaps = np.zeros((max(len(self.encoding), 1), len(i)))
        for column, axis in zip(points.T, self.encoding.point_axis, strict=True):
            if not self.inert[axis]:
                gaps[axis] += (column[i] - column[j]) ** 2
        fixed = _CONSTANT + (z * slopes**2) @ z.T
        fixed.flat[:: n + 1] += vague
        linear = effects @ effects.T if self.use_effects else np.zeros((n, n))
        return _Pairs(i, j, i * n + j, gaps, fixed[i, j], linear[i, j], np.diag(fixed), np.diag(linear))

    def _objective(self, log: np.ndarray, of: "_Pairs", y: np.ndarray) -> tuple[float, np.ndarray]:
        """(−log p(y, θ) up to a constant, its gradient by log θ). Only one triangle of each symmetric matrix is
        computed."""
        theta, n = Theta.of(log), len(y)
        r = np.sqrt(theta.lengths**-2 @ of.gaps)
        t = np.sqrt(5) * r
        decay = np.exp(-t)
        h = theta.residual**2 * (1 + t + t * t / 3) * decay
        q = theta.rough**2 * np.exp(-r)
        k = np.zeros(n * n)  # column-major for LAPACK
        k[of.below] = of.fixed + theta.effects**2 * of.linear + h + q
        own = theta.residual**2 + theta.rough**2 + theta.noise**2 + 1e-8
        k[:: n + 1] = of.fixed_own + theta.effects**2 * of.linear_own + own
        low, failed = _potrf(k.reshape(n, n, order="F"), lower=1, overwrite_a=1)
        if failed:
            return 1e10, np.zeros_like(log)
        alpha = cho_solve((low, True), y)
        volume = np.log(np.diag(low)).sum()
        inverse, _ = _potri(low, lower=1, overwrite_c=1)
        # The factor 2 accounts for the other triangle.
        w = 2 * (inverse.ravel(order="F")[of.below] - alpha[of.i] * alpha[of.j])
        w_own = np.diag(inverse) - alpha**2
        by_square = -(5 / 6) * theta.residual**2 * (1 + t) * decay - 0.5 * q / np.maximum(r, 1e-6)  # ∂(h + q)/∂(r²)
        by_length = of.gaps @ (w * by_square) * (-2 * theta.lengths**-2)
        trace = w_own.sum()
        by_scale = [
            theta.effects**2 * (w @ of.linear + w_own @ of.linear_own),
            w @ h + theta.residual**2 * trace,
            w @ q + theta.rough**2 * trace,
            theta.noise**2 * trace,
        ]
        slope = np.array([*by_scale, *(0.5 * by_length)])
        off = self._off(log)
        value = 0.5 * y @ alpha + volume + 0.5 * off @ off
        return float(value), slope + off / self._width

    def _effects(self, rows: EncodedRows) -> np.ndarray:
        """(n, E) effects, 0 for inert axes. (If no axis is inert, the rows may have additional columns.)"""
        return rows.effects * ~self.inert[self.encoding.effect_axis] if self.inert.any() else rows.effects

    # ---- prediction -------------------------------------------------------------------------------------------------

    @property
    def theta(self) -> Theta:
        theta = Theta.of(self.log_theta)
        theta.lengths[self.inert] = np.inf
        return theta

    def features(self, rows: EncodedRows, z: np.ndarray, slopes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(scaled points, regressors of the linear part), float32, for the fitted θ. `z`, `slopes`: as in `fit`."""
        theta = self.theta
        points = rows.points / theta.lengths[self.encoding.point_axis].astype(np.float32)
        linear = [np.full((len(rows), 1), np.float32(np.sqrt(_CONSTANT))), (z * slopes).astype(np.float32)]
        if self.use_effects:
            linear.append(self._effects(rows) * np.float32(theta.effects))
        return points, np.concatenate(linear, axis=1, dtype=np.float32)

    def kernel(self, a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        """(|a|, |b|) covariances of f between two sets of features. If `a` and `b` are the same object, covariances are
        computed in double precision, because the rough part needs distances of exactly 0."""
        if a is b:
            a = b = _double(a)
        squares = (a[0] ** 2).sum(axis=1)[:, None] + (b[0] ** 2).sum(axis=1)[None] - 2 * a[0] @ b[0].T
        r = np.sqrt(np.maximum(squares, 0))
        h = np.float32(self.theta.residual**2) * matern(r) + np.float32(self.theta.rough**2) * np.exp(-r)
        return h + a[1] @ b[1].T

    def variance(self, a: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        return np.float32(self.theta.residual**2 + self.theta.rough**2) + (a[1] ** 2).sum(axis=1)


class Belief:
    """The posterior mean and standard deviation of m candidates. Adding a measured row takes O(n m)."""

    def __init__(
        self,
        posterior: Posterior,
        measured: tuple[np.ndarray, np.ndarray],
        candidates: tuple[np.ndarray, np.ndarray],
        vague: np.ndarray | float = 0.0,
    ) -> None:
        """`vague`: (n,) additional noise variance of single measured rows."""
        self.posterior = posterior
        self.measured, self.candidates = measured, candidates
        n, m = len(measured[0]), len(candidates[0])
        k = posterior.kernel(measured, measured).astype(float)
        k.flat[:: n + 1] += posterior.theta.noise**2 + 1e-6 + vague
        self.low = np.linalg.cholesky(k)
        self._vague = np.broadcast_to(np.asarray(vague, dtype=float), (n,))
        self._rows = np.empty((max(2 * n, n + 16), m), dtype=np.float32)  # L⁻¹ K(measured, candidates)
        self._rows[:n], self._left = self._reached(candidates)

    def _reached(self, candidates: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """((n, m) L⁻¹ K(measured, candidates), (m,) posterior variances of the candidates)."""
        across = self.posterior.kernel(self.measured, candidates)
        rows = solved(self.low.astype(np.float32), across)
        return rows, self.posterior.variance(candidates) - (rows**2).sum(axis=0)

    def turn(self, kept: np.ndarray, fresh: tuple[np.ndarray, np.ndarray]) -> None:
        """Replaces the candidates by those at the positions `kept`, followed by the features of `fresh` ones."""
        n, old = len(self.low), self.candidates
        rows, left = self._reached(fresh)
        turned = np.empty((len(self._rows), len(kept) + len(left)), dtype=np.float32)
        turned[:n] = np.concatenate([self._rows[:n, kept], rows], axis=1)
        self._rows, self._left = turned, np.concatenate([self._left[kept], left])
        self.candidates = np.concatenate([old[0][kept], fresh[0]]), np.concatenate([old[1][kept], fresh[1]])

    def append(self, row: tuple[np.ndarray, np.ndarray], vague: float = 0.0) -> None:
        """Adds one measured row, given by its features (1, …), by extending the Cholesky factor."""
        n = len(self.low)
        edge, left = self._edge(row)
        corner = np.sqrt(left + vague)
        self.low = np.block([[self.low, np.zeros((n, 1))], [edge[None], np.array([[corner]])]])
        if n == len(self._rows):
            self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
        fresh = self.posterior.kernel(row, self.candidates)[0] - edge.astype(np.float32) @ self._rows[:n]
        self._rows[n] = fresh / np.float32(corner)
        self._left = self._left - self._rows[n] ** 2
        self._vague = np.append(self._vague, vague)
        self.measured = (
            np.concatenate([self.measured[0], row[0]]),
            np.concatenate([self.measured[1], row[1]]),
        )

    def _edge(self, row: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, float]:
        """(next row of the Cholesky factor, posterior variance of y at that row)."""
        # Single precision is insufficient for a row that is almost determined by other rows.
        across = self.posterior.kernel(_double(row), _double(self.measured))[0]
        edge = solved(self.low, across)
        left = float(self.posterior.variance(row)[0]) + self.posterior.theta.noise**2 + 1e-6 - edge @ edge
        return edge, max(float(left), 1e-6)

    def expected(self, row: tuple[np.ndarray, np.ndarray], y: np.ndarray) -> tuple[float, float]:
        """(mean, variance) of a measurement of a row, given y (n,)."""
        edge, left = self._edge(row)
        return float(edge @ solved(self.low, y)), left

    def forget(self, count: int) -> None:
        n = len(self.low) - count
        self._left = self._left + (self._rows[n : n + count] ** 2).sum(axis=0)
        self.low = self.low[:n, :n]
        self._vague = self._vague[:n]
        self.measured = self.measured[0][:n], self.measured[1][:n]

    def completed(self, y: np.ndarray) -> np.ndarray:
        """Returns `y` (k,) of the first k rows, extended by the expected values of the remaining rows."""
        k = len(y)
        if k == len(self.low):
            return y
        weights = solved(self.low[:k, :k], y)
        return np.concatenate([y, self.low[k:, :k] @ weights])

    def mean(self, y: np.ndarray) -> np.ndarray:
        """(m,) expected values of the candidates, given y (n,) of the measured rows."""
        weights = solved(self.low, y)
        return weights.astype(np.float32) @ self._rows[: len(y)]

    def fitted(self, y: np.ndarray) -> np.ndarray:
        """(n,) expected values of f at the measured rows, that is, without noise."""
        alpha = cho_solve((self.low, True), y)
        return y - (self.posterior.theta.noise**2 + 1e-6 + self._vague) * alpha

    def covariance(self, places: np.ndarray) -> np.ndarray:
        features, reached = (
            (self.candidates[0][places], self.candidates[1][places]),
            self._rows[: len(self.low), places],
        )
        return (self.posterior.kernel(features, features) - reached.T @ reached).astype(float)

    def new(self, expected: np.ndarray, measured: np.ndarray) -> np.ndarray:
        """(m,) whether candidates differ from all measured rows in an axis that is not inert, or in the prior mean.
        `expected`: (m,) prior means of the candidates; `measured`: (n,) those of the measured rows, NaN for rows to
        ignore."""
        pairs = ((self.candidates[0], expected), (self.measured[0], measured))
        candidates, measured = (numbered(points) + np.round(mean, _ALIKE) for points, mean in pairs)
        return ~np.isin(candidates, measured)

    @property
    def deviation(self) -> np.ndarray:
        return np.sqrt(np.maximum(self._left, 1e-10))


def _double(features: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return features[0].astype(float), features[1].astype(float)


_SHARE = (1.0, 5.0)  # Beta prior of the share of knobs without effect
_SURE = np.log(20)  # log odds required to treat a set of axes as inert
_BEYOND = 0.25  # axes with a larger share of the prior's mass beyond the fitted length are not considered


def inert_sets(off: np.ndarray) -> Iterator[tuple[np.ndarray, float]]:
    """Sets of knobs that may have no effect: yields at most two (mask of axes (D,), permitted loss of log p(y | θ) by
    leaving them out), the larger set first. `off`: (D,) fitted log lengths minus their prior medians, in prior standard
    deviations.

    The prior of each length is extended by a spike at ℓ = ∞. Without the spike, lengths that the data do not bound
    remain at their prior, and a search tries the best configuration repeatedly with other values of such a knob. The
    prior odds that k of D axes are inert are B(a + k, b + D − k) / B(a, b + D). These odds are compared with the
    prior's mass beyond the fitted lengths, where the likelihood is flat (Φ(−off) for each length). A set must be 20
    times as likely as not, because inert knobs are no longer explored, although knobs with small effects decide among
    the best configurations."""
    d, (a, b) = len(off), _SHARE
    order = np.argsort(-off, kind="stable")
    order = order[ndtr(-off[order]) < _BEYOND]
    if not len(order):
        return
    k = np.arange(1, len(order) + 1)
    odds = betaln(a + k, b + d - k) - betaln(a, b + d) - np.cumsum(log_ndtr(-off[order]))
    most = int(np.argmax(odds)) + 1
    for count in (most, most // 2):
        if count and odds[count - 1] > _SURE:
            yield np.isin(np.arange(d), order[:count]), float(odds[count - 1] - _SURE)
