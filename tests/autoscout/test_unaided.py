"""What a search looks at where the simulators that it believes promise nothing."""

import itertools

import numpy as np
import pytest
from test_search_bad_input import ROWS, measured, of, space

from autoscout.search import autoscout as autoscout_module
from autoscout.search.autoscout import AutoScout
from autoscout.search.belief.outlook import look_unaided
from autoscout.search.strategy import Search
from kb.journal import Decided

SPACE = space(ROWS)
TRUTH = np.array([of(SPACE.feasible.configuration(row)) for row in range(len(ROWS))])


def searching(said) -> AutoScout:
    search = AutoScout(Search(space=SPACE, seed=0, simulators={"sim": said}))
    for _ in range(12):
        (c,) = search.ask()
        search.tell([measured(c, of(c))])
    return search


def exact(codes: np.ndarray) -> np.ndarray:
    return np.array([of(SPACE.of_codes(row)) for row in codes.tolist()])


def test_the_unaided_look_is_that_of_a_search_without_simulators():
    search = searching(exact)
    model = search.model
    model.update([])
    before = [m.weight for m in model.members], [m.belief for m in model.members if m.weight], model.gain.copy()
    look_unaided(model, [])
    unaided = model.gain.copy()
    assert [m.weight for m in model.members] == before[0]
    assert [m.belief for m in model.members if m.weight] == before[1]
    for member in model.members:
        member.weight = 0.5 if member.mean.z.shape[1] == 0 else 0.0
        member.belief = model.belief_of(member, model.candidates) if member.weight else None
    model.look([])
    assert unaided == pytest.approx(model.gain)
    assert not np.allclose(unaided, before[2])


def test_what_an_unaided_look_keeps_for_the_next_one_takes_in_what_is_told():
    model = searching(exact).model
    model.update([])
    look_unaided(model, [])
    kept, fitted_on = [m.belief for m in model.nothing], model._fitted_on
    untried = model.candidates[~model._taken([])[model.candidates]]
    for row in untried[:2].tolist():
        model.tell(row, float(TRUTH[row]))
    model.update(untried[2:3].tolist())
    assert model._fitted_on == fitted_on
    look_unaided(model, [])
    extended = model.gain.copy()
    assert [m.belief for m in model.nothing] == kept
    for member in model.nothing:
        member.belief = None
    look_unaided(model, [])
    assert extended == pytest.approx(model.gain, rel=1e-3, abs=1e-6)


def test_where_trusted_simulators_promise_nothing_every_third_step_goes_by_what_was_measured():
    search = searching(exact)
    assert search.model.trust > 0.5
    search.drain()
    reasons = []
    for _ in range(9):
        (c,) = search.ask()
        reasons += [event.why for event in search.drain() if isinstance(event, Decided)]
        search.tell([measured(c, of(c))])
    alone = [why == "the simulators predict hardly any gain: chosen from measurements alone" for why in reasons]
    assert sum(alone) == 3
    assert not any(a and b for a, b in itertools.pairwise(alone))


def test_a_trusted_simulator_is_given_some_experiments_first(monkeypatch):
    search = searching(exact)
    search.model.update([])
    assert len(search.model.costs) == 12
    for soon, looks in ((13, False), (12, True)):
        monkeypatch.setattr(autoscout_module, "_SOON", soon)
        assert (search._wider() is not None) is looks
