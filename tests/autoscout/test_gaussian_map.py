"""The rivals' Gaussian process against its definition."""

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.stats import multivariate_normal, norm

from autoscout.search.belief.posterior import matern
from autoscout.studies.rivals.gaussian_map import MapGP, _loss

RNG = np.random.default_rng(0)
X = RNG.random((12, 3))
Z = np.sin(4 * X[:, 0]) + 0.3 * X[:, 1] + 0.01 * RNG.standard_normal(12)
MIDDLE, WIDTH = np.array([1.9, 1.9, 1.9, -4.0]), np.array([1.7, 1.7, 1.7, 1.0])


def kernel(a: np.ndarray, b: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    r = np.sqrt((((a[:, None] - b[None]) / lengths) ** 2).sum(axis=2))
    return (1 + np.sqrt(5) * r + 5 / 3 * r**2) * np.exp(-np.sqrt(5) * r)


@pytest.mark.parametrize("theta", [MIDDLE, np.array([-0.5, 0.7, 2.0, -2.0])])
def test_the_loss_is_minus_the_log_of_likelihood_and_prior_and_its_slope_is_its_own(theta):
    apart = (X[:, None] - X[None]) ** 2

    def plainly(t: np.ndarray) -> float:
        k = kernel(X, X, np.exp(t[:3])) + (np.exp(2 * t[3]) + 1e-8) * np.eye(12)
        return -multivariate_normal(np.zeros(12), k).logpdf(Z) - norm.logpdf(t, MIDDLE, WIDTH).sum()

    value, gradient = _loss(theta, apart, Z, MIDDLE, WIDTH)
    other, _ = _loss(MIDDLE + 0.1, apart, Z, MIDDLE, WIDTH)
    assert value - other == pytest.approx(plainly(theta) - plainly(MIDDLE + 0.1))
    assert gradient == pytest.approx(approx_fprime(theta, plainly, 1e-6), rel=1e-3, abs=1e-3)


def test_what_is_predicted_is_the_posterior():
    gp = MapGP()
    assert gp.fit(X, Z)
    lengths, noise = np.exp(gp._theta[:-1]), np.exp(2 * gp._theta[-1]) + 1e-8
    at = RNG.random((5, 3))
    z = (Z - Z.mean()) / Z.std()
    k, across = kernel(X, X, lengths) + noise * np.eye(12), kernel(at, X, lengths)
    mean, deviation = gp.predict(at)
    assert mean == pytest.approx(Z.mean() + Z.std() * across @ np.linalg.solve(k, z))
    assert deviation**2 == pytest.approx(Z.std() ** 2 * (1 - (across @ np.linalg.inv(k) * across).sum(axis=1)))
    assert matern(np.zeros(1)) == 1


def test_it_is_refitted_when_its_data_have_grown_by_a_tenth():
    gp = MapGP()
    assert [gp.fit(X[:n], Z[:n]) for n in (10, 10, 11, 11, 12, 12)] == [True, False, True, False, False, False]
    constant = MapGP()
    assert constant.fit(X, np.full(12, 3.0))
    assert constant.predict(X)[0] == pytest.approx(np.full(12, 3.0))
