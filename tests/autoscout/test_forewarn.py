import msgspec

from autoscout.targets.jobs import JobSpace, load_job
from autoscout.tuning.forewarn import too_slow
from kb.records import Job


def said(job: Job) -> str:
    space = JobSpace.of_job(job)
    return too_slow(job, space, space.reference)


def test_steps_that_do_not_fit_into_the_time_limit_are_told_before_the_start() -> None:
    job = load_job("fixtures/jobs/llama-3.2-3b.toml")
    assert said(job) == "", "a step of a second or so fits into two minutes"
    traffic = msgspec.structs.replace(job.traffic, global_batch=job.traffic.global_batch * 64)
    found = said(msgspec.structs.replace(job, traffic=traffic))
    assert found.startswith("the expert default is predicted to take ")
    assert f"launch.timeout_s = {job.launch.timeout_s:g} must also cover the start; set launch.timeout_s = " in found
    patient = msgspec.structs.replace(job.launch, timeout_s=1e6)
    assert said(msgspec.structs.replace(job, traffic=traffic, launch=patient)) == ""
