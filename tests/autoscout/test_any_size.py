"""Nothing about one configuration needs a list of all, and a search goes on where there can be none."""

import msgspec
import pytest
from landscape import job_of

from autoscout.space.explain import explain
from autoscout.targets.jobs import JobSpace, expert_default
from autoscout.tuning.predict import predict
from kb.records import AutoscoutError, Cluster, Job, Node


@pytest.fixture(scope="module")
def job() -> Job:
    """24 million valid configurations: a model of the paper's on one node of today."""
    job = job_of("qwen3-30b-a3b")
    launch = msgspec.structs.replace(job.launch, transformer_engine=True)
    return msgspec.structs.replace(job, cluster=Cluster(nodes=[Node(device="h100", count=8)]), launch=launch)


@pytest.fixture(scope="module")
def space(job) -> JobSpace:
    return JobSpace.of_job(job)


def test_one_configuration_is_predicted_and_explained_without_a_list(job, space):
    assert not space.enumerable
    assert space.is_valid(expert_default(space))
    found = predict(job, {"tp": 2}, None)
    assert found.configuration["tp"] == 2
    assert found.value > 0
    assert found.memory is not None
    wrong = explain(space, {"tp": 2, "sp": False}, expert_default(space))
    assert [v.rule for v in wrong.violations] == ["M3"]
    assert wrong.nearest is not None
    with pytest.raises(AutoscoutError, match="too many to list"):
        _ = space.feasible
