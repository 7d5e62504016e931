"""What simulators say of a job's bounds, from the models to the session's search."""

from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest

import autoscout
from autoscout.job.metrics import SERVING_METRICS
from autoscout.search.belief.foreseen import MEMORY
from autoscout.search.belief.prior_means import Predictor
from autoscout.simulate.ensemble import Simulators
from autoscout.targets.jobs import JobSpace, load_job, simulators_of
from autoscout.tuning.bounds import foreseen
from kb.records import Cluster, Job, Node, Objective, SpaceLimits, Traffic

SERVED = Path("fixtures/jobs/llama-3-8b-serve.toml")


def served(*constraints: str, maximize: str = "output_tokens_per_s") -> Job:
    """256 users of eight A100."""
    return msgspec.structs.replace(
        load_job(SERVED),
        cluster=Cluster(nodes=[Node(device="a100", count=8)]),
        traffic=Traffic(concurrency=256, input_len=512, output_len=128),
        objective=Objective(maximize=maximize, constraints=[*constraints]),
        space=SpaceLimits(fix={"quantization": "none", "spec": "none", "long_prefill": 0, "block_size": 16}),
    )


def foreseen_of(job: Job) -> dict[str, Predictor]:
    space = JobSpace.of_job(job)
    return foreseen(job, Simulators(job, space, [], bases=partial(simulators_of, job)), space)


def predicted(job: Job, space: JobSpace, metric: str, codes: np.ndarray) -> np.ndarray:
    about = msgspec.structs.replace(job, objective=Objective(minimize=metric))
    simulators = Simulators(job, space, [], bases=partial(simulators_of, job))
    return simulators_of(about)[0].predict(simulators.columns_of(codes, space)).value


def test_every_bound_that_a_simulator_predicts_is_foreseen():
    bounds = "ttft_p95_ms <= 700", "output_tokens_per_s >= 50", "tpot_mean_ms <= 0"
    job = served(*bounds)
    space = JobSpace.of_job(job)
    found = foreseen_of(job)
    assert sorted(found) == ["output_tokens_per_s >= 50", "ttft_p95_ms <= 700"]
    codes = space.feasible.codes[:: len(space.feasible) // 200]
    assert list(foreseen_of(served("peak_memory_gib <= 60"))) == [MEMORY]
    assert not foreseen_of(served("peak_memory_gib >= 6"))
    waits = predicted(job, space, "ttft_p95_ms", codes)
    assert found["ttft_p95_ms <= 700"](codes) == pytest.approx(np.log(waits / 700), nan_ok=True)
    rates = predicted(job, space, "output_tokens_per_s", codes)
    with np.errstate(divide="ignore"):
        assert found["output_tokens_per_s >= 50"](codes) == pytest.approx(np.log(50 / rates), nan_ok=True)


@pytest.mark.parametrize("metric", SERVING_METRICS)
def test_a_bound_on_any_metric_is_foreseen_or_left_alone(metric):
    job = served(f"{metric} <= 1")
    space = JobSpace.of_job(job)
    found = foreseen_of(job)
    for predict in found.values():
        assert predict(space.feasible.codes[:50]).shape == (50,)


def test_of_a_training_job_it_is_the_memory_or_what_its_bound_leaves():
    job = load_job(Path("fixtures/jobs/llama-3.1-nemotron-nano-8b.toml"))
    job = msgspec.structs.replace(job, cluster=Cluster(nodes=[Node(device="a100", count=8)]))
    space = JobSpace.of_job(job)
    codes = space.feasible.codes[:: len(space.feasible) // 200]
    simulators, plain = Simulators(job, space, [], bases=partial(simulators_of, job)), foreseen_of(job)
    assert list(plain) == [MEMORY]
    assert simulators.memory is not None
    fails, full = simulators.memory.oom_probability(simulators.columns_of(codes)), plain[MEMORY](codes)
    assert fails[full > 0.1].min() > 0.5 > fails[full < -0.1].max()
    bound = msgspec.structs.replace(job.objective, constraints=["peak_memory_gib <= 20"])
    strict = msgspec.structs.replace(job, objective=bound)
    gib = predicted(job, space, "peak_memory_gib", codes)
    assert foreseen_of(strict)[MEMORY](codes) == pytest.approx(np.log(gib / 20))


def test_a_session_whose_reference_is_too_slow_a_token_tries_what_is_predicted_to_be_faster(tmp_path):
    """Most tokens a second come with the slowest ones. Sessions tried these for as long as nothing kept the bound."""
    job = served("tpot_mean_ms <= 9")
    space = JobSpace.of_job(job)
    kept = []
    with autoscout.Study(job, kb=tmp_path / "kb.duckdb") as study:
        for _ in range(8):
            (asked,) = study.ask()
            codes = np.array([space.codes_of(asked.knobs)])
            told = {m: float(predicted(job, space, m, codes)[0]) for m in ("output_tokens_per_s", "tpot_mean_ms")}
            kept.append(told["tpot_mean_ms"] <= 9)
            study.tell(asked, told)
    assert not kept[0]
    assert sum(kept) >= 4
