"""Names of configurations, as tables and screens print them, are read back."""

from pathlib import Path

import numpy as np
import pytest

from autoscout.deploy.export import of_job
from autoscout.space.explain import named, parse
from autoscout.targets.jobs import JobSpace, load_job
from kb.records import AutoscoutError

JOBS = [*sorted(Path("fixtures/jobs").glob("*cpu.toml")), Path("fixtures/jobs/llama-3.2-3b.toml"),
        Path("fixtures/jobs/llama-3-8b-serve.toml"), Path("fixtures/jobs/qwen3-30b-a3b.toml")]  # fmt: skip


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_every_name_is_read_as_the_configuration_that_it_names(path):
    space = JobSpace.load(path)
    rng = np.random.default_rng(7)
    for configuration in [space.reference, *(space.sample(rng) for _ in range(30))]:
        assert named(space, space.name(configuration)) == configuration


def test_a_name_stands_where_assignments_do():
    space = JobSpace.load("fixtures/jobs/tiny-gpt-cpu.toml")
    assert parse(space, [space.name(space.reference)]) == space.reference.knobs


@pytest.mark.parametrize("text", ["pp3_dp2", "nonsense", "", "pp2_pp2"])
def test_what_names_nothing_is_said_to(text):
    space = JobSpace.load("fixtures/jobs/tiny-gpt-cpu.toml")
    with pytest.raises(AutoscoutError, match="neither KNOB=VALUE"):
        parse(space, [text])


@pytest.mark.parametrize(
    ("typed", "knob"),
    [("microbatch", "mbs"), ("micro_batch_size", "mbs"), ("tensor_parallel", "tp"), ("pipeline-parallel", "pp")],
)
def test_a_knob_is_found_by_the_name_of_what_it_sets(typed, knob):
    space = JobSpace.load("fixtures/jobs/llama-3.2-3b.toml")
    with pytest.raises(AutoscoutError, match=f"did you mean '{knob}'"):
        parse(space, [f"{typed}=2"])


def test_a_predicted_configuration_is_exported_by_its_name_and_says_that_nobody_measured_it():
    job = load_job("fixtures/jobs/llama-3.2-3b.toml")
    space = JobSpace.of_job(job)
    other = space.sample(np.random.default_rng(3))
    found = of_job(job, [space.name(other)])
    assert found.configuration == other.knobs
    assert "not measured" in found.evidence
    assert found.arguments["--tensor-model-parallel-size"] == other.knobs["tp"]
