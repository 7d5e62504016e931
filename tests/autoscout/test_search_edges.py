"""What a search does where what it decides by is the same for many, or used up: no improvement that a float can hold, a
prediction of two values, candidates renewed as often as they may be."""

import numpy as np
from test_autoscout_by_hand import searching
from test_prior_means_by_hand import CODES, LOG, POOL, saying

from autoscout.search import pool as pool_module
from autoscout.search.belief import surrogate
from autoscout.search.belief.encoding import Encoding
from autoscout.search.belief.prior_means import of_simulator
from autoscout.search.hyper import DefaultHyper
from autoscout.search.pool import CandidatePool
from autoscout.studies.rivals.gaussian import expected_improvement, most_promising


def test_without_any_chance_of_improving_the_least_unlikely_is_taken():
    """100, 50 and 60 deviations above the best: no expected improvement that a float can hold."""
    mean, sd = np.array([10.0, 500.0, 3.0]), np.array([0.1, 10.0, 0.05])
    assert expected_improvement(mean, sd, 0.0).tolist() == [0.0, 0.0, 0.0]
    assert most_promising(mean, sd, 0.0) == 1
    assert most_promising(np.array([1.0, 2.0]), np.array([1.0, 1.0]), 1.5) == 0


def test_half_of_the_space_is_predicted_to_be_equally_good():
    """A quarter of the rows is not told from another one: the far row is one of all that are predicted best."""
    best = CODES[:, 0] < CODES[:, 0].max()
    search = searching(simulators={"sim": saying(np.where(best, 1.0, 7.0))})
    assert best.mean() > 0.25
    assert best[search._far(likely=True).row]


def test_candidates_of_a_sample_are_renewed_a_few_steps_after_a_fit(monkeypatch):
    monkeypatch.setattr(pool_module, "_SAMPLE", 12)
    monkeypatch.setattr(surrogate, "_RENEWED", 2)
    some = CandidatePool(POOL.space, np.random.default_rng(0), listed=1)
    encoding = Encoding(POOL.space.knobs, some.levels())
    mean = of_simulator("sim", saying(np.exp(LOG)), some, encoding, np.random.default_rng(0))
    model = surrogate.Surrogate(some, encoding, [mean], DefaultHyper(), np.random.default_rng(0))
    for row in range(6):
        model.tell(row, 1.0 + row)
    rounds = []
    for _ in range(5):
        model.update([])
        assert model.renewal is not None
        rounds.append(model.renewal._rounds)
    assert rounds == [0, 1, 2, 2, 2]
