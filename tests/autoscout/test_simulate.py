"""The four linear simulators, their ensemble and the guard."""

import numpy as np
import pytest
from landscape import job_of, measured, space_of

from autoscout.rivals.expert import expert_default
from autoscout.simulate.ensemble import MIN_ROWS, fit
from autoscout.simulate.guard import Guard
from autoscout.simulate.linear import MEMBERS, matrix
from autoscout.simulate.memory import estimate_gib
from autoscout.space.explain import completed

CPU = {"cpu": 4}


def rows(space, n, seed=0):
    rng = np.random.default_rng(seed)
    configurations = [space.sample(rng) for _ in range(n)]
    return configurations, [measured(space, c).metrics["step_time_s"] for c in configurations]


def test_the_members_are_those_of_table_2():
    assert list(MEMBERS) == ["3D-Parallelism", "5D-Parallelism", "DDP-Aware", "Communication-Aware"]
    common = ("a100", "a40", "mbs", "tp", "pp", "dp")
    assert all(knobs[:6] == common for knobs in MEMBERS.values())
    assert [knobs[6:] for knobs in MEMBERS.values()] == [(), ("ep", "cp", "sp"), ("ddp_optim",), ("ar", "tp_comm")]


def test_features_of_active_and_inactive_knobs():
    space = space_of("llama-3.2-3b")
    configuration = completed(space, {"a100": 8, "a40": 0, "tp": 2, "ar": "full"}, expert_default(space))
    names = ("a100", "a40", "tp", "ep", "ar", "tp_comm", "ddp_optim")
    assert matrix([configuration], names, {"a100": 8, "a40": 4}).tolist() == [[8, 0, 2, 1, 1, 0, 1]]


def test_a_cluster_of_one_kind_counts_its_devices():
    space = space_of("tiny-gpt-cpu")
    assert matrix([expert_default(space)], ("a100", "a40"), {"a100": 4}).tolist() == [[4, 0]]


def test_weights_are_equation_2():
    space = space_of("tiny-gpt-cpu")
    ensemble = fit(*rows(space, 200), CPU)
    assert ensemble is not None
    positive = {name: max(0.0, r) for name, r in ensemble.r2.items()}
    total = sum(positive.values())
    assert ensemble.weights == pytest.approx({name: r / total for name, r in positive.items()})
    prediction, members = ensemble.predict(expert_default(space))
    assert prediction == pytest.approx(sum(ensemble.weights[m] * members[m] for m in members))


def test_the_member_that_sees_more_is_weighted_more():
    """Context parallelism costs here, and only the 5D member sees it."""
    ensemble = fit(*rows(space_of("tiny-gpt-cpu"), 300), CPU)
    assert ensemble is not None
    assert max(ensemble.weights, key=lambda name: ensemble.weights[name]) == "5D-Parallelism"


def test_rows_that_explain_nothing_give_no_ensemble():
    space = space_of("tiny-gpt-cpu")
    configurations, _ = rows(space, 100)
    noise = np.random.default_rng(0).lognormal(size=100).tolist()
    ensemble = fit(configurations, noise, CPU)
    assert ensemble is None or max(ensemble.r2.values()) < 0.1
    assert fit(configurations[: MIN_ROWS - 1], noise[: MIN_ROWS - 1], CPU) is None


def test_no_prediction_is_below_half_of_the_fastest_seen():
    space = space_of("tiny-gpt-cpu")
    configurations, times = rows(space, 100)
    ensemble = fit(configurations, times, CPU)
    assert ensemble is not None
    assert min(ensemble.predict(c)[0] for c in space.configurations()) >= min(times) / 2


def test_the_guard_averages_a_window():
    guard = Guard(epsilon=0.16, window=2)
    assert guard.trusted
    assert guard.check(1.1, 1.0) == pytest.approx(0.1)
    assert guard.check(1.3, 1.0) == pytest.approx(0.2)
    assert not guard.trusted
    assert guard.check(1.0, 1.0) == pytest.approx(0.15)
    assert guard.trusted
    assert guard.check(1.0, None) == pytest.approx(0.5)  # predicted to run, and failed


def test_the_memory_estimate_moves_as_memory_does():
    space = space_of("llama-3.1-nemotron-nano-8b", fix={"a40": 0})
    default = expert_default(space)

    def gib(**knobs):
        return estimate_gib(space.attributes, completed(space, knobs, default))

    assert gib(tp=2) < gib(tp=1)
    assert gib(ar="full") < gib(ar="selective") < gib(ar="none")
    assert gib(mbs=1) < gib(mbs=4)
    assert gib(distopt=True) < gib(distopt=False)


@pytest.mark.parametrize("name", ["llama-3.2-3b", "llama-3.1-nemotron-nano-8b", "qwen3-30b-a3b"])
def test_the_expert_default_fits_the_smallest_device_that_it_uses(name):
    space = space_of(name)
    # 30.5 B parameters of 18 bytes over 12 devices are 42.7 GiB each: no layout of the MoE leaves a fifth of 48 free.
    assert estimate_gib(space.attributes, expert_default(space)) <= 0.91 * min(
        node.memory_gib or {"a100": 80.0, "a40": 48.0}[node.device] for node in job_of(name).cluster.nodes
    )
