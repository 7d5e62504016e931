"""What stopped people before anything ran: bad numbers, limits that contradict, spaces that were empty needlessly."""

import re
from pathlib import Path

import msgspec
import pytest
from landscape import job_of

from autoscout.targets.jobs import JobSpace, load_job
from autoscout.tuning.predict import predict
from kb.records import AutoscoutError, Cluster, Job, Node, SpaceLimits


def on(job: Job, device: str, count: int, **limits) -> Job:
    return msgspec.structs.replace(
        job, cluster=Cluster(nodes=[Node(device=device, count=count)]), space=SpaceLimits(**limits)
    )


@pytest.mark.parametrize("users", [1, 4, 8])
def test_a_few_users_leave_the_smallest_batch(users):
    job = on(job_of("llama-3-8b-serve"), "h100", 2)
    job = msgspec.structs.replace(job, traffic=msgspec.structs.replace(job.traffic, concurrency=users))
    assert JobSpace.of_job(job).domain("max_num_seqs") == (16,)


def test_the_papers_serving_job_has_a_simulator_on_either_kind_of_device():
    job = job_of("llama-3-8b-serve")
    space = JobSpace.of_job(job)
    fast, slow = (predict(space, {kind: n}, None) for kind, n in (("a100", 8), ("a40", 4)))
    assert 0 < fast.value < slow.value
    assert fast.expected_error < 0.3


def test_limits_that_contradict_are_named():
    with pytest.raises(AutoscoutError, match=r"fixes tp = 2, but limits it to 1; correct the fixed value") as refused:
        JobSpace.of_job(on(job_of("llama-3.2-3b"), "h100", 4, fix={"tp": 2}, limit={"tp": [1]}))
    assert refused.value.exit_code == 2


def test_a_layout_that_needs_more_devices_is_told_with_its_numbers():
    with pytest.raises(AutoscoutError, match=r"pp 2 × tp 2 × cp \(any\) × dp \(any\) must equal the 2 devices \(W1\)"):
        JobSpace.of_job(on(job_of("llama-3.2-3b"), "h100", 2, fix={"tp": 2, "pp": 2}))


@pytest.mark.parametrize(("key", "of"), [("global_batch", "any run has"), ("seq_len", "any run has"), ("count", "")])
def test_numbers_beyond_64_bits_are_refused(key, of, tmp_path: Path):
    text = Path("fixtures/jobs/smallest-cpu.toml").read_text()
    file = tmp_path / "job.toml"
    file.write_text(re.sub(rf"\b{key} = \d+", f"{key} = {2**63}", text, count=1))
    with pytest.raises(AutoscoutError, match=rf"{key} = {2**63} is .*{of}.*; at most [\d,]+ can be tuned") as refused:
        load_job(file)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(("field", "value"), [("layers", 4_000_000_000), ("vocab", 10**23)])
def test_sizes_that_no_model_has_are_refused(field, value, tmp_path: Path):
    text = Path("fixtures/jobs/llama-3.2-3b.toml").read_text()
    file = tmp_path / "job.toml"
    file.write_text(text.replace('preset = "llama-3.2-3b"', f'preset = "llama-3.2-3b"\n{field} = {value}'))
    with pytest.raises(AutoscoutError, match=f"model.{field} = {value} is more than any model has") as refused:
        load_job(file)
    assert refused.value.exit_code == 2
