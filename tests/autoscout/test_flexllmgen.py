"""FlexLLMGen's offloading: its cost model, its linear program, and policies as configurations."""

import itertools

import numpy as np
import pytest
from autoscout_flexllmgen.offloading import GB, SHARES, Generation, Machine, evaluate, solve
from autoscout_flexllmgen.policies import costs

from autoscout.search.strategy import strategy
from autoscout.targets.jobs import JobSpace, load_job, profiler_of
from autoscout.targets.target import target_of
from kb.records import Configuration

# The defaults of its CostModelConfig: a model of GPT-3's shape on a T4.
GPT3 = Generation(prompt=512, tokens=32, layers=96, hidden=12288, ffn=4 * 12288, heads=96)
T4 = Machine(gpu=15 * GB)
JOB = "fixtures/jobs/opt-30b-flexllmgen.toml"


def policy(**share: float) -> dict[str, float]:
    return {**dict.fromkeys(SHARES, 0.0), **share}


def test_terms_by_hand():
    host = policy(wc=1.0, cc=1.0, hc=1.0)
    found = evaluate(GPT3, T4, 1, 1, host)
    weights = 8 * 12288**2 + 4 * 12288 * 4 * 12288
    up = (weights + 2 * 512 * 12288) / (12.89 * GB)
    down = 4 * 513 * 12288 / (0.97 * GB) + 2 * 512 * 12288 / (4.82 * GB)
    compute = 512 * weights / 21.24e12 + 4 * 512**2 * 12288 / 9.97e12
    assert found["prefill_s"] == pytest.approx(96 * max(up, down, compute))
    assert found["cpu_gib"] * GB > 96 * weights
    assert not found["fits"]  # 324 GiB of weights beside 204 of host memory


def test_the_linear_program_is_no_worse_than_any_policy_on_a_grid():
    small = Generation(prompt=512, tokens=32, layers=48, hidden=7168, ffn=4 * 7168, heads=56)
    shares = solve(small, T4, 8, 4)
    assert shares is not None
    assert all(sum(shares[k + p] for p in "gcd") == pytest.approx(1.0) for k in "wch")
    best = evaluate(small, T4, 8, 4, shares)
    assert best["fits"]
    for wg, wc, cg, cc, hg in itertools.product((0, 0.1, 0.2, 0.5), (0, 0.5, 0.8, 1), (0, 0.5, 1), (0, 0.5, 1), (0, 1)):
        if wg + wc <= 1 and cg + cc <= 1:
            tried = policy(wg=wg, wc=wc, wd=1 - wg - wc, cg=cg, cc=cc, cd=1 - cg - cc, hg=hg, hc=1 - hg)
            found = evaluate(small, T4, 8, 4, tried)
            assert not found["fits"] or found["output_tokens_per_s"] <= best["output_tokens_per_s"] * (1 + 1e-6)


def test_what_cannot_fit_has_no_policy():
    assert solve(GPT3, Machine(gpu=1 * GB), 64, 32) is None


def test_a_larger_block_shares_the_loads_of_weights():
    host = policy(wc=1.0, cc=1.0, hg=1.0)
    one, many = (evaluate(GPT3, T4, 4, n, host)["output_tokens_per_s"] for n in (1, 8))
    assert many > one


def test_a_policy_is_a_configuration_with_its_flags(tmp_path):
    job = load_job(JOB)
    space = JobSpace.of_job(job)
    measured = profiler_of(job).run(space.reference, "it", tmp_path)
    assert (measured.status, measured.fidelity) == ("ok", "predicted")
    assert "nothing was measured" in measured.evidence
    made = target_of(job).launch(job, space.reference)
    percent = made.arguments["--percent"]
    assert isinstance(percent, list)
    assert len(percent) == 6
    too_much = Configuration({**space.reference.knobs, "w_gpu": 100, "w_cpu": 0})
    assert profiler_of(job).run(too_much, "it", tmp_path).status == "oom"
    assert space.violations(Configuration({**space.reference.knobs, "w_gpu": 60, "w_cpu": 60}))


def test_its_linear_program_as_a_rival_is_near_the_best_at_once():
    job = load_job(JOB)
    space = JobSpace.of_job(job)
    chosen = strategy("flexllmgen", space, seed=0)
    speeds = []
    for _ in range(6):
        for c in chosen.ask():
            found = profiler_of(job).run(c, "it", None)  # type: ignore[arg-type]
            speeds.append(found.metrics.get("output_tokens_per_s", 0.0))
            chosen.tell([found])
    everything = costs(job, space.feasible.columns())
    best = float(np.max(np.where(everything["fits"], everything["output_tokens_per_s"], 0.0)))
    assert max(speeds) >= 0.95 * best
