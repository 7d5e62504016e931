"""The settings of the searches: of other people's as their papers and sources have them, of ours as they were chosen.
What is compared or tuned under another one is another search, and no other test would say so."""

import importlib

import numpy as np
import pytest
from test_sequential_by_hand import pool

from autoscout.studies.rivals import bayes, cherrypick, gp_ei
from autoscout.studies.rivals.gaussian import Refitted

SETTINGS = {
    "studies.rivals.ants": {"_COLONY": 8, "_GREEDINESS": 0.5, "_DECAY": 0.1, "_START": 0.1},
    "studies.rivals.bayes": {"_FIRST": 10, "_CANDIDATES": 2000, "_FAILED": 2.0, "_KAPPA": 1.96},
    "studies.rivals.cherrypick": {"_FIRST": 3, "_CANDIDATES": 20_000, "_FAILED": 1.2},
    "studies.rivals.deepspeed": {
        "_FIRST": 2, "_EXPLORATION": 0.2, "_ROUNDS": 10, "_DEPTH": 3, "_ETA": 0.3,
        "_CANDIDATES": 20_000,
    },
    "studies.rivals.deepspeed_grid": {"EARLY_STOPPING": 5},
    "studies.rivals.deepspeed_model": {"INIT": 2, "EXPLORATION": 0.2},
    "studies.rivals.deepspeed_staged": {"GAIN": 0.05, "KEPT": 3},
    "autoscout_flexllmgen.by_linear_program": {"_NEAR": 3},
    "studies.rivals.genetic": {"_POPULATION": 20, "_SURVIVORS": 2, "_MUTATION": 0.1, "_TOURNAMENT": 3},
    "studies.rivals.gp_ei": {"_FIRST": 6, "_RANKED": 100_000, "_CANDIDATES": 4000, "_AT_ONCE": 8000},
    "studies.rivals.grid": {"_KEPT": 3, "_PLATEAU": 0.95},
    "studies.rivals.udo": {"_DELAY": 5, "_LIGHT": 4, "_RAVE": 50.0, "_B": 0.3},
    "search.sequential": {"_DUPLICATES": 15},
    "search.strategy": {"SAMPLE": 20_000},
    "search.stopping": {"_WORTH": 0.0025, "_SURE": 2, "_BETTER": 0.99},
    "search.trade": {"_HELD": 150, "_FITTED": 80, "_GROWTH": 1.25, "_STEPS": 30, "_CORNERS": 40},
    "studies.rivals.gaussian_map": {"_NOISE": (-4.0, 1.0), "_LENGTH": (-0.5, 1.2), "_STEPS": 50},
    "search.bandit": {"_SHARE": 0.2, "_MOST": 3.0},
    "search.candidates": {
        "_LISTED": 100_000, "_START": 3_000, "_BEAM": 48, "_ALIKE": 2, "_ROUNDS": 40, "_PATIENCE": 3, "_EVEN": 0.2,
    },
    "search.pool": {"_SAMPLE": 3_000, "_NEAR": 2_000},
    "search.autoscout": {
        "_OUTLOOK": 5, "_AHEAD": 10, "_MARGIN": 0.01, "_FAVOURITES": 1_000, "_SOON": 8, "_TRUST": 0.5, "_SURE": 0.9,
        "_CHECKS": 2, "_WIDE": 3, "_WIDER": 3.0, "_FIRST": 3, "_FAR": 400,
    },
    "search.belief.by_value": {"_SIGMAS": 1.96, "_LIKELY": 0.5},
    "search.belief.encoding": {"_NEAR": 0.5},
    "search.belief.feasibility": {
        "_OFFSET": 1.0, "_CONSTANT": 2.0, "_SLOPE": 4.0, "_EFFECT": 2.0, "_BEND": 8.0, "_LENGTH": 2.0, "_STEPS": 20,
        "_HELD": 300, "_AVERAGED": 1024,
    },
    "search.belief.limits": {"_BEYOND": 1.5},
    "search.belief.peaks": {
        "_ROOM": 0.03, "_SOFT": 0.02, "_SWEEPS": 10, "_KEPT": 0.3, "_SETTLED": 0.01, "_HELD": 200, "_FITTED": 100,
        "_STEPS": (30, 10), "_VAGUE": 1e4,
    },
    "search.belief.posterior": {"_CONSTANT": 1.0},
    "search.belief.ranking": {"_FEW": 4},
    "search.belief.renewal": {
        "_BASES": 8, "_CLIMBED": 4, "_TOWARDS": 250, "_EVENLY": 50, "_ELITE": 100, "_NEAR": 150, "_MOVED": 6,
        "_KEPT": 2_500, "_LUCK": 1_500,
    },
}  # fmt: skip


@pytest.mark.parametrize("module", SETTINGS)
def test_settings_are_those_that_were_chosen(module):
    found = vars(importlib.import_module(module if module.startswith("autoscout_") else f"autoscout.{module}"))
    assert {name: found[name] for name in SETTINGS[module]} == SETTINGS[module]


def test_peaks_are_believed_in_with_priors_of_their_own():
    prior = importlib.import_module("autoscout.search.belief.peaks")._PRIOR
    assert (prior.effects, prior.residual, prior.rough, prior.noise, prior.length) == (
        (0.3, 0.5), (0.6, 0.7), (0.03, 0.7), (0.02, 1.0), (1.0, 1.0),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("module", "search", "amplitude", "scales", "bounds", "noise"),
    [
        (bayes, bayes.bayes, (1e-2, 1e3), [1.0] * 4, (1e-2, 1e2), (1e-3, (1e-9, 1.0))),
        (cherrypick, cherrypick.cherrypick, (1e-2, 1e2), 0.5, (1e-2, 1e2), (1e-3, (1e-6, 1.0))),
    ],
)
def test_every_gaussian_process_begins_with_its_own_kernel(
    monkeypatch, module, search, amplitude, scales, bounds, noise
):
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    begun = []

    class Noted(Refitted):
        def __init__(self, kernel) -> None:
            begun.append(kernel)
            super().__init__(kernel)

    monkeypatch.setattr(module, "Refitted", Noted)
    next(search(pool(), np.random.default_rng(0)))
    assert begun == [ConstantKernel(1.0, amplitude) * Matern(scales, bounds, nu=2.5) + WhiteKernel(*noise)]


def test_the_chance_of_running_is_regularized_by_ten(monkeypatch):
    from sklearn import linear_model

    asked = []

    class Noted(linear_model.LogisticRegression):
        def fit(self, X, y, sample_weight=None):
            asked.append((self.C, self.max_iter))
            return super().fit(X, y, sample_weight)

    monkeypatch.setattr(linear_model, "LogisticRegression", Noted)
    made = pool({0: 1.0, 31: None})
    assert gp_ei._runs(made, gp_ei.features(made), np.arange(3)).shape == (3,)
    assert asked == [(10.0, 200)]
