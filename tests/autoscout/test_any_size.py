"""Nothing about one configuration needs a list of all, and a search goes on where there can be none."""

import msgspec
import numpy as np
import pytest
from landscape import job_of, measured, space_of, step_time

from autoscout import Study
from autoscout.search.belief.foreseen import MEMORY
from autoscout.search.candidates import beam, towards
from autoscout.search.hyper import DefaultHyper
from autoscout.search.strategy import kind_of, sampled, strategy
from autoscout.simulate.ensemble import Simulators
from autoscout.space.explain import explain
from autoscout.targets.jobs import JobSpace
from autoscout.tuning.predict import predict
from kb.records import AutoscoutError, Cluster, Configuration, Job, Measurement, Node, Status


@pytest.fixture(scope="module")
def job() -> Job:
    """24 million valid configurations: a model of the paper's on one node of today."""
    job = job_of("qwen3-30b-a3b")
    launch = msgspec.structs.replace(job.launch, transformer_engine=True)
    return msgspec.structs.replace(job, cluster=Cluster(nodes=[Node(device="h100", count=8)]), launch=launch)


@pytest.fixture(scope="module")
def space(job) -> JobSpace:
    return JobSpace.of_job(job)


def told(configuration: Configuration, status: Status, metrics: dict[str, float]) -> Measurement:
    return Measurement(configuration=configuration, name="", context="", status=status, metrics=metrics)


def test_one_configuration_is_predicted_and_explained_without_a_list(job, space):
    assert not space.enumerable
    assert space.is_valid(space.reference)
    found = predict(space, {"tp": 2}, None)
    assert found.configuration["tp"] == 2
    assert found.value > 0
    assert found.memory is not None
    wrong = explain(space, {"tp": 2, "sp": False}, space.reference)
    assert [v.rule for v in wrong.violations] == ["M3"]
    assert wrong.nearest is not None
    with pytest.raises(AutoscoutError, match="too many to list"):
        _ = space.feasible


def test_a_study_of_such_a_space_measures_the_recipes_first_and_then_searches(job, tmp_path):
    job = msgspec.structs.replace(job, launch=msgspec.structs.replace(job.launch, repeats=1))
    study = Study(job, kb=tmp_path / "kb.duckdb", profiles=6)
    assert isinstance(study.space, JobSpace)
    simulators = Simulators(job, study.space, [])
    asked = []
    while study.wants_more():
        for configuration in study.ask():
            asked.append(configuration)
            study.tell(configuration, {"step_time_s": simulators.predict(configuration)[0], "peak_memory_gib": 40.0})
    recipes = study.space.recipes
    assert asked[: len(recipes)] == recipes
    best = study.best()
    assert simulators.predict(Configuration(best.configuration))[0] < min(simulators.predict(c)[0] for c in recipes)


def test_what_is_predicted_to_run_out_of_memory_is_left_alone_while_something_else_is_promising(job, space):
    simulators = Simulators(job, space, [])
    predictors, full = simulators.predictors(space), simulators.fullness(space)
    assert full is not None
    predict = next(iter(predictors.values()))
    chosen = strategy("autoscout", space, simulators=predictors, foreseen={MEMORY: full})
    failed = 0
    for _ in range(20):
        (configuration,) = chosen.ask()
        codes = np.array([space.codes_of(configuration.knobs)])
        value, gib = float(predict(codes)[0]), 79.1 * float(np.exp(full(codes)[0]))
        failed += np.isinf(value)
        ran: dict[str, float] = {} if np.isinf(value) else {"step_time_s": value, "peak_memory_gib": gib}
        chosen.tell([told(configuration, "oom" if np.isinf(value) else "ok", ran)])
    assert failed <= 1


def test_the_simulators_best_of_a_space_is_found_without_asking_for_all_of_it():
    space = space_of("tiny-moe-cpu")
    seconds = np.array([step_time(space.feasible.configuration(i)) for i in range(len(space.feasible))])
    by_codes = {row.tobytes(): s for row, s in zip(np.ascontiguousarray(space.feasible.codes), seconds, strict=True)}
    asked = []

    def costs(codes: np.ndarray) -> np.ndarray:
        asked.append(len(codes))
        return np.array([by_codes[row.tobytes()] for row in np.ascontiguousarray(codes)])

    for seed in range(3):
        found, value = beam(space, costs, np.random.default_rng(seed), start=500)
        assert value[0] == pytest.approx(seconds.min(), rel=0.01)
        assert len(np.unique(found, axis=0)) == len(found)
    assert sum(asked) / 3 < 0.5 * len(seconds)


@pytest.mark.thorough
def test_the_search_that_does_not_list_finds_what_the_one_that_lists_finds():
    space = space_of("tiny-gpt-cpu")
    best = min(step_time(c) for c in space.configurations())
    for seed in range(2):
        chosen = strategy("autoscout", space, seed=seed, hyper=DefaultHyper(listed=0))
        told = []
        for _ in range(60):
            (configuration,) = chosen.ask()
            assert space.is_valid(configuration)
            measurement = measured(space, configuration)
            told.append(measurement.metrics["step_time_s"])
            chosen.tell([measurement])
        assert min(told) < 1.03 * best


def test_tilted_samples_are_valid_and_lean_towards_what_is_wanted(space):
    rng = np.random.default_rng(0)
    good = space.sample_many(200, rng)
    good = good[good[:, 0] == good[0, 0]]
    for codes in (towards(space, good, 300, rng), space.sample_varied(300, rng)):
        assert all(space.is_valid(space.of_codes(row)) for row in codes[:50].tolist())
    leaning = np.mean(towards(space, good, 300, rng)[:, 0] == good[0, 0])
    assert leaning > np.mean(space.sample_many(300, rng)[:, 0] == good[0, 0])


def test_rivals_search_a_sample_and_say_so(space):
    kind = kind_of("random")
    assert sampled(kind, space).startswith(
        "'random' needs a list of all configurations, so it searches a random 20,000"
    )
    assert sampled(kind_of("autoscout"), space) == ""
    chosen = strategy("random", space)
    assert chosen.ask() == [space.reference]
