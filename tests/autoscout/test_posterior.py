import numpy as np
import pytest
from scipy.optimize import approx_fprime

from autoscout.search.belief.encoding import Encoding
from autoscout.search.belief.posterior import Belief, Posterior, Prior
from autoscout.space.knob import Knob
from kb.records import Value


def knob(name: str, *values: Value) -> Knob:
    return Knob(name=name, kind="dense", layer="", values=values, meaning="", sets=name)


KNOBS = [knob("tile", 1, 2, 4, 8, 16), knob("block", 32, 64, 128), knob("layout", "row", "column", "blocked")]
NOTHING = np.zeros(0)


def some(n: int, seed: int = 0) -> tuple[Encoding, np.ndarray, np.ndarray]:
    """(encoding, (45, 3) all codes, (n,) distinct rows)"""
    codes = np.stack(np.meshgrid(range(5), range(3), range(3), indexing="ij"), axis=-1).reshape(-1, 3).astype(np.int16)
    return Encoding(KNOBS, codes), codes, np.random.default_rng(seed).choice(len(codes), n, replace=False)


@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_of_the_evidence_is_that_of_finite_differences(seed):
    encoding, codes, chosen = some(12, seed)
    rng = np.random.default_rng(seed)
    rows, y = encoding.rows(codes[chosen]), rng.standard_normal(12)
    posterior = Posterior(encoding, Prior())
    given = posterior._pairs(rows, np.zeros((12, 0)), NOTHING, 0.0), y
    at = posterior.log_theta + 0.3 * rng.standard_normal(len(posterior.log_theta))
    value, slope = posterior._objective(at, *given)
    expected = approx_fprime(at, lambda log: posterior._objective(log, *given)[0], 1e-6)
    assert np.isfinite(value)
    assert slope == pytest.approx(expected, rel=1e-3, abs=1e-3)


def test_rows_taken_in_one_by_one_leave_the_belief_that_all_at_once_leave():
    encoding, codes, chosen = some(20)
    y = np.random.default_rng(1).standard_normal(20)
    posterior = Posterior(encoding, Prior())
    posterior.fit(encoding.rows(codes[chosen]), y, np.zeros((20, 0)), NOTHING)

    def features(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return posterior.features(encoding.rows(codes[rows]), np.zeros((len(rows), 0)), NOTHING)

    every = np.arange(len(codes))
    whole = Belief(posterior, features(chosen), features(every))
    grown = Belief(posterior, features(chosen[:12]), features(every))
    for row in chosen[12:]:
        grown.append(features(np.array([row])))
    assert grown.mean(y) == pytest.approx(whole.mean(y), abs=1e-3)
    assert grown.deviation == pytest.approx(whole.deviation, abs=1e-3)


def test_beside_a_step_the_rough_part_keeps_a_belief_unsure():
    encoding, codes, _ = some(1)
    steps = np.flatnonzero((codes[:, 1] == 1) & (codes[:, 2] == 0))  # along `tile`
    y = np.array([0.0, 0.0, 2.0, 2.0])  # a step between the second and the fourth of five
    told = steps[[0, 1, 3, 4]]
    spread = {}
    for rough in (1e-3, 0.5):
        posterior = Posterior(encoding, Prior(rough=(rough, 0.1)))
        posterior.log_theta = posterior._centre.copy()
        measured = posterior.features(encoding.rows(codes[told]), np.zeros((4, 0)), NOTHING)
        between = posterior.features(encoding.rows(codes[steps[[2]]]), np.zeros((1, 0)), NOTHING)
        belief = Belief(posterior, measured, between)
        spread[rough] = belief.deviation[0]
        assert belief.mean(y)[0] == pytest.approx(1.0, abs=0.2)
    assert spread[0.5] > 1.2 * spread[1e-3]


def test_with_lengths_far_apart_a_belief_can_still_be_had():
    """Distances of 0 in single precision were not, which the rough part does not forgive."""
    encoding, codes, _ = some(1)
    told = np.flatnonzero((codes[:, 1] == 1) & (codes[:, 2] == 0))
    for short in (1e-3, 1e-2, 1e-1):
        posterior = Posterior(encoding, Prior(rough=(1.0, 0.7)))
        posterior.log_theta = posterior._centre.copy()
        posterior.log_theta[3] = np.log(1e-4)  # noise
        posterior.log_theta[4:] = np.log([1e3, short, short])
        measured = posterior.features(encoding.rows(codes[told]), np.zeros((len(told), 0)), NOTHING)
        k = posterior.kernel(measured, measured)
        assert np.diag(k) == pytest.approx(posterior.variance(measured), rel=1e-6)
        Belief(posterior, measured, measured)
