"""One suite for every strategy: valid, without repeats, deterministic, and at peace with failures."""

import pytest
from landscape import failed, measured, space_of

from autoscout.job.objective import cost
from autoscout.search.strategy import strategy
from kb.journal import Decided
from kb.records import AutoscoutError

STRATEGIES = ["autoscout", "paper", "random"]
every_strategy = pytest.mark.parametrize("name", STRATEGIES)


def drive(name, space, budget, answer=measured, seed=0):
    """Runs a strategy for `budget` distinct evaluations; returns them in order, and all decisions."""
    chosen = strategy(name, space, seed)
    seen, decisions = {}, []
    for _ in range(20 * budget):
        batch = chosen.ask()
        if not batch or len(seen) >= budget:
            break
        for configuration in batch:
            seen.setdefault(configuration.id, answer(space, configuration))
        chosen.tell([seen[c.id] for c in batch])
        decisions += [e for e in chosen.drain() if isinstance(e, Decided)]
    return list(seen.values()), decisions


@every_strategy
def test_only_valid_configurations_are_asked_and_the_default_first(name):
    space = space_of("tiny-moe-cpu")
    measurements, _ = drive(name, space, 60)
    assert measurements[0].configuration == space.reference
    assert len(measurements) >= 60
    assert all(not space.violations(m.configuration) for m in measurements)


@every_strategy
def test_the_same_seed_decides_the_same_and_another_does_not(name):
    space = space_of("tiny-gpt-cpu")
    first, again, other = (drive(name, space, 40, seed=seed)[1] for seed in (1, 1, 2))
    assert first == again
    assert first != other


@every_strategy
def test_a_small_space_is_exhausted_and_then_nothing_is_asked(name):
    space = space_of("smallest-cpu", limit={"ar": ["none"], "mbs": [4, 8]})
    measurements, _ = drive(name, space, 10_000)
    assert len(measurements) == space.count


@every_strategy
def test_failures_are_told_and_never_asked_again(name):
    """Everything but pipelines of two stages fails."""
    space = space_of("tiny-gpt-cpu")

    def only_pp2(space, configuration):
        works = configuration.knobs["pp"] == 2
        return measured(space, configuration) if works else failed(space, configuration)

    measurements, decisions = drive(name, space, 80, only_pp2)
    assert any(m.status == "ok" for m in measurements)
    asked_twice = [d for d in decisions if d.phase == "tournament" and len(d.configurations) != 1]
    assert asked_twice == []


@every_strategy
def test_a_batch_of_which_everything_fails_does_not_end_the_search(name):
    space = space_of("smallest-cpu")
    measurements, _ = drive(name, space, 50, failed)
    assert len(measurements) >= 50


@every_strategy
def test_reaches_the_neighbourhood_of_the_optimum(name):
    space = space_of("tiny-gpt-cpu")
    best = min(cost(space.objective, measured(space, c)) or 9.0 for c in space.configurations())
    reached = min(cost(space.objective, m) or 9.0 for m in drive(name, space, 120)[0])
    assert reached <= 1.25 * best


@pytest.mark.thorough
def test_autoscout_needs_fewer_experiments_than_random_search():
    space = space_of("tiny-gpt-cpu")

    def reached(name):
        runs = [drive(name, space, 40, seed=seed)[0] for seed in range(8)]
        return sorted(min(cost(space.objective, m) or 9.0 for m in run) for run in runs)[4]

    assert reached("autoscout") < reached("random")


def test_an_unknown_strategy_names_the_known():
    with pytest.raises(AutoscoutError, match="did you mean 'genetic'"):
        strategy("gradient", space_of("smallest-cpu"))
