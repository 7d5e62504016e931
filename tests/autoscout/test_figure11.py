"""The paper's Figure 11: noise in the simulators makes the guard switch, and the search still ends near the optimum."""

import pytest

from tests.tools.figure11 import Landscape, search


@pytest.fixture(scope="module")
def landscape():
    return Landscape()


@pytest.mark.parametrize("noise", [0.0, 0.4, 0.8])
def test_the_guard_switches_when_simulators_are_noisy_and_the_search_goes_on(landscape, noise):
    run = search(landscape, "autoscout", noise, seed=1, history=landscape.history(), budget=40)
    assert run.checks >= 5
    if noise:
        assert "more than ε" in run.switched
        assert run.mape > 0.15
    else:
        assert run.switched == ""
        assert run.mape < 0.1
    assert run.regret <= 0.02
